"""Carries a batch from a loader's worker to the main process, in shared memory that is reused.

torch gives every tensor of every batch its own file in memory. The kernel allocates and clears its pages one by one as
they are written, and its descriptor goes through a socket. Here a worker keeps such files, called pieces, makes the
next batches in them, and sends each descriptor only once. The option `reuse_batch_memory=False` switches that off. Then
nothing of this module runs, and every batch takes torch's way.

**What is delivered.** The tensors that torch would have made, over shared storages of exactly their size. The one
difference is that this module may still hold a storage after its last tensor is gone. So users may
treat these batches like those of torch's DataLoader.

**Who calls what.** One `BatchMemory` belongs to one loader. Each of its processes has a copy, and the two ends never
call the same methods.

| method | process | thread | when |
| --- | --- | --- | --- |
| `lend` | worker | main, in `Collate` | for each tensor of a batch |
| `reduced`, `unsent` | worker | of torch's queue, which pickles | for each storage of a batch; when pickling failed |
| `attach` | main | that reads the queue (main, or torch's pinning one) | for each storage of a batch, unpickled |
| `forget_ended` | main | any | when the loader is closed; by itself when new workers send their first batch |

A lock guards what the two threads of a worker share. In the main process one thread at a time reads the queue.

**The life of a piece.** The worker creates it (`lend`) and numbers this use of it (`PieceUse`). Each time that the
piece is pickled it is sent under another number (`reduced`), the first time with its descriptor. The main process maps
it (`attach`). Whenever it attaches a piece of that worker, it checks which uses have ended. It writes an ended use into
the array `ended`, at (row of the worker, number of the piece). Each place has one writer, the main process, and one
reader, the worker. Neither side waits for an answer.

**When a piece may be reused.** When at both ends

1. only this module refers to its storage: no tensor, view, array, graph or storage object does, by the storage's own
   reference counts;
2. no other process can have it. This one has not forked while it was in use, and torch has not passed its descriptor
   on. Torch records that in its own table whenever it pickles a tensor for another process;
3. the storage is still at its first address: torch moves it when it is shared under another strategy.

The main process confirms its end by the use in `ended`, and the worker checks its own end in `lend`. A piece that fails
2 or 3 is abandoned: it is never reused, and lives for as long as torch would have it live.

**Which tensors are made in pieces.** Only those that `Collate` makes itself, by torch's own rules of `default_collate`.
All others take torch's way. So do all tensors when every piece is in use, under the sharing strategy "file_system", and
when descriptors or shared memory are scarce (`room.py`). A release of torch that does not expose what the conditions
above need takes torch's way, too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.reduction import DupFd
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch.multiprocessing import get_sharing_strategy, reductions
from torch.utils.data import get_worker_info

from sophon_loader.batches.room import FREE_SHARE, KEPT_SHARE, Room, lowest_free
from sophon_loader.host.shared import SharedArray

SMALL_NBYTES = 1 << 16
"""Size up to which pieces are counted separately, bytes, so that retained labels do not take the places of images."""
MAX_LARGE, MAX_SMALL = 8, 24
"""Maximum number of large and small pieces of a worker. The large ones bound its memory. A piece is in use while its
tensor is on its way, with the training step, or not yet known to be free. That is four to six pieces for batches of one
image tensor."""

LOOK_S = 0.1
"""Seconds between two checks of the host's memory by a worker."""

_CAN_TELL = all(hasattr(reductions, name) for name in ("shared_cache", "fd_id")) and hasattr(
    torch._C, "_storage_Use_Count"
)
"""True if this release of torch exposes what the conditions above need; pieces are lent only then."""

_memories: weakref.WeakValueDictionary[str, BatchMemory] = weakref.WeakValueDictionary()
"""The memories of this process, by name. A pickled storage names the memory that it is to be attached to."""


