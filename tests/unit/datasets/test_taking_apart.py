"""Which datasets are taken apart, into which keys and targets, and why others are not."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset
from torchvision.datasets import DatasetFolder, ImageFolder
from torchvision.datasets.folder import accimage_loader, default_loader, pil_loader

import sophon_loader.datasets.recognised
from sophon_loader.datasets.files import FileDataset
from sophon_loader.datasets.pipelines import transforms_of
from sophon_loader.datasets.protocol import NotOffloadable, Offloadable, OffloadableDataset
from sophon_loader.datasets.taking_apart import offloadable
from tests.support.loaders import PlainPictures
from tests.support.pictures import folder, make_tree


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("tree"), 12)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("other"), 8, classes=2)


def paths_and_targets(data: Offloadable) -> list[tuple[str, Any]]:
    found = []
    for index in range(len(data)):
        number, row = data.locate(index)
        source = data.sources[number]
        found.append((os.path.join(str(source.root), source.keys[row]), source.target(row)))
    return found


def refusal(dataset: Any) -> str:
    with pytest.raises(NotOffloadable) as caught:
        offloadable(dataset)
    return str(caught.value)


def test_an_image_folder(tree: Path) -> None:
    dataset = folder(tree)
    data = offloadable(dataset)
    assert paths_and_targets(data) == dataset.samples
    assert data.owners == (dataset,)
    assert all(type(target) is int for _, target in paths_and_targets(data))
    assert any("deeper/" in data.sources[0].keys[row] for row in range(len(data)))


@pytest.mark.parametrize("form", ["{}/", "{}//", "{}", "{}/../{name}"])
def test_the_root_may_be_written_in_any_way(tree: Path, form: str) -> None:
    dataset = ImageFolder(form.format(tree, name=tree.name))
    data = offloadable(dataset)
    found, expected = paths_and_targets(data), dataset.samples
    assert [os.path.normpath(path) for path, _ in found] == [os.path.normpath(path) for path, _ in expected]
    assert not any(data.sources[0].keys[row].startswith("/") for row in range(len(data)))


def test_a_path_object_as_root(tree: Path) -> None:
    dataset = ImageFolder(tree)
    assert paths_and_targets(offloadable(dataset)) == dataset.samples


def test_a_relative_root(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    dataset = ImageFolder(tree.name)
    assert paths_and_targets(offloadable(dataset)) == dataset.samples
    monkeypatch.chdir(tree)
    dataset = ImageFolder(".")
    assert paths_and_targets(offloadable(dataset)) == dataset.samples


class OnlyNames(DatasetFolder):
    """A subclass that changes nothing that matters."""

    def class_names(self) -> list[str]:
        return self.classes


def test_a_subclass_without_an_override(tree: Path) -> None:
    dataset = OnlyNames(str(tree), default_loader, extensions=(".jpg",))
    assert paths_and_targets(offloadable(dataset)) == dataset.samples


def test_targets_of_any_kind(tree: Path) -> None:
    dataset = folder(tree)
    dataset.samples = [(path, (target, "text")) for path, target in dataset.samples]
    assert paths_and_targets(offloadable(dataset)) == dataset.samples


# --- parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices", [[3, 1, 1, 7], range(5), np.array([2, 0]), (4,), [], [-1, -12]], ids=lambda i: type(i).__name__
)
def test_a_subset(tree: Path, indices: Any) -> None:
    dataset = folder(tree)
    expected = [dataset.samples[i] for i in indices]
    assert paths_and_targets(offloadable(Subset(dataset, indices))) == expected


def test_subsets_and_concatenations_of_each_other(tree: Path, other: Path) -> None:
    first, second = folder(tree), folder(other)
    whole = ConcatDataset([Subset(first, [5, 2]), ConcatDataset([second, Subset(Subset(first, [9, 8, 7]), [2, 0])])])
    dataset = Subset(whole, list(range(len(whole) - 1, -1, -1)))
    data = offloadable(dataset)
    expected = [first.samples[5], first.samples[2], *second.samples, first.samples[7], first.samples[9]][::-1]
    assert paths_and_targets(data) == expected
    assert data.owners == (first, second, first)


def test_an_empty_dataset(tree: Path) -> None:
    assert len(offloadable(Subset(folder(tree), []))) == 0


# --- the protocol ---------------------------------------------------------------------------------------------


def test_the_protocol(tree: Path) -> None:
    dataset = PlainPictures(tree, None)
    assert isinstance(dataset, OffloadableDataset)
    expected = [(os.path.join(tree, key), dataset.target(i)) for i, key in enumerate(dataset.keys)]
    assert paths_and_targets(offloadable(dataset)) == expected


def test_a_protocol_dataset_s_target_is_final(tree: Path) -> None:
    """`target(i)` is what the training loop gets, so a `target_transform` beside it must not run once more."""
    dataset = PlainPictures(tree, None)
    dataset.target_transform = lambda target: target + 1  # type: ignore[attr-defined]
    assert transforms_of(dataset) == (None, None)


# --- refusals -------------------------------------------------------------------------------------------------


class OwnGetItem(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), index)


class OwnGetItems(ImageFolder):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[i] for i in indices][::-1]


class OwnSubset(Subset[Any]):
    """May do anything in a __getitem__ of its own."""


def test_an_own_getitem_is_named(tree: Path) -> None:
    assert refusal(OwnGetItem(str(tree))).startswith("OwnGetItem has a __getitem__ of its own; it lacks key(index)")
    assert refusal(OwnGetItems(str(tree))).startswith("OwnGetItems has a __getitems__ of its own; it lacks")
    assert "OwnSubset" in refusal(OwnSubset(folder(tree), [1]))


def test_another_loader_is_named(tree: Path) -> None:
    dataset = ImageFolder(str(tree), loader=lambda path: path)
    assert "ImageFolder does not use torchvision's default loader with Pillow" in refusal(dataset)


def test_another_image_backend_is_named(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sophon_loader.datasets.recognised, "get_image_backend", lambda: "accimage")
    assert "default loader with Pillow" in refusal(folder(tree))
    assert "default loader with Pillow" in refusal(folder(tree, loader=default_loader))
    assert offloadable(folder(tree, loader=pil_loader)).sources, "which does not ask for the backend"


@pytest.mark.parametrize("loader", [default_loader, pil_loader])
def test_the_loaders_that_open_files_by_pillow(tree: Path, loader: Any) -> None:
    """The default one calls the other."""
    data = offloadable(folder(tree, loader=loader))
    assert [data.sources[0].keys[row] for row in range(len(data))]


def test_a_loader_of_another_library_is_refused(tree: Path) -> None:
    assert "leave out its loader=" in refusal(folder(tree, loader=accimage_loader))


class WithPaths(ImageFolder):
    """A recipe that many have copied."""

    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), self.imgs[index][0])


def test_a_folder_that_also_gives_the_path_has_a_remedy(tree: Path) -> None:
    why = refusal(WithPaths(str(tree)))
    assert "WithPaths has a __getitem__ of its own" in why and "targets=[(label, path), ...]" in why
    plain = ImageFolder(str(tree))
    labels = [(label, path) for path, label in plain.samples]
    remedied = FileDataset(str(tree), [path for path, _ in plain.samples], labels)
    assert offloadable(remedied).sources[0].target(1) == labels[1] == remedied[1][1]


def test_samples_elsewhere_are_named(tree: Path, tmp_path: Path) -> None:
    dataset = folder(tree)
    dataset.samples[3] = (str(tmp_path / "x.jpg"), 0)
    assert f"samples outside its root {tree}" in refusal(dataset)


def test_the_reason_reaches_through_subset_and_concatenation(tree: Path) -> None:
    dataset = ConcatDataset([folder(tree), Subset(OwnGetItem(str(tree)), [0])])
    assert refusal(dataset).startswith("OwnGetItem has a __getitem__ of its own")


@pytest.mark.parametrize("indices", [[99], ["a"], [None]], ids=str)
def test_a_subset_with_impossible_indices(tree: Path, indices: Any) -> None:
    assert "a Subset must have integers as indices" in refusal(Subset(folder(tree), indices))


@pytest.mark.parametrize("dataset", [[1, 2, 3], {}, None], ids=lambda d: type(d).__name__)
def test_anything_else_is_named_with_what_would_do(dataset: Any) -> None:
    text = refusal(dataset)
    assert text.startswith(type(dataset).__name__)
    assert "ImageFolder" in text and "key(index)" in text


def test_a_hugging_face_table_is_told_what_it_can_have() -> None:
    """Itself, one of a subclass, and one that a class of the user's holds; nothing else of that name."""
    table = type("Dataset", (), {"__module__": "datasets.arrow_dataset"})
    other = type("Dataset", (), {"__module__": "datasets.of_mine"})
    holder = SimpleNamespace(table=table())
    for dataset, name in ((table(), "Dataset is"), (type("Birds", (table,), {})(), "Birds is"), (holder, "SimpleName")):
        assert re.match(rf"{name}.* a Hugging Face table, .*FileDataset\(.*parquet:///.*RemoteFiles", refusal(dataset))
    assert "is not an ImageFolder" in refusal(other())
