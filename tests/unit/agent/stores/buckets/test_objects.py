"""An object that takes the place of another: told by its ETag, or by its time of change where the ETag says nothing."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_agent.stores.archives.index import Index
from storage_agent.stores.archives.notes import Found, Notes

pytest.importorskip("obstore", reason="obstore is not installed")

from storage_agent.stores.buckets import objects

EMPTY = "d41d8cd98f00b204e9800998ecf8427e"
"""The MD5 of nothing."""
BEGIN = datetime(2026, 5, 1, 12, 0, 7, 734_000, tzinfo=timezone.utc)


class Bucket:
    """A server in place of obstore: lists times of change to the millisecond, and gives them in whole seconds."""

    def __init__(self, **etags: str | None) -> None:
        self.objects = {name: (b"pixels", etag, BEGIN) for name, etag in etags.items()}
        self.conditions: list[str | None] = []

    def put(self, name: str, data: bytes, after_s: float, etag: str | None) -> None:
        self.objects[name] = data, etag, BEGIN + timedelta(seconds=after_s)

    def _meta(self, name: str) -> dict[str, Any]:
        data, etag, modified = self.objects[name]
        return {"path": name, "size": len(data), "e_tag": etag, "last_modified": modified}

    def list(self, store: object) -> list[list[dict[str, Any]]]:
        return [[self._meta(name) for name in self.objects]]

    def get(self, store: object, name: str, options: dict[str, Any]) -> Any:
        self.conditions.append(options.get("if_match"))
        meta = self._meta(name)
        meta["last_modified"] = meta["last_modified"].replace(microsecond=0)
        return SimpleNamespace(meta=meta, bytes=lambda: self.objects[name][0][slice(*options.get("range", [None]))])


def _listed(bucket: Bucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, tuple[int, str]], Notes]:
    """Name -> (size, version) as a start lists them, and what the index says of them."""
    monkeypatch.setattr(objects, "obstore", bucket)
    monkeypatch.setattr(objects, "_store", lambda location, again=True: None)
    objects.write_listing("s3://photos", str(folder / "x.index"))
    index = Index(folder / "x.index")
    return {one.name.decode(): (one.length, one.target.decode()) for one in index}, index.notes


@pytest.mark.parametrize("etag", [None, "", '""', f'"{EMPTY}"', EMPTY, f'"{EMPTY}-3"'])
@pytest.mark.parametrize("after_s", [1.0, 3600.0, -3600.0])
def test_an_object_of_equal_size_in_the_place_of_one_whose_etag_says_nothing(
    etag: str | None, after_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(a=etag)
    listed, _ = _listed(bucket, tmp_path, monkeypatch)
    assert objects.read("s3://photos", "a", *listed["a"]) == b"pixels" and bucket.conditions == [None]
    bucket.put("a", b"others", after_s, etag)
    with pytest.raises(objects.StoreFailed, match="changed"):
        objects.read("s3://photos", "a", *listed["a"])


def test_a_server_that_gives_no_time_of_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore tells the beginning of 1970 then."""
    bucket = Bucket(a=None)
    listed, _ = _listed(bucket, tmp_path, monkeypatch)
    bucket.put("a", b"pixels", -BEGIN.timestamp(), None)
    assert objects.read("s3://photos", "a", *listed["a"]) == b"pixels"


def test_an_etag_that_says_something_goes_before_the_time_of_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the same bytes, say of a bucket that was moved, is the same object."""
    bucket = Bucket(a='"1"', b='W/"2"')
    listed, notes = _listed(bucket, tmp_path, monkeypatch)
    assert listed == {"a": (6, '"1"'), "b": (6, 'W/"2"')} and notes.by_time == Found()
    bucket.put("a", b"pixels", 60.0, '"1"')
    assert objects.read("s3://photos", "a", *listed["a"]) == b"pixels" and bucket.conditions == ['"1"']
    bucket.put("b", b"others", 0.0, 'W/"3"')
    with pytest.raises(objects.StoreFailed, match="changed"):
        objects.read("s3://photos", "b", *listed["b"])


@pytest.mark.parametrize("etag", ['"1"', 'W/"1"', None])
def test_a_beginning_is_that_of_the_object_that_was_listed(
    etag: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket(a=etag)
    listed, _ = _listed(bucket, tmp_path, monkeypatch)
    assert objects.read("s3://photos", "a", *listed["a"], 3) == b"pix"
    for data, other in ((b"others", etag and etag.replace("1", "2")), (b"longer ones", etag)):
        bucket.put("a", data, 1.0, other)
        with pytest.raises(objects.StoreFailed):
            objects.read("s3://photos", "a", *listed["a"], 3)


def test_a_start_counts_objects_whose_etag_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(a='"1"', b=None, c=f'"{EMPTY}"', empty=f'"{EMPTY}"')
    bucket.put("empty", b"", 0.0, f'"{EMPTY}"')
    listed, notes = _listed(bucket, tmp_path, monkeypatch)
    assert notes == Notes(by_time=Found(2, "b")) and listed["empty"] == (0, f'"{EMPTY}"')


def test_the_log_names_such_objects(caplog: pytest.LogCaptureFixture) -> None:
    for notes, lines in (Notes(), 0), (Notes(by_time=Found(2, "b")), 1):
        Notes.unpack(notes.pack()).tell("d")
        found = [one.__dict__["details"] for one in caplog.records if one.message == "objects without a usable ETag"]
        assert len(found) == lines
    assert found[0]["count"] == 2 and found[0]["first"] == "b" and "times of change" in found[0]["remedy"]
