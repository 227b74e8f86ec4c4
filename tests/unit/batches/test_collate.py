"""The memory of batches switched off: torch's own road for every batch, and the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.batches.batches import BatchMemory, Piece, PieceUse
from sophon_loader.batches.collate import Collate
from tests.support.pictures import make_tree
from tests.support.profiles import crop_transform


class Pictures(Dataset[Any]):
    """Large and small tensors, and numbers."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 96, 96), float(index)), torch.tensor([index, -index]), index, index / 3


def refuse(memory: BatchMemory, nbytes: int) -> None:
    raise AssertionError("must not be called")


def batches(memory: BatchMemory | None) -> list[Any]:
    loader = DataLoader(Pictures(), 3, num_workers=1, collate_fn=Collate(default_collate, memory))
    return list(loader)


def test_without_memory_no_piece_is_lent_and_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = BatchMemory(1)
    lent = batches(memory)
    assert any(session.pieces for session in memory._sessions.values()), "else this test compares nothing"
    monkeypatch.setattr(BatchMemory, "lend", refuse)
    plain = batches(None)
    for ours, torchs in zip(lent, plain, strict=True):
        assert all(
            torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(ours, torchs, strict=True)
        )


def test_the_option_switches_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(str(make_tree(tmp_path / "tree", 6, classes=2, sides=(24, 32), plain=True)), crop_transform())
    kept = [list(OffloadingDataLoader(dataset, 2, num_workers=workers, seed=1)) for workers in (0, 1)]
    monkeypatch.setattr(BatchMemory, "lend", refuse)
    with pytest.raises(AssertionError, match="must not be called"):
        list(OffloadingDataLoader(dataset, 2, num_workers=1, seed=1))
    options = OffloadOptions(reuse_batch_memory=False)
    kept.append(list(OffloadingDataLoader(dataset, 2, num_workers=1, seed=1, options=options)))
    first, *others = kept
    for other in others:
        assert len(other) == len(first)
        for one, theirs in zip(first, other, strict=True):
            assert all(map(torch.equal, one, theirs))


def test_the_samples_are_arranged_all_the_same() -> None:
    made = Collate(default_collate, None, arrange=lambda samples: [sample + 1 for sample in samples])([1, 2])
    assert made.tolist() == [2, 3]


@pytest.mark.slow_start
def test_nothing_is_registered_before_the_first_piece() -> None:
    """Importing does no work, and neither does a memory that is not used."""
    code = (
        "import os\n"
        "registered = []\n"
        "os.register_at_fork = lambda **hooks: registered.append(hooks)\n"
        "import torch\n"
        "registered.clear()\n"
        "from sophon_loader.batches.batches import BatchMemory, Piece\n"
        "BatchMemory(2)\n"
        "assert not registered, registered\n"
        "make = lambda: torch.UntypedStorage._new_shared(64)\n"
        "Piece(make), Piece(make)\n"
        "assert len(registered) == 1, registered\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("number", [1, 5, (1 << 62) - 1, (1 << 63) - 1])
@pytest.mark.parametrize("abandoned", [False, True])
def test_a_use_is_a_uint64_that_is_not_0(number: int, abandoned: bool) -> None:
    packed = PieceUse(number, abandoned).pack()
    assert 0 < packed < 1 << 64
    assert PieceUse.unpack(packed) == PieceUse(number, abandoned)


def test_no_two_workers_count_alike_and_none_runs_over() -> None:
    firsts = [PieceUse.first().number for _ in range(1000)]
    assert len(set(firsts)) == 1000
    assert all(0 < number < 1 << 62 for number in firsts)
    assert PieceUse(5).next() == PieceUse(6)


def lent(memory: BatchMemory, *sizes: int) -> list[Piece]:
    """Pieces that are lent one after the other, and come back at once."""
    pieces = []
    for nbytes in sizes:
        piece = memory.lend(nbytes)
        assert piece is not None
        pieces.append(piece)
        piece.use = None
    return pieces


def test_an_epochs_last_batch_does_not_take_the_memory_of_the_others() -> None:
    memory = BatchMemory(1)
    first = lent(memory, 1 << 20, 1 << 20, 7 << 16)
    assert lent(memory, 1 << 20, 1 << 20, 7 << 16) == first


def test_batches_of_ever_other_sizes_take_little_memory() -> None:
    memory = BatchMemory(1)
    lent(memory, *range(1 << 20, (1 << 20) + 50))
    assert len(memory._pieces) == 2
