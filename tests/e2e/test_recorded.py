"""Datasets of classes of their own: their pictures are deferred, and batches are those of torch's DataLoader."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision import transforms
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.errors import ConfigError, OffloadWarning
from sophon_loader.recording.containers import TableEnd
from sophon_loader.recording.opener import can_defer
from sophon_loader.run import recording_trial
from sophon_loader.run.recording_trial import BOUND_BEFORE, RecordingTrial
from sophon_loader.run.trial_process import NotTried
from sophon_loader.workers.alike import difference
from tests.support.pictures import make_tree

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
FILES, OURS = 12, 9
"""Pictures, and how many at least our C decodes."""
ARGUMENTS: dict[str, Any] = {"batch_size": 4, "shuffle": True}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sorted(make_tree(tmp_path_factory.mktemp("recorded") / "photos", FILES).rglob("*.*"))


class Views(Dataset[Any]):
    """Two views and an array of a picture, a counter, and draws from all three global generators."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.met = 0
        self.seen_by: list[Any] = []
        self.augment = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])

    def __len__(self) -> int:
        return len(self.files)

    def opened(self, index: int) -> Image.Image:
        with Image.open(self.files[index]) as image:
            return ImageOps.exif_transpose(image).convert("RGB")

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.met += 1
        image = self.opened(index)
        info = get_worker_info()
        assert info is None or info.dataset is self
        return {
            "views": [self.augment(image) for _ in range(2)],
            "small": np.asarray(image.resize((8, 8)))[:, :, ::-1].copy(),
            "size": image.size,
            "met": self.met,
            "draws": (random.random(), float(np.random.rand())),
        }


class Swallows(Views):
    """Gives another sample in place of a damaged file, whose sample is made twice, and counted so."""

    def __getitem__(self, index: int) -> Any:
        try:
            found = super().__getitem__(index)
        except OSError:
            found = super().__getitem__((index + 1) % len(self))
        return {**found, "met": 0}


class InGroups(Views):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in reversed(indices)]


class Named(Views):
    """Opens by a name that was bound before."""

    def opened(self, index: int, by: Any = Image.open) -> Image.Image:
        image: Image.Image = by(self.files[index]).convert("RGB")
        return image


def alike(one: Any, other: Any) -> bool:
    return difference(one, other) is None


def epochs(loader: Any, count: int = 2) -> list[Any]:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    return [list(loader) for _ in range(count)]


@pytest.mark.parametrize("kind", [Views, Swallows, InGroups])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True}],
    ids=["no worker", "a worker", "persistent workers"],
)
def test_batches_are_torchs(files: list[Path], tmp_path: Path, kind: Any, arguments: dict[str, Any]) -> None:
    if kind is Swallows:
        damaged = tmp_path / "damaged.jpg"
        damaged.write_bytes(files[3].read_bytes()[:-400])
        files = [*files[:3], damaged, *files[4:]]
    expected = epochs(DataLoader(kind(files), **ARGUMENTS, **arguments))
    loader = OffloadingDataLoader(kind(files), **ARGUMENTS, **arguments)
    found = epochs(loader)
    assert alike(found, expected)
    report = loader.report().as_dict()
    ours, others = report["fused"], report["unfused"]
    assert ours >= OURS and f"our C decoded {ours} of {ours + others} pictures" in report["summary"], report
    assert any(f"{ours} of {ours + others} pictures (" in note for note in report["notes"]), report
    assert len(files) <= ours + others <= len(files) + (kind is Swallows)
    loader.close()
    assert loader.dataset.__class__ is kind


def drawing_collation(samples: list[Any]) -> Any:
    return [sample["views"] for sample in samples], torch.rand(2), random.random()


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: {"batch_sampler": BatchSampler(RandomSampler(range(10)), 3, True)},
        lambda: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * 9 + [9.0], 12)},
        lambda: {"batch_size": None},
        lambda: {"batch_size": 4, "collate_fn": drawing_collation},
    ],
    ids=["batch sampler", "weighted", "no batches", "own collation"],
)
def test_whatever_else_the_loader_is_given(files: list[Path], arguments: Any) -> None:
    """Over datasets of datasets, behind an epoch that is left in the middle."""

    def left_and_whole(kind: Any) -> Any:
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)
        loader = kind(ConcatDataset([Views(files[:6]), Subset(InGroups(files), range(2, 6))]), **arguments())
        return [next(iter(loader)), *loader], loader

    found, loader = left_and_whole(OffloadingDataLoader)
    assert alike(found, left_and_whole(DataLoader)[0]) and loader.report().as_dict()["fused"] > 4


