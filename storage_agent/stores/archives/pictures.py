"""Tells pictures by their first bytes, and their columns by name, for archives whose members have no names."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from storage_agent.stores.archives.members import ArchiveRefused

FIRST_NBYTES = 12
"""Number of bytes that tell the kind of a picture."""
_SHOWN = 20
"""Number of columns that a message names."""
_FIRST_BYTES = {
    b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png", b"BM": "bmp", b"II*\0": "tif", b"MM\0*": "tif",
    b"P3": "ppm", b"P6": "ppm", b"P2": "pgm", b"P5": "pgm",
}  # fmt: skip


def suffix_of(first: bytes) -> str:
    """Return the end of the name of a picture, `jpg` say; "" for bytes that are no picture of a served kind.

    Args:
        first: its first `FIRST_NBYTES` bytes, or more.
    """
    if first[:4] == b"RIFF" and first[8:12] == b"WEBP":
        return "webp"
    return next((suffix for begin, suffix in _FIRST_BYTES.items() if first.startswith(begin)), "")


def picture_suffix(first: bytes, nbytes: int, what: str, remedy: str) -> str:
    """Return the end of the name of a picture.

    Args:
        first: its first `FIRST_NBYTES` bytes, or more.
        nbytes: its size.
        what: the name of its place in an error, `row 17` say.
        remedy: the last words of the error.

    Raises:
        ArchiveRefused: it is no picture of a served kind.
    """
    if suffix := suffix_of(first):
        return suffix
    known = ", ".join(sorted({"webp", *_FIRST_BYTES.values()}))
    raise ArchiveRefused(
        f"its {what} must have a picture of a kind that is served ({known}), got {nbytes} bytes that begin with "
        f"{first[:FIRST_NBYTES]!r}; {remedy}"
    )


def listed(names: Collection[str]) -> str:
    """Return the names of columns as an error shows them."""
    shown = ", ".join(repr(name[:100]) for name in islice(names, _SHOWN))
    return shown + (", ..." if len(names) > _SHOWN else "")


def see_one_column(found: Collection[str], kind: str) -> None:
    """See that no more than one column may be that of the pictures.

    Args:
        found: names of those that may be it.
        kind: scheme of the location, "parquet" say.

    Raises:
        ArchiveRefused: several may be it.
    """
    if len(found) > 1:
        raise ArchiveRefused(
            f"its column of pictures must be named where several may be it, got {listed(found)}; write one behind the "
            f"location: {kind}://PATH#COLUMN"
        )
