"""Workers that belong to the process that started them, and to no forked copy of it."""

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

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from sophon_loader.errors import ConfigError, raised_by_handler
from sophon_loader.torch_internals.profiler_ranges import WAITING, profiler_range
from sophon_loader.torch_internals.worker_queues import Asking, Sending

T_co = TypeVar("T_co", covariant=True)
_MEANWHILE_S = 1.0
_TAKES = "_sophon_takes_a_batch"
_UNREADABLE = object()
"""Placeholder of a batch that has arrived and cannot be read."""
_RERAISE = ExceptionWrapper.reraise.__code__
"""Code of the function that raises a worker's error."""
_PROCESS = _MultiProcessingDataLoaderIter._process_data.__code__
"""Code of the function that torch passes every batch from its workers through."""


class OwnedIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, which a forked copy of this process neither reads nor ends.

    In such a copy, torch's own iterator may ask if the workers live, which multiprocessing refuses ("can only test a
    child process"). Or it ends those of the parent, with which it shares the queues.

    A signal's handler may raise while a batch is awaited. Then torch's own iterator loses what it held: a batch, the
    index of another, or the note that a worker was asked for it. This one keeps those until the batch arrives, and
    corrects torch's notes before it goes on (`_mend`).
    """

    _before: dict[int, Any] | None = None
    """torch's `_task_info` at the request for a batch. Not None at the next request means that it was interrupted."""

    def __init__(self, loader: OwnedDataLoader[Any]) -> None:
        self._owner_pid = os.getpid()
        super().__init__(loader)
        self._profile_name = (
            f"enumerate(DataLoader)#{_MultiProcessingDataLoaderIter.__name__}.__next__"  # as profilers know it
        )

    def _reset(self, loader: OwnedDataLoader[Any], first_iter: bool = False) -> None:
        self._meanwhile = loader.meanwhile
        self._before = None
        self._received: dict[int, Any] = {}  # since then
        self._drawn: dict[int, Any] = {}  # the newest index of the sampler, by the number of its task
        self._surplus = 0  # tasks that workers were asked for in place of batches which are yet to be delivered
        for queue in self._index_queues:
            if type(queue) is Queue:
                queue.__class__ = Asking
            if isinstance(queue, Asking):
                queue.newest = {}
        super()._reset(loader, first_iter)

    @property
    def asked(self) -> set[int]:
        """Numbers of the batches that workers were asked for and that were not delivered yet."""
        tasks = {*self._task_info, *(self._before or ())}
        return {number for number in tasks if self._received.get(number) is not _UNREADABLE}

    @property
    def _worker_result_queue(self) -> Any:
        """The queue by which workers send batches."""
        return self._results

    @_worker_result_queue.setter
    def _worker_result_queue(self, queue: Any) -> None:
        if type(queue) is Queue:  # and not one of a context of the user's own
            queue.__class__ = Sending
        if isinstance(queue, Sending):
            queue.keeps = not self._pin_memory  # a thread would not say that it has taken one
        self._results = queue

    def _next_data(self) -> Any:
        if self._owner_pid != os.getpid():
            raise ConfigError(
                f"an iterator over workers must be read in the process that began it ({self._owner_pid}), got process "
                f"{os.getpid()}, a fork of that; call iter(loader) in the fork"
            )
        try:
            if self._before is not None:
                self._mend()
            self._before = self._task_info.copy()
            batch = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration:
            raise
        except BaseException as error:
            self._interrupted(error)
            raise
        self._before, self._received = None, {}
        return batch

    def _interrupted(self, error: BaseException) -> None:
        """Note that an error has left `_next_data`: instead of a batch or of none; torch's notes may be wrong."""
        if _frame_of(error, _RERAISE) is None and (not isinstance(error, Exception) or raised_by_handler(error)):
            takes = hasattr(error, _TAKES)
        else:
            takes = hasattr(error, _TAKES) or _frame_of(error, _PROCESS) is not None
            self._before, self._received = None, {}
        if not takes:
            setattr(error, _TAKES, False)
        _break_circle(error)

    def _mend(self) -> None:
        """Correct torch's notes after an exception from outside: all that was not delivered is still to arrive."""
        tasks = {**(self._before or {}), **self._task_info}
        for worker, queue in enumerate(self._index_queues):
            if isinstance(queue, Asking):
                queue.wake()
                if self._send_idx in queue.newest:
                    tasks[self._send_idx] = (worker,)
        for number, data in self._received.items():
            if number in tasks:
                self._note_received(tasks, number, data)
        sent = max(tasks, default=-1) + 1
        live = {n: task for n, task in tasks.items() if len(task) == 2 or self._workers_status[task[0]]}
        waiting = sum(len(task) == 1 for task in live.values())
        of_workers = [sum(task[0] == worker for task in live.values()) for worker in range(self._num_workers)]
        most = self._prefetch_factor * self._num_workers
        self._before = dict(tasks)
        self._task_info, self._tasks_outstanding, self._workers_num_tasks = tasks, waiting, of_workers
        self._send_idx = self._send_idx if sent < self._send_idx else sent
        self._rcvd_idx = min(tasks, default=self._send_idx)
        self._surplus = max(0, len(live) - most)
        for _ in range(most - len(live)):
            self._try_put_index()

    def _note_received(self, tasks: dict[int, Any], number: int, data: Any) -> None:
        """Enter the data that has arrived for a task."""
        worker = tasks[number][0]
        if data is _UNREADABLE:
            del tasks[number]
        elif not isinstance(data, _utils.worker._IterableDatasetStopIteration):
            tasks[number] = worker, data
        elif self._workers_status[worker]:  # which an iterable dataset has ended
            if self._persistent_workers:
                self._workers_status[worker] = False
            else:
                self._mark_worker_as_unavailable(worker)

    def _next_index(self) -> Any:
        """Return torch's next index; one that was read of the sampler is kept until a worker is asked for it."""
        number = self._send_idx
        if number not in self._drawn:
            self._drawn = {}
            for index in self._sampler_iter:  # `next` is a call, behind which a handler may raise
                self._drawn[number] = index
                break
            else:
                raise StopIteration
        return self._drawn[number]

    def _try_put_index(self) -> None:
        if self._surplus:
            self._surplus -= 1
            return
        super()._try_put_index()

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> Any:
        """Return data from the workers, within `timeout`; see `OwnedDataLoader.meanwhile`."""
        end_s = time.monotonic() + timeout
        while self._meanwhile is not None and (left_s := end_s - time.monotonic()) > _MEANWHILE_S:
            if (found := self._taken(min(_MEANWHILE_S, left_s)))[0]:
                return found
            self._meanwhile()
        return self._taken(max(0.0, end_s - time.monotonic()))

    def _taken(self, timeout: float) -> Any:
        """Return due data from the workers. If it cannot be read, its batch is no longer waited for."""
        try:
            while True:
                # A thread receives, where memory is pinned; else the queue knows when it waits.
                with profiler_range(WAITING) if self._pin_memory else nullcontext():
                    found = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
                if not found[0]:
                    return found
                number, data = found[1]
                waited_for = type(number) is not int or len(self._task_info.get(number, ())) == 1
                if type(number) is int and waited_for:
                    self._received[number] = data
                if isinstance(self._data_queue, Sending):
                    self._data_queue.taken()
                if waited_for:
                    return found
        except BaseException as error:
            unread = _unread_by(error)
            task = None if unread is None else self._task_info.get(unread)
            if unread is not None and task is not None:
                self._received[unread] = _UNREADABLE
                setattr(error, _TAKES, True)
                self._task_info.pop(unread, None)
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
    """Return True if an error replaces a batch. If not, as with a signal's handler that raises, that batch follows."""
    return getattr(error, _TAKES, True)


