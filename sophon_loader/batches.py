"""How a batch gets from a loader's worker to the main process: in shared memory that is used again and again.

torch gives every tensor of every batch a file in memory of its own, whose pages the kernel makes and clears one by one
as they are written, and whose descriptor goes through a socket. Here a worker keeps the memory of its large tensors;
the main process writes a number into an array that both share when the last tensor over it is gone, and then the worker
uses it for another batch. Small tensors travel in the message itself. What finds no memory goes the way of torch.
Tensors that are views of one another in the worker are so no more in the main process.
"""

from __future__ import annotations

import math
import os
import pickle
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from threading import Lock
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map
from torchvision.tv_tensors import TVTensor

from sophon_loader.shared import SharedArray, shared_tensor

CollateFn = Callable[[list[Any]], Any]

SMALL_NBYTES = 1 << 16
"""Tensors up to this size travel in the message."""
MOST_PIECES = 8
"""Of memory per worker: one per large tensor that is under way or in use."""
_ABANDONED = 1 << 63
"""Added to a number: the tensors are gone, but a forked child may still see them."""

_memories: weakref.WeakValueDictionary[str, BatchMemory] = weakref.WeakValueDictionary()
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork)


@dataclass
class _Piece:
    """Memory of a worker; `use` numbers what it was last lent for, `known` is whether the main process has it."""

    number: int
    memory: Tensor
    use: int = 0
    known: bool = False


class BatchMemory:
    """The memory of all workers of a loader.

    Args:
        workers: of the loader.
    """

    def __init__(self, workers: int) -> None:
        self._name = uuid.uuid4().hex
        self._ended = SharedArray(np.zeros((max(1, workers), MOST_PIECES), np.uint64))
        self._start()
        self._mapped: dict[int, dict[int, Tensor]] = {}  # of the main process: by process id of a worker, and number
        _memories[self._name] = self

    def _start(self) -> None:
        self._pieces: list[_Piece] = []  # of a worker
        self._uses = os.getpid() << 32  # so that a worker that follows another does not take its numbers for its own
        self._lending = Lock()  # a batch is made in one thread and pickled in another

    def __getstate__(self) -> tuple[str, SharedArray]:
        return self._name, self._ended

    def __setstate__(self, state: tuple[str, SharedArray]) -> None:
        self._name, self._ended = state
        self._mapped = {}
        self._start()

    # --- a worker's side --------------------------------------------------------------------------------------

    def lend(self, nbytes: int) -> _Piece | None:
        """A piece of at least `nbytes`, until the main process has dropped what was made of it or its `use` is 0."""
        if self._uses >> 32 != os.getpid():  # forked since
            self._start()
        with self._lending:
            for number in range(MOST_PIECES):
                if number == len(self._pieces):
                    self._pieces.append(_Piece(number, shared_tensor(nbytes, torch.uint8)))
                piece, ended = self._pieces[number], int(self._ended.array[self._row, number])
                if piece.use and ended & ~_ABANDONED != piece.use:
                    continue
                if piece.memory.numel() < nbytes or (piece.use and ended & _ABANDONED):
                    piece.memory, piece.known = shared_tensor(nbytes, torch.uint8), False
                self._uses += 1
                piece.use = self._uses
                return piece
        return None

    @property
    def _row(self) -> int:
        worker = get_worker_info()
        assert worker is not None, "only workers have memory to lend"
        return int(worker.id)

    def reduced(self, tensor: Tensor) -> Any:
        """How to pickle a tensor: see `object.__reduce__`; NotImplemented for torch's way."""
        if not _is_ordinary(tensor):
            return NotImplemented
        start = tensor.data_ptr()
        piece = next((piece for piece in self._pieces if piece.memory.data_ptr() == start), None)
        if piece is None:
            data = tensor.reshape(-1).view(torch.uint8)
            if len(data) <= SMALL_NBYTES:
                return _copied, (data.numpy().tobytes(), tensor.dtype, tensor.shape)
            shared = tensor.is_shared()  # type: ignore[no-untyped-call]
            piece = None if shared else self.lend(len(data))
            if piece is None:
                return NotImplemented
            piece.memory[: len(data)] = data
        memory = None if piece.known else piece.memory.untyped_storage()
        piece.known = True
        return _attached, (self._name, self._row, piece.number, piece.use, memory, tensor.dtype, tensor.shape)

    # --- the main process's side ------------------------------------------------------------------------------

    def attach(
        self,
        row: int,
        number: int,
        use: int,
        memory: torch.UntypedStorage | None,
        dtype: torch.dtype,
        shape: Sequence[int],
    ) -> Tensor:
        """A tensor over a worker's memory, which the worker gets back when nothing refers to it any more."""
        pid = use >> 32
        if memory is not None:
            if pid not in self._mapped:
                self.forget_ended()
            self._mapped.setdefault(pid, {})[number] = torch.empty(0, dtype=torch.uint8).set_(memory)
        owner = self._mapped[pid][number].numpy()[: dtype.itemsize * math.prod(shape)]
        back = weakref.finalize(owner, _give_back, self._ended, row, number, use, os.getpid(), _forks)
        back.atexit = False
        tensor: Tensor = torch.from_numpy(owner).view(dtype).view(tuple(shape))
        return tensor

    def forget_ended(self) -> None:
        """Let the memory of workers that have ended go, as soon as the last tensor over it does."""
        for pid in [pid for pid in list(self._mapped) if not psutil.pid_exists(pid)]:
            del self._mapped[pid]


