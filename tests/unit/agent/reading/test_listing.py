"""A listing is ImageFolder's, whatever the store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from sophon_loader.errors import SampleMissing, SampleOutsideExport
from storage_agent.reading.listing import classes_of, images_below
from storage_agent.stores.folder import Folder
from storage_agent.stores.store import Store
from tests.unit.agent.stores.folders import export_folder

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return export_folder(tmp_path)


@pytest.fixture
def store(root: Path) -> Store:
    return Folder("d", str(root), LIMIT)


def image_classes(store: Store, prefix: str) -> list[tuple[str, list[str]]]:
    found = classes_of(store, prefix)
    return [(name, [one for names in images_below(store, folder) for one in names]) for name, folder in found.items()]


def _as_image_folder(root: Path) -> list[tuple[str, list[str]]]:
    folder = ImageFolder(root, allow_empty=True)
    listed: dict[str, list[str]] = {name: [] for name in folder.classes}
    for path, target in folder.samples:
        name = folder.classes[target]
        listed[name].append(os.path.relpath(path, root / name))
    return list(listed.items())


def test_a_tree_is_in_image_folders_order(tmp_path: Path) -> None:
    rng = random.Random(0)
    parts = ["a", "B", "b", "a-b", "a b", "é", "10", "9", "a.jpg", "Z", "a.", "~"]
    for _ in range(120):
        folder = tmp_path.joinpath("d", *(rng.choice(parts) for _ in range(rng.randint(1, 4))))
        folder.mkdir(parents=True, exist_ok=True)
        for name in rng.sample(["x.jpg", "y.PNG", "X.jpeg", "z.txt", "x.webp", "10.jpg", "9.jpg", ".jpg", "q.tiff"], 3):
            if not (folder / name).exists():
                (folder / name).touch()
    (tmp_path / "d" / "nothing").mkdir()
    (tmp_path / "d" / "top.jpg").touch()
    store = Folder("d", str(tmp_path / "d"), LIMIT)
    assert image_classes(store, "") == _as_image_folder(tmp_path / "d")
    assert image_classes(store, "a") == _as_image_folder(tmp_path / "d" / "a")
    assert image_classes(store, "a/") == image_classes(store, "a")


def test_links_in_a_tree(root: Path) -> None:
    (root / "a" / "same.jpg").symlink_to("x.jpg")
    (root / "b").symlink_to("a")
    (root / "c").mkdir()
    (root / "c" / "deeper").symlink_to("../a/deep")
    Image.new("RGB", (1, 1)).save(root / "c" / "z.jpg")
    assert image_classes(Folder("d", str(root), LIMIT), "") == _as_image_folder(root)


def test_a_tree_does_not_leave_the_export(root: Path) -> None:
    (root / "a" / "far").symlink_to(root.parent / "data-too")
    (root / "out").symlink_to(root.parent / "data-too")
    tree = dict(image_classes(Folder("d", str(root), LIMIT), ""))
    assert tree == {"a": ["x.jpg", "deep/y.png"], "out": []}
    with pytest.raises(SampleOutsideExport):
        image_classes(Folder("d", str(root), LIMIT), "out")


def test_a_tree_with_links_in_a_circle_ends(root: Path) -> None:
    for name in "abcdefgh":
        (root / name).mkdir(exist_ok=True)
        (root / name / "top").symlink_to("..")
    (root / "a" / "self").symlink_to(".")
    tree = dict(image_classes(Folder("d", str(root), LIMIT), ""))
    assert list(tree) == list("abcdefgh")
    assert {"x.jpg", "deep/y.png"} <= set(tree["a"]) and sum(map(len, tree.values())) < 10_000


@pytest.mark.parametrize(
    ("prefix", "error"), [("none", SampleMissing), ("a/x.jpg", SampleMissing), ("..", SampleOutsideExport)]
)
def test_a_tree_of_what_is_no_folder(store: Store, prefix: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        image_classes(store, prefix)


def test_a_file_name_that_is_not_utf8(store: Store, root: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (root / "a" / name).write_bytes(b"1")
    assert [(cls, sorted(files)) for cls, files in image_classes(store, "")] == [("a", [name, "deep/y.png", "x.jpg"])]


class Flat:
    """A store that knows its keys and no folders, as an archive does."""

    KEYS = ("b/z.jpg", "b/deep/y.PNG", "b/deep-er/x.jpg", "a/1.txt", "top.jpg")

    def walk(self, prefix: str) -> Iterator[tuple[str, list[str], list[str]]]:
        below = [key.removeprefix(prefix).lstrip("/") for key in self.KEYS if key.startswith(prefix)]
        folders = {""}.union(*({key.rpartition("/")[0]} for key in below))
        for folder in sorted(folders, key=lambda name: (name != "", name)):
            names = [key.rpartition("/")[2] for key in below if key.rpartition("/")[0] == folder]
            yield folder, sorted({name for name in folders if name and name.rpartition("/")[0] == folder}), names


def test_any_store_that_walks_can_be_listed() -> None:
    listed = image_classes(Flat(), "")  # type: ignore[arg-type]
    assert listed == [("a", []), ("b", ["z.jpg", "deep/y.PNG", "deep-er/x.jpg"])]
