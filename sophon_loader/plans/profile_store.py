"""Profiles on disk (FastFlow calls this its metric store): saved once, reused while nothing they depend on changes."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 2
"""Version of the format, increased if the same bytes would mean something else; other files are measured again."""
_DAMAGE = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, EOFError, RuntimeError, SyntaxError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""Errors of numpy, zipfile and json at wrong bytes. RuntimeError is zipfile's for files that look encrypted."""


@dataclass(frozen=True)
class ProfileKey:
    """Conditions of a profile.

    Args:
        dataset: fingerprint of the keys of all samples, in order.
        pipeline: content hash of the pipelines.
        agent: endpoint and export, or "none".
        software: versions at the loader.
    """

    dataset: str
    pipeline: str
    agent: str
    software: dict[str, str]


@dataclass(frozen=True)
class StoredProfile:
    """Content of a profile's file.

    Args:
        arrays: those of a `SampleProfile`, by name.
        figures: figures that hold for all samples, as plain data.
    """

    arrays: dict[str, NDArray[Any]]
    figures: dict[str, Any]


def save(path: Path, key: ProfileKey, profile: StoredProfile) -> None:
    """Write a profile so that a reader sees the old file or the whole new one.

    Args:
        path: of the file; folders are made.
        key: conditions of the profile.
        profile: its content.

    Raises:
        OSError: it cannot be written; the old file is as it was.
    """
    header = json.dumps({"format": FORMAT, "key": asdict(key), "figures": profile.figures})
    with replacing(path) as file:
        np.savez_compressed(file, header=np.frombuffer(header.encode(), np.uint8), **profile.arrays)  # type: ignore[arg-type]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Within the block, a file to write. Once complete it replaces the one at `path`; after an error nothing is
    replaced.

    Args:
        path: of the file; folders are made.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            yield file
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with suppress(OSError):  # a full disk fails this, too, and would fail the end of the block
                file.close()
            os.unlink(file.name)
            raise


def load(path: Path, key: ProfileKey) -> StoredProfile | str:
    """Return a saved profile, or the reason why it cannot be used: missing, damaged, or measured for something else.

    Args:
        path: of the file.
        key: conditions that the profile must have.
    """
    if not path.exists():
        return f"there is no profile at {path} yet"
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(arrays.pop("header").tobytes())
        if header.get("format") != FORMAT:
            return f"the profile at {path} has format {header.get('format')}, not {FORMAT}"
        found, figures = dict(header["key"]), dict(header["figures"])
    except _DAMAGE as error:
        # numpy's own words would advise to load it unsafely.
        detail = f" ({error})" if isinstance(error, OSError) and error.errno is not None else ""
        return f"the profile at {path} is damaged or another program's file{detail}"
    wanted = asdict(key)
    differ = [name for name in wanted if found.get(name) != wanted[name]]
    if differ:
        return f"the profile at {path} is of another {' and '.join(differ)}"
    return StoredProfile(arrays, figures)
