"""Flat sets of samples, as WebDataset's writer lays them out."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

from tests.support.pictures import make_tree


def members_of(number: int, picture: bytes) -> dict[str, bytes]:
    """The files of one sample, by name: a picture, an int, a text that is no UTF-8 in others' eyes, and JSON."""
    base = f"{number:06}"
    return {
        f"{base}.jpg": picture,
        f"{base}.cls": b"%d" % (number % 7),
        f"{base}.txt": f"sample {number} é".encode(),
        f"{base}.meta.json": json.dumps({"number": number}).encode(),
        f"{base}.bin": bytes([0, 255, number]),
    }


def pictures_in(folder: Path, count: int) -> list[bytes]:
    """The bytes of so many pictures, which are made below a folder."""
    return [path.read_bytes() for path in sorted(make_tree(folder, count).rglob("*.jpg"))]


def write_flat(folder: Path, shards: list[list[dict[str, bytes]]]) -> dict[str, str]:
    """Write shards of samples as tar files, as zip files and as folders, and give the exports of each by its name.

    Args:
        folder: for all of them.
        shards: members by name, of each sample of each shard.
    """
    for kind in ("tars", "zips", "folders"):
        (folder / kind).mkdir(parents=True)
    for number, samples in enumerate(shards):
        here = folder / "folders" / f"part-{number}"
        here.mkdir()
        with (
            tarfile.open(folder / "tars" / f"part-{number}.tar", "w") as tar,
            zipfile.ZipFile(folder / "zips" / f"part-{number}.zip", "w") as zipped,
        ):
            for members in samples:
                for name, content in members.items():
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
                    zipped.writestr(name, content)
                    (here / name).write_bytes(content)
    last = len(shards) - 1
    return {
        "tars": f"tar://{folder}/tars/part-{{0..{last}}}.tar",
        "zips": f"zip://{folder}/zips/part-{{0..{last}}}.zip",
        "folders": str(folder / "folders"),
        "tar": f"tar://{folder}/tars/part-0.tar",
    }
