"""What the fetching process holds: each object for one read, errors too, and no more bytes than are allowed."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from storage_agent.stores.buckets.held import MAX_NBYTES, OLD_S, HeldObjects


class Store:
    """Gives what it is asked for, once it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.patient: list[bool] = []
        self.error: BaseException | None = None
        self.may = threading.Event()
        self.may.set()
        self.now_s = 0.0

    def read(
        self, location: str, key: str, nbytes: int, etag: str, wanted: int | None = None, *, patient: bool = False
    ) -> bytes:
        self.asked.append(key)
        self.patient.append(patient)
        assert self.may.wait(10)
        if self.error is not None:
            raise self.error
        return b"." * min(nbytes if wanted is None else wanted, 10)

    def clock_s(self) -> float:
        return self.now_s


def _what(key: str, nbytes: int = 10) -> tuple[str, str, int, str]:
    return "s3://photos", key, nbytes, '"1"'


def test_an_object_is_read_once_for_all_that_have_it_fetched_and_then_forgotten() -> None:
    """Loaders that go through a set side by side want the same objects at about the same time."""
    store = Store()
    held = HeldObjects(store.read)
    held.fetch(*_what("a"))
    held.fetch(*_what("a"))
    held.expect("s3://photos", [_what("a")[1:]])
    assert store.asked == ["a"] and held.nbytes == 10
    for left in (10, 10, 0):
        assert held.read(*_what("a")) == b"." * 10 and store.asked == ["a"] and held.nbytes == left
    assert held.read(*_what("a")) == b"." * 10 and store.asked == ["a", "a"] and held.nbytes == 0


def test_a_beginning_is_held_apart_from_the_object() -> None:
    store = Store()
    held = HeldObjects(store.read)
    held.expect("s3://photos", [(*_what("a")[1:], 3), _what("a")[1:]])
    assert held.read(*_what("a"), 3) == b"..." and held.read(*_what("a")) == b"." * 10
    assert store.asked == ["a", "a"] and held.nbytes == 0


def test_only_a_fetch_waits_for_a_store_that_is_away() -> None:
    store = Store()
    held = HeldObjects(store.read)
    held.fetch(*_what("a"))
    held.read(*_what("b"))
    held.expect("s3://photos", [_what("c")[1:]])
    held.read(*_what("c"))
    assert dict(zip(store.asked, store.patient, strict=True)) == {"a": True, "b": False, "c": False}


def test_a_fetch_of_what_is_on_its_way_waits_for_it() -> None:
    """A worker that read it instead would wait, and jobs of other exports for the worker."""
    store = Store()
    store.may.clear()
    held = HeldObjects(store.read)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(held.fetch, *_what("a")) for _ in range(2)]
        assert not wait(found, 0.2, FIRST_COMPLETED).done
        store.may.set()
    assert store.asked == ["a"]


def test_another_version_is_another_object() -> None:
    store = Store()
    held = HeldObjects(store.read)
    held.fetch(*_what("a"))
    assert held.read(*_what("a", 9)) == b"." * 9 and store.asked == ["a", "a"]


def test_an_error_is_told_to_whoever_reads() -> None:
    store = Store()
    store.error = ValueError("no")
    held = HeldObjects(store.read)
    held.fetch(*_what("a"))
    store.error = None
    with pytest.raises(ValueError, match="no"):
        held.read(*_what("a"))
    assert held.read(*_what("a")) == b"." * 10 and store.asked == ["a", "a"]


def test_an_error_is_of_one_try() -> None:
    """Whoever had it fetched may be gone: nobody else is told of a store that was away, once it is back."""
    store = Store()
    held = HeldObjects(store.read)
    for _ in range(2):
        store.error = ValueError("no")
        held.fetch(*_what("a"))
        store.error = None
        held.fetch(*_what("a"))
        assert held.read(*_what("a")) == b"." * 10
    store.error = ValueError("no")
    held.expect("s3://photos", [_what("b")[1:]])
    with pytest.raises(ValueError, match="no"):
        held.read(*_what("b"))
    store.error = None
    assert held.read(*_what("b")) == b"." * 10


def test_whoever_reads_what_is_on_its_way_waits_for_it() -> None:
    store = Store()
    store.may.clear()
    held = HeldObjects(store.read)
    held.expect("s3://photos", [_what(key)[1:] for key in "abc"])
    with ThreadPoolExecutor(3) as threads:
        found = [threads.submit(held.read, *_what(key)) for key in "abc"]
        store.may.set()
        assert [one.result(10) for one in found] == [b"." * 10] * 3
    assert sorted(store.asked) == ["a", "b", "c"] and held.nbytes == 0


def test_no_more_is_held_than_may_be() -> None:
    store = Store()
    store.may.clear()
    held = HeldObjects(store.read)
    with ThreadPoolExecutor(8) as threads:
        for number in range(8):
            threads.submit(held.fetch, *_what(str(number), MAX_NBYTES // 3))
        store.may.set()
    assert len(store.asked) == 3 and held.nbytes <= MAX_NBYTES


def test_what_nobody_asks_for_is_forgotten() -> None:
    store = Store()
    held = HeldObjects(store.read, store.clock_s)
    held.fetch(*_what("a", MAX_NBYTES))
    store.now_s = OLD_S - 1
    held.fetch(*_what("b"))
    assert store.asked == ["a"]
    store.now_s = OLD_S + 1
    held.fetch(*_what("b"))
    assert store.asked == ["a", "b"] and held.nbytes == 10


def test_a_panic_of_the_library_reaches_whoever_waits() -> None:
    """It is no Exception; an object that stayed on its way would be waited for without end."""

    class Panic(BaseException):
        pass

    store = Store()
    store.error = Panic()
    held = HeldObjects(store.read)
    held.fetch(*_what("a"))
    with pytest.raises(Panic):
        held.read(*_what("a"))
    assert held.nbytes == 0