def _frame_of(error: BaseException, code: CodeType) -> FrameType | None:
    """Return the error's frame that runs this code; None if there is none."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is code:
            return trace.tb_frame
        trace = trace.tb_next
    return None


def _unread_by(error: BaseException | None) -> int | None:
    """Return the number of the batch that had arrived, and could not be read; None if there was none.

    Args:
        error: from torch's `_try_get_data`, which may have raised it in place of an earlier one.
    """
    while error is not None:
        frame = _frame_of(error, Sending.get.__code__) or _frame_of(error, Queue.get.__code__)
        if frame is not None and "res" in frame.f_locals:  # the message; unpickling it is what comes next
            message = bytes(frame.f_locals["res"])
            found = (arg for op, arg, _ in pickletools.genops(message) if "INT" in op.name)
            return next(found, None)
        error = error.__context__
    return None


def _break_circle(error: BaseException) -> None:
    """Clear the frame of torch that raises a worker's error and refers to it, too.

    With the traceback they form a circle, which would hold the workers until a garbage collection.
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
        """torch's class with the one type variable that ours has, for any number of torch's."""


class OwnedDataLoader(_TorchDataLoader[T_co]):
    """torch's DataLoader, whose workers belong to the process which started them.

    Attributes:
        meanwhile: called every second while a batch of the workers is waited for; None for nothing. Its errors take
            no batch.
    """

    meanwhile: Callable[[], None] | None = None

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return OwnedIterator(self)

    def iterate_plainly(self) -> _BaseDataLoaderIter:
        """Do the same as DataLoader's `__iter__`, with this class's iterator, even in a subclass with another one."""
        if not (self.persistent_workers and self.num_workers > 0):
            return OwnedDataLoader._get_iterator(self)
        if self._iterator is None:
            self._iterator = OwnedDataLoader._get_iterator(self)
        else:
            self._iterator._reset(self)
        return self._iterator


def asked_by_torchs_iterator() -> bool:
    """Return True if the caller of the calling function is the constructor of torch's iterator classes."""
    return sys._getframe(2).f_code is _BaseDataLoaderIter.__init__.__code__
