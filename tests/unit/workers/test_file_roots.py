"""Paths on this host as keys of an export, wherever the two begin."""

from __future__ import annotations

import pytest

from sophon_loader.datasets.given_roots import GivenRoots
from sophon_loader.workers.file_roots import FileRoots, Place

HERE = "/mnt/photos/train/cat"


@pytest.mark.parametrize(
    ("root", "folder", "place", "path", "key"),
    [
        ("/mnt/photos", "", ("", ""), "/mnt/photos/cat/1.jpg", "cat/1.jpg"),
        (HERE, "", ("train/cat", ""), "/mnt/photos/train/dog/1.jpg", "train/dog/1.jpg"),
        (HERE, "", ("train/cat", ""), "/mnt/photos/masks/1.png", "masks/1.png"),
        (HERE, "train", ("train/cat", ""), "/mnt/photos/train/dog/1.jpg", "train/dog/1.jpg"),
        (HERE, "train", ("train/cat", ""), "/mnt/photos/masks/1.png", None),
        ("/mnt/photos", "", ("", "train/"), "/mnt/photos/train/cat/1.jpg", "cat/1.jpg"),
        ("/mnt/photos", "", ("", "train/"), "/mnt/photos/val/cat/1.jpg", None),
        ("/mnt/photos", "", ("other", ""), "/mnt/photos/1.jpg", "other/1.jpg"),
        ("/mnt/photos", "", ("", ""), "/mnt/photos/cat/../dog//1.jpg", "dog/1.jpg"),
        ("/mnt/photos", "", ("", ""), "/mnt/photos2/1.jpg", None),
        ("/mnt/photos", "", ("", ""), "1.jpg", None),
    ],
)
def test_keys(root: str, folder: str, place: tuple[str, str], path: str, key: str | None) -> None:
    roots = FileRoots(root)
    assert roots.key_of(path) is None, "no agent has agreed"
    roots.agreed_on([Place(folder, *place)])
    assert roots.key_of(path) == key


def test_keys_are_below_a_folder_that_all_agents_have() -> None:
    roots = FileRoots(HERE)
    places = [Place("", "train/cat"), Place("", "old/photos/train/cat"), Place("sets/train", "sets/train/cat")]
    assert roots.agreed_on(places) == ["train", "old/photos/train", "sets/train"]
    assert roots.key_of("/mnt/photos/train/dog/1.jpg") == "train/dog/1.jpg"
    assert roots.key_of("/mnt/photos/masks/1.png") is None, "the third has no such folder"


def test_folders_that_are_given_lie_below_the_agents() -> None:
    roots = FileRoots("/", GivenRoots({"/mnt/masks": "new"}))
    assert roots.key_of("/mnt/masks/1.png") is None, "no agent has agreed"
    assert roots.agreed_on([Place("sets/7", "sets/7"), Place("", "")]) == ["sets/7", ""]
    assert [roots.key_of(path) for path in ("/mnt/masks/../masks/1.png", HERE)] == ["sets/7/new/1.png", None]
