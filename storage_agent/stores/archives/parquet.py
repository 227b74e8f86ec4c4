"""The pictures of a parquet file, as pyarrow reads them. Runs in the process that indexes.

In a column that is not compressed, each value lies in one piece behind its length. pyarrow says what the values are and
in which part of the file the column lies, where each value is then searched for. So whatever a hostile file says, an
index names only bytes that are those of a picture. Compressed values are written into a file of their own, once.
"""

from __future__ import annotations

import errno
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import pyarrow
import pyarrow.parquet
import xxhash

from storage_agent.stores.archives.members import MAX_MEMBERS, ArchiveRefused, Members
from storage_agent.stores.archives.notes import WRITE_PLAIN
from storage_agent.stores.archives.pictures import listed, picture_suffix, see_one_column
from storage_agent.stores.archives.unpacked import UnpackedPictures

MAX_CHUNK_NBYTES = 4 << 30
"""Of the pictures of one row group, as they lie there and as they are."""
_BATCH_ROWS = 16
"""Rows decoded at once: pictures of 100 MB each still fit into the memory of the process."""
_BUFFER_NBYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_DICTIONARIES = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
_IN_ONE_PIECE = {"PLAIN", "RLE", "BIT_PACKED", *_DICTIONARIES}
"""Encodings of a column whose values lie in one piece; RLE and BIT_PACKED write only which values are null."""
_NO_PICTURE = "remove the row, or name the column of pictures: parquet://PATH#COLUMN"
_SMALLER = "write the table anew with smaller row groups (row_group_size=100)"


