"""How a batch gets from a loader's worker to the main process: in shared memory that is used again and again.

torch gives every tensor of every batch a file in memory of its own, whose pages the kernel makes and clears one by one
as they are written, and whose descriptor goes through a socket. Here a worker keeps such files, called pieces, makes
the next batches in them, and sends the descriptor of each only once.

**The contract.** What arrives is what torch would have made: tensors over shared storages of their own exact size. All
that is special is that a storage may be held by this module, too, after its last tensor is gone. A piece is used for
another batch only when, at both ends,

1. nothing but this module refers to its storage: no tensor, view, array, graph or storage object, by the storage's own
   count of references;
2. no other process can have it: the process has not forked while it was in use, and torch has not handed its descriptor
   out, which torch notes in a table of its own whenever a tensor is pickled for another process;
3. the storage still lies where it was made: torch moves it when it is shared under another strategy.

What fails 2 or 3 is never used again, and lives for as long as torch would have it live. So whatever may be done with a
batch of torch's DataLoader may be done with these.

**Who calls.** In a worker: `Collate`, for each batch, and the queue's thread, which pickles it. In the main process:
the thread that reads the queue (the main thread, or torch's pinning thread), which unpickles it, and at that occasion
gives back what has become free.

Pieces are lent only for tensors that this module makes itself: by torch's own rules of `default_collate`. All else goes
torch's way, which is also taken when every piece is in use, and under the sharing strategy "file_system".
"""

from __future__ import annotations

import os
import pickle
import sys
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from multiprocessing.reduction import DupFd, ForkingPickler
from threading import Lock
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy, reductions
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import (
    collate,
    collate_float_fn,
    collate_int_fn,
    collate_numpy_scalar_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)
from torchvision.tv_tensors import TVTensor

from sophon_loader.shared import SharedArray

CollateFn = Callable[[list[Any]], Any]

SMALL_NBYTES = 1 << 16
"""Pieces up to this size are counted apart, so that labels that are kept do not take the place of images."""
MAX_LARGE, MAX_SMALL = 8, 24
"""Pieces of a worker. Of large ones that is a bound of its memory; in use are as many as there are large tensors on
their way, with the training step, or not yet known to be free: four to six for batches of one image tensor."""
_ESCAPED = 1 << 63
"""Added to a number: another process may have the memory for as long as it likes."""

_CAN_TELL = all(hasattr(reductions, name) for name in ("shared_cache", "fd_id")) and hasattr(
    torch._C, "_storage_Use_Count"
)
"""Whether this release of torch shows what the contract rests on; pieces are lent only then."""

_memories: weakref.WeakValueDictionary[str, BatchMemory] = weakref.WeakValueDictionary()
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=_count_fork)


class _Piece:
    """Shared memory that is used again, as one end sees it; `use` numbers what it is in use for, 0 for nothing.

    Args:
        make: gives the storage; nobody else may refer to it, which is why it is not given as it is.
    """

    def __init__(self, make: Callable[[], torch.UntypedStorage]) -> None:
        self.storage = make()
        self._alone = self._references()
        self.nbytes = self.storage.nbytes()
        self.address = self.storage.data_ptr()
        self.descriptor: int = self.storage._share_fd_cpu_()[0]  # shared memory gives the one that it has
        self.use = 0
        self._file: tuple[int, int] = reductions.fd_id(self.descriptor)  # type: ignore[no-untyped-call]
        self._forks = _forks

    def begin(self, use: int) -> None:
        """It is in use from now on, under that number; if it was before, the forks since then still count."""
        if not self.use:
            self._forks = _forks
        self.use = use

    @property
    def is_held(self) -> bool:
        """Whether something but this module refers to the storage."""
        return self._references() != self._alone

    @property
    def has_escaped(self) -> bool:
        """Whether another process may have the memory."""
        return self._forks != _forks or self._file in reductions.shared_cache or self.storage.data_ptr() != self.address

    def _references(self) -> tuple[int, int]:
        # Those of tensors, and those of Python, where the storage's object is one and the same for all who ask for it.
        return torch._C._storage_Use_Count(self.storage._cdata), sys.getrefcount(self.storage)


@dataclass
class _Session:
    """The pieces of one worker process, as the main process has them."""

    pid: int
    row: int
    pieces: dict[int, _Piece] = field(default_factory=dict)


