"""A loader with an agent that nobody iterates over: a framework has put another in its place."""

from __future__ import annotations

import os
import warnings
import weakref
from typing import Any

from torch.utils.data import DataLoader

from sophon_loader.errors import OffloadWarning


class Use:
    """Whether a dataset's loaders at an agent are iterated over: of any of them, since frameworks make new ones."""

    is_known = False


_USES: weakref.WeakValueDictionary[tuple[int, str], Use] = weakref.WeakValueDictionary()


def watched(loader: DataLoader[Any], agent: Any) -> Use:
    """Have it said if a loader with an agent goes without it, or one made from it, having been iterated over."""
    use = _USES.setdefault((id(loader.dataset), repr(agent)), Use())
    if agent is not None:
        weakref.finalize(loader, _say_unused, use, agent, os.getpid())
    return use


def _say_unused(use: Use, agent: Any, pid: int) -> None:
    if not use.is_known and os.getpid() == pid:
        warnings.warn(
            f"an OffloadingDataLoader with agent={agent!r} was never iterated over; a framework that made a DataLoader "
            "of its own from this one's dataset reads all files itself: tell it to leave the loader as it is",
            OffloadWarning,
            stacklevel=2,
        )
