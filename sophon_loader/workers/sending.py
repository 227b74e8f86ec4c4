"""The queue by which workers send batches: what cannot be pickled arrives as an error, in place of its batch."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.queues import Queue
from multiprocessing.reduction import ForkingPickler
from queue import Empty
from typing import Any

from torch import Tensor
from torch._utils import ExceptionWrapper

from sophon_loader.errors import ConfigError
from sophon_loader.workers.ranges import RECEIVING, WAITING, profiler_range, profiling

_WHERE = "in a DataLoader worker, pickling a batch"


class Sending(Queue):  # type: ignore[type-arg]
    """multiprocessing's queue, but for a message that cannot be pickled.

    It is pickled in a thread of the queue's own, which prints the error and goes on; torch's loader then waits for that
    batch without end.

    Example:
        >>> queue = multiprocessing.get_context().Queue()
        >>> queue.__class__ = Sending
    """

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As of multiprocessing's queue; a profiler sees waiting and receiving apart."""
        if not (block and profiling()):
            return super().get(block, timeout)
        with profiler_range(WAITING):
            if not self._reader.poll(timeout):  # type: ignore[attr-defined]
                raise Empty
        with profiler_range(RECEIVING):
            return super().get(block, timeout)

    def _on_queue_feeder_error(self, error: Exception, message: Any) -> None:
        """In that thread: send the error.

        Args:
            error: of pickling.
            message: the number of the batch and what was to be sent for it.
        """
        number, data = message
        self.put((number, _failure(error, data)))


def _failure(error: Exception, data: Any) -> ExceptionWrapper:
    """What torch raises in place of a batch."""
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
    """The innermost parts of a batch that cannot be pickled; within an object of an unknown class it is not looked."""
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
    except Exception:  # whatever its class raises
        return False
    return True
