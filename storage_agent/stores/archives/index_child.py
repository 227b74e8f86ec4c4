"""The process that reads archives and writes their indexes: `python -m storage_agent.stores.archives.index_child`.

It holds no keys and no sockets, and has a limit of memory. It takes one `IndexTask` as JSON on its standard input, with
the number of its parent process, and gives one `Outcome` as JSON on its standard output. Or it takes the path of the
index.json of an MDS set, and gives its shards; or that of a Lance set, and gives its files, or indexes these.
"""

from __future__ import annotations

import heapq
import importlib.util
import json
import operator
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from sophon_loader.host.regular import open_regular
from sophon_loader.wire.limits import MAX_KEY_NBYTES
from storage_agent.stores.archives.index import (
    FOLDER,
    NOT_THERE,
    ContainerVersion,
    Index,
    IndexEntry,
    unpacked_path,
    write_index,
)
from storage_agent.stores.archives.mds import read_set, read_shard
from storage_agent.stores.archives.members import UNPACKED, ArchiveRefused, LeftOut, Members
from storage_agent.stores.archives.notes import Found, Notes, Unpacked
from storage_agent.stores.archives.shards import Shard
from storage_agent.stores.archives.tar import read_tar
from storage_agent.stores.archives.unpacked import UnpackedPictures
from storage_agent.stores.archives.zip import read_zip
from storage_agent.stores.store import IMAGE_SUFFIXES

MAX_MEMORY_NBYTES = 6 << 30
"""Of address space, while an archive is read: 2^24 members with their names."""
_LOOK_EVERY_S = 0.5
_PICTURES = tuple(suffix.encode() for suffix in IMAGE_SUFFIXES)
READERS: dict[str, Callable[[IO[bytes], int, Callable[[int], None]], Members]] = {"tar": read_tar, "zip": read_zip}


@dataclass(frozen=True)
class ArchivePart:
    """One archive.

    Args:
        path: its path.
        nbytes, modified_ns: its size and time of change.
        index: the path of its index.
        wanted: whether that has to be made.
        shard: the facts that an MDS set has of it; None for other kinds.
    """

    path: str
    nbytes: int
    modified_ns: int
    index: str
    wanted: bool
    shard: Shard | None = None


@dataclass(frozen=True)
class IndexTask:
    """What is to be indexed.

    Args:
        kind: "tar", "zip", "parquet" or "mds".
        parts: the archives.
        whole: path of the index of all of them.
        column: the name of the column that holds the pictures, in parquet files; "" where none is named.
    """

    kind: str
    parts: list[ArchivePart]
    whole: str
    column: str = ""


@dataclass
class Outcome:
    """What came of it.

    Args:
        error: why there is no index; "" if there is one.
        shards: those of a set, where its list was the task.
        version, files: number and paths of files of a Lance set's newest version, where these were the task.
    """

    error: str = ""
    shards: list[Shard] = field(default_factory=list)
    version: int = 0
    files: list[str] = field(default_factory=list)


def main() -> int:
    """Do the task on standard input."""
    task = json.load(sys.stdin)
    threading.Thread(target=_end_with, args=(task["parent"],), name="watch-parent", daemon=True).start()
    outcome = Outcome()
    try:
        if "set" in task:
            outcome.shards = _listed(task["set"], task["column"])
        elif "lance" in task:
            _read_lance(task, outcome)
        else:
            parts = [_part(**part) for part in task["parts"]]
            _carry_out(IndexTask(task["kind"], parts, task["whole"], task["column"]))
    except ArchiveRefused as refused:
        outcome.error = str(refused)
    except OSError as error:
        outcome.error = f"its index cannot be written: {error}; give the agent another --index-folder"
    print(json.dumps(asdict(outcome)))
    return 0


def _part(shard: dict[str, Any] | None, **part: Any) -> ArchivePart:
    return ArchivePart(**part, shard=Shard(**shard) if shard else None)


