"""Finding the indexes of archives, and having them made by another process; this one parses no archive."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from sophon_loader.errors import ConfigError
from sophon_loader.host.private import WRITING, NotPrivate, open_private_folder
from sophon_loader.host.regular import open_regular
from storage_agent.host.agent_settings import Indexed
from storage_agent.stores.archives.archive_locations import ArchiveLocation, containers_of
from storage_agent.stores.archives.index import (
    MAGIC,
    NOT_THERE,
    UNFINISHED,
    UNFINISHED_S,
    UNPACKED_SUFFIX,
    ContainerVersion,
    Index,
    open_whole,
    remove_unused,
    unpacked_path,
)
from storage_agent.stores.archives.members import ArchiveRefused
from storage_agent.stores.archives.shards import Shard, shard_path

_SUFFIX = ".index"
_EDGE_NBYTES = 16 << 10
_RULES = 3
"""By which members get their names, and archives are doubted; another number makes all indexes anew."""


class _State(NamedTuple):
    """An archive's size in bytes and time of change, and a digest of its first and last bytes.

    Shards that are made to one size have few sizes, and images of containers set all times of change to one.
    """

    nbytes: int
    modified_ns: int
    edges: str


def usual_index_folder() -> Path:
    """`$XDG_CACHE_HOME/sophon/indexes`, or `~/.cache/sophon/indexes`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "sophon" / "indexes"


def indexed(export: str, location: str, folder: Path | None) -> tuple[Indexed, Index]:
    """Where the index of a location's archives is, made if there is none for them as they are; and it, opened.

    Args:
        export: its name, for the texts of errors.
        location: `tar://`, `zip://`, `parquet://`, `mds://` or `lance://` and a path.
        folder: where indexes are kept; None for the usual one.

    Raises:
        ConfigError: the archives cannot be served, or the index not be kept.
    """
    paths = containers_of(export, location)
    folder = private_index_folder(folder)
    parts = ArchiveLocation.of(location)
    if parts.kind == "lance":
        return _lance(export, parts, paths[0], folder)
    shards: list[Shard] = []
    if parts.kind == "mds":
        shards, paths = _shards(export, parts, paths[0])
    states = [_state(export, path) for path in paths]
    whole = folder / _name(parts.what, paths, states, shards)
    unpacked = [unpacked_path(one) for one in _part_indexes(folder, parts.what, paths, states, shards)]
    index = _opened(whole, unpacked)
    if index is None:
        _make(export, parts, paths, states, folder, whole, shards)
        index = _opened(whole, unpacked)
    if index is None:
        raise _gone(export, whole)
    index.notes.tell(export)
    has_unpacked = len(index.containers) > len(paths)
    return Indexed(str(whole), tuple(paths), unpacked=tuple(map(str, unpacked)) if has_unpacked else ()), index


def _shards(export: str, location: ArchiveLocation, path: str) -> tuple[list[Shard], list[str]]:
    """The shards that an index.json lists, and their paths. Each start reads it, since it may have changed.

    Raises:
        ConfigError: it is damaged, or a shard is not there or lies elsewhere.
    """
    outcome = _asked(export, location, {"set": path})
    shards = [Shard(**one) for one in outcome["shards"]]
    try:
        # Checked again here: a process that has parsed a hostile file must not decide which files are read.
        return shards, [shard_path(os.path.dirname(path), one.name) for one in shards]
    except ArchiveRefused as refused:
        raise ConfigError(f"export {export!r}: {path} cannot be served: {refused}") from refused


def _lance(export: str, location: ArchiveLocation, top: str, folder: Path) -> tuple[Indexed, Index]:
    """The index of the newest version of a Lance set, whose folder is `top`; see `indexed`."""
    outcome = _asked(export, location, {"lance": top})
    version, names = outcome["version"], outcome["files"]
    try:
        # Checked here as well, as the paths of shards are.
        paths = [shard_path(top, name) for name in names]
    except ArchiveRefused as refused:
        raise ConfigError(f"export {export!r}: {top} cannot be served: {refused}") from refused
    states = [_state(export, path) for path in paths]
    whole = folder / _name(location.what, [top], states, [version, *names])
    index = open_whole(whole)
    if index is None:
        files = {name: state[:2] for name, state in zip(names, states, strict=True)}
        _asked(export, location, {"lance": top, "version": version, "files": files, "whole": str(whole)})
        _remove_older(whole)
        remove_unfinished(folder)
        index = open_whole(whole)
    if index is None:
        raise _gone(export, whole)
    return Indexed(str(whole), tuple(paths)), index


def _gone(export: str, path: Path) -> ConfigError:
    return ConfigError(
        f"the index of export {export!r} must stay in its folder once it is written, got none at {path}; see that "
        "nothing else empties the folder, or give the agent another --index-folder"
    )