def read_parquet(
    file: IO[bytes],
    nbytes: int,
    seen: Callable[[int], None],
    *,
    folder: str,
    column: str,
    unpacked: UnpackedPictures,
) -> Members:
    """The picture in each row, as a member `FOLDER/00000017.jpg`.

    Args:
        file: it.
        nbytes: its size.
        seen: is told how far one has come, in bytes.
        folder: what stands in front of the row's number.
        column: the name of the pictures' column; "" to find it.
        unpacked: takes the pictures that do not lie in the file as they are.

    Raises:
        ArchiveRefused: it is damaged, or has a row that cannot be served.
    """
    members = Members(nbytes)
    try:
        table = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BUFFER_NBYTES)
        if table.metadata.num_rows > MAX_MEMBERS:
            raise ArchiveRefused(
                f"it must have at most {MAX_MEMBERS} rows, got {table.metadata.num_rows}; make several files of it"
            )
        number = _column_of(table.schema, column)
        _see_plain(table, table.schema.column(number).path)
        chunks = _chunks(table.metadata, number, nbytes)
        unpacked.see_room(sum(chunk.nbytes for chunk in chunks if chunk.is_packed))
        row = 0
        for chunk in chunks:
            for offset, value in _found(table, file, chunk, row):
                suffix = picture_suffix(value, len(value), f"row {row}", _NO_PICTURE)
                name, crc = f"{folder}/{row:08}.{suffix}", zlib.crc32(value)
                if chunk.is_packed:
                    members.add_unpacked(name, offset=unpacked.add(value), length=len(value), crc=crc)
                else:
                    members.add_file(name, offset=offset, length=len(value), crc=crc)
                seen(offset)
                row += 1
            unpacked.begin_group()
        if row != table.metadata.num_rows:
            raise ArchiveRefused(f"it must have {table.metadata.num_rows} rows, as it says, got {row}; copy it again")
    except (pyarrow.ArrowException, MemoryError, OSError, ValueError, ArithmeticError, LookupError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise ArchiveRefused(f"it needs more memory than there is to index it; {_SMALLER}") from error
        raise ArchiveRefused(
            "it must be a whole parquet file that is not encrypted, got one that pyarrow does not read: "
            f"{str(error)[:300]}"
        ) from error
    return members


class _Chunk(NamedTuple):
    """The pictures of one row group, in one part of the file.

    Args:
        column: path of their column.
        group: number of the row group.
        begin, end: the part of the file.
        nbytes: their size in bytes, as the footer tells it, once they are not compressed any more.
        has_dictionary: whether a value may lie there once for several rows.
        is_packed: whether they are compressed, or only their differences are written.
    """

    column: str
    group: int
    begin: int
    end: int
    nbytes: int
    has_dictionary: bool
    is_packed: bool


def _column_of(schema: Any, asked: str) -> int:
    """The number of the column of pictures among all that hold values, those in structs, too."""
    structs, binary, names = {}, {}, dict[str, None]()
    for number in range(len(schema)):
        column = schema.column(number)
        name, _, field = column.path.partition(".")
        names[name] = None
        if column.physical_type != "BYTE_ARRAY" or column.logical_type.type != "NONE" or column.max_repetition_level:
            continue  # numbers, text, lists
        if field == "bytes":
            structs[name] = number
        elif not field:
            binary[name] = number
    found = structs or binary
    if asked:
        found = {name: number for name, number in {**binary, **structs}.items() if name == asked}
    see_one_column(found, "parquet")
    if not found:
        which = f"column {asked[:200]!r}" if asked else "a column"
        raise ArchiveRefused(
            f"it must have {which} of pictures, whose rows hold bytes, or a struct with a field `bytes`, and no list "
            f"of them, got {listed(names)}"
        )
    return found.popitem()[1]


def _see_plain(table: Any, path: str) -> None:
    """Read a picture, which pyarrow refuses if it is encrypted; asked where such a column lies, it ends the process."""
    if table.metadata.num_row_groups:
        next(table.iter_batches(batch_size=1, row_groups=[0], columns=[path], use_threads=False), None)


def _chunks(metadata: Any, number: int, nbytes: int) -> list[_Chunk]:
    """Where the pictures of each row group lie.

    Raises:
        ArchiveRefused: outside of the file, or not as they are.
    """
    chunks: list[_Chunk] = []
    for group in range(metadata.num_row_groups):
        column = metadata.row_group(group).column(number)
        if not metadata.row_group(group).num_rows:
            continue
        begin = min(at for at in (column.dictionary_page_offset, column.data_page_offset) if at)
        end = begin + column.total_compressed_size
        if not 0 < begin <= end <= nbytes:
            raise ArchiveRefused(
                f"its row group {group} must lie within its {nbytes} bytes, got {begin} to {end}; it is damaged: copy "
                "it again"
            )
        nbytes_there = max(end - begin, column.total_uncompressed_size)
        if nbytes_there > MAX_CHUNK_NBYTES:
            raise ArchiveRefused(
                f"its row groups must have at most {MAX_CHUNK_NBYTES} bytes of pictures, got {nbytes_there} in row "
                f"group {group}; {_SMALLER}"
            )
        is_packed = column.compression != "UNCOMPRESSED" or not _IN_ONE_PIECE.issuperset(column.encodings)
        has_dictionary = bool(_DICTIONARIES.intersection(column.encodings))
        path, unpacked_nbytes = column.path_in_schema, max(0, column.total_uncompressed_size)
        chunks.append(_Chunk(path, group, begin, end, unpacked_nbytes, has_dictionary, is_packed))
    return chunks


def _found(table: Any, file: IO[bytes], chunk: _Chunk, row: int) -> Iterator[tuple[int, bytes]]:
    """(where it lies, its bytes) of each picture of a row group whose first row is `row`; packed ones have no place."""
    if chunk.is_packed:
        yield from ((chunk.begin, value) for value in _values(table, chunk, row))
        return
    first = chunk.begin - chunk.begin % mmap.ALLOCATIONGRANULARITY
    with mmap.mmap(file.fileno(), chunk.end - first, access=mmap.ACCESS_READ, offset=first) as content:
        places = _Places(content, chunk.begin - first, chunk.has_dictionary)
        for number, value in enumerate(_values(table, chunk, row), row):
            if (at := places.find(value)) is None:
                raise ArchiveRefused(
                    f"its row {number} must lie in it as it is, got a picture that is nowhere in one piece; "
                    f"{WRITE_PLAIN}"
                )
            yield first + at, value


def _values(table: Any, chunk: _Chunk, row: int) -> Iterator[bytes]:
    """The pictures of a row group whose first row is `row`, some at a time."""
    batches = table.iter_batches(
        batch_size=_BATCH_ROWS, row_groups=[chunk.group], columns=[chunk.column], use_threads=False
    )
    for batch in batches:
        column = batch.column(0)
        for one in column.flatten()[0] if pyarrow.types.is_struct(column.type) else column:
            if (value := one.as_py()) is None:
                raise ArchiveRefused(
                    f"its row {row} must have a picture, got none; remove the row, or put the bytes of the file "
                    "that it names into the table"
                )
            yield value
            row += 1


class _Places:
    """Where the values of a chunk lie, which are asked for in the order of rows.

    Args:
        content: the chunk.
        begin: where it begins there.
        has_dictionary: whether a value may lie in it once for several rows.
    """

    def __init__(self, content: mmap.mmap, begin: int, has_dictionary: bool) -> None:
        self._content = content
        self._next = begin
        self._has_dictionary = has_dictionary
        self._earlier: dict[bytes, int] = {}
        """Digest -> where a value lies."""

    def find(self, value: bytes) -> int | None:
        """Where the next value begins, found by its length and its bytes; None if it is nowhere."""
        whole = _LENGTH.pack(len(value)) + value
        at = self._next
        if self._content[at : at + len(whole)] != whole:  # the header of a page is in between
            if (again := self._again(value)) is not None:
                return again
            if (at := self._content.find(whole, at)) < 0:
                return None
        self._next = at + len(whole)
        begin = at + _LENGTH.size
        if self._has_dictionary:
            self._earlier[xxhash.xxh3_128_digest(value)] = begin
        return begin

    def _again(self, value: bytes) -> int | None:
        """Where a value lies that an earlier row has, too; None if none has."""
        if not self._has_dictionary or (at := self._earlier.get(xxhash.xxh3_128_digest(value))) is None:
            return None
        return at if self._content[at : at + len(value)] == value else None