def _end_with(parent: int) -> None:
    """Nobody waits for an index once the agent has been stopped."""
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def _carry_out(task: IndexTask) -> None:
    wanted = [part for part in task.parts if part.wanted]
    total = sum(part.nbytes for part in wanted)
    with tqdm(total=total, desc="index", unit="B", unit_scale=True, disable=None, file=sys.stderr) as bar:
        begin = 0
        for part in wanted:

            def seen(at: int, begin: int = begin) -> None:
                bar.update(max(0, begin + at - bar.n))

            try:
                _index(task, part, seen)
            except ArchiveRefused as refused:
                raise ArchiveRefused(f"{part.path} cannot be served: {refused}") from refused
            except MemoryError:
                raise ArchiveRefused(
                    f"{part.path} needs more memory than there is to index it; make several of it"
                ) from None
            begin += part.nbytes
            bar.update(max(0, begin - bar.n))
    if len(task.parts) > 1:
        _merge(task)


def _listed(path: str, column: str) -> list[Shard]:
    """The shards of an MDS set."""
    try:
        with _limited_memory():
            return read_set(path, column)
    except ArchiveRefused as refused:
        raise ArchiveRefused(f"{path} cannot be served: {refused}") from refused
    except MemoryError:
        raise ArchiveRefused(f"{path} needs more memory than there is to read it; make several sets of it") from None


def _read_lance(task: dict[str, Any], outcome: Outcome) -> None:
    """List the files of a Lance set, or index those that were listed."""
    folder = task["lance"]
    try:
        if importlib.util.find_spec("lance") is None:
            raise ArchiveRefused("reading it needs the package pylance; install it: pip install 'sophon_loader[lance]'")
        for name in ("LANCE_CPU_THREADS", "LANCE_IO_THREADS"):  # one per core may reserve more memory than there is
            os.environ[name] = "2"
        with _limited_memory():
            from storage_agent.stores.archives.lance import list_set, read_lance  # only here: others need no pylance

            if "whole" not in task:
                outcome.version, outcome.files = list_set(folder)
                return
            versions = {name: ContainerVersion(*version) for name, version in task["files"].items()}
            sizes = {name: version.nbytes for name, version in versions.items()}
            with tqdm(desc="index", unit=" rows", disable=None, file=sys.stderr) as bar:
                members = read_lance(folder, task["version"], sizes, task["column"], lambda at: bar.update(at - bar.n))
            for name, version in versions.items():
                if ContainerVersion.of(os.stat(os.path.join(folder, name))) != version:
                    raise ArchiveRefused("it must not change while it is indexed; start the agent again")
            write_index(Path(task["whole"]), list(versions.values()), members.entries())
    except ArchiveRefused as refused:
        raise ArchiveRefused(f"{folder} cannot be served: {refused}") from refused


@contextmanager
def _limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY_NBYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_NBYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _index(task: IndexTask, part: ArchivePart, seen: Callable[[int], None]) -> None:
    with _limited_memory(), UnpackedPictures(unpacked_path(Path(part.index))) as unpacked:
        with os.fdopen(open_regular(part.path), "rb") as file:
            members = _members(task, part, file, seen, unpacked)
            version = ContainerVersion.of(os.fstat(file.fileno()))
        if version != (part.nbytes, part.modified_ns):
            raise ArchiveRefused("it must not change while it is indexed; start the agent again once it is written")
        versions = [version, unpacked.keep(part.modified_ns)] if unpacked.count else [version]
        write_index(Path(part.index), versions, members.entries(), lambda: _notes(members, part.path, unpacked))


def _members(
    task: IndexTask, part: ArchivePart, file: IO[bytes], seen: Callable[[int], None], unpacked: UnpackedPictures
) -> Members:
    if part.shard is not None:
        return read_shard(file, part.nbytes, seen, part.shard)
    if task.kind != "parquet":
        return READERS[task.kind](file, part.nbytes, seen)
    if importlib.util.find_spec("pyarrow") is None:
        raise ArchiveRefused("reading it needs the package pyarrow; install it: pip install 'sophon_loader[tables]'")
    from storage_agent.stores.archives.parquet import read_parquet  # only here: other archives need no pyarrow

    folder = os.path.basename(part.path).removesuffix(".parquet")
    return read_parquet(file, part.nbytes, seen, folder=folder, column=task.column, unpacked=unpacked)


def _notes(members: Members, path: str, unpacked: UnpackedPictures) -> Notes:
    found = Unpacked(unpacked.count, len(members), unpacked.nbytes, path) if unpacked.count else Unpacked()
    return Notes(members.left_out.reasons, doubts={why: (1, path) for why in members.doubts}, unpacked=found)


