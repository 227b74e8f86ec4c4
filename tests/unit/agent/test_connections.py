"""Which connections are let go."""

from __future__ import annotations

from storage_agent.connections import IDLE_S, MAX_UNFINISHED_NBYTES, SILENT_S, Connections


def _made(most: int, count: int) -> Connections:
    connections = Connections(most)
    for descriptor in range(count):
        connections.accepted(descriptor, now_s=float(descriptor) / 1000)
    return connections


def test_those_that_never_spoke_go_first_the_oldest_before_the_others() -> None:
    connections = _made(most=4, count=6)
    connections.belongs(0, b"a loader", 0.1)
    connections.spoke(0, 0.1)
    assert connections.too_many(SILENT_S + 1) == [1, 2]
    assert len(connections) == 6, "they are gone when they are closed"
    for descriptor in (1, 2):
        assert connections.closed(descriptor) is None
    assert connections.too_many(SILENT_S + 1) == []


def test_a_crowd_of_new_connections_is_turned_away() -> None:
    connections = _made(most=4, count=6)
    assert connections.too_many(0.1) == [5, 4], "they may be about to speak"


def test_those_that_have_long_been_idle_go_before_new_ones() -> None:
    connections = _made(most=2, count=2)
    for descriptor in range(2):
        connections.spoke(descriptor, float(descriptor))
    connections.accepted(2, IDLE_S + 0.5)
    assert connections.too_many(IDLE_S + 0.5) == [0]
    connections.spoke(0, IDLE_S)
    assert connections.too_many(IDLE_S + 0.5) == [2]


def test_a_client_that_comes_back_before_its_end_is_known_has_not_left() -> None:
    connections = _made(most=9, count=2)
    connections.belongs(0, b"a", 0.0)
    connections.belongs(1, b"a", 1.0)
    assert connections.closed(0) is None and connections.descriptor(b"a") == 1
    assert connections.closed(1) == b"a" and connections.descriptor(b"a") is None
    assert connections.closed(1) is None


def test_a_message_without_an_end() -> None:
    connections = _made(most=9, count=3)
    came = {0: 0, 1: 0, 2: 0}

    def received(descriptor: int) -> int | None:
        return None if descriptor == 2 else came[descriptor]

    found: list[int] = []
    steps = 0
    while not found and steps < 20:
        steps += 1
        came[0] += MAX_UNFINISHED_NBYTES // 4
        came[1] += MAX_UNFINISHED_NBYTES // 4
        connections.spoke(0, float(steps))
        found, quiet = connections.look([0, 1, 2], received)
        assert quiet == [2]
    assert (found, steps) == ([1], 5)


def test_a_message_that_pauses_is_still_the_same_one() -> None:
    connections, came = _made(most=9, count=1), MAX_UNFINISHED_NBYTES // 2
    assert connections.look([0], lambda _: came) == ([], [])
    assert connections.look([0], lambda _: came) == ([], [0]), "need not be looked at until more comes"
    assert connections.look([0], lambda _: 2 * came + 1) == ([0], [])
    assert connections.look([7], lambda _: came) == ([], [7]), "has been closed"
