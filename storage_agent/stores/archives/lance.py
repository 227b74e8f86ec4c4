"""The pictures of a Lance set, as pylance reads them. Runs in the process that indexes.

A blob column (`lance.blob_field`, storage version 2.2) has each picture in one piece: a small one in the data file, a
larger one in a `.blob` file next to it. Reading such a column gives the place of each value. No place is believed
before the bytes there were compared with those that pylance reads, so whatever a hostile set says, an index names only
bytes that are those of a picture.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import lance
import pyarrow

from sophon_loader.host.regular import open_regular
from storage_agent.stores.archives.archive_locations import MAX_CONTAINERS
from storage_agent.stores.archives.members import MAX_MEMBERS, ArchiveRefused, Members
from storage_agent.stores.archives.pictures import listed, picture_suffix, see_one_column

_BLOB = "lance.blob.v2"
"""Name of the type of a blob column."""
_INLINE, _PACKED, _DEDICATED = 0, 1, 2
"""Kinds of places: in the data file; in a `.blob` file with others; alone in one."""
_BATCH_ROWS = 16
"""Rows read at once: pictures of 100 MB each still fit into the memory of the process."""
_NO_PICTURE = "delete the row, or name another column: lance://PATH#COLUMN"
_AS_BLOBS = (
    "write the set anew with a column lance.blob_field(NAME), filled by lance.blob_array(files), and "
    'data_storage_version="2.2"'
)
_UNKNOWN = "a place that pylance does not tell"
_ERRORS = (pyarrow.ArrowException, MemoryError, OSError, ValueError, ArithmeticError, LookupError, RuntimeError)


class _Place(NamedTuple):
    """Where a picture lies: the file's name, and the offset there."""

    name: str
    offset: int


def list_set(folder: str) -> tuple[int, list[str]]:
    """List what the newest version of a set consists of: its number, and the paths of its files from the folder.

    Args:
        folder: that of the set.

    Raises:
        ArchiveRefused: it is damaged, or has files elsewhere.
    """
    try:
        table = lance.dataset(folder)
        names: dict[str, None] = {}
        for name in (one for fragment in table.get_fragments() for one in _data_files(fragment)):
            names[name] = None
            blobs = os.path.join(folder, _blob_folder(name))
            for blob in sorted(os.listdir(blobs)) if os.path.isdir(blobs) else ():
                names[f"{_blob_folder(name)}/{blob}"] = None
        version = int(table.version)
    except _ERRORS as error:
        raise _damaged(error) from error
    if len(names) > MAX_CONTAINERS:
        raise ArchiveRefused(f"it must have at most {MAX_CONTAINERS} files, got {len(names)}; make several sets of it")
    return version, list(names)


def read_lance(
    folder: str, version: int, sizes: Mapping[str, int], column: str, seen: Callable[[int], None]
) -> Members:
    """The picture in each row, as a member `x/00000017.jpg` of the set `x.lance`, in the order in which pylance reads.

    Args:
        folder: that of the set.
        version: number of the version that is read.
        sizes: path of each of its files from the folder -> size in bytes; in the order of their numbers in the index.
        column: the name of the pictures' column; "" to find it.
        seen: called with the number of rows that are done.

    Raises:
        ArchiveRefused: it is damaged, or has a row that cannot be served.
    """
    above = os.path.basename(folder).removesuffix(".lance")
    numbers = {name: number for number, name in enumerate(sizes)}
    members = Members(max(sizes.values(), default=0))
    try:
        table = lance.dataset(folder, version=version)
        if (count := table.count_rows()) > MAX_MEMBERS:
            raise ArchiveRefused(f"it must have at most {MAX_MEMBERS} rows, got {count}; make several sets of it")
        for row, (place, value) in enumerate(_found(table, folder, sizes, _column_of(table.schema, column))):
            suffix = picture_suffix(value, len(value), f"row {row}", _NO_PICTURE)
            name, crc = f"{above}/{row:08}.{suffix}", zlib.crc32(value)
            members.add_file(name, offset=place.offset, length=len(value), crc=crc, container=numbers[place.name])
            seen(row + 1)
    except _ERRORS as error:
        raise _damaged(error) from error
    return members


