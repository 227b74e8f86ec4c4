"""Descriptors and shared memory that run short: what is still kept for reuse, and what is said when nothing helps."""

from __future__ import annotations

import errno
import gc
import os
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from sophon_loader.batches import batches, collate, room
from sophon_loader.batches.batches import LOOK_S, MAX_LARGE, SMALL_NBYTES, BatchMemory
from sophon_loader.batches.room import Room, lowest_free, open_files
from sophon_loader.errors import NoRoom

MIB = 1 << 20
LARGE = 1 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> BatchMemory:
    """Of two workers, as the first of them sees it."""
    for module in (batches, collate):
        monkeypatch.setattr(module, "get_worker_info", lambda: SimpleNamespace(id=0))
    return BatchMemory(2, Room(files=1 << 20, shared=(64 * MIB, 60 * MIB)))


def test_descriptors_small_pieces_go_first() -> None:
    limits = Room(files=100)
    assert limits.keeps(24, small=True) and not limits.keeps(25, small=True)
    assert limits.keeps(49, small=False) and not limits.keeps(50, small=False)
    assert limits.lets_go(75) and not limits.lets_go(74)


def test_this_process_s_own_descriptors_are_counted() -> None:
    gc.collect()  # else garbage of other tests may close some between two counts
    number, count = lowest_free(), open_files()
    with open(os.devnull, "rb") as file:
        assert file.fileno() == number and open_files() == count + 1


def test_a_worker_keeps_its_share_of_the_memory(memory: BatchMemory) -> None:
    kept = [memory.lend(2 * LARGE) for _ in range(MAX_LARGE)]
    assert [piece is not None for piece in kept] == [True] * 4 + [False] * 4  # a quarter of 64 MiB, by two


@pytest.mark.parametrize(
    "limits",
    [
        Room(files=1 << 20, shared=(64 * MIB, 32 * MIB)),
        Room(files=4, shared=(64 * MIB, 60 * MIB)),
    ],
)
def test_torchs_way_is_taken_before_a_limit(memory: BatchMemory, limits: Room) -> None:
    memory.room = limits
    assert memory.lend(LARGE) is None
    assert memory.lend(SMALL_NBYTES) is None


def test_what_is_free_is_given_back_when_memory_is_short(memory: BatchMemory) -> None:
    free, used = memory.lend(LARGE), memory.lend(2 * LARGE)
    assert free is not None and used is not None
    free.use, memory._looked_s = None, -LOOK_S
    memory.room = Room(files=1 << 20, shared=(64 * MIB, 15 * MIB))
    assert memory.lend(LARGE) is None
    assert list(memory._pieces.values()) == [used]
    assert torch.empty(0, dtype=torch.uint8).set_(used.storage).sum() == 0  # still there


@dataclass(frozen=True)
class Refusing(Room):
    """Room enough, as it seems, until torch asks for it."""

    def keeps(self, descriptor: int, *, small: bool) -> bool:
        raise OSError(errno.ENOSPC, "unable to allocate shared memory(shm): No space left on device (28)")


def test_an_allocation_that_fails_takes_torchs_way(memory: BatchMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file </t>: No space left on device (28)")

    free = memory.lend(LARGE)
    assert free is not None
    free.use = None
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", refuse)
    assert memory.lend(2 * LARGE) is None
    assert memory._pieces == {}


def test_memory_that_cannot_be_had_is_named(memory: BatchMemory) -> None:
    memory.room = Refusing(files=1 << 20, shared=(64 * MIB, 60 * MIB))
    make = collate.Collate(collate.default_collate, memory)
    with pytest.raises(NoRoom, match=r"got 60 MiB free of 64 MiB in /dev/shm.*--shm-size"):
        make([torch.zeros(8)])


def test_a_batch_that_cannot_be_handed_over_is_refused(memory: BatchMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 descriptors, 96 are in use; this process's own have holes that other tests have left."""
    for count in ("open_files", "lowest_free"):
        monkeypatch.setattr(room, count, lambda: 96)
    memory.room = Room(files=100, shared=(64 * MIB, 60 * MIB))
    make = collate.Collate(collate.default_collate, memory)
    with pytest.raises(NoRoom, match=r"must leave a worker 10 files for a batch, got a limit of \d+ with .*ulimit -n"):
        make([torch.zeros(8)])


def test_a_batch_that_cannot_be_pickled_arrives_as_an_error(memory: BatchMemory) -> None:
    class Refused:
        def __reduce__(self) -> str:
            raise RuntimeError("unable to open shared memory object: Too many open files (24)")

    restore, arguments = collate._Batch([Refused()], memory).__reduce__()
    with pytest.raises(NoRoom, match="Too many open files"):
        restore(*arguments).reraise()