def test_spawned_workers(files: list[Path]) -> None:
    arguments = {**ARGUMENTS, "num_workers": 1, "multiprocessing_context": "spawn"}
    expected = epochs(DataLoader(Views(files), **arguments), 1)
    loader = OffloadingDataLoader(Views(files), **arguments)
    assert alike(epochs(loader, 1), expected) and loader.report().as_dict()["fused"] >= OURS


@pytest.mark.parametrize(("kind", "record"), [(Views, False), (Named, True)])
def test_plainly(files: list[Path], kind: Any, record: bool) -> None:
    loader = OffloadingDataLoader(kind(files), options=OffloadOptions(record=record), **ARGUMENTS)
    assert alike(epochs(loader), epochs(DataLoader(kind(files), **ARGUMENTS)))
    report = loader.report().as_dict()
    assert report["fused"] == 0 and not any("decoded by our C" in note for note in report["notes"])
    assert any(BOUND_BEFORE in note for note in report["notes"]) == (kind is Named)
    assert Image.open is Views.opened.__globals__["Image"].open


def test_files_that_pillow_opens(files: list[Path], tmp_path: Path) -> None:
    for one in files[:4]:
        with Image.open(one) as image:
            image.quantize(16).save(tmp_path / f"{one.stem}.png")
    loader = OffloadingDataLoader(Views(sorted(tmp_path.glob("*.png"))), **ARGUMENTS)
    list(loader)
    told = "no picture is deferred: Pillow opens all that its first samples open (palette PNG)"
    assert told in loader.report().notes


class ColourFirst(Views):
    def __getitem__(self, index: int) -> Any:
        image = self.opened(index)
        return self.augment(Image.fromarray(255 - np.asarray(image)))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_line_that_wants_all_of_a_picture(files: list[Path], workers: int) -> None:
    loader = OffloadingDataLoader(ColourFirst(files), num_workers=workers, persistent_workers=workers > 0, **ARGUMENTS)
    epochs(loader)
    line = ColourFirst.__getitem__.__code__.co_firstlineno + 2
    wanted = f"{len(files)} pictures were wanted whole at {__file__}:{line} in __getitem__ (`return self.augment("
    assert any(note.startswith(wanted) for note in loader.report().notes), loader.report().notes


def test_tables_end_the_users_composes(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    run = TableEnd.run

    def spied(*args: Any, **more: Any) -> Any:
        made.append(run(*args, **more))
        return made[-1]

    monkeypatch.setattr(TableEnd, "run", spied)
    loader = OffloadingDataLoader(Views(files), **ARGUMENTS)
    assert alike(epochs(loader, 1), epochs(DataLoader(Views(files), **ARGUMENTS), 1))
    assert {*map(type, made)} == {torch.Tensor} and len(made) >= 2 * OURS - 1, "the first call alone is plain"


def test_the_first_samples_are_tried_without_a_trace(files: list[Path]) -> None:
    dataset = Views(files)
    loader = OffloadingDataLoader(dataset, **ARGUMENTS)
    torch.manual_seed(5)
    next(iter(loader))
    assert dataset.met == ARGUMENTS["batch_size"]


def test_a_state_goes_on_in_the_order_of_the_epoch(files: list[Path]) -> None:
    whole = OffloadingDataLoader(Views(files), **ARGUMENTS)
    torch.manual_seed(7)
    batches = iter(whole)
    first = next(batches)
    state = whole.state_dict()
    rest = [batch["size"] for batch in batches]
    again = OffloadingDataLoader(Views(files), **ARGUMENTS)
    again.load_state_dict(state)
    assert alike([batch["size"] for batch in again], rest) and len(first["size"]) == 2


SHUFFLED: dict[str, Any] = {"batch_size": 4, "sampler": [3, 1, 0, 2, 5, 4, 3, 7, 6, 9, 8, 11, 10, 3, 1, 5]}
"""An order in which some come again."""


def by_sample(loader: Any) -> list[Any]:
    """The views of each sample, whatever the size of batches; no generator has moved but by torch's base seed."""
    before = random.getstate()
    found = [view for batch in loader for view in batch["views"][0]]
    assert random.getstate() == before
    return found


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 1, "batch_size": 3}, {"batch_size": 5}], ids=str)
def test_with_a_seed_each_sample_has_random_numbers_of_its_own(files: list[Path], how: dict[str, Any]) -> None:
    expected = by_sample(OffloadingDataLoader(Views(files), seed=7, **SHUFFLED))
    assert alike(by_sample(OffloadingDataLoader(Views(files), seed=7, **{**SHUFFLED, **how})), expected)
    again = [one for one, index in zip(expected, SHUFFLED["sampler"], strict=True) if index == 3]
    assert not torch.equal(again[0], again[1]) and not torch.equal(again[1], again[2])
    assert not alike(by_sample(OffloadingDataLoader(Views(files), seed=8, **SHUFFLED)), expected)


