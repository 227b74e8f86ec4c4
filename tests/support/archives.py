"""Archives of a folder, by each writer that is at hand."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

Writer = Callable[[Path, Path], None]
"""Writes the tree below a folder into a new archive."""


def _tarfile(form: int) -> Writer:
    def write(root: Path, archive: Path) -> None:
        with tarfile.open(archive, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
            for path in sorted(root.iterdir()):
                tar.add(path, path.name)

    return write


def _gnu_tar(form: str, what: str = ".") -> Writer:
    def write(root: Path, archive: Path) -> None:
        names = [what] if what == "." else sorted(path.name for path in root.iterdir())
        subprocess.run(["tar", f"--format={form}", "-cf", archive, "-C", root, "--", *names], check=True, timeout=30)

    return write


def _bsdtar(form: str) -> Writer:
    def write(root: Path, archive: Path) -> None:
        subprocess.run(["bsdtar", "--format", form, "-cf", archive, "-C", root, "."], check=True, timeout=30)

    return write


def _zipfile(root: Path, archive: Path) -> None:
    """Stored; a link as Info-ZIP stores it."""
    with zipfile.ZipFile(archive, "w") as made:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                link = zipfile.ZipInfo(name)
                link.create_system, link.external_attr = 3, 0o120777 << 16
                made.writestr(link, str(path.readlink()))
            else:
                made.write(path, name)


def _info_zip(root: Path, archive: Path) -> None:
    subprocess.run(["zip", "-q", "-0", "-y", "-r", archive, "."], cwd=root, check=True, timeout=30)


TAR_WRITERS: dict[str, Writer] = {
    "tarfile-gnu": _tarfile(tarfile.GNU_FORMAT),
    "tarfile-pax": _tarfile(tarfile.PAX_FORMAT),
    "tarfile-ustar": _tarfile(tarfile.USTAR_FORMAT),
}
ZIP_WRITERS: dict[str, Writer] = {"zipfile": _zipfile}
if shutil.which("tar"):
    TAR_WRITERS |= {f"tar-{form}": _gnu_tar(form) for form in ("gnu", "oldgnu", "pax", "ustar", "v7")}
    TAR_WRITERS["tar-names"] = _gnu_tar("gnu", "names")
if shutil.which("bsdtar"):
    TAR_WRITERS |= {f"bsdtar-{form}": _bsdtar(form) for form in ("pax", "gnutar", "ustar")}
if shutil.which("zip"):
    ZIP_WRITERS["info-zip"] = _info_zip


def location_of(root: Path, archive: Path, writer: str) -> str:
    """Write a folder into an archive, and give what stands behind `--export NAME=`.

    Args:
        root: the folder.
        archive: to be written, without suffix.
        writer: a name of TAR_WRITERS or ZIP_WRITERS.
    """
    scheme = "tar" if writer in TAR_WRITERS else "zip"
    path = archive.with_name(f"{archive.name}.{scheme}")
    {**TAR_WRITERS, **ZIP_WRITERS}[writer](root, path)
    return f"{scheme}://{path}"
