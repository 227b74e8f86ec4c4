"""Jobs of workers and reader threads: one sample each, with the facts that its Fetch gives for all samples."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from operator import attrgetter

import msgpack

from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import CHEAPEST, Item, ProgramItem

FEWER_CORES = 4
"""Factor by which the cores per worker may have fallen since the prices were computed, before a choice is outdated."""
_LATEST = 8
"""Headers that a worker keeps unpacked: a Fetch's samples come one by one, mixed with those of other loaders."""


@dataclass(frozen=True)
class FetchHeader:
    """The facts that all samples of one Fetch share.

    Args:
        client: ZeroMQ routing id of the loader's connection.
        export: name of the export.
        digest: content hash of the pipeline; "" if only files are requested.
        seed: seed of the loader's draws.
        epoch: number of the epoch.
        keep_info: True if an image's `info` must be sent, too.
        dry: True if the payload is not sent.
        allowed: encodings that the loader accepts and this agent has, with the loader's `INFO_CLASSES` and `ANY_PART`.
        received_s: arrival of the Fetch by this host's monotonic clock, in seconds.
        upkeep_s: the agent's recent CPU seconds per sample apart from reading, ops and encoding.
        cores: cores that this loader can count on.
        per_worker: the agent's cores for each of its workers when the Fetch arrived.
        prices: prices of wire, agent and loader, and the `per_worker` for which they were computed, 0 for none. They
            apply to items whose choice is left to the agent; empty if there is no such item.
        has_programs: True if its items are programs, which need no pipeline and no draws.
        pixels_by: as in `FetchPrograms`.

    Example:
        >>> Job(header, Item(id=7, sample=3, occurrence=0, cut=2, encoding="pixels", key="cats/1.jpg"))
    """

    client: bytes
    export: str
    digest: str
    seed: int
    epoch: int
    keep_info: bool
    dry: bool
    allowed: list[str]
    received_s: float
    upkeep_s: float
    cores: float = 1.0
    per_worker: float = 1.0
    prices: list[float] = field(default_factory=list)
    has_programs: bool = False
    pixels_by: str = ""

    @cached_property
    def packed(self) -> bytes:
        """The header as bytes for a worker; packed once for all samples."""
        packed: bytes = msgpack.packb(_values_of(self), unicode_errors="surrogateescape")
        return packed

    @staticmethod
    @lru_cache(maxsize=_LATEST)
    def unpacked(packed: bytes) -> FetchHeader:
        """Read what `packed` wrote; unpacked once for all samples."""
        return FetchHeader(*msgpack.unpackb(packed, unicode_errors="surrogateescape"))


_values_of = attrgetter(*(one.name for one in fields(FetchHeader)))


@dataclass(frozen=True)
class Job:
    """One sample that a loader requests.

    Args:
        fetch: header shared by all samples of its Fetch.
        item: the sample, its cut and its encoding.
        own_upkeep_s: seconds that the process working on it adds to the agent's upkeep.

    Example:
        >>> Job.from_frames(*job.frames()) == job
        True
    """

    fetch: FetchHeader
    item: Item | ProgramItem
    own_upkeep_s: float = 0.0

    def is_outdated(self, per_worker: float) -> bool:
        """Return True if the agent has lost so many cores that its choice would take many times as long as the loader
        assumed.

        Args:
            per_worker: the agent's present cores for each of its workers.
        """
        meant = self.fetch.prices[3] if self.item.encoding == CHEAPEST and len(self.fetch.prices) > 3 else 0.0
        return FEWER_CORES * per_worker < meant

    def frames(self) -> tuple[bytes, bytes]:
        """Return the packed header and the packed item, for a worker."""
        return self.fetch.packed, msgpack.packb(self.item, unicode_errors="surrogateescape")

    @staticmethod
    def from_frames(fetch: Payload, item: Payload, own_upkeep_s: float = 0.0) -> Job:
        """Read what `frames` wrote.

        Args:
            fetch: the packed header.
            item: the packed item.
            own_upkeep_s: upkeep of the receiving process, in seconds.
        """
        header = FetchHeader.unpacked(bytes(fetch))
        row = ProgramItem if header.has_programs else Item
        return Job(header, row(*msgpack.unpackb(item, unicode_errors="surrogateescape")), own_upkeep_s)
