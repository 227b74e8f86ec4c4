"""The keys of a source: paths relative to its root."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sophon_loader.errors import ConfigError
from sophon_loader.host.shared import SharedStrings


def checked_key(key: Any, name: str, row: int) -> str:
    """Check a key given by the user, and return it.

    Args:
        key: the path.
        name: the value's name in an error, with `{}` for the row.
        row: the key's row.

    Raises:
        ConfigError: the key is not a path relative to the root.
    """
    if type(key) is not str:
        raise ConfigError(
            f"{name.format(row)} must be text, got {key!r} of type {type(key).__name__}; return str(...) of it"
        )
    if key.startswith("/"):
        raise ConfigError(
            f"{name.format(row)} must be a path relative to root, got the absolute path {key!r}; remove the root from "
            "it"
        )
    if ".." in key.split("/"):
        raise ConfigError(
            f"{name.format(row)} must stay below root, got {key!r}; make root the folder that holds all files"
        )
    return key


@dataclass(frozen=True)
class Calls:
    """The keys of an `OffloadableDataset`, as its `key` gives them."""

    function: Callable[[int], str]

    def __getitem__(self, row: int) -> str:
        """Return the key of a row.

        Raises:
            ConfigError: the key is not a path relative to the root.
        """
        return checked_key(self.function(row), "key({})", row)

    def unlike(self, index: int, length: int) -> str:
        """Return the reason why the dataset does not count a negative index from the end; "" if it does.

        Args:
            index: below 0.
            length: number of the dataset's samples.
        """
        row = index % length
        return "" if self[index] == self[row] else f"key({index}) is not key({row})"

    def fingerprint(self) -> bytes:
        """Return a constant: the keys are unknown before the user's code is called for each row."""
        return b"calls"


def keys_of(files: Iterable[Any], root: str) -> SharedStrings:
    """Return the keys of the files that a user has listed.

    Args:
        files: paths relative to `root`, or absolute ones below it.
        root: the folder that holds all files.

    Raises:
        ConfigError: a path is neither.
    """
    below = os.path.join(root, "")

    def key(row: int, path: Any) -> str:
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        text = str(text) if isinstance(text, str) else text  # numpy has a class of its own
        return checked_key(text.removeprefix(below) if isinstance(text, str) else text, "files[{}]", row)

    return SharedStrings(key(row, path) for row, path in enumerate(files))


def keys_below(paths: Sequence[Any], root: str) -> SharedStrings:
    """Return the keys of a library's dataset, whose paths begin with its root, as given or as `pathlib` writes it.

    Raises:
        ValueError: a path does not begin with the root.
    """
    try:
        return SharedStrings(map(os.fspath, paths), os.path.join(root, ""))
    except ValueError:
        return SharedStrings(map(os.fspath, paths), str(Path(root, "x"))[:-1])
