"""Samples of several files are listed as WebDataset groups them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import storage_agent.reading.flat_samples
from sophon_loader.errors import MessageTooLong, SampleMissing, SampleOutsideExport, SampleUnreadable
from sophon_loader.wire.samples import EVERY, SamplesAsked, samples_asked
from storage_agent.reading.flat_samples import Samples
from storage_agent.reading.listing import classes_of
from storage_agent.stores.folder import Folder


def _store(root: Path, *names: str) -> Folder:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return Folder("d", str(root), 1000)


def _listed(store: Folder, member: str, folder: str = "", image: str = "") -> list[tuple[str, list[str]]]:
    samples = Samples(store, SamplesAsked(folder, member, image))
    for _ in samples.find():
        pass
    return [(name, [one for cells in samples.of(n) for one in cells]) for n, name in enumerate(samples.folders)]


def test_names_end_at_the_first_dot(tmp_path: Path) -> None:
    store = _store(
        tmp_path, "a.jpg", "a.CLS", "a.seg.png", "a-b.jpg", "c/a.PNG", "c/.hidden.jpg", "c/README", "c/d.txt"
    )
    assert _listed(store, "cls") == [
        ("", ["a.jpg", "cls/seg.png", "a.CLS", "a-b.jpg", ""]),
        ("c", ["a.PNG", "", "", "d.txt"]),
    ]
    assert _listed(store, EVERY) == [
        ("", ["a.jpg", "cls/seg.png", "a.CLS", "a.seg.png", "a-b.jpg", ""]),
        ("c", ["a.PNG", "", "", "d.txt"]),
    ]
    assert _listed(store, "txt", "c") == _listed(store, "txt", "c/") == [("", ["a.PNG", "", "", "d.txt"])]


def test_the_first_kind_of_picture_is_the_picture(tmp_path: Path) -> None:
    assert _listed(_store(tmp_path, "a.png", "a.jpg"), EVERY) == [("", ["a.jpg", "png", "a.png"])]


def test_the_picture_that_is_named(tmp_path: Path) -> None:
    store = _store(tmp_path, "0.input.jpg", "0.output.txt", "1.LEFT.png", "1.jpg", "1.right.png")
    assert _listed(store, "output.txt", image="input.jpg") == [
        ("", ["0.input.jpg", "output.txt", "0.output.txt", "", "1.LEFT.png", "", "1.jpg", "", "1.right.png"])
    ]
    assert _listed(store, EVERY, image="left.png")[0][1][2:] == ["1.LEFT.png", "jpg/right.png", "1.jpg", "1.right.png"]


def test_each_picture_that_is_in_no_sample_is_told(tmp_path: Path) -> None:
    store = _store(tmp_path, "22.00.jpg", "22.00.cls", "22.01.jpg", "3.cls", "3.txt")
    assert _listed(store, "cls") == [("", ["", "22.00.jpg", "", "22.01.jpg", "", "3.cls"])]


def test_a_member_twice(tmp_path: Path) -> None:
    with pytest.raises(SampleUnreadable, match="each member once, got both"):
        _listed(_store(tmp_path, "c/a.jpg", "c/a.JPG"), "cls")


def test_a_member_too_large(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "a.txt").write_bytes(bytes(1001))
    with pytest.raises(SampleUnreadable, match=r"at most 1000 bytes, got 1001 for 'a.txt'"):
        _listed(Folder("d", str(tmp_path), 1000), "txt")


def test_all_members_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_agent.reading.flat_samples, "MAX_LISTING_NBYTES", 25)
    with pytest.raises(MessageTooLong, match="at most 25 bytes together, got more up to 'b'"):
        _listed(_store(tmp_path, "a.jpg", "a.txt", "b.jpg", "b.txt"), "txt")


def test_groups_are_made_one_by_one(tmp_path: Path) -> None:
    """The broker lists a million samples of one archive in little more memory than their names take."""
    count = 2000
    store = _store(tmp_path, *(f"{number:06}.{member}" for number in range(count) for member in ("jpg", "cls")))
    samples = Samples(store, SamplesAsked("", "cls"))
    for _ in samples.find():
        pass
    tracemalloc.start()
    try:
        assert sum(bool(cells) for cells in samples.of(0)) == count
        _, most_nbytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_nbytes / count < 200


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SampleMissing):
        _listed(_store(tmp_path, "a.jpg"), "txt", "none")


@pytest.mark.parametrize(
    "asked", [SamplesAsked("", "cls"), SamplesAsked("a/b", EVERY), SamplesAsked("a", "cls", "input.jpg")]
)
def test_the_question_travels_as_a_prefix_that_no_path_has(tmp_path: Path, asked: SamplesAsked) -> None:
    assert samples_asked(asked.prefix) == asked and samples_asked(asked.folder) is None
    with pytest.raises(SampleOutsideExport) as refused:
        classes_of(_store(tmp_path, "a/b/c.jpg"), asked.prefix)
    assert asked.is_unknown(str(refused.value)), "what an agent of an older release says"
    with pytest.raises(SampleOutsideExport) as outside:
        classes_of(_store(tmp_path), "..")
    assert not asked.is_unknown(str(outside.value))
