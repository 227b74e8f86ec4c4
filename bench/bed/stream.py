"""A plain ZeroMQ stream from the agent's host to the loader's: what a link can carry."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from bench.bed import Bed
from bench.children import AGENT_CORE, LOADER_CORE, Orders, child

TIMEOUT_S = 20.0
"""Time limit for a single message, in seconds."""
WARM_UP_SHARE = 0.1


@contextmanager
def plain_stream(bed: Bed, high_water_mark: int) -> Iterator[Callable[[Sequence[int]], float]]:
    """A sender and a receiver on the hosts of a bed.

    Args:
        bed: an open bed.
        high_water_mark: messages that either end keeps.

    Yields:
        A function that sends messages of the given bytes, waits until they are there, and returns their rate in
        Mbit/s, the first tenth left out.
    """
    settings = {"high_water_mark": high_water_mark}
    with child(bed.agent_host, AGENT_CORE, sender, {**settings, "address": bed.agent_host.address}) as sending:
        endpoint = sending.order("endpoint")
        with child(bed.loader_host, LOADER_CORE, receiver, {**settings, "endpoint": endpoint}) as receiving:

            def stream(sizes: Sequence[int]) -> float:
                receiving.tell(f"receive {len(sizes)}")
                sending.order(f"send {json.dumps(list(sizes))}")
                return float(receiving.answer("receive"))

            yield stream


@contextmanager
def sender(address: str, high_water_mark: int) -> Iterator[Orders]:
    """The agent's end. Orders: `endpoint`; `send` and the bytes of each message.

    Args:
        address: of the host.
        high_water_mark: messages that it keeps.
    """
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set(zmq.SNDHWM, high_water_mark)
        socket.set(zmq.SNDTIMEO, round(TIMEOUT_S * 1000))
        socket.set(zmq.LINGER, 0)
        socket.bind(f"tcp://{address}:*")

        def send(rest: str) -> None:
            sizes = json.loads(rest)
            noise = memoryview(os.urandom(max(sizes)))
            for size in sizes:
                socket.send(noise[:size], copy=False)

        yield {"endpoint": lambda _: socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"), "send": send}


@contextmanager
def receiver(endpoint: str, high_water_mark: int) -> Iterator[Orders]:
    """The loader's end. Order: `receive` and the number of messages; the answer is their rate in Mbit/s.

    Args:
        endpoint: of the sender.
        high_water_mark: messages that it keeps.
    """
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.set(zmq.RCVHWM, high_water_mark)
        socket.set(zmq.RCVTIMEO, round(TIMEOUT_S * 1000))
        socket.set(zmq.LINGER, 0)
        socket.connect(endpoint)

        def receive(rest: str) -> float:
            count = int(rest)
            warm_up = max(1, round(count * WARM_UP_SHARE))
            for _ in range(warm_up):
                socket.recv(copy=False)
            started_s = time.perf_counter()
            nbytes = sum(len(socket.recv(copy=False)) for _ in range(count - warm_up))
            return nbytes * 8e-6 / (time.perf_counter() - started_s)

        yield {"receive": receive}
