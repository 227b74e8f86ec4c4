"""Workers that belong to the process which started them, and to no forked copy of it."""

from __future__ import annotations

import os
import pickletools
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from multiprocessing.queues import Queue
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch.utils.data import DataLoader, _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from sophon_loader.errors import ConfigError
from sophon_loader.workers.ranges import WAITING, profiler_range
from sophon_loader.workers.sending import Sending

T_co = TypeVar("T_co", covariant=True)
_MEANWHILE_S = 1.0
_TAKES = "_sophon_takes_a_batch"
_PROCESS = _MultiProcessingDataLoaderIter._process_data.__code__
"""What every batch goes through that torch takes from its workers."""


class OwnedIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, which a forked copy of this process neither reads nor ends.

    torch's own one asks such a copy's workers whether they live, which multiprocessing refuses ("can only test a child
    process"), or ends those of the parent, with which it shares the queues.
    """

    def __init__(self, loader: OwnedDataLoader[Any]) -> None:
        self._owner_pid = os.getpid()
        super().__init__(loader)
        self._profile_name = (
            f"enumerate(DataLoader)#{_MultiProcessingDataLoaderIter.__name__}.__next__"  # as profilers know it
        )

    def _reset(self, loader: OwnedDataLoader[Any], first_iter: bool = False) -> None:
        self._meanwhile = loader.meanwhile
        super()._reset(loader, first_iter)

    @property
    def _worker_result_queue(self) -> Any:
        """By which workers send batches."""
        return self._results

    @_worker_result_queue.setter
    def _worker_result_queue(self, queue: Any) -> None:
        if type(queue) is Queue:  # and not one of a context of the user's own
            queue.__class__ = Sending
        self._results = queue

    def _next_data(self) -> Any:
        if self._owner_pid != os.getpid():
            raise ConfigError(
                f"an iterator over workers must be read in the process that began it ({self._owner_pid}), got process "
                f"{os.getpid()}, a fork of that; call iter(loader) in the fork"
            )
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            raise
        except BaseException as error:
            if _frame_of(error, _PROCESS) is None and not hasattr(error, _TAKES):
                setattr(error, _TAKES, False)
            _break_circle(error)
            raise

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> Any:
        """What has come from the workers, within `timeout`; see `OwnedDataLoader.meanwhile`."""
        end_s = time.monotonic() + timeout
        while self._meanwhile is not None and (left_s := end_s - time.monotonic()) > _MEANWHILE_S:
            if (found := self._taken(min(_MEANWHILE_S, left_s)))[0]:
                return found
            self._meanwhile()
        return self._taken(max(0.0, end_s - time.monotonic()))

    def _taken(self, timeout: float) -> Any:
        """What has come from the workers. If it came and cannot be read, no more is waited for that batch."""
        try:
            # A thread receives, where memory is pinned; else the queue knows when it waits.
            with profiler_range(WAITING) if self._pin_memory else nullcontext():
                return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        except BaseException as error:
            number = _unread_by(error)
            task = None if number is None else self._task_info.pop(number, None)
            if task is not None:
                setattr(error, _TAKES, True)
                self._tasks_outstanding -= 1
                self._workers_num_tasks[task[0]] -= 1
                self._try_put_index()
            raise

    def _shutdown_workers(self) -> None:
        if self._owner_pid == os.getpid():
            super()._shutdown_workers()
        elif self._worker_pids_set:  # by its address, which another iterator may have next
            self._worker_pids_set = False
            _utils.signal_handling._remove_worker_pids(id(self))


def takes_a_batch(error: BaseException) -> bool:
    """Whether an error came in place of a batch; if not, as with a signal's handler that raises, that batch follows."""
    return getattr(error, _TAKES, True)


def _frame_of(error: BaseException, code: CodeType) -> FrameType | None:
    """Of this code, that the error has passed; None if there is none."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            return trace.tb_frame
        trace = trace.tb_next
    return None


def _unread_by(error: BaseException | None) -> int | None:
    """The number of the batch that had come, and could not be read; None if nothing had.

    Args:
        error: out of torch's `_try_get_data`, which may have raised it in place of the one that it met.
    """
    while error is not None:
        frame = _frame_of(error, Queue.get.__code__)
        if frame is not None and "res" in frame.f_locals:  # the message; unpickling it is what comes next
            found = (arg for op, arg, _ in pickletools.genops(frame.f_locals["res"]) if "INT" in op.name)
            return next(found, None)
        error = error.__context__
    return None


def _break_circle(error: BaseException) -> None:
    """Let go of the frame of torch that raises a worker's error and refers to it, too: with the traceback that is a
    circle, which would hold the workers until a garbage collection.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    if frames is not None and frames.tb_frame.f_code.co_name == "reraise":
        frames.tb_frame.clear()


if TYPE_CHECKING:

    class _TorchDataLoader(DataLoader[T_co]):
        """torch's class as type checkers know it."""

else:
    # Subscripted for type checkers alone: torch 2.15's DataLoader has one type variable, that of its main branch two.
    class _TorchDataLoader(DataLoader, Generic[T_co]):
        """torch's class with the one type variable that ours has, however many torch's has."""


class OwnedDataLoader(_TorchDataLoader[T_co]):
    """torch's DataLoader, whose workers belong to the process which started them.

    Attributes:
        meanwhile: called every second while a batch is waited for that workers make; None for nothing. What it raises
            takes no batch.
    """

    meanwhile: Callable[[], None] | None = None

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return OwnedIterator(self)

    def iterate_plainly(self) -> _BaseDataLoaderIter:
        """What DataLoader's `__iter__` does, with the iterator of this class, whichever one a subclass gives."""
        if not (self.persistent_workers and self.num_workers > 0):
            return OwnedDataLoader._get_iterator(self)
        if self._iterator is None:
            self._iterator = OwnedDataLoader._get_iterator(self)
        else:
            self._iterator._reset(self)
        return self._iterator


def asked_by_torchs_iterator() -> bool:
    """Whether the caller of the calling function is the constructor of torch's iterator classes."""
    return sys._getframe(2).f_code is _BaseDataLoaderIter.__init__.__code__
