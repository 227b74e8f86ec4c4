"""Which connections are let go."""

from __future__ import annotations

from storage_agent.clients.connections import (
    FEW_UNREAD_NBYTES,
    IDLE_S,
    MAX_ALL_UNREAD_NBYTES,
    MAX_UNREAD_NBYTES,
    SILENT_S,
    UNFINISHED_S,
    Connections,
)


def _made(most: int, count: int) -> Connections:
    connections = Connections(most)
    for descriptor in range(count):
        connections.accepted(descriptor, now_s=float(descriptor) / 1000)
    return connections


def test_those_that_never_spoke_go_first_the_oldest_before_the_others() -> None:
    connections = _made(most=4, count=6)
    connections.belongs(0, b"a loader", 0.1)
    connections.spoke(0, 0.1, 9)
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
        connections.spoke(descriptor, float(descriptor), 9)
    connections.accepted(2, IDLE_S + 0.5)
    assert connections.too_many(IDLE_S + 0.5) == [0]
    connections.spoke(0, IDLE_S, 9)
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

    found: dict[int, str] = {}
    steps = 0
    while not found and steps < 20:
        steps += 1
        came[0] += MAX_UNREAD_NBYTES // 4
        came[1] += MAX_UNREAD_NBYTES // 4
        connections.spoke(0, float(steps), MAX_UNREAD_NBYTES // 4)
        found, quiet = connections.look([0, 1, 2], received, float(steps))
        assert quiet == [2]
    assert (list(found), steps) == ([1], 5) and "32 MiB without the end" in found[1]


def test_what_has_been_read_does_not_count_and_what_waits_behind_it_does() -> None:
    connections, came = _made(most=9, count=1), 10 * FEW_UNREAD_NBYTES
    assert connections.look([0], lambda _: came, 0.0) == ({}, [])
    connections.spoke(0, 1.0, 4 * FEW_UNREAD_NBYTES)
    assert connections.unread_nbytes == 6 * FEW_UNREAD_NBYTES
    connections.spoke(0, 1.0, 6 * FEW_UNREAD_NBYTES)
    assert connections.look([0], lambda _: came, 2.0) == ({}, [0]), "need not be looked at until more comes"
    assert connections.unread_nbytes == 0
    assert connections.look([7], lambda _: came, 2.0) == ({}, [7]), "has been closed"


def test_a_message_that_pauses_has_a_time_to_end() -> None:
    connections, came = _made(most=9, count=2), {0: MAX_UNREAD_NBYTES // 2, 1: FEW_UNREAD_NBYTES}
    assert connections.look([0, 1], came.__getitem__, 1000.0) == ({}, [])
    assert connections.look([0, 1], came.__getitem__, 1000.0 + UNFINISHED_S) == ({}, [1]), "a sign of life, say"
    found, _ = connections.look([0, 1], came.__getitem__, 1001.0 + UNFINISHED_S)
    assert list(found) == [0] and "not whole within 60 s" in found[0]
    connections.spoke(0, 1001.0 + UNFINISHED_S, MAX_UNREAD_NBYTES // 2 - FEW_UNREAD_NBYTES - 1)
    assert connections.look([0], came.__getitem__, 1002.0 + UNFINISHED_S) == ({}, []), "another message has begun"


def test_all_together_have_a_bound_and_those_with_most_go_first() -> None:
    each, count = MAX_UNREAD_NBYTES - 1, MAX_ALL_UNREAD_NBYTES // MAX_UNREAD_NBYTES + 2
    connections = _made(most=99, count=count)
    came = {descriptor: each - descriptor for descriptor in range(count)} | {count - 1: 10}
    found, _ = connections.look(range(count), came.__getitem__, 1.0)
    assert list(found) == [0] and "512 MiB" in found[0], "as many as must, and not the one with little"
    connections.closed(0)
    assert connections.unread_nbytes <= MAX_ALL_UNREAD_NBYTES
    assert connections.look(range(count), came.__getitem__, 2.0) == ({}, [0, count - 1])
