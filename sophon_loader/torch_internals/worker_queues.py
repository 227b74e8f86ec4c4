"""Queues between a loader and its workers. Each worker is asked for batches by one, and all send them by another.

A signal's handler may raise in the loader at any moment. Python calls handlers at the start of a function, at each turn
of a loop, and after a call of C, whose result is then lost. So C itself keeps what must not be lost: `update`,
`writelines` and `append` here take another C function's result, and a lock is entered by `with`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from io import BytesIO
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from queue import Empty
from typing import Any

from torch import Tensor
from torch._utils import ExceptionWrapper

from sophon_loader.errors import ConfigError
from sophon_loader.torch_internals.profiler_ranges import RECEIVING, WAITING, profiler_range, profiling

_HEAD, _LONG_HEAD = 4, 8
"""Number of bytes of a message's length, as multiprocessing writes it; and of the one after it, if the first is -1."""
_WHERE = "in a DataLoader worker, pickling a batch"


class Asking(Queue):  # type: ignore[type-arg]
    """multiprocessing's queue, as its one writer: knows if a message was put, even if a handler raises.

    Attributes:
        newest: number of the task that was put last, as a key; empty if the message was not a task.

    Example:
        >>> queue = multiprocessing.get_context().Queue()
        >>> queue.__class__ = Asking
        >>> queue.put((7, ticket))
        >>> queue.newest
        {7: None}
    """

    _sem: Any
    _notempty: Any
    _buffer: Any
    _closed: bool
    _thread: Any
    _start_thread: Any
    newest: Mapping[Any, None] = {}

    def put(self, message: Any, block: bool = True, timeout: float | None = None) -> None:
        """See multiprocessing's queue."""
        if self._closed:
            raise ValueError(f"a queue must be open to put a task, got {self!r}, which is closed")
        number = message[0] if type(message) is tuple else None
        newest: dict[Any, None] = {}
        self._sem.acquire(block, timeout)
        with self._notempty._lock:  # the condition's own `__enter__` is Python, and may leave the lock taken
            if self._thread is None:
                self._start_thread()
            self.newest = newest
            newest.update(zip((number,), map(self._buffer.append, (message,)), strict=True))
            self._notempty.notify()

    def wake(self) -> None:
        """Wake the thread that sends again: the call that was to wake it may have been interrupted."""
        with self._notempty._lock:
            self._notempty.notify()


class Sending(Queue):  # type: ignore[type-arg]
    """multiprocessing's queue, as its one reader; it also reports messages that cannot be pickled.

    multiprocessing pickles in a thread of the queue, which prints the error and goes on; torch's loader then waits for
    that batch for ever.

    Attributes:
        keeps: True if a message is read again until it is `taken`; for a reader in the main thread.

    Example:
        >>> queue = multiprocessing.get_context().Queue()
        >>> queue.__class__ = Sending
    """

    _reader: Any
    _sem: Any
    keeps = False
    _kept: Any = None
    _partly: BytesIO | None = None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """See multiprocessing's queue; a profiler sees waiting and receiving apart."""
        if self._kept is not None:
            return self._kept
        seen = block and profiling()
        with profiler_range(WAITING) if seen else nullcontext():
            if self._missing() and not self._reader.poll(timeout if block else 0.0):
                raise Empty
        with profiler_range(RECEIVING) if seen else nullcontext():
            res = self._message()
            self._partly = None
            self._sem.release()
            message = ForkingPickler.loads(res)
        if self.keeps:
            self._kept = message
        return message

    def taken(self) -> None:
        """Note that the message that was read is safe."""
        self._kept = None

    def _missing(self) -> int:
        """Return the minimum number of bytes missing of the next message; bytes read stay, even after an error."""
        if self._partly is None:
            return _HEAD
        size = self._partly.tell()
        if size < _HEAD:
            return _HEAD - size
        head = bytes(self._partly.getbuffer()[: _HEAD + _LONG_HEAD])
        length = int.from_bytes(head[:_HEAD], "big", signed=True)
        if length >= 0:
            return _HEAD + length - size
        if size < _HEAD + _LONG_HEAD:
            return _HEAD + _LONG_HEAD - size
        return _HEAD + _LONG_HEAD + int.from_bytes(head[_HEAD:], "big") - size

    def _message(self) -> memoryview:
        """Return the next message, as multiprocessing's Connection writes it."""
        if self._partly is None:
            self._partly = BytesIO()
        partly, file = self._partly, self._reader.fileno()
        while missing := self._missing():
            before = partly.tell()
            partly.writelines(map(os.read, (file,), (missing,)))
            if partly.tell() == before:
                raise EOFError
        whole = partly.getbuffer()
        return whole[_HEAD if whole[0] < 0x80 else _HEAD + _LONG_HEAD :]

    def _on_queue_feeder_error(self, error: Exception, message: Any) -> None:
        """Send the error, in that thread.

        Args:
            error: of pickling.
            message: the number of the batch and its data.
        """
        number, data = message
        self.put((number, _failure(error, data)))


def _failure(error: Exception, data: Any) -> ExceptionWrapper:
    """Return the error that torch raises in place of a batch."""
    if isinstance(data, ExceptionWrapper):  # of a class that another process does not find
        data.exc_type = RuntimeError
        return data
    found = next(_culprits(data), data)
    text = (
        f"a batch must be picklable to come from a worker process, got a {type(found).__qualname__} in it "
        f"({type(error).__name__}: {error}); have collate_fn give tensors, arrays, numbers, text and containers of "
        "them, or load with num_workers=0"
    )
    wrapper = ExceptionWrapper((ConfigError, ConfigError(text), None), _WHERE)  # type: ignore[no-untyped-call]
    wrapper.exc_msg = f"{text}\n\n{''.join(traceback.format_exception(error))}"
    return wrapper


def _culprits(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the innermost parts of a batch that cannot be pickled; objects of unknown classes are not looked into."""
    if depth < 20 and isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _culprits(one, depth + 1)
    elif depth < 20 and isinstance(value, Mapping):
        yield from _culprits([*value.keys(), *value.values()], depth + 1)
    elif isinstance(value, Tensor):  # which is not pickled once more: that takes shared memory
        if value.requires_grad and not value.is_leaf:
            yield value
    elif not _pickles(value):
        yield value


def _pickles(value: Any) -> bool:
    try:
        ForkingPickler.dumps(value)
    except Exception:  # any that its class raises
        return False
    return True
