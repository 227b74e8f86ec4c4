"""Jobs whose objects are fetched first: in turns, each once, bounded by number, forgotten with their client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from sophon_loader.wire.messages import Item
from storage_agent.jobs.jobs import FetchHeader, Job
from storage_agent.reading.read_ahead import IN_FLIGHT, MAX_WAITING, Ahead
from storage_agent.stores import Exports


class FarExports:
    """Exports of which "far" and "farther" are far, and give what it is asked for once it may."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.may = threading.Semaphore(0)

    def is_far(self, export: str) -> bool:
        return export.startswith("far")

    def fetch(self, export: str, key: str) -> None:
        self.asked.put(key)
        assert self.may.acquire(timeout=10)


class Owner:
    """The thread that owns an `Ahead`: this one."""

    def __init__(self) -> None:
        self.exports = FarExports()
        self.notices: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.done: list[int] = []
        self.twice: list[bytes] = []
        self.waiting = 0
        self.ahead = Ahead(cast(Exports, self.exports), self._hand_in, lambda client: self.waiting)

    def _hand_in(self, function: Callable[..., None], *arguments: Any) -> None:
        self.notices.put(partial(function, *arguments))

    def take(self, jobs: Sequence[Job]) -> list[Job]:
        return self.ahead.take(jobs, lambda job: self.done.append(job.item.id), self.twice.append)

    def go_on(self, count: int) -> None:
        """Let some objects come."""
        for _ in range(count):
            self.exports.may.release()
        for _ in range(count):
            self.notices.get(timeout=10)()

    def asked(self, count: int) -> list[str]:
        """The next keys that are asked for, and no more than these so far."""
        found = [self.exports.asked.get(timeout=10) for _ in range(count)]
        assert self.exports.asked.empty()
        return found


def _jobs(first: int, count: int, client: bytes = b"a", export: str = "far") -> list[Job]:
    header = FetchHeader(client, export, "", 0, 0, False, False, [], 0.0, 0.0)
    return [Job(header, Item(id, id, 0, 0, "file", f"{id}.jpg")) for id in range(first, first + count)]


def test_files_that_are_near_need_nothing() -> None:
    owner = Owner()
    jobs = _jobs(0, 3, export="near")
    assert owner.take(jobs) == jobs and owner.ahead.of(b"a") == 0
    owner.ahead.stop()


def test_many_at_once_and_no_more_than_that() -> None:
    owner = Owner()
    assert owner.take(_jobs(0, IN_FLIGHT + 10)) == []
    owner.asked(IN_FLIGHT)
    assert owner.ahead.of(b"a") == IN_FLIGHT + 10 and owner.done == []
    owner.go_on(10)
    owner.asked(10)
    assert len(owner.done) == 10 and owner.ahead.of(b"a") == IN_FLIGHT
    owner.go_on(IN_FLIGHT)
    assert sorted(owner.done) == [*range(IN_FLIGHT + 10)] and owner.ahead.of(b"a") == 0
    owner.ahead.stop()


def test_an_export_that_waits_for_its_store_leaves_room_to_others() -> None:
    owner = Owner()
    owner.take(_jobs(0, IN_FLIGHT + 10))
    owner.asked(IN_FLIGHT)
    owner.take(_jobs(0, 5, client=b"b", export="farther"))
    owner.asked(5)
    owner.ahead.drop(b"a")
    owner.go_on(IN_FLIGHT + 5)
    assert sorted(owner.done) == [*range(5)]
    owner.ahead.stop()


def test_what_is_asked_for_again_is_not_fetched_again() -> None:
    owner = Owner()
    owner.take(_jobs(0, 3))
    owner.take(_jobs(2, 2))
    owner.asked(4)
    assert owner.twice == [b"a"]
    owner.go_on(4)
    assert sorted(owner.done) == [0, 1, 2, 3]
    owner.take(_jobs(2, 1))
    owner.asked(1)
    owner.go_on(1)
    assert sorted(owner.done) == [0, 1, 2, 2, 3]
    owner.ahead.stop()


def test_a_client_that_is_gone() -> None:
    owner = Owner()
    owner.take(_jobs(0, IN_FLIGHT + 3))
    owner.take(_jobs(0, 2, client=b"b"))
    assert owner.ahead.drop(b"a") == IN_FLIGHT + 3 and owner.ahead.drop(b"a") == 0
    owner.go_on(IN_FLIGHT + 2)
    assert owner.done == [0, 1] and owner.ahead.of(b"b") == 0
    owner.ahead.stop()


def test_nothing_is_fetched_while_workers_are_slower() -> None:
    owner = Owner()
    owner.waiting = MAX_WAITING
    owner.take(_jobs(0, 5))
    owner.asked(0)
    owner.waiting -= 1
    owner.ahead.assign()
    owner.asked(5)
    owner.go_on(5)
    assert len(owner.done) == 5
    owner.ahead.stop()
