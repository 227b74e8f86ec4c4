"""The pictures of a parquet file, as pyarrow reads them. Runs in the process that indexes.

In a column that is not compressed, each value lies in one piece behind its length. pyarrow says what the values are and
in which part of the file the column lies, where each value is then searched for. So whatever a hostile file says, an
index names only bytes that are those of a picture.
"""

from __future__ import annotations

import errno
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import pyarrow
import pyarrow.parquet
import xxhash

from storage_agent.stores.archives.members import MAX_MEMBERS, ArchiveRefused, Members
from storage_agent.stores.archives.pictures import picture_suffix

MAX_CHUNK_NBYTES = 4 << 30
"""Of the pictures of one row group."""
_BATCH_ROWS = 16
"""Rows decoded at once: pictures of 100 MB each still fit into the memory of the process."""
_BUFFER_NBYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_SHOWN = 20
"""Columns that a message names."""
_DICTIONARIES = {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}
_IN_ONE_PIECE = {"PLAIN", "RLE", "BIT_PACKED", *_DICTIONARIES}
"""Encodings of a column whose values lie in one piece; RLE and BIT_PACKED write only which values are null."""
_NO_PICTURE = "remove the row, or name the column of pictures: parquet://PATH#COLUMN"
_SMALLER = "write the table anew with smaller row groups (row_group_size=100)"
_REMEDY = 'write the table anew: pyarrow.parquet.write_table(table, NEW, compression="none")'


def read_parquet(file: IO[bytes], nbytes: int, seen: Callable[[int], None], *, folder: str, column: str) -> Members:
    """The picture in each row, as a member `FOLDER/00000017.jpg`.

    Args:
        file: it.
        nbytes: its size.
        seen: is told how far one has come, in bytes.
        folder: what stands in front of the row's number.
        column: the name of the pictures' column; "" to find it.

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
        for row, (offset, value) in enumerate(_found(table, file, chunks)):
            suffix = picture_suffix(value, len(value), f"row {row}", _NO_PICTURE)
            members.add_file(f"{folder}/{row:08}.{suffix}", offset=offset, length=len(value), crc=zlib.crc32(value))
            seen(offset)
    except (pyarrow.ArrowException, MemoryError, OSError, ValueError, ArithmeticError, LookupError) as error:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            raise ArchiveRefused(f"it needs more memory than there is to index it; {_SMALLER}") from error
        raise ArchiveRefused(
            "it must be a whole parquet file that is not encrypted, got one that pyarrow does not read: "
            f"{str(error)[:300]}"
        ) from error
    return members


class _Chunk(NamedTuple):
    """The pictures of one row group, in one part of the file."""

    column: str
    group: int
    rows: int
    begin: int
    end: int
    has_dictionary: bool


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
    if len(found) > 1:
        raise ArchiveRefused(
            f"its column of pictures must be named where several may be it, got {_listed(found)}; write one behind the "
            "location: parquet://PATH#COLUMN"
        )
    if not found:
        which = f"column {asked[:200]!r}" if asked else "a column"
        raise ArchiveRefused(
            f"it must have {which} of pictures, whose rows hold bytes, or a struct with a field `bytes`, and no list "
            f"of them, got {_listed(names)}"
        )
    return found.popitem()[1]


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    shown = ", ".join(repr(name[:100]) for name in list(names)[:_SHOWN])
    return shown + (", ..." if len(names) > _SHOWN else "")


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
    packed = {"compressed": 0, "encoded": 0}
    for group in range(metadata.num_row_groups):
        rows, column = metadata.row_group(group).num_rows, metadata.row_group(group).column(number)
        if not rows:
            continue
        begin = min(at for at in (column.dictionary_page_offset, column.data_page_offset) if at)
        end = begin + column.total_compressed_size
        if not 0 < begin <= end <= nbytes:
            raise ArchiveRefused(
                f"its row group {group} must lie within its {nbytes} bytes, got {begin} to {end}; it is damaged: copy "
                "it again"
            )
        if end - begin > MAX_CHUNK_NBYTES:
            raise ArchiveRefused(
                f"its row groups must have at most {MAX_CHUNK_NBYTES} bytes of pictures, got {end - begin} in row "
                f"group {group}; {_SMALLER}"
            )
        if column.compression != "UNCOMPRESSED":
            packed["compressed"] += rows
        elif not _IN_ONE_PIECE.issuperset(column.encodings):
            packed["encoded"] += rows
        encodings = _DICTIONARIES.intersection(column.encodings)
        chunks.append(_Chunk(column.path_in_schema, group, rows, begin, end, bool(encodings)))
    for how, count in packed.items():
        if count:
            raise ArchiveRefused(
                f"its pictures must lie in it as they are, to be read one by one, got {count} of {metadata.num_rows} "
                f"that are {how}; {_REMEDY}"
            )
    return chunks


def _found(table: Any, file: IO[bytes], chunks: Sequence[_Chunk]) -> Iterator[tuple[int, bytes]]:
    """(where it lies, its bytes) of the picture in each row."""
    row = 0
    for chunk in chunks:
        first = chunk.begin - chunk.begin % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(file.fileno(), chunk.end - first, access=mmap.ACCESS_READ, offset=first) as content:
            places = _Places(content, chunk.begin - first, chunk.has_dictionary)
            for value in _values(table, chunk):
                if value is None:
                    raise ArchiveRefused(
                        f"its row {row} must have a picture, got none; remove the row, or put the bytes of the file "
                        "that it names into the table"
                    )
                if (at := places.find(value)) is None:
                    raise ArchiveRefused(
                        f"its row {row} must lie in it as it is, got a picture that is nowhere in one piece; {_REMEDY}"
                    )
                yield first + at, value
                row += 1
    if row != table.metadata.num_rows:
        raise ArchiveRefused(f"it must have {table.metadata.num_rows} rows, as it says, got {row}; copy it again")


def _values(table: Any, chunk: _Chunk) -> Iterator[bytes | None]:
    """The pictures of a row group, some at a time; None for a row without one."""
    batches = table.iter_batches(
        batch_size=_BATCH_ROWS, row_groups=[chunk.group], columns=[chunk.column], use_threads=False
    )
    for batch in batches:
        column = batch.column(0)
        for one in column.flatten()[0] if pyarrow.types.is_struct(column.type) else column:
            yield one.as_py()


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
