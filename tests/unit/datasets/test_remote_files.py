"""RemoteFiles takes no listing that is not one."""

from __future__ import annotations

import pytest

from sophon_loader.datasets.remote_files import _Samples
from sophon_loader.errors import MalformedMessage
from sophon_loader.wire.samples import EVERY

CELLS = ["0.jpg", "cls/txt", "7", "", "1.txt", "2.jpg", "cls/txt", "8"]


def _read(cells: list[str], member: str) -> list[tuple[str, dict[str, str | None]]]:
    return [*_Samples([("", ["x.jpg", ""]), ("a", cells)], member, "tcp://fileserver:5555/shards")]


def test_samples_of_a_listing() -> None:
    samples = _Samples([("", ["x.jpg", ""]), ("a", CELLS)], "cls", "tcp://fileserver:5555/shards")
    assert [*samples] == [("x.jpg", {}), ("a/0.jpg", {"cls": "7"}), ("a/2.jpg", {"cls": "8"})]
    assert (samples.left_out, samples.first) == (1, "a/1.txt")


@pytest.mark.parametrize("cells", [CELLS[:1], CELLS[:2], CELLS[:4], CELLS[:-1]])
def test_a_listing_that_ends_early(cells: list[str]) -> None:
    with pytest.raises(MalformedMessage, match="whole samples, got one that ends early from tcp://fileserver:5555"):
        _read(cells, "cls")


def test_all_members() -> None:
    assert _read(["0.jpg", "cls/txt", "7", "eight"], EVERY)[1] == ("a/0.jpg", {"cls": "7", "txt": "eight"})
    with pytest.raises(MalformedMessage):
        _read(["0.jpg", "cls/txt", "7"], EVERY)
