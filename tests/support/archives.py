"""Archives of a folder, by each program and library that writes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import pytest

Writer = Callable[[Path, Path], None]
"""Writes the tree below a folder into a new archive."""


def _tarfile(form: int) -> Writer:
    def write(root: Path, archive: Path) -> None:
        with tarfile.open(archive, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
            for path in sorted(root.iterdir()):
                tar.add(path, path.name)

    return write


def _gnu_tar(form: str, what: str = ".", *more: str) -> Writer:
    def write(root: Path, archive: Path) -> None:
        names = [what] if what == "." else sorted(path.name for path in root.iterdir())
        _run("tar", f"--format={form}", *more, "-cf", archive, "-C", root, "--", *names)

    return write


def _incremental(root: Path, archive: Path) -> None:
    """A backup, whose folders are members of a type of their own."""
    _gnu_tar("gnu", ".", f"--listed-incremental={archive}.snar")(root, archive)


def _bsdtar(form: str, *more: str) -> Writer:
    def write(root: Path, archive: Path) -> None:
        _run("bsdtar", "--format", form, *more, "-cf", archive, "-C", root, ".", LC_ALL="C.UTF-8")

    return write


class _Pipe:
    """A file that zipfile cannot seek in, so that it writes sizes behind the members."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _zipfile(*, zip64: bool = False, piped: bool = False) -> Writer:
    """Stored; a link as Info-ZIP stores it."""

    def write(root: Path, archive: Path) -> None:
        with open(archive, "wb") as file, zipfile.ZipFile(cast(Any, _Pipe(file)) if piped else file, "w") as made:
            for path in sorted(root.rglob("*")):
                name = str(path.relative_to(root))
                if path.is_dir() and not path.is_symlink():
                    made.write(path, name)
                    continue
                entry = zipfile.ZipInfo(name)
                entry.create_system = 3
                entry.external_attr = (0o120777 if path.is_symlink() else 0o100644) << 16
                data = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
                with made.open(entry, "w", force_zip64=zip64) as member:
                    member.write(data)

    return write


def _info_zip(*more: str) -> Writer:
    def write(root: Path, archive: Path) -> None:
        subprocess.run(["zip", "-q", "-0", "-y", "-r", *more, archive, "."], cwd=root, check=True, timeout=30)

    return write


def _run(*command: str | Path, **environment: str) -> None:
    subprocess.run(command, check=True, timeout=30, env={**os.environ, **environment})


TAR_WRITERS: dict[str, Writer] = {
    "tarfile-gnu": _tarfile(tarfile.GNU_FORMAT),
    "tarfile-pax": _tarfile(tarfile.PAX_FORMAT),
    "tarfile-ustar": _tarfile(tarfile.USTAR_FORMAT),
    **{f"tar-{form}": _gnu_tar(form) for form in ("gnu", "oldgnu", "pax", "ustar", "v7")},
    "tar-names": _gnu_tar("gnu", "names"),
    "tar-incremental": _incremental,
    **{f"bsdtar-{form}": _bsdtar(form) for form in ("pax", "gnutar", "ustar", "v7tar")},
}
ZIP_WRITERS: dict[str, Writer] = {
    "zipfile": _zipfile(),
    "zipfile-zip64": _zipfile(zip64=True),
    "zipfile-piped": _zipfile(piped=True),
    "zip-info": _info_zip(),
    "zip-zip64": _info_zip("-fz"),
    "bsdtar-zip": _bsdtar("zip", "--options", "zip:compression=store"),
}
"""The part of a name in front of `-` is the program; tarfile and zipfile are Python's own."""


def location_of(root: Path, archive: Path, writer: str) -> str:
    """Write a folder into an archive, and give what stands behind `--export NAME=`; skips where there is no writer.

    Args:
        root: the folder.
        archive: to be written, without suffix.
        writer: a name of TAR_WRITERS or ZIP_WRITERS.
    """
    program = writer.partition("-")[0]
    if program not in ("tarfile", "zipfile") and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    scheme = "tar" if writer in TAR_WRITERS else "zip"
    path = archive.with_name(f"{archive.name}.{scheme}")
    {**TAR_WRITERS, **ZIP_WRITERS}[writer](root, path)
    return f"{scheme}://{path}"
