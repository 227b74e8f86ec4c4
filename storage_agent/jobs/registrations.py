"""Remembers pipelines, up to a limit."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from sophon_loader.wire.limits import MAX_PIPELINES

MAX_TOTAL_NBYTES = 256 << 20
"""Bytes of all registrations: 64 of the largest; an ordinary one has 300 bytes."""
LEAST_NBYTES = MAX_TOTAL_NBYTES // MAX_PIPELINES
"""Minimum bytes for which a registration counts."""
SHARED_TRIALS = 32
"""Number of newest trials kept per pipeline, about 300 bytes each: four times what a worker needs for an estimate."""


class _Kept(NamedTuple):
    """A registration, the client that first sent it, the bytes for which it counts, and the workers' trials."""

    client: bytes
    registration: bytes
    nbytes: int
    trials: deque[bytes]


class Registrations:
    """Registrations by digest, up to `MAX_TOTAL_NBYTES`. Beyond that the client with most bytes loses the one that it
    used longest ago. So a client that registers many displaces its own; its loader registers them again.

    Example:
        >>> pipelines = Registrations()
        >>> pipelines.keep(b"loader", "digest", b"registration")
        >>> pipelines.get("digest")
        b'registration'
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._nbytes: Counter[bytes] = Counter()  # by client

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, digest: str) -> bool:
        return digest in self._kept

    def get(self, digest: str) -> bytes | None:
        """Return the registration and mark it as used; None if it is unknown or forgotten."""
        kept = self._kept.get(digest)
        if kept is None:
            return None
        self._kept.move_to_end(digest)
        return kept.registration

    def note(self, digest: str, trial: bytes) -> None:
        """Keep a worker's trial, unless the pipeline has been forgotten.

        Args:
            digest: content hash of the pipeline.
            trial: packed by `workers/trials.py`.
        """
        if digest in self._kept:
            self._kept[digest].trials.append(trial)

    def trials(self, digest: str) -> Sequence[bytes]:
        """Return the newest trials of a pipeline, oldest first."""
        return tuple(self._kept[digest].trials) if digest in self._kept else ()

    def keep(self, client: bytes, digest: str, registration: bytes) -> None:
        """Remember a registration as the newest.

        Args:
            client: the client that sent it.
            digest: its content hash.
            registration: packed by `pipeline/registration.py`.
        """
        if self.get(digest) is not None:
            return
        nbytes = max(LEAST_NBYTES, len(registration))
        self._kept[digest] = _Kept(client, registration, nbytes, deque(maxlen=SHARED_TRIALS))
        self._nbytes[client] += nbytes
        while self._nbytes.total() > MAX_TOTAL_NBYTES:
            self._forget_one(but=digest)

    def _forget_one(self, but: str) -> None:
        others = [(digest, kept) for digest, kept in self._kept.items() if digest != but]
        most = max(self._nbytes[kept.client] for _, kept in others)
        digest, kept = next(one for one in others if self._nbytes[one[1].client] == most)
        del self._kept[digest]
        self._nbytes[kept.client] -= kept.nbytes
        if not self._nbytes[kept.client]:
            del self._nbytes[kept.client]
