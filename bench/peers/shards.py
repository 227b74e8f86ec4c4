"""Flat tar shards, as webdataset writes and reads them."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

from bench.peers.systems import pictures

SHARDS = 4
"""Few, because each one costs webdataset a process of curl; but every worker needs one."""


def write_shards(data: str | Path, folder: Path) -> None:
    """Write the pictures of an ImageFolder tree and their labels.

    Args:
        data: the tree.
        folder: for the shards, `000000.tar` and so on.
    """
    files = list(enumerate(pictures(str(data))))
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard:06d}.tar", "w") as tar:
            for number, (file, label) in files[shard::SHARDS]:
                for name, body in ((f"{number:08d}.jpg", file.read_bytes()), (f"{number:08d}.cls", b"%d" % label)):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(body)
                    tar.addfile(entry, BytesIO(body))


def location_of(folder: Path) -> str:
    """Return the location of a folder's shards, as an agent takes it."""
    return f"tar://{folder}/{{{0:06d}..{SHARDS - 1:06d}}}.tar"
