"""Folders on this host that correspond to folders of an export, as a user has given them."""

from __future__ import annotations

import os
from collections.abc import Mapping


class GivenRoots:
    """Pairs of a folder on this host and a folder below an agent's address with the same files.

    Args:
        roots: see `OffloadOptions.roots`.

    Example:
        >>> roots = GivenRoots({"/mnt/photos": "", "/mnt/photos/masks": "old/masks"})
        >>> roots.key_of("/mnt/photos/cat/1.jpg"), roots.key_of("/mnt/photos/masks/1.png")
        ('cat/1.jpg', 'old/masks/1.png')
    """

    def __init__(self, roots: Mapping[str, str]) -> None:
        pairs = [(os.path.normpath(root).rstrip("/") + "/", folder) for root, folder in roots.items()]
        inner_first = sorted(pairs, key=lambda pair: -len(pair[0]))
        self._prefixes = [(root, f"{name}/" if (name := folder.strip("/")) else "") for root, folder in inner_first]

    def __bool__(self) -> bool:
        return bool(self._prefixes)

    def root_of(self, path: str) -> str | None:
        """Return the innermost of the folders on this host that holds a file, with its `/`; None if none does.

        Args:
            path: absolute, and normalised.
        """
        return next((root for root, _ in self._prefixes if path.startswith(root)), None)

    def key_of(self, path: str) -> str | None:
        """Return a file's path below the agent's address; None if it lies in none of the folders.

        Args:
            path: absolute, and normalised.
        """
        for root, prefix in self._prefixes:
            if path.startswith(root):
                return prefix + path[len(root) :]
        return None

    @property
    def mounted(self) -> bool:
        """True if all the folders are on this host now."""
        return all(os.path.isdir(root) for root, _ in self._prefixes)


NOT_GIVEN = GivenRoots({})
"""Stands for the roots of a user who has given none."""
