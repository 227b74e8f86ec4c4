"""When a loader has gone: not with each of its connections."""

from __future__ import annotations

from storage_agent.clients.visits import GONE_S, MAX_KNOWN, Visits

HERE, THERE = "gpu@10.0.0.7", "10.0.0.8"


def test_a_loader_is_gone_when_no_connection_has_come_for_a_while() -> None:
    visits = Visits()
    for owner in (HERE, THERE):
        visits.came(owner)
        visits.greeted(owner)
    visits.left(HERE, 0, 1.0)
    assert visits.wait_s(1.0) == GONE_S
    visits.came(HERE)
    visits.came(HERE)
    assert visits.wait_s(1.0) is None, "its workers have come"
    visits.left(HERE, 5, 20.0)
    visits.left(HERE, 3, 30.0)
    visits.left(THERE, 0, 40.0)
    assert visits.over(29.0 + GONE_S) == {} and visits.over(30.0 + GONE_S) == {HERE: 3}
    assert visits.over(1000.0) == {THERE: 0} and visits.over(2000.0) == {}


def test_who_only_asks_for_the_status_is_no_loader() -> None:
    visits = Visits()
    visits.came(HERE)
    visits.left(HERE, 0, 0.0)
    assert visits.wait_s(0.0) is None and visits.over(1000.0) == {}


def test_a_bounded_number_is_remembered() -> None:
    visits = Visits()
    for n in range(MAX_KNOWN + 1):
        visits.came(str(n))
        visits.greeted(str(n))
    for n in range(MAX_KNOWN + 1):
        visits.left(str(n), 0, 0.0)
    assert len(visits.over(1000.0)) == MAX_KNOWN