def _give_back(ended: SharedArray, row: int, number: int, use: int, pid: int, forks: int) -> None:
    if os.getpid() == pid:  # else it was a forked child's copy of the tensor that went
        ended.array[row, number] = use if forks == _forks else use | _ABANDONED


def _attached(name: str, *what: Any) -> Tensor:
    return _memories[name].attach(*what)


def _copied(data: bytes, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    if not data:
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).view(tuple(shape)).clone()


def _is_dense(tensor: Tensor) -> bool:
    """Whether it is an array in this host's memory."""
    special = tensor.is_nested or tensor.is_quantized
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not special


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether its values, dtype and shape are all there is to a tensor."""
    special = tensor.requires_grad or tensor.is_conj() or tensor.is_neg()
    # A single value has any stride and counts as contiguous.
    return _is_dense(tensor) and not special and tensor.is_contiguous() and tensor.stride()[-1:] in ((), (1,))


class _Pickler(ForkingPickler):
    def __init__(self, file: BytesIO, memory: BatchMemory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        return self._memory.reduced(value) if type(value) is Tensor else NotImplemented


class _Batch:
    """A batch that is pickled by `_Pickler`, and so arrives as what it holds."""

    def __init__(self, held: Any, memory: BatchMemory) -> None:
        self._held = held
        self._memory = memory

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        file = BytesIO()
        _Pickler(file, self._memory).dump(self._held)
        return pickle.loads, (file.getvalue(),)


class Collate:
    """A `collate_fn` whose batches come out of a worker in a loader's `BatchMemory`.

    Args:
        collate_fn: makes the batch; torch's `default_collate` does so right in that memory.
        arrange: what is done to the samples before; None for nothing.
    """

    def __init__(self, collate_fn: CollateFn, memory: BatchMemory, arrange: CollateFn | None = None) -> None:
        self._collate_fn = collate_fn
        self._memory = memory
        self._arrange = arrange

    def __call__(self, samples: list[Any]) -> Any:
        if self._arrange is not None:
            samples = self._arrange(samples)
        if get_worker_info() is None:
            return self._collate_fn(samples)
        if self._collate_fn is not default_collate:
            return _Batch(self._collate_fn(samples), self._memory)
        lent: list[_Piece] = []
        rules: dict[Any, Any] = {**default_collate_fn_map, Tensor: partial(self._stack, lent)}
        try:
            return _Batch(collate(samples, collate_fn_map=rules), self._memory)
        except Exception:
            for piece in lent:
                piece.use = 0
            raise

    def _stack(self, lent: list[_Piece], tensors: Sequence[Tensor], *, collate_fn_map: Any) -> Tensor:
        first, nbytes, piece = tensors[0], 0, None
        if all(type(one) is type(first) for one in tensors) and _is_dense(first) and _stacks_to_plain(first):
            nbytes = len(tensors) * first.nbytes
            piece = self._memory.lend(nbytes) if nbytes > SMALL_NBYTES else None
        if piece is None:
            made: Tensor = default_collate_fn_map[Tensor](tensors, collate_fn_map=collate_fn_map)
            return made
        lent.append(piece)
        batch = piece.memory[:nbytes].view(first.dtype).view((len(tensors), *first.shape))
        return torch.stack([one.as_subclass(Tensor) for one in tensors], out=batch)


def _stacks_to_plain(tensor: Tensor) -> bool:
    """Whether `torch.stack` makes a tensor like any other of it, as of images of torchvision unless told not to."""
    if type(tensor) is Tensor:
        return True
    return isinstance(tensor, TVTensor) and type(torch.stack([tensor])) is Tensor