class Tables(Dataset[Any]):
    """Draws, and opens no picture."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.rand(2)


def too_slow(*_: Any) -> Any:
    raise NotTried("it took too long")


@pytest.mark.parametrize(
    ("name", "stand_in"),
    [("tried_apart", too_slow), ("can_defer", lambda: False)],
    ids=["samples that could not be tried in time", "a host without our C"],
)
def test_with_a_seed_neither_time_nor_host_decides_whose_numbers(
    files: list[Path], name: str, stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_sample(OffloadingDataLoader(Views(files), seed=7, **SHUFFLED))
    torch.manual_seed(3)
    plain = [*OffloadingDataLoader(Tables(), seed=7)]
    monkeypatch.setattr(recording_trial, name, stand_in)
    loader = OffloadingDataLoader(Views(files), seed=7, **SHUFFLED)
    assert alike(by_sample(loader), expected)
    assert loader.report().as_dict()["fused"] == 0
    if name == "can_defer":
        torch.manual_seed(3)
        assert alike([*OffloadingDataLoader(Tables(), seed=7)], plain), "torch's own, of what opens no picture"


def test_with_a_seed_a_state_goes_on_with_the_very_batches(files: list[Path]) -> None:
    whole = OffloadingDataLoader(Views(files), seed=7, **SHUFFLED)
    list(whole)
    batches = iter(whole)
    next(batches)
    state = whole.state_dict()
    rest = [batch["views"] for batch in batches]
    again = OffloadingDataLoader(Views(files), seed=7, num_workers=1, **SHUFFLED)
    again.load_state_dict(state)
    assert alike([batch["views"] for batch in again], rest)


def interrupted(loader: Any) -> tuple[Any, list[Any]]:
    """The state behind the second epoch's first batch, and the views that follow."""
    list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    return state, [batch["views"] for batch in batches]


