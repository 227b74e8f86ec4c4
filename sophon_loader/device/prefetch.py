"""Copies batches to the accelerator while the step before them runs (`device_prefetch`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from sophon_loader.errors import raised_by_handler
from sophon_loader.torch_internals.iterator_wrapper import Around
from sophon_loader.torch_internals.untraced import untraced

_FAILED = object()
"""Returned in place of a batch that failed."""


class Prefetch(Around):
    """The batches of an iterator, with the next ones already copied to a device.

    They are copied, and finished there, on a separate stream. When one is delivered, the current stream waits for it,
    and the host does not. Only the batch that is due is waited for. Other batches are taken if they have arrived from
    the workers. Without workers, one is made for each that is delivered, while the device runs the step before. An
    error is raised in its batch's turn.

    The host itself copies from memory that is not pinned; with `pin_memory=True` it only starts the copies.

    Args:
        batches: an iterator of torch's DataLoader.
        device: where to copy; on the CPU, and without streams, nothing is copied during a step.
        depth: maximum number of batches on their way, in addition to the one that is delivered.
        finish: called on each batch on the device; None for nothing.

    Example:
        >>> for images, labels in Prefetch(iter(loader), torch.device("cuda"), depth=2):
        ...     train(images, labels)
    """

    def __init__(
        self,
        batches: Iterator[Any],
        device: torch.device,
        depth: int,
        finish: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__(batches)
        self._device = device
        self._depth = depth
        self._finish = finish
        self._ahead: deque[_Sent | Exception] = deque()
        streams: Any = None if device.type == "cpu" else torch.get_device_module(device)
        self._module = streams
        self._stream = streams.Stream(device) if hasattr(streams, "Stream") else None

    @untraced
    def __next__(self) -> Any:
        if not self._ahead:
            self._send_next()
        while len(self._ahead) <= self._depth and not self._has_ended:
            of_workers = _of_workers(self._batches)
            if of_workers is not None and not _has_come(of_workers):
                break
            self._send_next()
            if of_workers is None:
                break
        sent = self._ahead.popleft()
        if isinstance(sent, Exception):
            try:
                raise sent
            finally:
                del sent  # whose traceback refers to this frame: a circle, which would hold the workers
        return sent.batch if sent.done is None else self._received(sent)

    @property
    def _has_ended(self) -> bool:
        return bool(self._ahead) and isinstance(self._ahead[-1], StopIteration)

    def _send_next(self) -> None:
        try:
            if (batch := self._next()) is _FAILED:
                return
            if self._stream is None:
                self._ahead.append(_Sent(self._there(batch), None))
                return
            with self._module.stream(self._stream):
                batch = self._there(batch)
                self._ahead.append(_Sent(batch, self._stream.record_event()))
        except Exception as error:
            if raised_by_handler(error):
                raise
            self._ahead.append(error)

    def _next(self) -> Any:
        """Return the iterator's next batch.

        A waiting error refers, by its traceback, to the frames below it and so to this object. This reference cycle
        would keep workers alive, so the traceback is removed. A worker's error has its traceback in its text.
        """
        try:
            return next(self._batches)
        except Exception as error:
            if raised_by_handler(error):
                raise
            if isinstance(error, StopIteration) or _of_workers(self._batches) is not None:
                self._ahead.append(error.with_traceback(None))
                return _FAILED
            raise

    def _there(self, batch: Any) -> Any:
        """Return a batch on the device, finished."""
        if self._finish is not None:
            batch = self._finish(batch)
        return batch if self._module is None else tree_map(self._copied, batch)

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self._device, non_blocking=True)
        # What a user's collate_fn makes, as far as it says how to move it: torch_geometric's Batch, BatchEncoding.
        return value.to(self._device) if callable(getattr(value, "to", None)) else value

    def _received(self, sent: _Sent) -> Any:
        """Return a batch for use on the current stream."""
        current = self._module.current_stream(self._device)
        current.wait_event(sent.done)
        for value in tree_leaves(sent.batch):
            if isinstance(value, Tensor) and value.device.type == self._device.type:
                value.record_stream(current)  # its memory is not given to the next copy while this stream reads it
        return sent.batch


class _Sent(NamedTuple):
    """A batch on its way, and the stream's event after its copy; None without a stream."""

    batch: Any
    done: Any


def _of_workers(batches: Any) -> Any | None:
    """Return torch's iterator over workers; None without workers, when a batch is made on request."""
    of_torch = getattr(batches, "of_torch", batches)
    return of_torch if hasattr(of_torch, "_data_queue") else None


def _has_come(batches: Any) -> bool:
    """True if the next batch of torch's iterator over workers is probably here.

    If workers overtake one another, the batch that has arrived may be a later one; then the next one is waited for.
    """
    if not batches._task_info:  # all that was asked for has been taken
        return False
    return len(batches._task_info.get(batches._rcvd_idx, ())) > 1 or not batches._data_queue.empty()


def device_for(tail: torch.device | None) -> torch.device:
    """Return the device for prefetching: the tail's, else the current accelerator, else the CPU.

    Args:
        tail: device of the loader's tail; None without one.
    """
    if tail is None:
        available = torch.accelerator.is_available()
        tail = torch.accelerator.current_accelerator() if available else None
    if tail is None or tail.type == "cpu" or tail.index is not None:
        return tail or torch.device("cpu")
    return torch.device(tail.type, torch.accelerator.current_device_index())


def ahead(batches: Any, depth: int, tail: torch.device | None, finish: Callable[[Any], Any] | None = None) -> Any:
    """Return an iterator's batches as they are delivered: unchanged, or prefetched.

    Args:
        batches: an iterator of torch's DataLoader.
        depth: number of batches to prefetch; 0 for none.
        tail: device of the loader's tail, if it has one.
        finish: called on each prefetched batch; None for nothing.
    """
    if not depth:
        return batches
    return Prefetch(batches, device_for(tail), depth, finish)