def _damaged(error: BaseException) -> ArchiveRefused:
    if isinstance(error, MemoryError):
        return ArchiveRefused("it needs more memory than there is to index it; make several sets of it")
    return ArchiveRefused(f"it must be a whole Lance set, got one that pylance does not read: {str(error)[:300]}")


def _data_files(fragment: Any) -> Iterator[str]:
    """The paths of a fragment's data files from the folder of the set."""
    for file in fragment.data_files():
        if getattr(file, "base_id", None) is not None:
            raise ArchiveRefused(
                f"its files must lie in its folder, got {file.path[:200]!r} in that of the set of which it is a "
                "shallow clone; make a deep clone of it"
            )
        yield f"data/{file.path}"


def _blob_folder(data_file: str) -> str:
    return data_file.removesuffix(".lance")


def _column_of(schema: Any, asked: str) -> str:
    """The name of the column of pictures."""
    blobs = [field.name for field in schema if getattr(field.type, "extension_name", "") == _BLOB]
    found = [name for name in blobs if asked in ("", name)]
    see_one_column(found, "lance")
    if not found:
        which = f"column {asked[:200]!r}" if asked else "a column"
        shown = listed([f"{field.name[:60]} ({str(field.type)[:36]})" for field in schema])
        raise ArchiveRefused(
            f"it must have {which} of blobs, since pylance does not tell where other values lie, got {shown}; "
            f"{_AS_BLOBS}"
        )
    return str(found[0])


def _found(table: Any, folder: str, sizes: Mapping[str, int], column: str) -> Iterator[tuple[_Place, bytes]]:
    """(where it lies, its bytes) of the picture in each row."""
    row = 0
    for fragment in table.get_fragments():
        files = list(_data_files(fragment))
        for batch in fragment.to_batches(columns=[column], with_row_address=True, batch_size=_BATCH_ROWS):
            told, addresses = batch[column].to_pylist(), batch["_rowaddr"].to_pylist()
            places = [_possible(files, sizes, one, number) for number, one in enumerate(told, row)]
            values = dict(table.read_blobs(column, addresses=addresses))
            for possible, address in zip(places, addresses, strict=True):
                value = values.get(address) or b""
                yield _seen(folder, possible, value, row), value
                row += 1


def _possible(files: list[str], sizes: Mapping[str, int], told: Mapping[str, Any] | None, row: int) -> list[_Place]:
    """Where a picture may lie, by the set's word, before pylance is asked for it: it would read at any host.

    A fragment to which columns were added has several data files.

    Raises:
        ArchiveRefused: outside of the set, or there is none.
    """
    if told is None:
        raise ArchiveRefused(f"its row {row} must have a picture, got none; {_NO_PICTURE}")
    offset, end, places = told["position"], told["position"] + told["size"], []
    for name in files if told["kind"] in (_INLINE, _PACKED, _DEDICATED) and not told["blob_uri"] else ():
        if told["kind"] != _INLINE:  # pylance writes the number with its lowest bit first
            name = f"{_blob_folder(name)}/{format(told['blob_id'], '032b')[::-1]}.blob"
        if end <= sizes.get(name, -1):
            places.append(_Place(name, offset))
    if not places:
        raise _elsewhere(row, f"{str(told['blob_uri'])[:200]!r}" if told["blob_uri"] else _UNKNOWN)
    return places


def _seen(folder: str, possible: list[_Place], value: bytes, row: int) -> _Place:
    """The place at which a picture's bytes are."""
    for place in possible:
        with os.fdopen(open_regular(os.path.join(folder, place.name)), "rb") as file:
            if os.pread(file.fileno(), len(value), place.offset) == value:
                return place
    raise _elsewhere(row, _UNKNOWN)


def _elsewhere(row: int, where: str) -> ArchiveRefused:
    return ArchiveRefused(f"its row {row} must lie in one piece in a file of the set, got one in {where}; {_AS_BLOBS}")