class PieceUse(NamedTuple):
    """One use of a piece. In shared memory it is a uint64, and 0 stands for no use at all.

    - bit 63: abandoned. Another process (a forked child, say) may still see the tensor, so the piece is never reused.
    - bits 0 to 62: the number of the use. A worker counts from a random number below 2**62. So a new worker in an old
      worker's row of `ended` does not mistake old numbers for answers to its own uses. It could if they counted from 1,
      or from process ids, which recur.

    The count cannot run over into bit 63: that would take 2**62 uses, and a busy worker makes some 10**8 in a year.
    """

    number: int
    abandoned: bool = False

    @staticmethod
    def first() -> PieceUse:
        """Return the use at which a worker begins to count."""
        return PieceUse(int.from_bytes(os.urandom(8), "little") >> 2 | 1)

    def next(self) -> PieceUse:
        """Return the next use."""
        return PieceUse(self.number + 1)

    def pack(self) -> int:
        """Encode as a uint64."""
        return self.number | self.abandoned << 63

    @staticmethod
    def unpack(packed: int) -> PieceUse:
        """The inverse of `pack`."""
        return PieceUse(packed & ~(1 << 63), bool(packed >> 63))


class _Forks:
    """Counts the forks of this process, from when the first piece is made."""

    count = 0

    @staticmethod
    @cache
    def watch() -> None:
        """Begin to count. A forked child continues with its own forks."""
        os.register_at_fork(before=_Forks._one_more)

    @staticmethod
    def _one_more() -> None:
        _Forks.count += 1


class Piece:
    """Reusable shared memory, as one end sees it.

    Args:
        make: returns the storage, to which no other object may refer. A function, because an argument would be such an
            object.

    Attributes:
        storage: shared, of exactly `nbytes`.
        use: its current use; None while it is free. A worker that does not send a lent piece sets it to None.
    """

    def __init__(self, make: Callable[[], torch.UntypedStorage]) -> None:
        _Forks.watch()
        self.storage = make()
        self._alone = self._references()
        self.nbytes = self.storage.nbytes()
        self.address = self.storage.data_ptr()
        self.descriptor: int = self.storage._share_fd_cpu_()[0]  # shared memory gives the one that it has
        self.use: PieceUse | None = None
        self._file: tuple[int, int] = reductions.fd_id(self.descriptor)  # type: ignore[no-untyped-call]
        self._forks = _Forks.count

    def begin(self, use: PieceUse) -> None:
        """Begin a use. If the piece is already in use, forks since the first use still count."""
        if self.use is None:
            self._forks = _Forks.count
        self.use = use

    @property
    def is_held(self) -> bool:
        """True if an object outside this module refers to the storage."""
        return self._references() != self._alone

    @property
    def has_escaped(self) -> bool:
        """True if another process may have the memory, or torch has moved it."""
        has_forked = self._forks != _Forks.count
        was_sent = self._file in reductions.shared_cache
        return has_forked or was_sent or self.storage.data_ptr() != self.address

    def _references(self) -> tuple[int, int]:
        # Those of tensors, and those of Python, where the storage's object is one and the same for all who ask for it.
        return torch._C._storage_Use_Count(self.storage._cdata), sys.getrefcount(self.storage)


@dataclass
class _Session:
    """The pieces of one worker process, as the main process has them."""

    pid: int
    row: int
    pieces: dict[int, Piece] = field(default_factory=dict)


