"""Paths of files on this host, as paths in an export."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from sophon_loader.datasets.given_roots import NOT_GIVEN, GivenRoots


class Place(NamedTuple):
    """Where an agent has the files that were looked for.

    Args:
        address: folder that the user's address names; files outside of it are not asked for.
        folder: of the export, see `Agreed.place`.
        inner: the folder below the root on this host that corresponds to it, with its `/`; "" for the root.
    """

    address: str
    folder: str
    inner: str = ""


class FileRoots:
    """A folder on this host and the folders of exports with the same files, once agents have agreed.

    Args:
        root: folder on this host, absolute, that holds the files.
        given: the pairs of folders that the user has given; then `root` counts for nothing, and the agents' folders
            alone are learnt.

    Example:
        >>> roots = FileRoots("/mnt/photos/train/cat")
        >>> roots.agreed_on([Place("", "train/cat")])  # so photos is the export
        [""]
        >>> roots.key_of("/mnt/photos/train/dog/7.jpg")
        'train/dog/7.jpg'
    """

    def __init__(self, root: str, given: GivenRoots = NOT_GIVEN) -> None:
        self._root, self._given = root, given
        self._prefix = ""
        self._key_prefix: str | None = None

    def agreed_on(self, places: Sequence[Place]) -> list[str]:
        """Learn where the files lie.

        Args:
            places: of the files that were looked for, at each agent that has agreed.

        Returns:
            Per agent, the folder of its export that holds what the first one's folder holds. Each key begins with the
            first one's.
        """
        if self._given:
            folders = [place.folder for place in places]
        else:
            widest = [self._widest(place) for place in places]
            # What one of the agents does not hold is asked of none: there, a key would mean another file.
            root = max((root for root, _ in widest), key=len)
            folders = [_below(folder, os.path.relpath(root, own)) for own, folder in widest]
            self._prefix = root.rstrip("/") + "/"
        self._key_prefix = f"{folders[0]}/" if folders[0] else ""
        return folders

    def _widest(self, place: Place) -> tuple[str, str]:
        """Return the outermost folder on this host that an agent's export holds, and its path in the export."""
        folder, inner = place.folder, place.inner
        root = os.path.join(self._root, inner.rstrip("/")) if inner else self._root
        # Neighbours of the files that were looked for are in the export, too, as far as the user's address reaches.
        while folder != place.address and folder and os.path.basename(root) == os.path.basename(folder):
            root, folder = os.path.dirname(root), os.path.dirname(folder)
        return root, folder

    @property
    def mounted(self) -> bool:
        """True if the folder is on this host now."""
        return self._given.mounted if self._given else os.path.isdir(self._root)

    def key_of(self, path: str) -> str | None:
        """Return a file's path in the export; None if it lies elsewhere, or before an agent has agreed.

        Args:
            path: on this host, as the user's code gives it.
        """
        if self._key_prefix is None:
            return None
        whole = path if path.startswith("/") and "/." not in path and "//" not in path else os.path.abspath(path)
        if self._given:
            key = self._given.key_of(whole)
            return None if key is None else self._key_prefix + key
        if not whole.startswith(self._prefix):
            return None
        return self._key_prefix + whole[len(self._prefix) :]


def _below(folder: str, inner: str) -> str:
    return folder if inner == "." else f"{folder}/{inner}".lstrip("/")