def _merge(task: IndexTask) -> None:
    """One index of all archives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # each index is a descriptor
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    indexes = [Index(part.index) for part in task.parts]
    outside, inside = _pictures(indexes)
    flat = 0 < outside.count >= inside.count
    left_out, doubts = LeftOut(), LeftOut()
    for index in indexes:
        left_out.join(index.notes.left_out)
        doubts.join(index.notes.doubts)
    paths = [part.path for part in task.parts]
    above = _names_of(paths, task.kind) if flat else [b""] * len(paths)
    numbered = [
        _numbered(index, (number, len(indexes) + number), above[number], left_out)
        for number, index in enumerate(indexes)
    ]
    merged = heapq.merge(*numbered, key=operator.itemgetter(0))
    versions = [ContainerVersion(part.nbytes, part.modified_ns) for part in task.parts]
    unpacked = _all_unpacked(indexes, outside.count + inside.count)
    if unpacked.count:
        versions += [index.containers[UNPACKED] if index.notes.unpacked.count else NOT_THERE for index in indexes]

    def notes() -> Notes:
        if outside.count and inside.count:
            return Notes(left_out.reasons, outside, inside, flat, doubts=doubts.reasons, unpacked=unpacked)
        return Notes(left_out.reasons, doubts=doubts.reasons, unpacked=unpacked)

    write_index(Path(task.whole), versions, (entry for _, entry in _once(merged, paths, left_out)), notes)


def _all_unpacked(indexes: Sequence[Index], of: int) -> Unpacked:
    """What the indexes together say of unpacked pictures; `of` is the number of all pictures."""
    found = [one for index in indexes if (one := index.notes.unpacked).count]
    if not found:
        return Unpacked()
    return Unpacked(sum(one.count for one in found), of, sum(one.nbytes for one in found), found[0].first)


def _pictures(indexes: Sequence[Index]) -> tuple[Found, Found]:
    """The pictures outside of all folders, and those in folders.

    What most are decides how all are served. WebDataset's shards are flat and their names may be those of others; but
    one preview beside the folders of classes must not make each archive a class.
    """
    counts, firsts = [0, 0], ["", ""]
    for index in indexes:
        for position in range(len(index)):
            name = index.raw(position).partition(b"\0")[0]
            if name.lower().endswith(_PICTURES):
                inside = b"/" in name
                firsts[inside] = firsts[inside] or name.decode("utf-8", "surrogateescape")
                counts[inside] += 1
    return Found(counts[False], firsts[False]), Found(counts[True], firsts[True])


def _names_of(paths: list[str], kind: str) -> list[bytes]:
    """The folder in which each archive's members are served: its path from the folder of all, without its suffix.

    One keeps its suffix where another archive has the name without it.
    """
    top = os.path.commonpath([os.path.dirname(path) for path in paths])
    names = [os.path.relpath(path, top) for path in paths]
    taken = {*names}
    bare = [name.removesuffix(f".{kind}") for name in names]
    return [os.fsencode(full if short in taken else short) + b"/" for full, short in zip(names, bare, strict=True)]


def _numbered(
    index: Index, numbers: tuple[int, int], above: bytes, left_out: LeftOut
) -> Iterator[tuple[bytes, int, IndexEntry]]:
    """(name, number of its archive, entry) of each member; `numbers` are those of the archive and of its unpacked
    pictures among all containers."""
    for entry in index:
        name = above + entry.name
        if len(name) > MAX_KEY_NBYTES:
            left_out.add(name, f"names of more than {MAX_KEY_NBYTES} bytes", "shorten them")
            continue
        where = numbers[entry.container] if entry.container <= UNPACKED else entry.container
        yield name, numbers[0], entry._replace(name=name, container=where)


def _once(
    merged: Iterator[tuple[bytes, int, IndexEntry]], paths: list[str], left_out: LeftOut
) -> Iterator[tuple[int, IndexEntry]]:
    """Each name once: no archive is before another, so no file's name may be in two."""
    before: tuple[int, IndexEntry] | None = None
    for _, number, entry in merged:
        if before is not None and entry.name == before[1].name:
            if entry.container == before[1].container == FOLDER:
                continue
            why = f"in both {paths[before[0]]} and {paths[number]}"
            if b"/" not in entry.name:
                why += ", outside of all folders"
            left_out.add(entry.name, why, "export these archives apart")
            continue
        if before is not None:
            yield before
        before = number, entry
    if before is not None:
        yield before


if __name__ == "__main__":
    sys.exit(main())
