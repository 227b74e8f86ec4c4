"""Rules for datasets that are known by their class, and lists of files: what is refused, followed, and kept."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets.folder import default_loader

from sophon_loader.client.address import Address
from sophon_loader.datasets.files import FileDataset
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.look import look, same_look
from sophon_loader.datasets.pipelines import transforms_of
from sophon_loader.datasets.protocol import NotOffloadable
from sophon_loader.datasets.recognised import rule_of
from sophon_loader.datasets.sample_keys import keys_below
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.datasets.targets import IntTargets, ObjectTargets, targets_of
from sophon_loader.errors import ConfigError
from sophon_loader.run.comparison import unlike_its_parts
from tests.support.known_datasets import KNOWN, RGB, caltech_101, food, minus, naturalist, of_timm, pets
from tests.support.loaders import noisy_target
from tests.support.op_examples import same_value
from tests.support.pictures import eval_transform, train_transform

HERE = eval_transform(24)
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""timm leaves files to be closed by the collector."""


def refusal(dataset: Any) -> str:
    with pytest.raises(NotOffloadable) as caught:
        offloadable(dataset)
    return str(caught.value)


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Food101", "OxfordIIITPet", "Places365", "timm", "CLEVR"])
def test_labels_that_draw_are_compared_behind_what_the_image_has_drawn(name: str, tmp_path: Path) -> None:
    dataset = KNOWN[name](tmp_path, transform=train_transform(24), target_transform=noisy_target)
    assert unlike_its_parts(offloadable(dataset)) is None


class OnlyNames(torch.nn.Module):
    """Not a dataset at all, whatever its attributes."""

    root, transform, samples = "x", None, [("x/1.jpg", 0)]


def test_a_class_counts_only_by_its_library() -> None:
    assert rule_of(type("Food101", (OnlyNames,), {})()) is None


def test_a_subclass_is_what_its_base_is_unless_it_does_something_of_its_own(tmp_path: Path) -> None:
    dataset = food(tmp_path, transform=HERE)
    dataset.__class__ = type("MyFood", (type(dataset),), {"names": lambda self: self.classes})
    assert len(offloadable(dataset)) == 6
    dataset.__class__ = type("OtherFood", (type(dataset),), {"__getitem__": lambda self, index: index})
    assert refusal(dataset).startswith("OtherFood has a __getitem__ of its own; it lacks key(index) and target(index)")
    members = {"key": lambda self, index: "1.jpg", "target": lambda self, index: 0}
    dataset.__class__ = type("KeyedFood", (type(dataset),), members)
    assert offloadable(dataset).sources[0].promised, "the protocol goes for one that keeps to it"


def test_what_rules_refuse_is_named(tmp_path: Path) -> None:
    for name in ("pets", "timm", "food"):
        (tmp_path / name).mkdir()
    masks = pets(tmp_path / "pets", target_types="segmentation")
    assert "gives targets other than classes: ['segmentation']" in refusal(masks)
    masks._target_types = ["category"]
    masks.transforms = lambda image, target: (image, target)
    assert "`transforms`, which take image and label together" in refusal(masks)
    dataset = of_timm(tmp_path / "timm", input_img_mode="L")
    assert "pictures of another mode than RGB" in refusal(dataset)
    dataset.input_img_mode, dataset.additional_features = "RGB", ["size"]
    assert "additional features" in refusal(dataset)
    dataset.additional_features, dataset.reader = None, FileDataset(tmp_path, [], [])
    assert "reads with a FileDataset" in refusal(dataset)
    other = food(tmp_path / "food", loader=print)
    assert "does not use torchvision's default loader" in refusal(other)
    del other.loader  # as in older releases, which open their files as RGB themselves
    assert len(offloadable(other)) == 6
    del other._image_files
    assert refusal(other) == "Food101 lacks _image_files, which all releases known here have"


