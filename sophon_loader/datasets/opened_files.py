"""Files that the first samples of a dataset of any class open, in the form of a dataset that was taken apart."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sophon_loader.datasets.given_roots import GivenRoots
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.host.shared import SharedArray, SharedStrings

SOURCES = 2
"""Files are asked for without the metadata of their pictures, or with it: one source for each."""


class _Plain:
    """Stands for the owner of files with which nothing is done that an agent could be told beforehand."""

    transform = None


def opened_files(files: Sequence[str], dataset: Any, roots: Mapping[str, str]) -> Offloadable | None:
    """Return some files that a dataset has opened; an agent shows by them whether it has all of them, and where.

    Args:
        files: paths on this host, absolute.
        dataset: the user's.
        roots: where they lie in the export, as the user has given it; {} if not.

    Returns:
        None if no two of them lie in one folder below the top one, or none in a folder that the user has given.
    """
    given = GivenRoots(roots)
    if given:
        root, below = "/", [path for path in dict.fromkeys(files) if given.root_of(path)]
    else:
        tops = Counter(_top(path) for path in files)
        top = next((one for one, _ in tops.most_common(1) if one), "")
        below = [path for path in dict.fromkeys(files) if top and _top(path) == top]
        root = os.path.commonpath([os.path.dirname(path) for path in below]) if below else ""
    if not below:
        return None
    keys = SharedStrings(below, below=root.rstrip("/") + "/")
    source = Source(root, keys, _no_target)
    of, rows = SharedArray.together(np.zeros(len(below), np.int16), np.arange(len(below), dtype=np.int32))
    owner = _Plain()
    return Offloadable(
        (source,) * SOURCES,
        of,
        rows,
        (owner,) * SOURCES,
        type(dataset),
        dataset,
        by_programs=True,
        given_roots=given,
    )


def _top(path: str) -> str:
    """The first two folders of a path: files of a dataset seldom lie in several of these."""
    return "/".join(path.split("/")[:3]) if path.count("/") > 2 else os.path.dirname(path).rstrip("/")


def _no_target(row: int) -> None:
    return None
