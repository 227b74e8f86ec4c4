"""Shares profiles of samples between the ranks that have measured them."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import warn_user
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.ranks.ranks import Ranks, ToldReports
from sophon_loader.ranks.seeding import rank_of_all

WAIT_S = 10.0
"""Seconds that an epoch's start waits for the other ranks' profiles, once; later ones take those that have arrived."""
ROWS = 1 << 16
"""Number of samples in a message, of at most 66 bytes each: the store takes messages of up to 8 MiB."""
MAX_SAMPLES = 4_000_000
"""Maximum samples in the dataset for sharing. With more, the store's process would hold over 256 MB for a while."""
KEPT_EPOCHS = 2
"""Number of epochs for which a rank's profile stays in the store."""
_ARRAYS = (("indices", np.uint32), ("nbytes", np.uint32), ("op_ms", np.float16), ("sides", np.uint16))


class Gathering:
    """Lets each rank plan over all samples; each rank measures its own in the first epoch.

    It uses no collectives. A rank publishes its measurements at the end of its epoch, and takes the others' when its
    next one begins. A rank that publishes nothing is waited for once, `WAIT_S` at most.

    Args:
        ranks: of the loader.
        samples: of this rank; missing ones are filled in.
        alone: True if the sampler may be this rank's alone, so that no rank is waited for.
    """

    def __init__(self, ranks: Ranks, samples: SampleProfile, *, alone: bool = False) -> None:
        self._ranks = ranks
        self._alone = alone
        self._samples = samples
        self._missing = set(ranks.others)
        self._told: int | None = None  # number of messages, once this rank has published its profile
        self._epochs = 0  # since then

    def tell(self) -> None:
        """Publish this rank's measurements at the end of an epoch, if that has not been done."""
        if self._told is not None or len(self._samples.nbytes) > MAX_SAMPLES:
            return
        indices = np.flatnonzero(self._samples.known).astype(np.uint32)
        self._told = -(-len(indices) // ROWS)
        for number in range(self._told):
            some = indices[number * ROWS : (number + 1) * ROWS]
            rows = {"indices": some, **{name: array[some] for name, array in self._samples.arrays().items()}}
            self._ranks.put(f"profile {number}", msgpack.packb({name: rows[name].tobytes() for name, _ in _ARRAYS}))
        self._ranks.put("profile", msgpack.packb(self._told))  # last: what it counts is there

    def take(self) -> bool:
        """Take the others' measurements as an epoch begins; returns True if any of them is new here."""
        if self._told is None:
            return False
        before = self._samples.coverage
        if before < 1 and self._missing:
            waits = not (self._epochs or self._alone)
            found = self._ranks.gather(self._look, WAIT_S if waits else 0.0)
            self._missing -= found.keys()
            if self._missing and waits and self._samples.coverage < 1:
                warn_user(
                    f"Ranks {sorted(self._missing)} have not told what they measured within {WAIT_S:g} s. Samples "
                    "that only they have seen are planned as average ones, until they tell or this rank sees them."
                )
        self._epochs += 1
        if self._epochs == KEPT_EPOCHS:
            for what in ("profile", *(f"profile {number}" for number in range(self._told))):
                self._ranks.drop(what)
        return self._samples.coverage > before

    def _look(self, rank: int) -> bool | None:
        """Take over a rank's profile, if it is there."""
        if rank not in self._missing:
            return True
        head = self._ranks.take(rank, "profile")
        parts = [self._ranks.take(rank, f"profile {n}") for n in range(msgpack.unpackb(head))] if head else [None]
        for part in parts:
            if part is None:
                return None
            self._samples.add(*self._unpacked(part))
        return True

    def _unpacked(self, part: bytes) -> tuple[Any, dict[str, Any]]:
        told = msgpack.unpackb(part)
        rows = {name: np.frombuffer(told[name], dtype) for name, dtype in _ARRAYS}
        indices = rows.pop("indices")
        here = self._samples.arrays()
        return indices, {name: one.reshape(len(indices), *here[name].shape[1:]) for name, one in rows.items()}


def exchange(
    data: Offloadable, profile: SampleProfile | None, *, alone: bool
) -> tuple[ToldReports | None, Gathering | None]:
    """Return the exchanges between the ranks that iterate over a loader; nothing for a single process.

    Args:
        data: the dataset, taken apart.
        profile: to be filled for each sample; None if no plan needs it.
        alone: see `Gathering`.
    """
    if rank_of_all()[1] == 1:
        return None, None
    owners = {type(owner).__name__ for owner in data.owners}
    ranks = Ranks(f"{', '.join(sorted(owners))} of {len(data)}")
    return ToldReports(ranks), None if profile is None else Gathering(ranks, profile, alone=alone)