class BatchMemory:
    """The memory of all workers of a loader.

    Args:
        workers: of the loader.
    """

    def __init__(self, workers: int) -> None:
        self._name = uuid.uuid4().hex
        # For each piece, the last use of it that has ended; the main process writes, the worker reads.
        self._ended = SharedArray(np.zeros((max(1, workers), MAX_LARGE + MAX_SMALL), np.uint64))
        self._sessions: dict[bytes, _Session] = {}  # of the main process
        self._start()
        _memories[self._name] = self

    def _start(self) -> None:
        self._pid = os.getpid()
        self._session = os.urandom(16)
        # Numbers that no worker before has used, nor will: what stands in its row must not be taken for an answer.
        self._uses = int.from_bytes(os.urandom(8), "little") >> 2 | 1
        self._pieces: dict[int, _Piece] = {}  # of a worker
        self._told: set[int] = set()  # those that the main process has
        self._lending = Lock()  # a batch is made in one thread and pickled in another

    def __getstate__(self) -> tuple[str, SharedArray]:
        return self._name, self._ended

    def __setstate__(self, state: tuple[str, SharedArray]) -> None:
        self._name, self._ended = state
        self._sessions = {}
        self._start()

    # --- a worker's side --------------------------------------------------------------------------------------

    def lend(self, nbytes: int) -> _Piece | None:
        """A piece of exactly `nbytes` to make a tensor in; None for torch's way.

        It comes back when the tensor has been sent and dropped at both ends, or when its `use` is set to 0.
        """
        if not _CAN_TELL or nbytes == 0 or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
            return None
        if self._pid != os.getpid():  # forked since
            self._start()
        with self._lending:
            first, count = (MAX_LARGE, MAX_SMALL) if nbytes <= SMALL_NBYTES else (0, MAX_LARGE)
            numbers = range(first, first + count)
            free = [number for number in numbers if number in self._pieces and self._is_free(number)]
            fitting = [number for number in free if self._pieces[number].nbytes == nbytes]
            new = [number for number in numbers if number not in self._pieces]
            number = next(iter((*fitting, *free, *new)), None)
            if number is None:
                return None
            if not fitting:
                self._pieces[number] = _Piece(lambda: torch.UntypedStorage._new_shared(nbytes))  # type: ignore[no-untyped-call]
                self._told.discard(number)
            self._pieces[number].use = 0
            self._pieces[number].begin(self._next_use())
            return self._pieces[number]

    def _next_use(self) -> int:
        self._uses += 1
        return self._uses

    def _is_free(self, number: int) -> bool:
        """Whether a piece may be used again; one that never will be is forgotten."""
        piece, ended = self._pieces[number], int(self._ended.array[self._row, number])
        if piece.use and ended & ~_ESCAPED != piece.use:
            return False
        if (piece.use and ended & _ESCAPED) or piece.has_escaped:
            del self._pieces[number]
            return False
        return not piece.is_held

    @property
    def _row(self) -> int:
        worker = get_worker_info()
        assert worker is not None, "only workers have memory to lend"
        return int(worker.id)

    def reduced(self, storage: torch.UntypedStorage) -> Any:
        """How to pickle a storage: see `object.__reduce__`; NotImplemented for torch's way."""
        address = storage.data_ptr() if storage.device.type == "cpu" else None
        with self._lending:
            found = [number for number, piece in self._pieces.items() if piece.use and piece.address == address]
            if not found:
                return NotImplemented
            number, piece = found[0], self._pieces[found[0]]
            # A number for each time that it is sent: a rule of the user may keep a tensor here and send it again.
            piece.begin(self._next_use())
            handle = None if number in self._told else DupFd(piece.descriptor)
            self._told.add(number)
        session = self._session, os.getpid(), self._row
        return _attached, (self._name, session, number, piece.use, piece.nbytes, handle)

    def unsent(self) -> None:
        """A batch could not be pickled: the main process may not have what it was told of."""
        with self._lending:
            self._pieces.clear()
            self._told.clear()

    # --- the main process's side ------------------------------------------------------------------------------

    def attach(
        self, session: tuple[bytes, int, int], number: int, use: int, nbytes: int, handle: Any
    ) -> torch.UntypedStorage:
        """The storage that a worker has filled.

        Args:
            session: the worker's, with its process id and its row.
            number, use: which piece, and the number of this use of it.
            handle: of the memory, when this process does not have it yet.
        """
        key, pid, row = session
        if key not in self._sessions:
            self.forget_ended()
            self._sessions[key] = _Session(pid, row)
        self._give_back(self._sessions[key])
        pieces = self._sessions[key].pieces
        if handle is not None:
            descriptor = handle.detach()
            try:
                pieces[number] = _Piece(lambda: torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes))  # type: ignore[attr-defined]
            finally:
                os.close(descriptor)
        pieces[number].begin(use)
        return pieces[number].storage

    def _give_back(self, session: _Session) -> None:
        """Tell a worker of the pieces that have become free."""
        for number, piece in list(session.pieces.items()):
            if not piece.use or piece.is_held:
                continue
            # In this order: whoever shares a tensor refers to it until torch has noted that.
            if piece.has_escaped:
                self._ended.array[session.row, number] = piece.use | _ESCAPED
                del session.pieces[number]
            else:
                self._ended.array[session.row, number] = piece.use
                piece.use = 0

    def forget_ended(self) -> None:
        """Let the memory of workers that have ended go, as soon as the last tensor over it does."""
        for key, session in list(self._sessions.items()):
            if not psutil.pid_exists(session.pid):
                self._sessions.pop(key, None)


