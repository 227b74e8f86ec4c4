"""Computes the costs of each choice of each sample from measurements: bytes, and CPU seconds on either side.

The main process makes of them the table that a policy plans with.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Costs, MadeTable, blocks
from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.encodings.estimate import Features, UsedAt
from sophon_loader.encodings.registry import fitted, used_at
from sophon_loader.kinds.image.part import CUT_SHARE, FIXED_SHARE, WORTH_SHARE
from sophon_loader.measures.sample_profile import UNKNOWN_NBYTES, SampleProfile
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.described import begin_on_size
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.plans.calibration import Calibration

HEADER_NBYTES = 90
"""Bytes of a reply apart from its payload."""


def region_share(chain: Chain, sides: NDArray[np.uint16], draw: Draw) -> float:
    """Return the share of a picture that a chain will read; 1 if unknown.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        sides: uint16[2], width and height of the picture in px; 0 if unknown.
        draw: of the sample.
    """
    width, height = int(sides[0]), int(sides[1])
    return begin_on_size(chain, width, height, draw).share if width and height else 1.0


class _Encoded(NamedTuple):
    """Values as an encoding sends them: bytes, and CPU seconds of the agent and of the loader, one for each value."""

    nbytes: NDArray[Any]
    encode_s: NDArray[Any] | float
    decode_s: NDArray[Any] | float


class CostModel:
    """Costs of every choice, from a profile and a calibration.

    For example, what each sample of an epoch costs while whole pictures are read:

        table = CostModel(profile, calibration, reach=4, allowed=encoding_names()).table(np.ones(samples))

    Args:
        profile: sizes and times of all samples.
        calibration: figures that hold for all samples.
        reach: the last stage the agent can reach.
        allowed: encodings that may be used.
        plain: the stages at which a value may cross as it is; None for all that the agent can reach.
        files_here: True if the loader reads files that would cross whole itself: no wire, no agent.
    """

    def __init__(
        self,
        profile: SampleProfile,
        calibration: Calibration,
        reach: int,
        allowed: Collection[str],
        *,
        plain: range | None = None,
        files_here: bool = False,
    ) -> None:
        self._profile = profile
        self._files_here = files_here
        self.calibration = calibration
        stages = min(reach, profile.ops)
        choices = [FILE]
        for stage in range(1, stages + 1):
            if plain is None or stage in plain:
                choices.append(Choice(stage, PLAIN[0]))
        for name, fit in calibration.fits.items():
            if name in allowed and fit.cut <= stages:
                choices.append(Choice(fit.cut, name))
        self.choices: tuple[Choice, ...] = tuple(choices)

    def costs(self, rows: NDArray[Any], share: NDArray[Any]) -> Costs:
        """Return (wire bytes, agent CPU seconds, loader CPU seconds), each float32[n, C].

        Args:
            rows: int[n], the samples; results for a sample without a profile are meaningless.
            share: float[n], share of the picture that the first crop reads; 1 if unknown.
        """
        profile, calibration = self._profile, self.calibration
        op_s = profile.op_ms[rows].astype(np.float32) / 1000
        spent = np.cumsum(op_s * np.asarray(calibration.op_ratio, np.float32), axis=1)
        left = np.maximum(op_s.sum(axis=1, keepdims=True) - np.cumsum(op_s, axis=1), 0)  # rounding may take it below
        nbytes, px = profile.nbytes[rows], profile.sides[rows].astype(np.float64).prod(axis=1)
        there = (nbytes > 0) & (nbytes < UNKNOWN_NBYTES)  # 0: its pipeline ends before this stage
        wire, agent, loader = (np.empty((len(rows), len(self.choices)), np.float32) for _ in range(3))
        given: dict[int, Features] = {}
        for column, choice in enumerate(self.choices):
            cut = choice.cut
            if cut not in given:
                given[cut] = Features(nbytes[:, 0], nbytes[:, cut], px, share)
            encoded = self._encoded(choice, given[cut])
            if cut == 0:
                decoding_s = op_s[:, 0] * self._decoded_share(choice.encoding, share)
                wire[:, column] = encoded.nbytes
                agent[:, column] = encoded.encode_s
                loader[:, column] = left[:, 0] + decoding_s + encoded.decode_s
            else:
                wire[:, column] = np.where(there[:, cut], encoded.nbytes, np.inf)
                agent[:, column] = spent[:, cut - 1] + encoded.encode_s
                loader[:, column] = left[:, cut - 1] + encoded.decode_s
        agent[:, :1] += np.float32(calibration.read_s + calibration.upkeep_s.file_s)
        agent[:, 1:] += np.float32(calibration.read_s + calibration.upkeep_s.op_s)
        wire += HEADER_NBYTES
        if self._files_here:
            wire[:, 0] = agent[:, 0] = 0
        return wire, agent, loader + np.float32(calibration.overhead_s)

    def _encoded(self, choice: Choice, given: Features) -> _Encoded:
        """Return the sizes and times of values at a choice's stage, in its encoding."""
        fit = self.calibration.fits.get(choice.encoding)
        if fit is None:  # its size is exact
            encode_s = 0.0 if choice == FILE else self.calibration.encode_s
            return _Encoded(given.value_nbytes, encode_s, 0.0)
        estimate = fitted()[choice.encoding]
        nbytes: NDArray[Any] = estimate.nbytes(fit, given)
        if estimate.needs_px:
            nbytes = np.where(given.px > 0, nbytes, np.inf)
        seconds = estimate.encode_s(fit, given)
        return _Encoded(nbytes, seconds, seconds * estimate.decode_per_encode)

    def _decoded_share(self, encoding: str, share: NDArray[Any]) -> NDArray[Any]:
        """Return the loader's cost of op 0 after crossing at stage 0, relative to decoding the whole file."""
        if used_at(encoding) is UsedAt.FIRST_REGION:
            return np.minimum(share + FIXED_SHARE, 1)
        if not self.calibration.crops_first:
            return np.ones_like(share)
        # It cuts the bitstream first where that pays.
        return np.where(share < WORTH_SHARE, np.minimum(share + FIXED_SHARE + CUT_SHARE, 1), 1.0)

    def table(self, share: NDArray[Any]) -> ChoiceTable | None:
        """Return the costs of all samples, made in blocks; None while none is profiled.

        A sample without a profile counts as an average one at stage 0 and has no other choice.

        Args:
            share: float[P], see `costs`; the samples have these in turn.
        """
        profile = self._profile
        samples, known = len(profile.nbytes), int(np.count_nonzero(profile.known))
        if not known:
            return None
        means = self._means(share) if known < samples else (0.0, 0.0, 0.0)

        def make(rows: NDArray[Any]) -> Costs:
            found = self.costs(rows, share[rows % len(share)])
            unknown = profile.nbytes[rows, 0] == 0
            for values, mean, filler in zip(found, means, (math.inf, 0.0, 0.0), strict=True):
                values[unknown, 0] = mean
                values[unknown, 1:] = filler
            return found

        return MadeTable(self.choices, samples, make, measured=profile.known)

    def _means(self, share: NDArray[Any]) -> tuple[float, ...]:
        """Return the mean (wire bytes, agent seconds, loader seconds) of a profiled sample that crosses as its file."""
        sums, count = np.zeros(3), 0
        for part in blocks(len(self._profile.nbytes)):
            rows = part.start + np.flatnonzero(self._profile.nbytes[part, 0])
            costs = self.costs(rows, share[rows % len(share)])
            sums += [values[:, 0].sum(dtype=np.float64) for values in costs]
            count += len(rows)
        return tuple((sums / count).tolist())
