"""How a batch gets from a loader's worker to the main process: in shared memory that is used again and again.

torch gives every tensor of every batch a file in memory of its own, whose pages the kernel makes and clears one by one
as they are written, and whose descriptor goes through a socket. Here a worker keeps such files, called pieces, makes
the next batches in them, and sends the descriptor of each only once. `OffloadOptions(reuse_batch_memory=False)`
switches that off: then nothing of this module runs, and every batch goes torch's way.

**What is delivered.** What torch would have made: tensors over shared storages of their own exact size. The one
difference is that this module may hold a storage, too, after its last tensor is gone. So whatever may be done with a
batch of torch's DataLoader may be done with these.

**Who calls what.** One `BatchMemory` belongs to one loader. Each of its processes has a copy, and the two ends never
call the same methods.

| method | process | thread | when |
| --- | --- | --- | --- |
| `lend` | worker | main, in `Collate` | for each tensor of a batch |
| `reduced`, `unsent` | worker | of torch's queue, which pickles | for each storage of a batch; when pickling failed |
| `attach` | main | that reads the queue (main, or torch's pinning one) | for each storage of a batch, unpickled |
| `forget_ended` | main | any | when the loader is closed; by itself when new workers send their first batch |

A lock guards what the two threads of a worker share. In the main process one thread at a time reads the queue.

**The life of a piece.** The worker creates it (`lend`) and numbers this use of it (`PieceUse`). It is sent under
another number each time that it is pickled (`reduced`), the first time with its descriptor. The main process maps it
(`attach`) and from then on looks, whenever it attaches something of that worker, whether that use has ended. If so, it
writes the use into the array `ended`, at (row of the worker, number of the piece): each place has one writer, the main
process, and one reader, the worker. No answer is waited for, on either side.

**When a piece may be used again.** When at both ends

1. nothing but this module refers to its storage: no tensor, view, array, graph or storage object, by the storage's own
   count of references;
2. no other process can have it: this one has not forked while it was in use, and torch has not handed its descriptor
   out, which torch notes in a table of its own whenever a tensor is pickled for another process;
3. the storage still lies where it was made: torch moves it when it is shared under another strategy.

The main process says so for its end by the use in `ended`, and the worker checks its own end in `lend`. What fails 2 or
3 is abandoned: it is never used again, and lives for as long as torch would have it live.

**What is lent for.** Only tensors that `Collate` makes itself, by torch's own rules of `default_collate`. All else goes
torch's way, which is also taken when every piece is in use, under the sharing strategy "file_system", where descriptors
or shared memory are scarce (`room.py`), and by a release of torch that does not show what the conditions above ask for.
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
"""Pieces up to this size are counted apart, so that labels that are kept do not take the place of images."""
MAX_LARGE, MAX_SMALL = 8, 24
"""Pieces of a worker. That bounds its memory, by the large ones. As many are in use as there are large tensors on their
way, with the training step, or not yet known to be free: four to six for batches of one image tensor."""

LOOK_S = 0.1
"""How often a worker looks at the host's memory."""

_CAN_TELL = all(hasattr(reductions, name) for name in ("shared_cache", "fd_id")) and hasattr(
    torch._C, "_storage_Use_Count"
)
"""Whether this release of torch shows what the conditions above ask for; pieces are lent only then."""

_memories: weakref.WeakValueDictionary[str, BatchMemory] = weakref.WeakValueDictionary()
"""By name, those of this process: what a worker pickles says by name where it is to be attached."""


class PieceUse(NamedTuple):
    """One use of a piece. In shared memory it is a uint64, and 0 stands for no use at all.

    - bit 63: abandoned. Another process (a forked child, say) may still see the tensor, so the piece is never reused.
    - bits 0 to 62: the number of the use. A worker counts from a random number below 2**62. So a worker that follows
      another one in the same row of `ended` does not take what stands there for an answer to a use of its own, as it
      could if they counted from 1, or from process ids, which come again.

    The count cannot run over into bit 63: that would take 2**62 uses, and a busy worker makes some 10**8 in a year.
    """

    number: int
    abandoned: bool = False

    @staticmethod
    def first() -> PieceUse:
        """Where a worker begins to count."""
        return PieceUse(int.from_bytes(os.urandom(8), "little") >> 2 | 1)

    def next(self) -> PieceUse:
        """The use that is begun after this one."""
        return PieceUse(self.number + 1)

    def pack(self) -> int:
        """As a uint64."""
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
        """Begin to count; a forked child goes on counting its own."""
        os.register_at_fork(before=_Forks._one_more)

    @staticmethod
    def _one_more() -> None:
        _Forks.count += 1