def _attached(name: str, *what: Any) -> torch.UntypedStorage:
    return _memories[name].attach(*what)


class _Pickler(ForkingPickler):
    def __init__(self, file: BytesIO, memory: BatchMemory) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._memory = memory

    def reducer_override(self, value: Any) -> Any:
        return self._memory.reduced(value) if type(value) is torch.UntypedStorage else NotImplemented


class _Batch:
    """A batch that is pickled by `_Pickler`, and so arrives as what it holds."""

    def __init__(self, held: Any, memory: BatchMemory) -> None:
        self._held = held
        self._memory = memory

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        file = BytesIO()
        try:
            _Pickler(file, self._memory).dump(self._held)
        except Exception:
            self._memory.unsent()
            raise
        return pickle.loads, (file.getvalue(),)


class Collate:
    """A `collate_fn` whose batches come out of a worker in a loader's `BatchMemory`.

    Args:
        collate_fn: makes the batch. torch's `default_collate` does so right in that memory; what another one makes
            goes torch's way, since only its author knows what else refers to it.
        arrange: what is done to the samples before; None for nothing.
    """

    def __init__(self, collate_fn: CollateFn, memory: BatchMemory, arrange: CollateFn | None = None) -> None:
        self._collate_fn = collate_fn
        self._memory = memory
        self._arrange = arrange

    def __call__(self, samples: list[Any]) -> Any:
        if self._arrange is not None:
            samples = self._arrange(samples)
        if get_worker_info() is None or self._collate_fn is not default_collate:
            return self._collate_fn(samples)
        lent: list[_Piece] = []
        try:
            return _Batch(collate(samples, collate_fn_map=self._rules(lent)), self._memory)
        except Exception:
            for piece in lent:
                piece.use = 0
            raise

    def _rules(self, lent: list[_Piece]) -> dict[Any, Any]:
        """torch's rules by type; those whose tensors are new and nobody else's make them in pieces."""

        def stack(tensors: Sequence[Tensor], *, collate_fn_map: Any) -> Any:
            first = tensors[0]
            if all(type(one) is type(first) for one in tensors) and _is_dense(first) and _stacks_to_plain(first):
                shape = (len(tensors), *first.shape)
                batch = self._tensor(lent, first.dtype, shape, len(tensors) * first.numel() * first.element_size())
                if batch is not None:
                    return torch.stack([one.as_subclass(Tensor) for one in tensors], out=batch)
            return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)

        def numbers(rule: Any) -> Any:
            def collate_numbers(values: Sequence[Any], *, collate_fn_map: Any) -> Any:
                made = rule(values, collate_fn_map=collate_fn_map)
                batch = self._tensor(lent, made.dtype, made.shape, made.nbytes) if _is_dense(made) else None
                return made if batch is None else batch.copy_(made)

            return collate_numbers

        ours = {collate_tensor_fn: stack}
        ours |= {rule: numbers(rule) for rule in (collate_int_fn, collate_float_fn, collate_numpy_scalar_fn)}
        return {kind: ours.get(rule, rule) for kind, rule in default_collate_fn_map.items()}

    def _tensor(self, lent: list[_Piece], dtype: torch.dtype, shape: Sequence[int], nbytes: int) -> Tensor | None:
        piece = self._memory.lend(nbytes)
        if piece is None:
            return None
        lent.append(piece)
        batch: Tensor = torch.empty(0, dtype=dtype, device="cpu").set_(piece.storage, 0, tuple(shape))  # type: ignore[call-overload]
        return batch


def _is_dense(tensor: Tensor) -> bool:
    """Whether it is an array in this host's memory."""
    special = tensor.is_nested or tensor.is_quantized
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not special


def _stacks_to_plain(tensor: Tensor) -> bool:
    """Whether `torch.stack` makes a tensor like any other of it, as of images of torchvision unless told not to."""
    if type(tensor) is Tensor:
        return True
    return isinstance(tensor, TVTensor) and type(torch.stack([tensor])) is Tensor
