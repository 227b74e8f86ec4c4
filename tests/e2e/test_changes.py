"""Transforms and parameters that change in the middle of an epoch, or between two: they act when they act in torch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.models import ResNet18_Weights

from sophon_loader import LocalAgent, OffloadingDataLoader, register_op
from sophon_loader.errors import ConfigError
from tests.support.loaders import QUICK, samples_of, times_two
from tests.support.pictures import eval_transform, folder, train_transform

FILES = 32
LOADER = {"batch_size": 4, "policy": "all-off", "seed": 3}


def pipeline() -> Any:
    inner = v1.Compose([v1.CenterCrop(40), v1.ToTensor()])
    return v1.Compose([v1.Resize((48, 48)), inner, v1.Normalize([0.5] * 3, [0.25] * 3)])


def negative(target: int) -> int:
    return -1 - target


def _replaced(dataset: Any) -> None:
    dataset.transform = eval_transform(32)


def _attribute(dataset: Any) -> None:
    dataset.transform.transforms[0].size = (64, 64)


def _in_place(dataset: Any) -> None:
    dataset.transform.transforms[2].mean[1] = 0.125


def _step(dataset: Any) -> None:
    dataset.transform.transforms[0] = v1.Resize((44, 52))


def _nested(dataset: Any) -> None:
    dataset.transform.transforms[1].transforms.insert(0, v1.Grayscale(3))


def _function(dataset: Any) -> None:
    dataset.transform.transforms.append(times_two)


def _target(dataset: Any) -> None:
    dataset.target_transform = negative


CHANGES = [_replaced, _attribute, _in_place, _step, _nested, _function, _target]


def seen(loader: Any, change: Callable[[], None], after: int, back: Callable[[], None] = lambda: None) -> list[Any]:
    """The samples of an epoch in whose middle something is changed, and changed back two batches later."""
    found = []
    for number, batch in enumerate(loader, 1):
        found.append(samples_of([batch]))
        if number == after:
            change()
        elif number == after + 2:
            back()
    return found


@pytest.mark.parametrize("where", ["agent", None, "auto"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_within_an_epoch(root: Path, make: Any, change: Any, where: str | None) -> None:
    mine, theirs = (folder(root, pipeline()) for _ in range(2))
    for one in (mine, theirs):
        one.samples = one.samples[:30:2]  # two sizes of a batch
    torchs: Any = DataLoader(theirs, 4)
    ours = make(mine, **({"agent": None} if where is None else {}), **({"policy": "auto"} if where == "auto" else {}))
    assert samples_of(ours) == samples_of(torchs)
    assert seen(ours, lambda: change(mine), 2) == seen(torchs, lambda: change(theirs), 2)
    assert samples_of(ours) == samples_of(torchs), "and stays"


@pytest.mark.parametrize("where", ["agent", None])
def test_a_transform_that_is_exchanged_and_put_back(root: Path, make: Any, where: str | None) -> None:
    datasets = [folder(root, pipeline()) for _ in range(2)]
    found = []
    loader = make(datasets[0], **({} if where else {"agent": None}))
    for one, batches in zip(datasets, (loader, DataLoader(datasets[1], 4)), strict=True):
        kept, other = one.transform, eval_transform(20)

        def put(transform: Any, dataset: Any = one) -> None:
            dataset.transform = transform

        found.append(seen(batches, lambda put=put, other=other: put(other), 2, lambda put=put, kept=kept: put(kept)))
    assert found[0] == found[1]
    report = loader.report()
    if where:
        choices = report.as_dict()["choices"]
        assert choices["file"] == 8 and choices["array"] == 24
        assert any("was changed while samples were loaded" in note for note in report.notes)
        assert samples_of(loader) and not any("was changed" in note for note in loader.report().notes)


@pytest.mark.parametrize("where", ["agent", None])
def test_random_numbers_are_those_of_the_new_transform(root: Path, make: Any, where: str | None) -> None:
    dataset, other = folder(root), v1.Compose([v1.RandomCrop(24, pad_if_needed=True), v1.ToTensor()])
    arguments = {} if where else {"agent": None}
    expected = [samples_of([batch]) for batch in make(folder(root), **arguments)]
    expected[3:] = [samples_of([batch]) for batch in make(folder(root, other), **arguments)][3:]

    def change() -> None:
        dataset.transform = other

    assert seen(make(dataset, **arguments), change, 3) == expected


def test_what_a_preset_holds(root: Path, make: Any) -> None:
    found = []
    for cls in (make, DataLoader):
        dataset = folder(root, ResNet18_Weights.DEFAULT.transforms(crop_size=32, resize_size=40))

        def change(preset: Any = dataset.transform) -> None:
            preset.crop_size = [24]

        found.append(seen(cls(dataset, batch_size=4), change, 1))
    assert found[0] == found[1]


def test_between_the_construction_and_the_first_batch(root: Path, make: Any) -> None:
    found = []
    for cls in (make, DataLoader):
        dataset = folder(root, pipeline())
        loader: Any = cls(dataset, batch_size=4)
        _attribute(dataset)
        batches = iter(loader)
        _replaced(dataset)
        found.append(samples_of(batches))
    assert found[0] == found[1]


def test_a_part_of_a_dataset(root: Path, make: Any) -> None:
    found = []
    for cls in (make, DataLoader):
        parts = [folder(root, pipeline()), folder(root, eval_transform())]
        dataset = ConcatDataset([Subset(parts[0], range(0, 32, 3)), parts[1]])

        def change(part: Any = parts[1]) -> None:
            part.transform = eval_transform(24)

        loader: Any = cls(dataset, batch_size=1)
        found.append(seen(loader, change, 14))
    assert found[0] == found[1]


@pytest.mark.parametrize("what", ["samples", "grown", "loader", "indices", "transforms"])
def test_what_cannot_be_followed_is_refused(root: Path, make: Any, what: str) -> None:
    inner = folder(root, pipeline())
    dataset: Any = Subset(inner, list(range(16)))
    loader = make(dataset, tail="cpu" if what == "transforms" else "loader")
    batches = iter(loader)
    next(batches)
    kept = list(inner.samples)
    if what == "samples":
        inner.samples = inner.samples[::-1]
    elif what == "grown":
        inner.samples.append(inner.samples[0])
    elif what == "loader":
        inner.loader = print
    elif what == "indices":
        dataset.indices = list(range(16, 32))
    else:
        inner.transform = eval_transform()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"must not change the dataset's .* within an epoch"):
            next(batches)
    if what == "samples":
        inner.samples = kept
        assert len(list(batches)) == 1


@pytest.mark.parametrize("persistent", [False, True])
def test_with_workers_a_change_acts_when_they_start(root: Path, make: Any, persistent: bool) -> None:
    found = []
    for cls in (make, DataLoader):
        dataset = folder(root, pipeline())
        loader: Any = cls(dataset, batch_size=4, num_workers=1, persistent_workers=persistent)

        def change(dataset: Any = dataset) -> None:
            _attribute(dataset)
            _target(dataset)

        found.append([*seen(loader, change, 1), samples_of(loader)])
        del loader
    assert found[0] == found[1]


# --- parameters in memory that workers share ----------------------------------------------------------------------


@pytest.mark.parametrize("where", ["agent", None])
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_shared_tensor_acts_in_persistent_workers(root: Path, make: Any, method: str, where: str | None) -> None:
    found = []
    for cls in (make, DataLoader):
        mean = torch.tensor([0.5, 0.5, 0.5]).share_memory_()
        dataset = folder(root, v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), v1.Normalize(mean, [0.25] * 3)]))
        more: dict[str, Any] = {"agent": None} if where is None and cls is make else {}
        loader: Any = cls(
            dataset,
            batch_size=4,
            num_workers=1,
            persistent_workers=True,
            multiprocessing_context=method,
            **more,
        )
        epochs = [samples_of(loader)]
        mean[1] = 0.125
        epochs.append(samples_of(loader))
        found.append(epochs)
        if cls is make and where:
            report = loader.report()
            assert any("was changed while samples were loaded" in note for note in report.notes)
    assert found[0] == found[1] and found[0][0] != found[0][1]


class Brightness:
    """An op whose parameter lies in memory that processes share."""

    def __init__(self, factor: float) -> None:
        self.value = multiprocessing.Value("d", factor)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image * self.value.value


register_op("tests.changes.Brightness", Brightness, describe=lambda op: {"factor": op.value.value}, draws=())


@pytest.mark.parametrize("tail", ["loader", "cpu"])
@pytest.mark.parametrize("what", ["value", "tensor"])
def test_shared_memory_acts_wherever_the_op_runs(root: Path, make: Any, what: str, tail: str) -> None:
    found = []
    for cls in (make, DataLoader):
        mean, bright = torch.tensor([0.5, 0.5, 0.5]).share_memory_(), Brightness(1.0)
        steps = [v1.Resize((24, 24)), v1.ToTensor(), bright if what == "value" else v1.Normalize(mean, [0.25] * 3)]
        more: dict[str, Any] = {"tail": tail} if cls is make else {}
        dataset = folder(root, v1.Compose(steps))
        loader: Any = cls(dataset, batch_size=4, num_workers=1, persistent_workers=True, **more)
        epochs = [samples_of(loader)]
        bright.value.value = 0.5
        mean[1] = 0.125
        found.append([*epochs, samples_of(loader)])
        if cls is make and tail == "cpu":
            why = "stands in the way" if what == "value" else "lies in memory that processes share"
            assert any(why in note for note in loader.report().notes), loader.report().notes
    assert found[0] == found[1] and found[0][0] != found[0][1]


def test_a_tensor_changes_in_the_middle_of_an_epoch(root: Path) -> None:
    found = []
    for own in (True, False):
        mean = torch.tensor([0.5, 0.5, 0.5])
        dataset = folder(root, v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), v1.Normalize(mean, [0.25] * 3)]))

        def change(mean: Any = mean) -> None:
            mean.fill_(0.75)

        loader: Any = DataLoader(dataset, 4)
        if own:
            loader = OffloadingDataLoader(
                dataset, 4, agent=LocalAgent(workers=1, limit_mbit=500), policy="all-off", options=QUICK
            )
        found.append(seen(loader, change, 2))
        if own:
            loader.close()
    assert found[0] == found[1]


def test_a_loop_that_anneals_a_parameter_at_every_batch(root: Path, make: Any) -> None:
    found = []
    for cls in (make, DataLoader):
        dataset = folder(root, eval_transform())
        loader: Any = cls(dataset, batch_size=4)
        sizes = []
        for number, (images, _) in enumerate(loader):
            sizes.append(images.shape[-1])
            dataset.transform.transforms[1].size = (40 - number, 40 - number)
        found.append(sizes)
    assert found[0] == found[1]


def test_the_training_pipeline_raises_no_alarm(root: Path, make: Any) -> None:
    loader = make(folder(root, train_transform()))
    for _ in range(2):
        samples_of(loader)
        assert set(loader.report().as_dict()["choices"]) == {"array"}
