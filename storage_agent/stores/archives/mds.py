"""The shards of an MDS set, as MosaicML streaming writes them, and their pictures. Runs in the process that indexes.

No code of MDS's encodings is run, nor is anything unpickled: the bytes of one column are served as they lie there.
"""

from __future__ import annotations

import itertools
import json
import os
import reprlib
import shlex
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

from sophon_loader.host.regular import open_regular
from storage_agent.stores.archives.archive_locations import MAX_CONTAINERS
from storage_agent.stores.archives.members import MAX_MEMBERS, ArchiveRefused, Members
from storage_agent.stores.archives.pictures import FIRST_NBYTES, listed, picture_suffix, see_one_column, suffix_of
from storage_agent.stores.archives.shards import Shard, shard_path

MAX_SET_NBYTES = 128 << 20
"""Maximum size of an index.json in bytes; 100 000 shards with ten columns take half of it."""
_STEP_NBYTES = 1 << 20
_UINT = struct.Struct("<I")
_FILES = ("jpeg", "png")
"""Encodings whose values are files of pictures."""
_PIXELS = ("pil", "jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")
_UNPACKERS = {
    "zstd": 'for f in {0}/*.zstd; do zstd -d "$f" -o "${{f%.zstd}}"; done',
    "gz": "gunzip -k {0}/*.gz",
    "bz2": "bunzip2 -k {0}/*.bz2",
    "br": "brotli -d {0}/*.br",
}
"""Compression -> the line that leaves raw shards in a folder."""
_AGAIN = "write the set again with MDSWriter"
_COPY = "copy it again"


class _Columns(NamedTuple):
    names: list[str]
    encodings: list[str]
    sizes: list[int | None]


def read_set(path: str, column: str) -> list[Shard]:
    """List the shards of an MDS set, in its order.

    Args:
        path: that of its index.json.
        column: the name of the pictures' column; "" to find it.

    Raises:
        ArchiveRefused: it is damaged, or has a shard that cannot be served.
    """
    told = _field(_loaded(path), "shards", list, "set")
    if not 0 < len(told) <= MAX_CONTAINERS:
        raise ArchiveRefused(f"it must list from 1 to {MAX_CONTAINERS} shards, got {len(told)}; {_AGAIN}")
    folder = os.path.dirname(path)
    first: _Columns | None = None
    shards: dict[str, Shard] = {}
    for number, one in enumerate(told):
        what = f"shard {number}"
        columns = _columns(one, what)
        if first is not None and columns != first:
            raise ArchiveRefused(f"its shards must all have the same columns, got others in {what}; {_AGAIN}")
        first = columns
        raw = _field(one, "raw_data", dict, what)
        shard = Shard(
            _field(raw, "basename", str, f"{what}'s raw_data"),
            _field(raw, "bytes", int, f"{what}'s raw_data"),
            _field(one, "samples", int, what),
            columns.sizes,
            -1,
        )
        if shard.samples > MAX_MEMBERS:
            raise ArchiveRefused(f"its {what} must have at most {MAX_MEMBERS} samples, got {_shown(shard.samples)}")
        if shard.name in shards:
            raise ArchiveRefused(f"it must list each shard once, got {shard.name[:200]!r} twice; {_AGAIN}")
        _see_raw(folder, shard.name, one)
        shards[shard.name] = shard
    assert first is not None
    chosen = _picture_column(folder, [*shards.values()], first, column)
    return [Shard(one.name, one.nbytes, one.samples, one.sizes, chosen) for one in shards.values()]


def read_shard(file: IO[bytes], nbytes: int, seen: Callable[[int], None], shard: Shard) -> Members:
    """The picture of each sample, as a member `shard.00003/00000017.jpg`.

    Args:
        file: it.
        nbytes: its size.
        seen: called with the number of bytes that are done.
        shard: the facts that the index.json has of it.

    Raises:
        ArchiveRefused: it is damaged, or has a sample that cannot be served.
    """
    members = Members(nbytes)
    folder, remedy = shard.name.removesuffix(".mds"), "leave out the sample, or name another column: mds://PATH#COLUMN"
    try:
        for number, (begin, lengths) in enumerate(_samples(file, nbytes, shard)):
            offset, length = begin + sum(lengths[: shard.column]), lengths[shard.column]
            first, crc = _summed(file, offset, length, number)
            suffix = picture_suffix(first, length, f"sample {number}", remedy)
            members.add_file(f"{folder}/{number:08}.{suffix}", offset=offset, length=length, crc=crc)
            seen(offset + length)
    except OSError as error:
        raise ArchiveRefused(f"it must be readable, got an error: {error}") from error
    return members


