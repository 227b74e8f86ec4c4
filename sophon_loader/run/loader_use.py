"""Loaders over one dataset at one agent: the user's, and those that a framework makes of it.

Frameworks make loaders again from the attributes of the user's, copy them, and send them to other processes. So an
epoch of any of them counts as one of all, and a loader without an epoch of its own reports that of another. If none is
ever iterated over, the user is warned, since a framework may have put a DataLoader of torch's class in its place.
"""

from __future__ import annotations

import atexit
import gc
import mmap
import multiprocessing
import os
import sys
import warnings
import weakref
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from sophon_loader.epoch.account import Account
from sophon_loader.errors import OffloadWarning
from sophon_loader.report.report import Report
from sophon_loader.run.engine import Engine
from sophon_loader.run.outcome import NO_EPOCH
from sophon_loader.settings import Settings

OF_ANOTHER = "this is the report of another loader over the same dataset, because this one has not been iterated over"
ELSEWHERE = "in this process; a copy of this loader in another process has a report of its own"


class _Known:
    """Facts that outlive the loaders, for the warning at their end.

    Args:
        dataset: identity of their dataset; that of a deep copy is added.
        agent: as it was given.
    """

    def __init__(self, dataset: int, agent: Any) -> None:
        self.datasets = {dataset}
        self.agent = agent
        self.pid = os.getpid()
        self.flags = mmap.mmap(-1, 2)  # shared with processes that are forked
        self.sent = 0
        """Number of copies that were made by pickling, and have not appeared in this process."""
        self.error = id(getattr(sys, "last_value", None))

    @property
    def is_used(self) -> bool:
        """True if one of the loaders was iterated over, or may have been."""
        return bool(self.flags[0]) or self.sent > 0

    @property
    def is_elsewhere(self) -> bool:
        """True if another process has one of the loaders."""
        return bool(self.flags[1]) or self.sent > 0


class LoaderUse:
    """State shared by the loaders of a dataset at an agent. Unpickling in the process it is from gives the same object.

    Args:
        name: unique in all processes.
        known: facts about the loaders.
    """

    def __init__(self, name: str, known: _Known) -> None:
        self._name = name
        self._known = known
        self._newest: tuple[Settings, weakref.ref[Engine], Account] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        self._known.sent += 1
        return _same_again, (self._name,)

    def begun(self, settings: Settings, engine: Engine, account: Account) -> None:
        """Note that one of the loaders begins an epoch.

        Args:
            settings: of the loader.
            engine: of the loader.
            account: of the epoch.
        """
        self._newest = settings, weakref.ref(engine), account

    def shared_by(self, loader: DataLoader[Any]) -> None:
        """Note that a copy has appeared, maybe with a copy of the dataset."""
        self._known.datasets.add(id(loader.dataset))

    def note(self) -> None:
        """Note that one of the loaders is iterated over, or closed."""
        self._known.flags[0] = 1
        if os.getpid() != self._known.pid:
            self._known.flags[1] = 1

    def report(self, settings: Settings, engine: Engine, *, all_ranks: bool) -> Report:
        """Return a loader's report; if it had no epoch, that of another one with equal settings which had.

        Args:
            settings: of the loader.
            engine: of the loader.
            all_ranks: True for the sum over ranks.
        """
        if engine.has_begun or self._newest is None or not _alike(self._newest[0], settings):
            own = engine.report_of_ranks() if all_ranks else engine.report()
            elsewhere = own.why_not == NO_EPOCH and self._known.is_elsewhere
            return replace(own, why_not=f"{NO_EPOCH} {ELSEWHERE}") if elsewhere else own
        other, account = self._newest[1](), self._newest[2]
        if other is None:
            return account.report(notes=(OF_ANOTHER,))
        report = other.report_of_ranks() if all_ranks else other.report()
        return replace(report, notes=(*report.notes, OF_ANOTHER))


_USES: weakref.WeakValueDictionary[tuple[int, str], LoaderUse] = weakref.WeakValueDictionary()
_NAMED: weakref.WeakValueDictionary[str, LoaderUse] = weakref.WeakValueDictionary()


def watched(loader: DataLoader[Any], agent: Any) -> LoaderUse:
    """Return the state that a loader shares with others; it warns if all are deleted and none was iterated over.

    Args:
        loader: a new one.
        agent: as it was given; without one there is no warning.
    """
    key = id(loader.dataset), repr(agent)
    use = _USES.get(key)
    if use is None:
        known = _Known(key[0], agent)
        name = os.urandom(16).hex()
        use = _USES[key] = _NAMED[name] = LoaderUse(name, known)
        if agent is not None:
            weakref.finalize(use, _gone, known)
    return use


def _same_again(name: str) -> LoaderUse:
    """Return the shared state of an unpickled loader: this process's if it is from here, else one without warnings."""
    use = _NAMED.get(name)
    if use is None:
        use = _NAMED[name] = LoaderUse(name, _Known(0, None))
    else:
        use._known.sent = max(0, use._known.sent - 1)
    return use


def _alike(one: Settings, other: Settings) -> bool:
    """Return True if a framework may have made a loader of one of these from a loader of the other."""
    told = [(each.policy.name, each.encodings, each.seed, each.profile, each.tail) for each in (one, other)]
    return told[0] == told[1]


# --- the end ------------------------------------------------------------------------------------------------------


def _gone(known: _Known) -> None:
    """Warn if needed, as all loaders are deleted, or the interpreter ends."""
    at_exit = sys._getframe(1).f_back
    if known.is_used or os.getpid() != known.pid or _has_failed(known):
        return
    if at_exit is None:
        return  # set free by what ends the interpreter, a SystemExit with an error in it for instance
    is_end = at_exit.f_code.co_name == "_exitfunc"
    if not is_end and _is_replaced(known.datasets):
        _say_unused(known)
    elif multiprocessing.parent_process() is not None:
        return  # an error of such a process was shown and forgotten, so at its end a failure cannot be recognised
    elif is_end:
        _say_unused(known)
    else:  # maybe still held by the frames of an error that was caught
        atexit.register(_say_unless_failed, known)


def _say_unless_failed(known: _Known) -> None:
    if os.getpid() == known.pid and not _has_failed(known):
        _say_unused(known)


def _has_failed(known: _Known) -> bool:
    """Return True if an error is being raised, or was shown since the loader was made: it is to be the last message."""
    last = getattr(sys, "last_value", None)
    return sys.exc_info()[0] is not None or (last is not None and id(last) != known.error)


def _is_replaced(datasets: set[int]) -> bool:
    """Return True if there is a DataLoader of another class over one of these."""
    others = (vars(one) for one in gc.get_objects() if issubclass(type(one), DataLoader))
    return any(id(one.get("dataset")) in datasets and "_use" not in one for one in others)


def _say_unused(known: _Known) -> None:
    warnings.warn(
        f"An OffloadingDataLoader with agent={known.agent!r} was never iterated over. A framework has probably made a "
        "DataLoader of its own from this one's dataset, and that reads all files itself; tell it to keep this loader.",
        OffloadWarning,
        stacklevel=2,
    )
