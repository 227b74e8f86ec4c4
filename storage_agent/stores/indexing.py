"""Finding the indexes of archives, and having them made by another process; this one parses no archive."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sophon_loader.errors import ConfigError
from storage_agent.log import EventLog
from storage_agent.settings import Indexed
from storage_agent.stores.index import UNFINISHED, BadIndex, Index, Version
from storage_agent.stores.locations import containers_of

_SUFFIX = ".index"
_UNFINISHED_S = 24 * 3600
"""Age at which nobody writes a file any more."""


def usual_index_folder() -> Path:
    """`$XDG_CACHE_HOME/sophon/indexes`, or `~/.cache/sophon/indexes`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "sophon" / "indexes"


def indexed(export: str, location: str, folder: Path | None) -> Indexed:
    """The index of a location's archives, made where there is none for them as they are.

    Args:
        export: its name, for the texts of errors.
        location: `tar://` or `zip://` and a path.
        folder: where indexes are kept; None for the usual one.

    Raises:
        ConfigError: the archives cannot be served, or the index not be kept.
    """
    paths = containers_of(export, location)
    folder = private_index_folder(folder)
    versions = [Version.of(os.stat(path)) for path in paths]
    kind = location.partition("://")[0]
    whole = folder / _name(kind, paths, versions)
    if not is_whole(whole):
        _make(export, kind, paths, versions, folder, whole)
    return Indexed(str(whole), tuple(paths))


def _make(export: str, kind: str, paths: Sequence[str], versions: Sequence[Version], folder: Path, whole: Path) -> None:
    parts: list[dict[str, Any]] = []  # see `index_child.Part`
    for path, version in zip(paths, versions, strict=True):
        index = folder / _name(kind, [path], [version])
        part: dict[str, Any] = {"path": path, "nbytes": version.nbytes, "modified_ns": version.modified_ns}
        parts.append({**part, "index": str(index), "wanted": not is_whole(index)})
    task = {"kind": kind, "parts": parts, "whole": str(whole), "parent": os.getpid()}
    command = [sys.executable, "-m", "storage_agent.stores.index_child"]
    done = subprocess.run(command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=False)
    outcome: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        outcome = json.loads(done.stdout)
    error = outcome.get("error", f"the process that reads the archives ended with status {done.returncode}")
    if error:
        raise ConfigError(f"export {export!r}: {error}")
    tell_left_out(export, outcome["left_out"])
    for part in parts:
        _remove_older(Path(part["index"]))
    _remove_older(whole)
    remove_unfinished(folder)


def tell_left_out(export: str, left_out: Mapping[str, Sequence[Any]]) -> None:
    """Log what is not served: reason -> (how many, name of the first)."""
    for why, (count, first) in left_out.items():
        EventLog().warning("members left out", export=export, reason=why, count=count, first=first)


def _name(kind: str, paths: Sequence[str], versions: Sequence[Version]) -> str:
    """The name of the index of some archives: which they are, and how they are now."""
    which = hashlib.sha256(b"\0".join(map(os.fsencode, [kind, *paths]))).hexdigest()[:24]
    state = hashlib.sha256(repr([tuple(version) for version in versions]).encode()).hexdigest()[:24]
    return f"{which}-{state}{_SUFFIX}"


def is_whole(path: Path) -> bool:
    """Whether an index is there and not damaged."""
    try:
        Index(path).check()
    except (OSError, BadIndex):
        return False
    return True


def _remove_older(path: Path) -> None:
    """Remove the indexes of what the same archives were before."""
    which = path.name.partition("-")[0]
    for one in path.parent.glob(f"{which}-*{_SUFFIX}"):
        if one != path:
            one.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    for one in folder.glob(f"{UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - one.stat().st_mtime > _UNFINISHED_S:
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
        status = os.stat(folder)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"--index-folder must be a folder that the agent can make and write, got {folder}: {error}; name another"
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            f"--index-folder must be a folder into which the agent's user alone may write, got {folder}; chmod it to "
            "700, or name another"
        )
    return folder
