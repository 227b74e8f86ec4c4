"""A picture that comes again in one iteration is augmented anew, however the sampler makes it come again."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from sophon_loader import OffloadingDataLoader
from tests.support.agents import Agent
from tests.support.loaders import QUICK, PlainPictures, SeenIndex, digest_of, samples_of
from tests.support.pictures import folder, train_transform

FILES = 25
PICTURES = FILES - 1
"""One of the files is a PNG, which `PlainPictures` leaves out."""


class Indexed(PlainPictures):
    """Whose label is the index."""

    def target(self, index: int) -> int:
        return index


class RepeatSampler:
    """As in timm's MultiEpochsDataLoader: the batches of one epoch after the other, without an end."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


class Cycle:
    """One order again and again."""

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(PICTURES))


class Repeated:
    """Repeated augmentation: each picture three times in a row."""

    def __iter__(self) -> Iterator[int]:
        return (index for index in range(PICTURES) for _ in range(3))

    def __len__(self) -> int:
        return 3 * PICTURES


def weighted() -> WeightedRandomSampler:
    weights = [50.0 if index == 5 else 1.0 for index in range(PICTURES)]
    generator = torch.Generator().manual_seed(1)
    return WeightedRandomSampler(weights, 4 * PICTURES, generator=generator)


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "cycle": lambda: {"sampler": Cycle(), "batch_size": 7},
    "timm": lambda: {"batch_sampler": RepeatSampler(BatchSampler(SequentialSampler(range(PICTURES)), 7, False))},
    "weighted": lambda: {"sampler": weighted(), "batch_size": 7},
    "repeated": lambda: {"sampler": Repeated(), "batch_size": 7},
}


def distinct(loader: Any, most: int = 4 * PICTURES) -> dict[int, tuple[int, int]]:
    """For each picture, how often it came, and how many different ones that gave."""
    seen: dict[int, list[str]] = defaultdict(list)
    count = 0
    for images, labels in loader:
        for image, label in zip(images, labels.tolist(), strict=True):
            seen[label].append(digest_of(image))
        count += len(images)
        if count >= most:
            break
    return {label: (len(found), len(set(found))) for label, found in sorted(seen.items())}


@pytest.mark.parametrize("name", sorted(SAMPLERS))
@pytest.mark.parametrize(("where", "workers"), [("agent", 2), ("agent", 0), (None, 2)])
def test_as_many_augmentations_as_torch_gives(
    root: Path, agent: Agent, name: str, where: str | None, workers: int
) -> None:
    dataset = Indexed(root, train_transform())
    assert len(dataset) == PICTURES
    theirs = distinct(DataLoader(dataset, num_workers=2, **SAMPLERS[name]()))
    loader = OffloadingDataLoader(
        dataset,
        num_workers=workers,
        agent=agent.address() if where else None,
        policy="resize-off",
        options=QUICK,
        **SAMPLERS[name](),
    )
    ours = distinct(loader)
    loader.close()
    print(name, "pictures", sum(n for n, _ in ours.values()), "distinct", sum(n for _, n in ours.values()))
    assert ours == theirs
    assert any(times > 1 for times, _ in ours.values())


def test_the_nth_time_is_the_same_wherever_and_however_it_comes(root: Path, agent: Agent) -> None:
    order = [5, 5, 0, 23, *range(20), 5, -1]
    found = []
    layouts: list[dict[str, Any]] = [
        {"agent": None, "num_workers": 0, "batch_size": 3},
        {"agent": agent.address(), "num_workers": 2, "batch_size": 7, "policy": "all-off"},
        {"agent": agent.address(), "num_workers": 1, "batch_size": 30, "policy": "resize-off"},
        {"agent": agent.address(), "num_workers": 0, "batch_size": 1, "policy": "no-off"},
    ]
    for arguments in layouts:
        loader = OffloadingDataLoader(
            folder(root), sampler=SeenIndex(order), seed=3, options=QUICK, **{"policy": "no-off", **arguments}
        )
        found.append(samples_of(loader))
        loader.close()
    assert all(one == found[0] for one in found)
    fives = [digest for digest, index in zip(found[0], order, strict=True) if index == 5]
    assert len(set(fives)) == len(fives) == 4


@pytest.mark.parametrize("policy", ["auto", "sophon"])
def test_an_endless_iteration_is_planned_pass_by_pass(root: Path, agent: Agent, policy: str) -> None:
    loader = OffloadingDataLoader(
        folder(root), batch_size=5, sampler=Cycle(), num_workers=1, agent=agent.address(), policy=policy, options=QUICK
    )
    reasons, delivered = [], 0
    for images, _ in loader:
        delivered += len(images)
        report = loader.report().as_dict()
        reasons.append(report["plan_reason"])
        if delivered > 5 * PICTURES:
            break
    loader.close()
    assert report["passes"] == 4 and report["samples"] >= delivered
    if policy == "auto":  # which does not wait for the end of a pass
        assert not any("measures" in reason for reason in reasons)
    else:
        assert report["bottleneck"] is not None
        assert "measures" in reasons[0] and "measures" not in reasons[-1]


def test_a_profile_of_an_endless_iteration_is_one_pass(root: Path, agent: Agent) -> None:
    loader = OffloadingDataLoader(
        folder(root), batch_size=5, sampler=Cycle(), num_workers=1, agent=agent.address(), options=QUICK
    )
    report = loader.measure().as_dict()
    loader.close()
    assert PICTURES <= report["samples"] <= PICTURES + 25


def test_an_iterator_over_a_sampler_without_length_has_none(root: Path) -> None:
    dataset = folder(root)
    with pytest.raises(TypeError):
        len(iter(DataLoader(dataset, sampler=Cycle())))
    with pytest.raises(TypeError):
        len(iter(OffloadingDataLoader(dataset, sampler=Cycle())))


def test_ordinary_epochs_have_nothing_of_it(root: Path) -> None:
    loader = OffloadingDataLoader(folder(root), batch_size=5, shuffle=True, seed=3)
    counts = Counter(digest for digest, _ in samples_of(loader))
    assert set(counts.values()) == {1} and loader.report().as_dict()["passes"] == 0


def test_random_order_with_replacement(root: Path) -> None:
    """Whose epochs are as long as the dataset."""
    dataset = Indexed(root, train_transform())
    sampler = RandomSampler(dataset, replacement=True, generator=torch.Generator().manual_seed(3))
    found = distinct(OffloadingDataLoader(dataset, batch_size=4, sampler=sampler))
    assert all(times == different for times, different in found.values())


class MultiEpochsDataLoader(OffloadingDataLoader[Any]):
    """timm's class of that name, over ours: one iterator for all epochs, so that workers are started once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = RepeatSampler(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.sampler)

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


def test_a_class_that_keeps_one_iterator_for_all_epochs(root: Path, agent: Agent) -> None:
    dataset = Indexed(root, train_transform())
    loader = MultiEpochsDataLoader(
        dataset, batch_size=5, shuffle=True, num_workers=2, agent=agent.address(), policy="auto", options=QUICK
    )
    seen: dict[int, list[str]] = defaultdict(list)
    for epoch in range(4):
        labels_seen = []
        for images, labels in loader:
            labels_seen += labels.tolist()
            for image, label in zip(images, labels.tolist(), strict=True):
                seen[label].append(digest_of(image))
        assert sorted(labels_seen) == list(range(PICTURES)), f"epoch {epoch} delivers each index once"
    assert all(len(found) == len(set(found)) == 4 for found in seen.values())
    report = loader.report().as_dict()
    assert report["passes"] == 3 and "measures" not in report["plan_reason"]
    loader.close()
