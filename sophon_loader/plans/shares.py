"""Shares of pictures that an epoch's crops will read: drawn with the epoch's own random numbers, before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Seed, threads_beside
from sophon_loader.plans.allowed_cuts import AllowedCuts
from sophon_loader.plans.costs import region_share

EXACT_SHARES = 2_000
"""Maximum number of samples whose own crops are drawn for a plan. Drawing takes about 25 us each, so 50 ms for these; a
plan for more samples uses the spread of these."""


class CropShares:
    """The share of each picture that the first crop of its pipeline reads in an epoch.

    It follows from the epoch's random numbers, so it is known before. It is 1 if a pipeline does not begin with a crop,
    for samples without a profile, and while other threads run, whose random numbers drawing would disturb.

    Example:
        >>> CropShares(pipelines, data.source_of.array, profile, seed=Seed(1)).in_turn(epoch=0).shape
        (1000,)

    Args:
        source_of: int16[N], the source of each sample.
        profile: of the N samples; has their sides.
        seed: of all random numbers; None if no plan needs shares.
    """

    def __init__(
        self, pipelines: AllowedCuts, source_of: NDArray[Any], profile: SampleProfile, seed: Seed | None
    ) -> None:
        self._pipelines = pipelines
        self._source_of = source_of
        self._profile = profile
        self._seed = seed

    def in_turn(self, epoch: int) -> NDArray[np.float64]:
        """Return float64[P]: shares that the samples have in turn, exact for few samples, else of `EXACT_SHARES` of
        them.

        Args:
            epoch: number of the epoch whose random numbers to draw.
        """
        count = len(self._source_of)
        if count <= EXACT_SHARES:
            return self.of(range(count), epoch)
        drawn = self.of([int(i) for i in np.linspace(0, count - 1, EXACT_SHARES)], epoch)
        return np.random.default_rng(0).permutation(drawn)

    def of(self, rows: Sequence[int], epoch: int) -> NDArray[np.float64]:
        """Return float64[n]: the shares of some samples.

        Args:
            rows: n indices of samples.
            epoch: number of the epoch whose random numbers to draw.
        """
        shares = np.ones(len(rows))
        if self._seed is None or not self._pipelines.crops_first or threads_beside():
            return shares
        with isolated(GENERATORS):
            for position, row in enumerate(rows):
                chain = self._pipelines.chains[int(self._source_of[row])]
                shares[position] = region_share(chain, self._profile.sides[row], self._seed.draw(epoch, row))
        return shares