# --- index.json ---------------------------------------------------------------------------------------------------


def _loaded(path: str) -> Any:
    """Return the content of an index.json."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            content = file.read(MAX_SET_NBYTES + 1)
    except OSError as error:
        raise ArchiveRefused(f"it must be readable, got an error: {error}") from error
    if len(content) > MAX_SET_NBYTES:
        raise ArchiveRefused(f"it must have at most {MAX_SET_NBYTES} bytes, got more; make several sets of it")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ArchiveRefused(
            f"it must be the index.json of an MDS set, got one that is no JSON: {str(error)[:200]}; give the folder "
            "that MDSWriter has written"
        ) from None


def _field(told: Any, name: str, kind: type, what: str) -> Any:
    """Return a field of one type; numbers are sizes or counts."""
    value: Any = told.get(name) if isinstance(told, dict) else None
    if type(value) is not kind or (isinstance(value, int) and not 0 <= value < 1 << 63):
        words = {list: "a list", dict: "an object", str: "text", int: "a number from 0 to 2^63 - 1"}
        raise ArchiveRefused(f"its {what} must have {name!r}, {words[kind]}, got {_shown(value)}; {_AGAIN}")
    return value


def _columns(told: Any, what: str) -> _Columns:
    """Return the columns of a shard, which must be of the form that MDSWriter writes."""
    form, version = _field(told, "format", str, what), _field(told, "version", int, what)
    if (form, version) != ("mds", 2):
        raise ArchiveRefused(
            f"its {what} must have format 'mds' and version 2, got {_shown(form)} and {_shown(version)}; {_AGAIN}"
        )
    columns = _Columns(*(_field(told, f"column_{name}", list, what) for name in _Columns._fields))
    are_texts = all(type(one) is str for one in [*columns.names, *columns.encodings])
    if not are_texts or not all(_is_size(one) for one in columns.sizes):
        raise ArchiveRefused(
            f"its {what} must have names, encodings and sizes of columns, of 1 to 2^32 - 1 bytes or null, got "
            f"{_shown(columns.names)}, {_shown(columns.encodings)} and {_shown(columns.sizes)}; {_AGAIN}"
        )
    if not len(set(columns.names)) == len(columns.names) == len(columns.encodings) == len(columns.sizes):
        raise ArchiveRefused(
            f"its {what} must have a name, an encoding and a size for each column, and each name once, got "
            f"{len(columns.names)}, {len(columns.encodings)} and {len(columns.sizes)}; {_AGAIN}"
        )
    return columns


def _is_size(value: Any) -> bool:
    return value is None or (type(value) is int and 0 < value < 1 << 32)


def _see_raw(folder: str, name: str, told: Any) -> None:
    """See that a shard is there, and not only compressed."""
    path = shard_path(folder, name)
    if os.path.exists(path):
        return
    compression = told.get("compression")
    if not told.get("zip_data") or not isinstance(compression, str):
        raise ArchiveRefused(f"its shards must be in its folder, got no file {name[:200]!r}; copy it there")
    line = _UNPACKERS.get(compression.partition(":")[0])
    remedy = f"decompress them: {line.format(shlex.quote(os.path.dirname(path)))}, or " if line else ""
    raise ArchiveRefused(
        f"its shards must lie there uncompressed, to be read one sample at a time, got {name[:200]!r} only as "
        f"{compression[:20]!r}; {remedy}write the set again: MDSWriter(..., compression=None)"
    )


def _picture_column(folder: str, shards: Sequence[Shard], columns: _Columns, asked: str) -> int:
    """Return the number of the column of pictures: the one that is named, or the only one that may be it."""
    encodings = dict(zip(columns.names, columns.encodings, strict=True))
    if asked:
        found = [asked] if encodings.get(asked) in (*_FILES, "bytes") else []
    else:
        found = [name for name, encoding in encodings.items() if encoding in _FILES]
        found = found or _like_pictures(folder, shards, columns)
    see_one_column(found, "mds")
    if not found:
        which = f"column {asked[:200]!r}" if asked else "a column"
        pixels = [one for one in ([encodings.get(asked, "")] if asked else columns.encodings) if one in _PIXELS]
        remedy = f"; {pixels[0]!r} is no file of a picture: write the set again with 'png' or 'jpeg'" if pixels else ""
        shown = listed([f"{name[:60]} ({encoding[:36]})" for name, encoding in encodings.items()])
        raise ArchiveRefused(
            f"it must have {which} of pictures, encoded as 'jpeg', 'png', or 'bytes' that are files of pictures, got "
            f"{shown}{remedy}"
        )
    return columns.names.index(found[0])


def _like_pictures(folder: str, shards: Sequence[Shard], columns: _Columns) -> list[str]:
    """Return the names of the columns of bytes that begin like pictures in the first sample of all."""
    shard = next((one for one in shards if one.samples), None)
    numbers = [number for number, encoding in enumerate(columns.encodings) if encoding == "bytes"]
    if shard is None or not numbers:
        return [columns.names[number] for number in numbers]
    try:
        with os.fdopen(open_regular(shard_path(folder, shard.name)), "rb") as file:
            begin, lengths = next(_samples(file, os.fstat(file.fileno()).st_size, shard))
            found = []
            for number in numbers:
                file.seek(begin + sum(lengths[:number]))
                if suffix_of(file.read(min(FIRST_NBYTES, lengths[number]))):
                    found.append(columns.names[number])
            return found
    except (OSError, ArchiveRefused) as error:
        raise ArchiveRefused(f"its shard {shard.name[:200]!r} must be a whole one: {error}") from error


def _shown(value: Any) -> str:
    return reprlib.repr(value)


# --- shards -------------------------------------------------------------------------------------------------------


def _samples(file: IO[bytes], nbytes: int, shard: Shard) -> Iterator[tuple[int, list[int]]]:
    """Yield (offset where the values of a sample begin, bytes of each value), in the order of the samples."""
    if nbytes != shard.nbytes:
        raise ArchiveRefused(f"it must have the {shard.nbytes} bytes that index.json tells, got {nbytes}; {_COPY}")
    header_nbytes = _UINT.size * (shard.samples + 2)
    if header_nbytes > nbytes:
        raise ArchiveRefused(f"it must have the {shard.samples} samples that index.json tells, got {nbytes} bytes")
    (samples,) = _UINT.unpack(_exactly(file, 0, _UINT.size))
    if samples != shard.samples:
        raise ArchiveRefused(f"it must have the {shard.samples} samples that index.json tells, got {samples}; {_COPY}")
    offsets = (one for (one,) in _UINT.iter_unpack(_exactly(file, _UINT.size, header_nbytes - _UINT.size)))
    head = struct.Struct(f"<{shard.sizes.count(None)}I")
    before = header_nbytes
    for number, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if not before <= begin <= end <= nbytes:
            raise ArchiveRefused(
                f"its sample {number} must lie behind the one before it and within its {nbytes} bytes, got {begin} to "
                f"{end}; {_COPY}"
            )
        told = iter(head.unpack(_exactly(file, begin, head.size)) if begin + head.size <= end else ())
        lengths = [next(told, -1) if size is None else size for size in shard.sizes]
        if -1 in lengths or begin + head.size + sum(lengths) != end:
            raise ArchiveRefused(
                f"its sample {number} must have as many bytes as its columns, got {end - begin}; index.json is of "
                "another shard, or it is damaged: copy both again"
            )
        yield begin + head.size, lengths
        before = end


def _summed(file: IO[bytes], offset: int, length: int, number: int) -> tuple[bytes, int]:
    """Return the first bytes of a value, and the CRC-32 of all."""
    first, crc = b"", 0
    for at in range(0, length, _STEP_NBYTES):
        step = _exactly(file, offset + at, min(_STEP_NBYTES, length - at))
        first = first or step[:FIRST_NBYTES]
        crc = zlib.crc32(step, crc)
    return first, crc


def _exactly(file: IO[bytes], offset: int, nbytes: int) -> bytes:
    file.seek(offset)
    data = file.read(nbytes)
    if len(data) != nbytes:
        raise ArchiveRefused(f"it must not change while it is read, got {len(data)} of {nbytes} bytes at {offset}")
    return data
