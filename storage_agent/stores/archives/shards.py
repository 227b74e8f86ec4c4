"""The shards of an MDS set, as its index.json lists them. The child process reads it, the main process checks paths."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sophon_loader.wire.limits import MAX_KEY_NBYTES
from storage_agent.stores.archives.members import ArchiveRefused


@dataclass(frozen=True)
class Shard:
    """One file of an MDS set.

    Args:
        name: its path from the folder of the set.
        nbytes: its size.
        samples: number of its samples.
        sizes: bytes of each column's value; None for a column whose samples say it.
        column: number of the column that holds the pictures.
    """

    name: str
    nbytes: int
    samples: int
    sizes: list[int | None]
    column: int


def shard_path(folder: str, name: str) -> str:
    """Return the path of a shard, which lies in the folder of its set.

    Args:
        folder: that of the index.json.
        name: the path from there, as the index.json has it.

    Raises:
        ArchiveRefused: it leads out of the folder, or cannot be a path.
    """
    try:
        is_path = 0 < len(name.encode()) <= MAX_KEY_NBYTES and "\0" not in name
    except UnicodeEncodeError:  # half a character of UTF-16
        is_path = False
    if not is_path or name != os.path.normpath(name) or os.path.isabs(name) or name.split("/")[0] in (".", ".."):
        raise ArchiveRefused(
            f"its shards must have plain paths within its folder, got {name[:200]!r}; write the set again"
        )
    path = os.path.join(folder, name)
    top = os.path.join(os.path.realpath(folder), "")
    if not os.path.realpath(path).startswith(top):
        raise ArchiveRefused(
            f"its shards must lie in its folder, got {name[:200]!r}, a link that leads out of it; copy the file there"
        )
    return path