def _make(
    export: str,
    location: ArchiveLocation,
    paths: Sequence[str],
    states: Sequence[_State],
    folder: Path,
    whole: Path,
    shards: Sequence[Shard],
) -> None:
    parts: list[dict[str, Any]] = []  # see `index_child.ArchivePart`
    indexes = _part_indexes(folder, location.what, paths, states, shards)
    for number, (path, state, index) in enumerate(zip(paths, states, indexes, strict=True)):
        shard = shards[number : number + 1]
        part: dict[str, Any] = {"path": path, "nbytes": state.nbytes, "modified_ns": state.modified_ns}
        facts = asdict(shard[0]) if shard else None
        parts.append({**part, "index": str(index), "wanted": not _is_reserved(index), "shard": facts})
    _asked(export, location, {"kind": location.kind, "parts": parts, "whole": str(whole)})
    for part in parts:
        _remove_older(Path(part["index"]))
    _remove_older(whole)
    remove_unfinished(folder)


def _asked(export: str, location: ArchiveLocation, task: dict[str, Any]) -> dict[str, Any]:
    """Have the child process do a task; its outcome.

    Raises:
        ConfigError: it could not.
    """
    told = json.dumps({**task, "column": location.column, "parent": os.getpid()})
    command = [sys.executable, "-m", "storage_agent.stores.archives.index_child"]
    done = subprocess.run(command, input=told, stdout=subprocess.PIPE, text=True, check=False)
    outcome: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        outcome = json.loads(done.stdout)
    ended = (
        f"the process that reads the archives ended with status {done.returncode}, of a damaged one perhaps; see "
        f"which: sophon-agent index {location.kind}://PATH, for each of them"
    )
    error = outcome.get("error", ended)
    if error:
        raise ConfigError(f"export {export!r}: {error}")
    return outcome


def _state(export: str, path: str) -> _State:
    """What tells an archive from others that are at its path on other hosts, or were there before.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with os.fdopen(open_regular(path), "rb", buffering=0) as file:
            version = ContainerVersion.of(os.fstat(file.fileno()))
            edges = [os.pread(file.fileno(), _EDGE_NBYTES, at) for at in (0, max(0, version.nbytes - _EDGE_NBYTES))]
    except OSError as error:
        raise ConfigError(
            f"export {export!r} must be archives that the agent may read, got {path}: {error.strerror}; give the "
            "agent's user the right to read it"
        ) from None
    return _State(*version, hashlib.sha256(b"".join(edges)).hexdigest())


def _name(what: str, paths: Sequence[str], states: Sequence[_State], shards: Sequence[object]) -> str:
    """The name of the index of some archives: which they are, how they are now, and what an index is.

    Shards are also what their index.json says of them: another column or another count makes another index. Of a Lance
    set, `shards` are the number of its version and the names of its files, since a version may only delete rows.
    """
    which = hashlib.sha256(b"\0".join(map(os.fsencode, [what, *paths]))).hexdigest()[:24]
    state = hashlib.sha256(repr([MAGIC, _RULES, *map(tuple, states), *shards]).encode()).hexdigest()[:24]
    return f"{which}-{state}{_SUFFIX}"


def _part_indexes(
    folder: Path, what: str, paths: Sequence[str], states: Sequence[_State], shards: Sequence[Shard]
) -> list[Path]:
    """The path of the index of each archive alone."""
    each = zip(paths, states, strict=True)
    return [folder / _name(what, [path], [state], shards[n : n + 1]) for n, (path, state) in enumerate(each)]


def _opened(path: Path, unpacked: Sequence[Path]) -> Index | None:
    """An index that is whole, as are the files of unpacked pictures, one per archive; None if one is missing."""
    index = open_whole(path)
    if index is None or all(map(_is_there, unpacked, index.containers[len(unpacked) :])):
        return index
    return None


def _is_there(path: Path, version: ContainerVersion) -> bool:
    try:
        return version == NOT_THERE or ContainerVersion.of(path.stat()) == version
    except OSError:
        return False


def _is_reserved(path: Path) -> bool:
    """Whether an index is there and whole; it counts as new then, so that no other start removes it meanwhile."""
    with contextlib.suppress(OSError):
        os.utime(path)
    return _opened(path, [unpacked_path(path)]) is not None


def _remove_older(path: Path) -> None:
    """Remove the indexes of what the same archives were before, unless agents use them, and pictures without an index.

    They may be what other hosts have at these paths now.
    """
    which = path.name.partition("-")[0]
    remove_unused(one for one in path.parent.glob(f"{which}-*{_SUFFIX}") if one != path)
    for one in path.parent.glob(f"{which}-*{UNPACKED_SUFFIX}"):
        with contextlib.suppress(OSError):  # its time of change is the archive's
            if not one.with_suffix(_SUFFIX).exists() and time.time() - one.stat().st_ctime > UNFINISHED_S:
                one.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    for one in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - one.stat().st_mtime > UNFINISHED_S:
                one.unlink()


def private_index_folder(folder: Path | None) -> Path:
    """The folder of indexes, made if need be, into which nobody else writes.

    Args:
        folder: the one that was named; None for the usual one.

    Raises:
        ConfigError: there is none.
    """
    folder = folder or usual_index_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(open_private_folder(folder, kept_from_others=WRITING, follow=True))
    except NotPrivate:
        raise ConfigError(
            f"--index-folder must be a folder into which the agent's user alone may write, got {folder}; chmod it to "
            "700, or name another"
        ) from None
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"--index-folder must be a folder that the agent can make and write, got {folder}: {error}; name another"
        ) from None
    return folder
