"""MDS sets made by hand, byte for byte as MDSWriter of mosaicml-streaming 0.13 lays them out."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Columns = Mapping[str, tuple[str, int | None]]
"""Name -> (encoding, size of each value or None), in the order of names."""
IMAGE: Columns = {"image": ("jpeg", None), "label": ("int", 8)}


def shard_of(samples: Sequence[Sequence[bytes]], columns: Columns = IMAGE) -> bytes:
    """Return a raw shard of samples, each of which has a value per column."""
    packed = []
    for values in samples:
        told = [len(value) for value, (_, size) in zip(values, columns.values(), strict=True) if size is None]
        packed.append(struct.pack(f"<{len(told)}I", *told) + b"".join(values))
    config = json.dumps({"column_names": [*columns]}).encode()  # MDSWriter puts it there, too
    offsets = [4 * (len(samples) + 2) + len(config)]
    for one in packed:
        offsets.append(offsets[-1] + len(one))
    return struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + config + b"".join(packed)


def set_of(
    folder: Path, shards: Mapping[str, Sequence[Sequence[bytes]]], columns: Columns = IMAGE, **changed: Any
) -> Path:
    """Write an MDS set of shards by name, and return its index.json.

    Args:
        folder: made if need be.
        shards: name without its suffix -> samples.
        columns: those of all.
        changed: fields of all shards in index.json.
    """
    told = []
    for name, samples in shards.items():
        path = folder / f"{name}.mds"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shard_of(samples, columns))
        told.append({
            "column_encodings": [encoding for encoding, _ in columns.values()], "column_names": [*columns],
            "column_sizes": [size for _, size in columns.values()], "compression": None, "format": "mds", "hashes": [],
            "raw_data": {"basename": f"{name}.mds", "bytes": path.stat().st_size, "hashes": {}},
            "samples": len(samples), "size_limit": 1 << 26, "version": 2, "zip_data": None, **changed,
        })  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": told, "version": 2}))
    return folder / "index.json"
