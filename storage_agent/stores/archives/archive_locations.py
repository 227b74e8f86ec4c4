"""The archives that a location names: `tar:///data/shards/{000000..000099}.tar`, `parquet:///data/*.parquet#image`.

Of an MDS set, that is its index.json, which lists the others.
"""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass

from sophon_loader.errors import ConfigError
from storage_agent.stores.archives.braces import TooMany, expanded

MAX_CONTAINERS = 100_000
"""Archives of one export."""
_UNPACKERS = {
    ".gz": "gunzip", ".tgz": "gunzip", ".zst": "zstd -d", ".tzst": "zstd -d", ".xz": "unxz", ".txz": "unxz",
    ".bz2": "bunzip2", ".tbz2": "bunzip2", ".lz4": "lz4 -d",
}  # fmt: skip


@dataclass(frozen=True)
class ArchiveLocation:
    """A location in its parts.

    Args:
        kind: its scheme: "tar", "zip", "parquet", "mds" or "lance".
        path: may have ranges in braces and `*`, except for "mds" and "lance".
        column: the name of the column of a table or set that holds the pictures; "" where none is named.

    Example:
        >>> ArchiveLocation.of("parquet:///data/*.parquet#image")
        ArchiveLocation(kind='parquet', path='/data/*.parquet', column='image')
    """

    kind: str
    path: str
    column: str = ""

    @staticmethod
    def of(location: str) -> ArchiveLocation:
        """The parts of what stands behind `--export NAME=`."""
        kind, _, path = location.partition("://")
        if kind in ("parquet", "mds", "lance") and not os.path.exists(path):
            front, mark, column = path.rpartition("#")
            if mark and "/" not in column:
                return ArchiveLocation(kind, front, column)
        return ArchiveLocation(kind, path)

    @property
    def what(self) -> str:
        """What its index is of: the kind, and the column."""
        return f"{self.kind}#{self.column}" if self.column else self.kind


def containers_of(export: str, location: str) -> list[str]:
    """The paths of an export's archives, in the order of the location and of names.

    Of an MDS set, that is its index.json; of a Lance set, its folder.

    Args:
        export: its name, for the texts of errors.
        location: `tar://`, `zip://`, `parquet://`, `mds://` or `lance://` and a path, which may have ranges in braces
            and `*`.

    Raises:
        ConfigError: one is not there, or cannot be served.
    """
    parts = ArchiveLocation.of(location)
    scheme, path = parts.kind, parts.path
    if not path.startswith("/") and path.split("/")[0] not in (".", ".."):
        raise ConfigError(
            f"export {export!r} must be {scheme}:// and an absolute path, or one that begins with ./, got "
            f"{location!r}; write {scheme}:///data/x.{scheme}"
        )
    if scheme == "mds":
        path = os.path.join(path, "index.json") if os.path.isdir(path) else path
        _check(export, scheme, path)
        return [os.path.abspath(path)]
    if scheme == "lance":
        if not os.path.isdir(path):
            raise ConfigError(
                f"export {export!r} must be the folder of a Lance set, got {path}, which is none; give it"
            )
        return [os.path.abspath(path)]
    found = [path] if os.path.exists(path) else [one for each in _spelled_out(export, path) for one in _there(each)]
    if not found:
        raise ConfigError(
            f"export {export!r} must be archives that are there, got none for {location!r}; correct it, or mount their "
            "folder first"
        )
    for one in found:
        _check(export, scheme, one)
    return [os.path.abspath(one) for one in dict.fromkeys(found)]


def _spelled_out(export: str, path: str) -> list[str]:
    """A path for each value of its braces."""
    try:
        return expanded(path, MAX_CONTAINERS)
    except TooMany:
        raise ConfigError(
            f"export {export!r} must be at most {MAX_CONTAINERS} archives, got more by {path!r}; make several exports"
        ) from None


def _there(path: str) -> list[str]:
    """What matches a path with `*`; other characters stand for themselves."""
    if "*" not in path:
        return [path]
    return sorted(glob.glob(glob.escape(path).replace("[*]", "*")))


def _check(export: str, scheme: str, path: str) -> None:
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _UNPACKERS:
        raise ConfigError(
            f"export {export!r} must be archives that are not compressed, whose files can be read one by one, got "
            f"{path}; unpack it: {_UNPACKERS[suffix]} {path}"
        )
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise ConfigError(
            f"export {export!r} must be archives that are there, got {path}: {error.strerror}; correct it, or mount "
            "its folder first"
        ) from None
    if not stat.S_ISREG(mode):
        within = f"{scheme}://{path.rstrip('/')}/*.{scheme}"
        folder = f"write its path without {scheme}:// for a folder of files, or {within} for the archives in it"
        remedy = folder if stat.S_ISDIR(mode) else "give a file"
        raise ConfigError(f"export {export!r} must be a {scheme} file, got {path}, which is none; {remedy}")