class Piece:
    """Shared memory that is used again, as one end sees it.

    Args:
        make: gives the storage; nobody else may refer to it, which is why it is not given as it is.

    Attributes:
        storage: shared, of exactly `nbytes`.
        use: what it is in use for; None while it is free. A worker that does not send what it was lent sets it to None.
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
        """It is in use from now on, under that number; if it was before, the forks since then still count."""
        if self.use is None:
            self._forks = _Forks.count
        self.use = use

    @property
    def is_held(self) -> bool:
        """Whether something but this module refers to the storage."""
        return self._references() != self._alone

    @property
    def has_escaped(self) -> bool:
        """Whether another process may have the memory, or torch has moved it."""
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
    """The memory of all workers of a loader; see the module for who calls what.

    Args:
        workers: number of them.
        room: that there is.

    Attributes:
        room: that there is.

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
        """A piece to make a tensor in; None for torch's way.

        It comes back when the tensor has been sent and dropped at both ends, or when its `use` is set to None.

        Args:
            nbytes: that it shall have, no more and no less.
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
            piece.use = None  # what it was used for has ended, so that forks are counted anew
            piece.begin(self._next_use())
            return piece

    def _numbers_for(self, nbytes: int) -> list[int]:
        """Numbers of pieces to lend, the best first: a free one of that size, else a new one where all free ones are of
        one size (they will be wanted again: an epoch's last batch is smaller), else the free one that was used first.
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
        """A new piece, in place of a free one where there is one; None where there is no room for it."""
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
        """Give back what is free where the host's memory is short; looks now and then, since a look takes 15 us."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        total, free = self.room.shared_nbytes
        if free < total * FREE_SHARE / 2:
            self._let_go_of_free()

    def _let_go_of_free(self) -> None:
        """Give back the memory of all pieces that are free."""
        for number in [one for one in list(self._pieces) if self._is_free(one)]:
            self._let_go_of(number)

    def _let_go_of(self, number: int) -> None:
        """Give back the memory of a free piece. The main process has it mapped, too, but never looks at it again."""
        piece = self._pieces.pop(number)
        with contextlib.suppress(OSError):
            os.ftruncate(piece.descriptor, 0)

    def _next_use(self) -> PieceUse:
        self._last_use = self._last_use.next()
        return self._last_use

    def _is_free(self, number: int) -> bool:
        """Whether a piece may be used again; one that never will be is forgotten."""
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
        """How to pickle a storage: see `object.__reduce__`; NotImplemented for torch's way."""
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
        """A batch could not be pickled: the main process may not have what it was told of."""
        with self._lending:
            self._pieces.clear()
            self._told.clear()

    # --- the main process's side ------------------------------------------------------------------------------

    def attach(
        self, session: tuple[bytes, int, int], number: int, use: PieceUse, nbytes: int, handle: Any
    ) -> torch.UntypedStorage:
        """The storage that a worker has filled.

        Args:
            session: the worker's: random bytes, its process id, and its row.
            number: of the piece, below `MAX_LARGE + MAX_SMALL`.
            use: that it is sent for.
            nbytes: of the piece.
            handle: of the memory; None when this process has it already.
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
        """Tell a worker of the pieces that have become free."""
        for number, piece in list(session.pieces.items()):
            if piece.use is None or piece.is_held:
                continue
            # In this order: whoever shares a tensor refers to it until torch has noted that.
            if piece.has_escaped or self._scarce:
                self._tell(session.row, number, piece.use._replace(abandoned=True))
                del session.pieces[number]
            else:
                self._tell(session.row, number, piece.use)
                piece.use = None

    def _tell(self, row: int, number: int, ended: PieceUse) -> None:
        self._ended.array[row, number] = ended.pack()

    def forget_ended(self) -> None:
        """Let the memory of workers that have ended go, as soon as the last tensor over it does."""
        for key, session in list(self._sessions.items()):
            if not psutil.pid_exists(session.pid):
                self._sessions.pop(key, None)


def _attached(
    name: str, session: tuple[bytes, int, int], number: int, use: int, nbytes: int, handle: Any
) -> torch.UntypedStorage:
    """What a pickled storage becomes in the main process, see `BatchMemory.reduced`."""
    return _memories[name].attach(session, number, PieceUse.unpack(use), nbytes, handle)
