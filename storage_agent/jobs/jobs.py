"""What is asked of a worker or a reader thread: one sample, and what its Fetch said for all of its samples."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from operator import attrgetter

import msgpack

from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import CHEAPEST, Item, ProgramItem

FEWER_CORES = 4
"""Times as many cores as there are for which prices were worked out, from which on they are of another time."""
_LATEST = 8
"""Headers that a worker keeps unpacked: the samples of a Fetch come one by one, among those of other loaders."""


@dataclass(frozen=True)
class FetchHeader:
    """What the samples of one Fetch share.

    Args:
        client: ZeroMQ routing id of the loader's connection.
        export: name of the export.
        digest: of the pipeline; "" where only files are asked for.
        seed: of the loader's draws.
        epoch: number of the epoch.
        keep_info: whether an image's `info` has to go along.
        dry: whether the payload stays behind.
        allowed: encodings that the loader accepts and this agent has; `INFO_CLASSES` and `ANY_PART`, if the
            loader does.
        received_s: when the Fetch came, by this host's monotonic clock, in seconds.
        upkeep_s: CPU seconds that a sample lately cost the agent apart from reading, ops and encoding.
        cores: that this loader can count on.
        per_worker: cores that the agent had for each of its workers.
        prices: of wire, agent and loader, and the `per_worker` for which they were worked out, 0 for none; for items
            whose choice is left to the agent, empty without such.
        has_programs: whether its items are programs, so that there is no pipeline, and nothing to draw.
        pixels_by: of a FetchPrograms.

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
        """For the way to a worker; made once for all samples."""
        packed: bytes = msgpack.packb(_values_of(self), unicode_errors="surrogateescape")
        return packed

    @staticmethod
    @lru_cache(maxsize=_LATEST)
    def unpacked(packed: bytes) -> FetchHeader:
        """The inverse of `packed`; made once for all samples, too."""
        return FetchHeader(*msgpack.unpackb(packed, unicode_errors="surrogateescape"))


_values_of = attrgetter(*(one.name for one in fields(FetchHeader)))


@dataclass(frozen=True)
class Job:
    """One sample that a loader wants.

    Args:
        fetch: shared by all samples of its Fetch.
        item: which sample, at which cut, in which encoding.
        own_upkeep_s: what the process that works on it adds to the agent's upkeep.

    Example:
        >>> Job.from_frames(*job.frames()) == job
        True
    """

    fetch: FetchHeader
    item: Item | ProgramItem
    own_upkeep_s: float = 0.0

    def is_outdated(self, per_worker: float) -> bool:
        """Whether what the choice was left to the agent for is gone: to do it would take many times as long as meant.

        Args:
            per_worker: cores that the agent has for each of its workers now.
        """
        meant = self.fetch.prices[3] if self.item.encoding == CHEAPEST and len(self.fetch.prices) > 3 else 0.0
        return FEWER_CORES * per_worker < meant

    def frames(self) -> tuple[bytes, bytes]:
        """For the way to a worker: the header and the item, packed."""
        return self.fetch.packed, msgpack.packb(self.item, unicode_errors="surrogateescape")

    @staticmethod
    def from_frames(fetch: Payload, item: Payload, own_upkeep_s: float = 0.0) -> Job:
        """The inverse of `frames`.

        Args:
            fetch: the packed header.
            item: the packed item.
            own_upkeep_s: of the receiving process.
        """
        header = FetchHeader.unpacked(bytes(fetch))
        row = ProgramItem if header.has_programs else Item
        return Job(header, row(*msgpack.unpackb(item, unicode_errors="surrogateescape")), own_upkeep_s)
