"""What an index's making has to say to the operator: stands in the index, so that each start says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from storage_agent.host.log import EventLog

WRITE_PLAIN = 'write the table anew: pyarrow.parquet.write_table(table, NEW, compression="none", row_group_size=100)'
"""Remedy for compressed pictures of parquet files."""
_PACKED = f"their files take this space again in the folder of indexes; to save it, {WRITE_PLAIN}"
_BY_TIME = (
    "their sizes and times of change, in whole seconds, are compared instead; replace no object while agents serve it"
)


@dataclass(frozen=True)
class Found:
    """Files of one kind: how many, and the name of the first."""

    count: int = 0
    first: str = ""


@dataclass(frozen=True)
class Unpacked:
    """Pictures that lie in an archive compressed: how many of all, their size unpacked, and the first such archive."""

    count: int = 0
    of: int = 0
    nbytes: int = 0
    first: str = ""


@dataclass(frozen=True)
class Notes:
    """What is not served, what is not told apart by an ETag, and how archives of which some are flat are served.

    Args:
        left_out: reason -> (how many members are not served, name of the first).
        outside, inside: pictures outside of all folders, and in folders; none where all archives agree.
        flat: whether each archive is a folder of its own.
        doubts: reason -> (how many archives may not be whole, path of the first).
        by_time: objects whose time of change stands in for an ETag.
        unpacked: pictures that were compressed, and lie unpacked beside the index.

    Example:
        >>> Notes.unpack(Notes({"compressed": (2, "notes.txt")}).pack()).left_out
        {'compressed': (2, 'notes.txt')}
    """

    left_out: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    outside: Found = Found()
    inside: Found = Found()
    flat: bool = False
    by_time: Found = Found()
    doubts: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    unpacked: Unpacked = Unpacked()

    def pack(self) -> bytes:
        """Its bytes, for an index; none if there is nothing to say."""
        return b"" if self == Notes() else json.dumps(asdict(self)).encode()

    @staticmethod
    def unpack(packed: bytes) -> Notes:
        """What stands in an index."""
        if not packed:
            return Notes()
        found = json.loads(packed)
        reasons = (found["left_out"], found.get("doubts", {}))  # listings of earlier releases have no doubts
        left_out, doubts = ({why: (count, first) for why, (count, first) in one.items()} for one in reasons)
        outside, inside, by_time = (Found(**found[name]) for name in ("outside", "inside", "by_time"))
        unpacked = Unpacked(**found.get("unpacked", {}))
        return Notes(left_out, outside, inside, found["flat"], by_time, doubts, unpacked)

    def tell(self, export: str) -> None:
        """Log them."""
        log = EventLog()
        for why, (count, first) in self.left_out.items():
            log.warning("members left out", export=export, reason=why, count=count, first=first)
        for why, (count, first) in self.doubts.items():
            log.warning("archives that may not be whole", export=export, reason=why, count=count, first=first)
        if self.unpacked.count:
            log.warning("compressed pictures unpacked", export=export, **asdict(self.unpacked), remedy=_PACKED)
        if self.by_time.count:
            log.warning("objects without a usable ETag", export=export, **asdict(self.by_time), remedy=_BY_TIME)
        if self.outside.count and self.inside.count:
            odd, served = self.outside, "one folder; pictures outside of its folders are in no class"
            if self.flat:
                odd, served = self.inside, "a folder per archive"
            log.warning(
                "archives of two kinds",
                export=export,
                pictures_outside_of_folders=self.outside.count,
                pictures_in_folders=self.inside.count,
                first=odd.first,
                served_as=served,
            )