@pytest.mark.parametrize(
    "other",
    [{}, {"seed": 7, "options": OffloadOptions(record=False)}, {"seed": 7, "options": OffloadOptions(fused=False)}],
    ids=["no seed", "not recorded", "not fused"],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_holds_that_samples_have_numbers_of_their_own(files: list[Path], other: Any, workers: int) -> None:
    state, rest = interrupted(OffloadingDataLoader(Views(files), seed=7, **SHUFFLED))
    again = OffloadingDataLoader(Views(files), num_workers=workers, **SHUFFLED, **other)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict()["numbers"] == state["numbers"] == "sample"
    assert alike([batch["views"] for batch in again], rest)
    assert (again.report().as_dict()["fused"] == 0) == bool(other)


def test_a_state_holds_them_where_the_first_samples_cannot_be_tried(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, rest = interrupted(OffloadingDataLoader(Views(files), seed=7, **SHUFFLED))
    monkeypatch.setattr("sophon_loader.run.parts.tried_to_record", lambda *_: RecordingTrial("it took too long"))
    again = OffloadingDataLoader(Views(files), seed=7, **SHUFFLED)
    again.load_state_dict(state)
    assert alike([batch["views"] for batch in again], rest)
    assert "no picture is deferred: it took too long" in again.report().notes


@pytest.mark.parametrize("saved", [{}, {"seed": 7, "options": OffloadOptions(record=False)}], ids=["no seed", "plain"])
def test_a_state_holds_that_numbers_are_torchs(files: list[Path], saved: Any) -> None:
    whole = OffloadingDataLoader(Views(files), num_workers=1, **ARGUMENTS, **saved)
    torch.manual_seed(5)
    list(whole)
    state = whole.state_dict()
    expected = [batch["views"] for batch in whole]
    again = OffloadingDataLoader(Views(files), num_workers=1, seed=7, **ARGUMENTS)
    again.load_state_dict(state)
    with pytest.warns(OffloadWarning, match="random numbers are torch's own, as when the loaded state was taken"):
        assert alike([batch["views"] for batch in again], expected)
    assert again.report().as_dict()["fused"] >= OURS
    del state["numbers"]  # as releases before
    again.load_state_dict(state)
    assert not alike([batch["views"] for batch in again], expected)


def test_a_state_of_another_kind_of_dataset_is_refused(files: list[Path]) -> None:
    known = ImageFolder(str(files[0].parents[1]), Views(files).augment)
    recorded, _ = interrupted(OffloadingDataLoader(Views(files), seed=7, **SHUFFLED))
    loader = OffloadingDataLoader(known, seed=7, **SHUFFLED)
    loader.load_state_dict(recorded)
    with pytest.raises(ConfigError, match=r"must be as when .* \(seeded for each sample\), got seeded for each op"):
        next(iter(loader))
    loader = OffloadingDataLoader(known, seed=7, **SHUFFLED)
    next(iter(loader))
    for seed in (7, None):
        other = OffloadingDataLoader(Views(files), seed=seed, **SHUFFLED)
        other.load_state_dict(loader.state_dict())
        with pytest.raises(ConfigError, match=r"\(seeded for each op\), got .* over this Views"):
            next(iter(other))


def test_with_a_seed_a_sample_is_the_same_at_whichever_rank(files: list[Path]) -> None:
    whole = by_sample(OffloadingDataLoader(Views(files), seed=7, batch_size=4))
    for rank in range(2):
        sampler: Any = DistributedSampler(range(len(files)), 2, rank)  # type: ignore[arg-type]
        found = by_sample(OffloadingDataLoader(Views(files), seed=7, batch_size=3, sampler=sampler))
        assert alike(found, [whole[index] for index in sampler])


class ByName(Dataset[Any]):
    """Without a length, and with names for indices."""

    def __init__(self, files: list[Path]) -> None:
        self.of = Views(files)
        self.numbers = {one.name: number for number, one in enumerate(files)}

    def __getitem__(self, name: str) -> Any:
        return self.of[self.numbers[name]]


def test_with_a_seed_names_that_come_again_are_augmented_anew(files: list[Path]) -> None:
    names: Any = [files[0].name, files[1].name, files[0].name]
    first, _, again = by_sample(OffloadingDataLoader(ByName(files), seed=7, sampler=names))
    assert not torch.equal(first, again)


def test_two_iterations_at_a_time_each_have_their_batches(files: list[Path]) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "num_workers": 1}
    expected = list(DataLoader(Views(files), **arguments))
    loader = OffloadingDataLoader(Views(files), **arguments)
    one, other = iter(loader), iter(loader)
    found = [(next(one), next(other)) for _ in range(len(loader))]
    for (first, second), batch in zip(found, expected, strict=True):
        assert alike(first["small"], batch["small"]) and alike(second["small"], batch["small"])


@pytest.mark.parametrize("seed", [None, 7])
def test_workers_that_persist_go_on_as_they_began(files: list[Path], seed: int | None) -> None:
    def changed(kind: Any, **more: Any) -> Any:
        dataset = Subset(ColourFirst(files), list(range(FILES)))
        loader = kind(dataset, 4, num_workers=1, persistent_workers=True, **more)
        torch.manual_seed(5)
        found = [list(loader)]
        dataset.indices.reverse()  # type: ignore[attr-defined]  # which these workers do not see
        return loader, [*found, list(loader)]

    loader, found = changed(OffloadingDataLoader, seed=seed)
    if seed is None:
        assert alike(found, changed(DataLoader)[1])
    assert loader.report().as_dict()["fused"] >= OURS
    assert loader.state_dict()["numbers"] == ("sample" if seed else "torch")
