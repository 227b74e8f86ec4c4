"""RemoteFiles takes no listing that is not one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sophon_loader.datasets.remote_files import RemoteFiles, _only_picture, _Samples
from sophon_loader.errors import ConfigError, MalformedMessage
from sophon_loader.wire.samples import EVERY

CELLS = ["0.jpg", "cls/txt", "7", "", "1.txt", "2.jpg", "cls/txt", "8"]


def _read(cells: list[str], member: str) -> list[tuple[str, dict[str, str | None]]]:
    return [*_Samples([("", ["x.jpg", ""]), ("a", cells)], member, "tcp://fileserver:5555/shards")]


def test_samples_of_a_listing() -> None:
    samples = _Samples([("", ["x.jpg", ""]), ("a", CELLS)], "cls", "tcp://fileserver:5555/shards")
    assert [*samples] == [("x.jpg", {}), ("a/0.jpg", {"cls": "7"}), ("a/2.jpg", {"cls": "8"})]
    assert [*samples.left_out("")] == [
        "1 groups of files in tcp://fileserver:5555/shards have no picture and are no samples, the first with "
        "'a/1.txt'. Give each a picture, or remove them."
    ]


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("", "a picture's name must be NAME.jpg, with one dot, .* Write image='0.jpg' if each .*, or rename them"),
        ("left.jpg", "beside them is no 'left.jpg', as image= says. Put one there, or correct image="),
    ],
)
def test_pictures_that_are_in_no_sample(image: str, said: str) -> None:
    samples = _Samples([("a", ["", "22.0.jpg", "", "22.1.JPG", "ok.jpg", ""])], "cls", "tcp://fileserver:5555/shards")
    assert [*samples] == [("a/ok.jpg", {})]
    (text,) = samples.left_out(image)
    assert re.search(rf"^2 pictures in tcp://.* are in no sample, the first 'a/22.0.jpg': {said}", text)


@pytest.mark.parametrize(
    ("cells", "only"),
    [
        (["", "0.input.JPG", "", "1.input.jpg", "", "2.txt"], "input.jpg"),
        (["", "0.input.jpg", "", "0.mask.png"], ""),
        (["", "0..jpg"], ""),
        (["", "2.txt"], ""),
    ],
)
def test_the_only_picture(cells: list[str], only: str) -> None:
    samples = _Samples([("a", cells)], "cls", "tcp://fileserver:5555/shards")
    assert [*samples] == [] and _only_picture([samples]) == only
    other = _Samples([("", ["", "0.left.jpg"])], "cls", "tcp://other:5555/shards")
    assert [*other] == [] and _only_picture([samples, other]) == ("left.jpg" if not samples.pictures else "")


@pytest.mark.parametrize("image", ["", ".", ".jpg", "a/b.jpg", "a\0.jpg", 7])
def test_an_image_that_is_no_member(image: Any) -> None:
    with pytest.raises(ConfigError, match="image must be what follows the first dot of a picture's name, got"):
        RemoteFiles("tcp://fileserver:5555/shards", image=image)


@pytest.mark.parametrize("cells", [CELLS[:1], CELLS[:2], CELLS[:4], CELLS[:-1]])
def test_a_listing_that_ends_early(cells: list[str]) -> None:
    with pytest.raises(MalformedMessage, match="whole samples, got one that ends early from tcp://fileserver:5555"):
        _read(cells, "cls")


def test_all_members() -> None:
    assert _read(["0.jpg", "cls/txt", "7", "eight"], EVERY)[1] == ("a/0.jpg", {"cls": "7", "txt": "eight"})
    with pytest.raises(MalformedMessage):
        _read(["0.jpg", "cls/txt", "7"], EVERY)
