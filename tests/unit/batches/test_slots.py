"""Samples that are made where their batch will be: torch's batch, without a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from sophon_loader import OffloadingDataLoader
from sophon_loader.batches.batches import BatchMemory
from sophon_loader.batches.collate import Collate
from sophon_loader.batches.slots import Slots
from tests.support.pictures import eval_transform, folder, make_tree

SHAPE = 3, 5, 7


def filled(slots: Slots, samples: int, elsewhere: tuple[int, ...] = ()) -> list[torch.Tensor]:
    """A batch of numbered tensors, of which some lie elsewhere."""
    slots.begin(samples)
    made = []
    for position in reversed(range(samples)):  # they come in any order
        slots.position = position
        lent = slots.lend(SHAPE, torch.float32)
        assert lent is not None and lent.is_contiguous()
        one = torch.empty(SHAPE) if position in elsewhere else lent
        made.append(one.fill_(position))
    return made[::-1]


@pytest.mark.parametrize("elsewhere", [(), (0,), (1, 3)])
def test_the_batch_is_the_one_that_was_lent(elsewhere: tuple[int, ...]) -> None:
    slots = Slots(BatchMemory(1))
    tensors = filled(slots, 5, elsewhere)
    wanted = torch.stack(tensors)
    found = slots.taken(tensors)
    assert found is not None and torch.equal(found[0], wanted) and found[0].stride() == wanted.stride()
    assert found[0][2].data_ptr() == tensors[2].data_ptr()
    assert slots.taken(tensors) is None, "once"


def test_what_lies_elsewhere_in_the_main_is_stacked() -> None:
    slots = Slots(BatchMemory(1))
    assert slots.taken(filled(slots, 5, (0, 1, 2))) is None


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3, 5, 8), torch.float32), (SHAPE, torch.float64), ((5, 7), torch.uint8)]
)
def test_tensors_of_two_kinds_are_stacked(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    slots = Slots(BatchMemory(1))
    tensors = filled(slots, 2)
    slots.position = 1
    assert slots.lend(shape, dtype) is None
    assert slots.taken([tensors[0], torch.zeros(shape, dtype=dtype)]) is None
    assert slots.taken(tensors[:1]) is None


def test_another_device_has_no_slots() -> None:
    slots = Slots(BatchMemory(1))
    slots.begin(2)
    with torch.device("meta"):
        assert slots.lend(SHAPE, torch.float32) is None
    assert slots.lend(SHAPE, torch.float32) is None, "the batch's other samples are elsewhere"


def test_nothing_is_lent_before_a_batch_begins_and_behind_it() -> None:
    slots = Slots(BatchMemory(1))
    assert slots.lend(SHAPE, torch.float32) is None
    assert slots.taken(filled(slots, 2)) is not None
    assert slots.lend(SHAPE, torch.float32) is None


class Numbers(Dataset[Any]):
    """Makes its samples in slots; every third batch fails."""

    def __init__(self, slots: Slots, fails: bool) -> None:
        self.slots = slots
        self.fails = fails

    def __len__(self) -> int:
        return 60

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        self.slots.begin(len(indices))
        made = []
        for position, index in enumerate(indices):
            self.slots.position = position
            lent = self.slots.lend((1 << 16,), torch.float32)
            made.append((torch.empty(1 << 16) if lent is None else lent).fill_(index))
            if self.fails and index % 12 == 7:
                raise ValueError(index)
        return made


@pytest.mark.parametrize("workers", [0, 2])
def test_held_batches_keep_their_values(workers: int) -> None:
    memory = BatchMemory(max(1, workers))
    slots = Slots(memory)
    loader = DataLoader(
        Numbers(slots, fails=False),
        batch_size=4,
        num_workers=workers,
        collate_fn=Collate(default_collate, memory, slots=slots),
    )
    held = list(loader)
    assert [int(one[0]) for batch in held for one in batch] == list(range(60))
    assert all((one == one[0]).all() for batch in held for one in batch)


def test_the_memory_of_a_batch_that_fails_comes_back() -> None:
    memory = BatchMemory(1)
    slots = Slots(memory)
    dataset = Numbers(slots, fails=True)
    collate = Collate(default_collate, memory, slots=slots)
    iterator = iter(DataLoader(dataset, batch_size=4, num_workers=1, collate_fn=collate))
    good = failed = 0
    while good + failed < 15:
        try:
            batch = next(iterator)
        except ValueError:
            failed += 1
        else:
            good += 1
            assert (batch == batch[:, :1]).all()
    assert (good, failed) == (10, 5)


def test_samples_that_come_one_by_one_are_nobody_elses(tmp_path: Any) -> None:
    make_tree(tmp_path, files=12, plain=True)
    loader = OffloadingDataLoader(folder(tmp_path, eval_transform()), batch_size=None, num_workers=1, agent=None)
    held = [image for image, _ in loader]
    assert [image.sum() for image in held] == [image.sum() for image, _ in loader]
    assert len({image.untyped_storage().data_ptr() for image in held}) == 12
