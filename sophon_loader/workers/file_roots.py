"""Paths of files on this host, as paths in an export."""

from __future__ import annotations

import os

from sophon_loader.datasets.given_roots import NOT_GIVEN, GivenRoots


class FileRoots:
    """A folder on this host and the folder of an export with the same files, once an agent has agreed.

    Args:
        root: folder on this host, absolute, that holds the files.
        folder: of the export, as the user's address names it; "" for the whole export. Files outside of it are not
            asked for.
        given: the pairs of folders that the user has given; then `root` counts for nothing, and the agent's folder
            alone is learnt.

    Example:
        >>> roots = FileRoots("/mnt/photos/train/cat", folder="")
        >>> roots.agreed_on(("train/cat", ""))  # so photos is the export
        >>> roots.key_of("/mnt/photos/train/dog/7.jpg")
        'train/dog/7.jpg'
    """

    def __init__(self, root: str, folder: str, given: GivenRoots = NOT_GIVEN) -> None:
        self._root, self._folder, self._given = root, folder, given
        self._prefix = ""
        self._key_prefix: str | None = None

    def agreed_on(self, place: tuple[str, str]) -> None:
        """Learn where the files lie.

        Args:
            place: of the agreement, see `datasets.locations.Locations`: a folder of the export, and the folder below
                the root that corresponds to it.
        """
        folder, inner = place
        if self._given:
            self._key_prefix = f"{folder}/" if folder else ""
            return
        root = os.path.join(self._root, inner.rstrip("/")) if inner else self._root
        # Neighbours of the files that were looked for are in the export, too, as far as the user's address reaches.
        while folder != self._folder and folder and os.path.basename(root) == os.path.basename(folder):
            root, folder = os.path.dirname(root), os.path.dirname(folder)
        self._prefix = root.rstrip("/") + "/"
        self._key_prefix = f"{folder}/" if folder else ""

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
