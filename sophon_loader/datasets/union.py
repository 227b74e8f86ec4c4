"""Merges the lists of several agents."""

from __future__ import annotations

from collections.abc import Sequence

Tree = list[tuple[str, list[str]]]
"""(class, its files), as an ImageFolder has them."""


def union_of_trees(trees: Sequence[Tree]) -> Tree:
    """Return the tree of an ImageFolder that has the files of all trees, in its order: by folder, then by name.

    Args:
        trees: at least one, each in that order.
    """
    if len(trees) == 1:
        return trees[0]
    classes: dict[str, set[str]] = {}
    for tree in trees:
        for name, files in tree:
            classes.setdefault(name, set()).update(files)
    return [(name, sorted(classes[name], key=_place)) for name in sorted(classes)]


def _place(file: str) -> tuple[str, str]:
    folder, _, name = file.rpartition("/")
    return folder, name
