"""The relay that spoils connections: each fault does what it says, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import zmq

from tests.support.agents import until
from tests.support.relay import SpoiltRelay, Strike

WAIT_MS = 40_000
SOON_MS = 300
BODY = bytes(range(256)) * 400
"""Longer than a frame with a size of one byte."""


class Pair:
    """A DEALER before a relay and a ROUTER behind it."""

    def __init__(self, stack: ExitStack) -> None:
        context = stack.enter_context(zmq.Context())
        self.router = stack.enter_context(context.socket(zmq.ROUTER))
        self.dealer = stack.enter_context(context.socket(zmq.DEALER))
        for one in (self.router, self.dealer):
            one.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.dealer.setsockopt(zmq.ROUTING_ID, b"me")
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.relay = stack.enter_context(SpoiltRelay(f"tcp://127.0.0.1:{port}"))
        self.dealer.connect(self.relay.endpoint)
        self.ask(b"first")

    def ask(self, *frames: bytes) -> None:
        """From the dealer to the router."""
        self.dealer.send_multipart(frames)
        assert self.router.poll(WAIT_MS)
        assert self.router.recv_multipart() == [b"me", *frames]

    def tell(self, *frames: bytes) -> None:
        """From the router towards the dealer."""
        self.router.send_multipart([b"me", *frames])

    def heard(self) -> list[bytes]:
        assert self.dealer.poll(WAIT_MS)
        return self.dealer.recv_multipart()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)
    until(lambda: not [one for one in threading.enumerate() if one.name == "relay"], "all threads of relays end")


def test_without_a_fault_everything_comes_as_it_is(pair: Pair) -> None:
    for frames in ([b""], [b"x", b""], [b"header", BODY], [BODY, b"", BODY * 30]):
        pair.ask(*frames)
        pair.tell(*frames)
        assert pair.heard() == frames
    assert pair.relay.struck == 0


@pytest.mark.parametrize(
    ("what", "heard"),
    [("drop", "13"), ("double", "1223"), ("reorder", "132")],
)
def test_messages_lost_doubled_and_out_of_order(pair: Pair, what: Strike, heard: str) -> None:
    pair.tell(b"1", BODY)
    assert pair.heard() == [b"1", BODY]
    pair.relay.strike(what)
    for name in (b"2", b"3"):
        pair.tell(name, BODY)
    assert [pair.heard() for _ in heard[1:]] == [[name.encode(), BODY] for name in heard[1:]]
    assert not pair.dealer.poll(SOON_MS) and pair.relay.struck == 1


@pytest.mark.parametrize(("what", "at"), [("flip", 1), ("flip header", 0)])
def test_a_bit_is_changed_where_it_shall_be(pair: Pair, what: Strike, at: int) -> None:
    pair.relay.strike(what)
    sent = [b"header", BODY]
    for _ in range(2):
        pair.tell(*sent)
    found = pair.heard()
    changed = [(one ^ other) for one, other in zip(found[at], sent[at], strict=True) if one != other]
    assert len(changed) == 1 and changed[0].bit_count() == 1
    assert found[1 - at] == sent[1 - at]
    assert pair.heard() == sent


def test_the_other_direction_is_another_one(pair: Pair) -> None:
    pair.relay.strike("drop", to_agent=True)
    pair.tell(b"x")
    assert pair.heard() == [b"x"]
    pair.dealer.send(b"lost")
    pair.ask(b"not lost")


@pytest.mark.parametrize("how", ["cut", "truncate"])
def test_a_connection_that_ends_is_made_again(pair: Pair, how: Any) -> None:
    if how == "cut":
        pair.relay.cut()
    else:
        pair.relay.strike("truncate")
        pair.tell(b"header", BODY)

    def answered() -> bool:
        pair.dealer.send(b"again")  # may still go the old way, which takes no answers any more
        while pair.router.poll(100):
            pair.router.recv_multipart()
            with suppress(zmq.ZMQError):
                pair.tell(b"answer")
        return bool(pair.dealer.poll(100))

    until(answered, "the dealer connects again")
    assert pair.heard() == [b"answer"], "what was cut off never came"


def test_what_stalls_comes_later(pair: Pair) -> None:
    pair.relay.stall()
    pair.tell(b"x", BODY)
    assert not pair.dealer.poll(SOON_MS)
    pair.relay.go_on()
    assert pair.heard() == [b"x", BODY]


@pytest.mark.parametrize("how", ["delay_s", "mbit"])
def test_what_is_slow_comes_no_sooner(pair: Pair, how: str) -> None:
    setattr(pair.relay, how, 0.5 if how == "delay_s" else len(BODY) * 8 / 0.5e6)
    started_s = time.monotonic()
    pair.tell(b"x", BODY)
    assert pair.heard() == [b"x", BODY]
    assert time.monotonic() - started_s >= 0.4
    pair.relay.calm()
    assert (pair.relay.delay_s, pair.relay.mbit) == (0.0, None)
