"""Stores that are away: for how long, and what is told of them."""

from __future__ import annotations

from storage_agent.stores.buckets.outages import Outages


class Watched:
    """Outages by a clock that stands still until it is set, and what they have told."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.told: list[tuple[str, str, float]] = []
        self.outages = Outages(lambda *said: self.told.append(said), lambda: self.now_s)

    def failed(self, after_s: float, location: str = "s3://photos") -> float:
        self.now_s += after_s
        return self.outages.failed(location, "it cannot be reached")


def test_an_outage_is_told_once_when_it_lasts_and_once_when_it_is_over() -> None:
    watched = Watched()
    assert [watched.failed(after_s) for after_s in (0.0, 1.0, 2.0, 10.0)] == [0.0, 1.0, 3.0, 13.0]
    assert watched.told == [("s3://photos", "it cannot be reached", 3.0)]
    watched.now_s += 7.0
    watched.outages.worked("s3://photos")
    watched.outages.worked("s3://photos")
    assert watched.told[1:] == [("s3://photos", "", 20.0)]
    assert watched.failed(5.0) == 0.0


def test_a_hiccup_is_not_told() -> None:
    watched = Watched()
    watched.failed(0.0)
    watched.failed(1.0)
    watched.outages.worked("s3://photos")
    assert watched.told == []


def test_each_location_has_its_own() -> None:
    watched = Watched()
    watched.failed(0.0)
    assert watched.failed(5.0, "s3://others") == 0.0
    watched.outages.worked("s3://others")
    assert watched.failed(1.0) == 6.0


def test_a_failure_long_after_the_last_one_begins_anew() -> None:
    """Nobody has tried in between, so it may have been there."""
    watched = Watched()
    watched.failed(0.0)
    watched.failed(10.0)
    assert watched.failed(300.0) == 0.0 and watched.failed(5.0) == 5.0