@pytest.mark.parametrize("change", ["_labels", "_image_files"])
def test_a_change_in_place_is_seen(change: str, tmp_path: Path) -> None:
    dataset = food(tmp_path, transform=HERE)
    before = look(dataset)
    assert same_look(before, look(dataset))
    values = getattr(dataset, change)
    values[0], values[-1] = values[-1], values[0]
    assert not same_look(before, look(dataset))


def test_a_change_of_a_reader_s_samples_and_of_the_first_op_is_seen(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    dataset, other = of_timm(tmp_path), caltech_101(tmp_path / "c", transform=v1.Compose([RGB(), HERE]))
    before = look(dataset), look(other)
    assert same_look(before[0], look(dataset)) and same_look(before[1], look(other))
    path, label = dataset.reader.samples[1]
    dataset.reader.samples[1] = (path, label + 1)
    other.transform = HERE
    assert not same_look(before[0], look(dataset)) and not same_look(before[1], look(other))


def test_transforms_that_are_joint_are_those_that_are_run(tmp_path: Path) -> None:
    dataset = pets(tmp_path, transform=HERE, target_transform=minus)
    dataset.transform = dataset.target_transform = None  # which torchvision does not look at
    assert transforms_of(dataset) == (HERE, minus)
    assert unlike_its_parts(offloadable(dataset)) is None


@pytest.mark.parametrize("form", [".", "./deep/..", "deep/../deep"])
def test_a_root_as_pathlib_writes_it_or_not(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    dataset = food(Path(form))
    dataset.root = form
    assert offloadable(dataset).sources[0].keys[0] == "food-101/images/ramen/1.jpg"


def test_keys_that_lie_elsewhere() -> None:
    with pytest.raises(ValueError, match="must begin with"):
        keys_below(["/a/1.jpg", "/b/2.jpg"], "/a")


# --- where an export begins -----------------------------------------------------------------------------------------


def test_folders_in_which_all_files_lie(tmp_path: Path) -> None:
    address = Address.parse("tcp://h:1/all/x")
    data = offloadable(naturalist(tmp_path, transform=v1.Compose([RGB()])))
    usual = Locations(data, address)
    assert usual.folders_inside() == ["2018/"]
    assert usual.key_in_export(0).startswith("x/2018/Aves/0/")
    assert Locations(data, address, "2018/").key_in_export(0).startswith("x/Aves/0/")
    one = offloadable(Subset(naturalist(tmp_path, transform=RGB()), [0, 1]))
    assert Locations(one, address).folders_inside() == ["2018/", "2018/Aves/", "2018/Aves/0/"]
    with pytest.raises(ConfigError, match="key must be below 2018/Fungi/"):
        Locations(data, address, "2018/Fungi/").key_in_export(0)
    assert Locations(offloadable(FileDataset(tmp_path, ["a.jpg", "b/c.jpg"], [1, 2])), address).folders_inside() == []
    assert Locations(offloadable(FileDataset(tmp_path, [], [])), address).folders_inside() == []


# --- lists of files -------------------------------------------------------------------------------------------------


class Column:
    """A column of a data frame whose rows were chosen: its index is not 0, 1, 2."""

    def __init__(self, values: list[Any]) -> None:
        self.values = dict(zip(range(7, 7 + len(values)), values, strict=True))

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return iter(self.values.values())

    def __getitem__(self, label: int) -> Any:
        return self.values[label]


def test_a_list_of_files(tmp_path: Path) -> None:
    files = Column(["a/1.jpg", np.str_("2.jpg"), str(tmp_path / "b" / "3.jpg"), Path("a", "4.jpg")])
    dataset = FileDataset(tmp_path, files, Column([3, 2, 1, 0]), None, minus)
    assert [dataset.key(row) for row in range(4)] == ["a/1.jpg", "2.jpg", "b/3.jpg", "a/4.jpg"]
    assert (dataset.targets, dataset.target(0), dataset.target(-1)) == ([3, 2, 1, 0], -4, -1)
    source = offloadable(pickle.loads(pickle.dumps(dataset))).sources[0]
    assert (source.keys[2], source.target(2), source.promised) == ("b/3.jpg", 1, False)
    assert transforms_of(dataset) == (None, minus)
    with pytest.raises(IndexError, match="index must be below 4, got 4"):
        dataset[4]


def test_a_file_dataset_gives_what_an_image_folder_gives(image_tree: Path) -> None:
    paths = sorted(path for path in image_tree.rglob("*") if path.is_file())
    dataset = FileDataset(image_tree, paths, range(len(paths)), HERE)
    for row in (0, 5, len(paths) - 1):
        image, label = dataset[row]
        assert label == row and same_value(image, HERE(default_loader(str(paths[row]))))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (["/elsewhere/1.jpg"], r"files\[0\] must be a path relative to root, got the absolute path '/elsewhere/1.jpg'"),
        (["1.jpg", "a/../../2.jpg"], r"files\[1\] must stay below root"),
        ([float("nan")], r"files\[0\] must be text, got nan"),
        (["1.jpg"] * 3, "targets must be as many as files, got 2 labels and 3 files"),
    ],
)
def test_lists_that_cannot_work(files: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FileDataset("/data", files, [1, 2][: len(files)])


class Frame:
    """As a data frame: its length is that of its rows, and it gives the names of its columns."""

    columns = ("file", "label")

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter(self.columns)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (Frame(), r"targets must be one value per file, in order, got a Frame, .* column names; .* .to_numpy\(\)"),
        ({"1.jpg": 0, "2.jpg": 1}, "targets .* got a dict, which gives its keys"),
        ({4, 5}, "targets .* got a set, which has another order in each run"),
        ("01", "targets .* got a str, which gives its characters"),
    ],
)
def test_what_would_give_other_labels(labels: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        FileDataset("/data", ["1.jpg", "2.jpg"], labels)


@pytest.mark.parametrize("files", [Frame(), {"1.jpg", "2.jpg"}, "ab"])
def test_what_would_give_other_files(files: Any) -> None:
    with pytest.raises(ConfigError, match="files must be one value per file, in order, got a "):
        FileDataset("/data", files, [1, 2])


def test_views_and_generators_give_their_values_in_order() -> None:
    table = {"1.jpg": 7, "2.jpg": 8}
    for files, labels in ((table.keys(), table.values()), (table, (n + 7 for n in range(2)))):
        dataset = FileDataset("/data", files, labels)
        assert [dataset.key(n) for n in range(2)] == ["1.jpg", "2.jpg"] and dataset.targets == [7, 8]


def test_data_frames() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"file": ["1.jpg", "2.jpg"], "a": [0, 1], "b": [1, 2]}, index=[5, 0])
    assert FileDataset("/data", table["file"], table["b"]).targets == [1, 2]
    rows = FileDataset("/data", table["file"], table[["a", "b"]].to_numpy()).targets
    assert [one.tolist() for one in rows] == [[0, 1], [1, 2]]
    for frame in (table[["a", "b"]], table[["b"]]):
        with pytest.raises(ConfigError, match="got a DataFrame, which gives its column names"):
            FileDataset("/data", table["file"], frame)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], IntTargets),
        (np.array([1, 2], np.int16), IntTargets),
        (torch.tensor([1, 2]), IntTargets),
        ([True, False], ObjectTargets),
        ([1, 1 << 70], ObjectTargets),
        ([1, None], ObjectTargets),
        (np.array([1.5, 2]), ObjectTargets),
        (torch.tensor([[1], [2]]), ObjectTargets),
        ([], IntTargets),
    ],
)
def test_labels_are_given_as_they_are(values: Any, kind: Any) -> None:
    targets = targets_of(values)
    assert type(targets) is kind
    for row in range(len(values)):
        found, expected = targets(row), values[row]
        if kind is IntTargets:
            assert type(found) is int and found == int(expected)
        else:
            assert type(found) is type(expected) and np.array_equal(found, expected)