class BatchMemory:
    """The memory of all workers of a loader; see the module for the callers.

    Args:
        workers: number of workers.
        room: limits of this process and host.

    Attributes:
        room: limits of this process and host.

    Example:
        >>> memory = BatchMemory(workers=4)
        >>> loader = DataLoader(dataset, num_workers=4, collate_fn=Collate(default_collate, memory))
    """

    def __init__(self, workers: int, room: Room = Room()) -> None:  # noqa: B008
        self._name = uuid.uuid4().hex
        self._workers, self.room = max(1, workers), room
        self._scarce = False  # descriptors of the main process
        # uint64[workers, pieces]: the last use of each piece that has ended, see `PieceUse`.
        self._ended = SharedArray(np.zeros((self._workers, MAX_LARGE + MAX_SMALL), np.uint64))
        self._sessions: dict[bytes, _Session] = {}  # of the main process
        self._start()
        _memories[self._name] = self

    def _start(self) -> None:
        self._pid = os.getpid()
        self._session = os.urandom(16)
        self._last_use = PieceUse.first()
        self._looked_s = -LOOK_S  # when the memory that is free was looked at
        self._pieces: dict[int, Piece] = {}  # of a worker
        self._told: set[int] = set()  # those that the main process has
        self._lending = Lock()  # a batch is made in one thread and pickled in another

    def __getstate__(self) -> tuple[str, SharedArray, int, Room]:
        return self._name, self._ended, self._workers, self.room

    def __setstate__(self, state: tuple[str, SharedArray, int, Room]) -> None:
        self._name, self._ended, self._workers, self.room = state
        self._sessions, self._scarce = {}, False
        self._start()

    # --- a worker's side --------------------------------------------------------------------------------------

    def lend(self, nbytes: int) -> Piece | None:
        """Lend a piece to make a tensor in; None for torch's way.

        It is returned when the tensor was sent and dropped at both ends, or when its `use` is set to None.

        Args:
            nbytes: exact size of the tensor.
        """
        if not _CAN_TELL or nbytes == 0 or get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
            return None
        if self._pid != os.getpid():  # forked since
            self._start()
        with self._lending:
            self._look_at_memory()
            for number in self._numbers_for(nbytes):
                piece = self._pieces.get(number)
                if piece is None or piece.nbytes != nbytes:
                    piece = self._new_piece(number, nbytes)
                if piece is not None:
                    break
            else:
                return None
            piece.use = None  # its last use has ended, so that forks are counted from here
            piece.begin(self._next_use())
            return piece

    def _numbers_for(self, nbytes: int) -> list[int]:
        """Return numbers of pieces to lend, the best first.

        The best is a free one of that size. Next is a new one if all free ones have one size: they will be needed
        again, since only an epoch's last batch is smaller. Last is the free one that was used first.
        """
        first, count = (MAX_LARGE, MAX_SMALL) if nbytes <= SMALL_NBYTES else (0, MAX_LARGE)
        numbers = range(first, first + count)
        free = [number for number in numbers if number in self._pieces and self._is_free(number)]
        free.sort(key=self._last_used)
        for number in free:
            if self._pieces[number].nbytes == nbytes:
                return [number]
        unused = [number for number in numbers if number not in self._pieces]
        alike = len({self._pieces[number].nbytes for number in free}) <= 1
        return (unused[:1] if alike else []) + free[:1]

    def _last_used(self, number: int) -> int:
        use = self._pieces[number].use
        return 0 if use is None else use.number

    def _new_piece(self, number: int, nbytes: int) -> Piece | None:
        """Make a piece, in place of a free one if there is one; None if there is no room for it."""
        if number in self._pieces:
            self._let_go_of(number)
        self._told.discard(number)
        total, free = self.room.shared_nbytes
        kept = sum(piece.nbytes for piece in self._pieces.values())
        fits = kept + nbytes <= total * KEPT_SHARE / self._workers and free - nbytes >= total * FREE_SHARE
        if not fits or not self.room.keeps(lowest_free(), small=nbytes <= SMALL_NBYTES):
            return None
        try:
            self._pieces[number] = Piece(lambda: torch.UntypedStorage._new_shared(nbytes))  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError):  # others have taken the rest meanwhile
            self._let_go_of_free()
            return None
        return self._pieces[number]

    def _look_at_memory(self) -> None:
        """Release free pieces if the host's memory is short. Checks only now and then, since a check takes 15 us."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        total, free = self.room.shared_nbytes
        if free < total * FREE_SHARE / 2:
            self._let_go_of_free()

    def _let_go_of_free(self) -> None:
        """Release the memory of all free pieces."""
        for number in [one for one in list(self._pieces) if self._is_free(one)]:
            self._let_go_of(number)

    def _let_go_of(self, number: int) -> None:
        """Release the memory of a free piece. The main process has it mapped, too, but never reads it again."""
        piece = self._pieces.pop(number)
        with contextlib.suppress(OSError):
            os.ftruncate(piece.descriptor, 0)

    def _next_use(self) -> PieceUse:
        self._last_use = self._last_use.next()
        return self._last_use

    def _is_free(self, number: int) -> bool:
        """True if a piece may be reused; a piece that never may be is forgotten."""
        piece = self._pieces[number]
        if piece.use is not None:
            ended = PieceUse.unpack(int(self._ended.array[self._row, number]))
            if ended.number != piece.use.number:
                return False
            if ended.abandoned:
                del self._pieces[number]
                return False
        if piece.has_escaped:
            del self._pieces[number]
            return False
        return not piece.is_held

    @property
    def _row(self) -> int:
        worker = get_worker_info()
        assert worker is not None, "only workers have memory to lend"
        return int(worker.id)

    def reduced(self, storage: torch.UntypedStorage) -> Any:
        """Return how to pickle a storage (see `object.__reduce__`); NotImplemented for torch's way."""
        address = storage.data_ptr() if storage.device.type == "cpu" else None
        with self._lending:
            lent = (n for n, piece in self._pieces.items() if piece.use is not None and piece.address == address)
            number = next(lent, None)
            if number is None:
                return NotImplemented
            piece = self._pieces[number]
            # A number for each time that it is sent: a rule of the user may keep a tensor here and send it again.
            use = self._next_use()
            piece.begin(use)
            handle = None if number in self._told else DupFd(piece.descriptor)
            self._told.add(number)
        session = self._session, os.getpid(), self._row
        return _attached, (self._name, session, number, use.pack(), piece.nbytes, handle)

    def unsent(self) -> None:
        """Forget all pieces, because a batch could not be pickled and the main process may lack descriptors that count
        as sent."""
        with self._lending:
            self._pieces.clear()
            self._told.clear()

    # --- the main process's side ------------------------------------------------------------------------------

    def attach(
        self, session: tuple[bytes, int, int], number: int, use: PieceUse, nbytes: int, handle: Any
    ) -> torch.UntypedStorage:
        """Return the storage that a worker has filled.

        Args:
            session: of the worker: random bytes, its process id, and its row.
            number: of the piece, below `MAX_LARGE + MAX_SMALL`.
            use: the use that it is sent for.
            nbytes: size of the piece.
            handle: of the memory; None if this process has the piece already.
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
                pieces[number] = Piece(lambda: torch.UntypedStorage._new_shared_fd_cpu(descriptor, nbytes))  # type: ignore[attr-defined]
            finally:
                os.close(descriptor)
            newest = pieces[number].descriptor
            self._scarce = self.room.lets_go(newest)
            if not self.room.keeps(newest, small=nbytes <= SMALL_NBYTES):
                self._tell(row, number, use._replace(abandoned=True))
                return pieces.pop(number).storage
        pieces[number].begin(use)
        return pieces[number].storage

    def _give_back(self, session: _Session) -> None:
        """Report the pieces that have become free to their worker."""
        for number, piece in list(session.pieces.items()):
            if piece.use is None or piece.is_held:
                continue
            # In this order: code that shares a tensor refers to it until torch has recorded that.
            if piece.has_escaped or self._scarce:
                self._tell(session.row, number, piece.use._replace(abandoned=True))
                del session.pieces[number]
            else:
                self._tell(session.row, number, piece.use)
                piece.use = None

    def _tell(self, row: int, number: int, ended: PieceUse) -> None:
        self._ended.array[row, number] = ended.pack()

    def forget_ended(self) -> None:
        """Drop the pieces of workers that have ended. Their memory is freed with the last tensor over it."""
        for key, session in list(self._sessions.items()):
            if not psutil.pid_exists(session.pid):
                self._sessions.pop(key, None)


def _attached(
    name: str, session: tuple[bytes, int, int], number: int, use: int, nbytes: int, handle: Any
) -> torch.UntypedStorage:
    """Unpickle a storage in the main process, see `BatchMemory.reduced`."""
    return _memories[name].attach(session, number, PieceUse.unpack(use), nbytes, handle)
