"""Loaders a long way from their agent, by a relay that holds bytes back: how much they have on its way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1

from bench.bed.relay import CHUNK_NBYTES, Relay
from sophon_loader import OffloadOptions
from sophon_loader.client.requests import Requests
from sophon_loader.client.window import FLOOR
from sophon_loader.epoch.epoch import STARVED_NOTE
from tests.support.agents import EXPORT, Agent, until
from tests.support.loaders import SeenIndex, samples_of
from tests.support.pictures import folder

FILES = 24
OPTIONS = OffloadOptions(connect_timeout_s=20.0, window=300)
FAR_S = 0.5
"""A round trip that dwarfs what a busy machine adds to it."""
MANY = 1200
"""Samples of an epoch. Those on their way double with every round trip, from 64."""


@contextmanager
def far_away(agent: Agent, round_trip_s: float) -> Iterator[str]:
    """The address of an agent behind a relay."""
    host, _, port = agent.endpoint.removeprefix("tcp://").rpartition(":")
    with Relay((host, int(port)), round_trip_s, mbit=1000.0) as relay:
        yield f"tcp://127.0.0.1:{relay.port}/{EXPORT}"


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """The most unanswered samples that any worker has had, in memory that workers share."""
    found = torch.zeros(1, dtype=torch.int64).share_memory_()
    fill = Requests._fill

    def filled(requests: Requests, now_s: float) -> Any:
        instructions = fill(requests, now_s)
        found[0] = max(int(found[0]), len(requests._asked))
        return instructions

    monkeypatch.setattr(Requests, "_fill", filled)
    return found


# Over a short way the floor is enough on an idle machine; on a busy one replies take longer, so that case runs alone.
@pytest.mark.parametrize(
    ("round_trip_s", "least", "highest"),
    [pytest.param(0.0, 1, 2 * FLOOR - 1, marks=pytest.mark.alone), (FAR_S, 2 * FLOOR, 300)],
)
def test_a_long_way_has_more_samples_on_it(
    root: Path, agent: Agent, make: Any, most: torch.Tensor, round_trip_s: float, least: int, highest: int
) -> None:
    order = [number % FILES for number in range(MANY)]
    with far_away(agent, round_trip_s) as address:
        loader = make(
            folder(root, v1.Compose([v1.CenterCrop(8), v1.PILToTensor()])), address, options=OPTIONS, policy="no-off",
            sampler=SeenIndex(order), batch_size=8, num_workers=1, prefetch_factor=64, seed=3,
        )  # fmt: skip
        found = samples_of(loader)
        report = loader.report()
    assert [target for _, target in found] == [loader.dataset.targets[index] for index in order]
    assert (report.totals.samples, report.totals.retries, report.totals.fallbacks) == (MANY, 0, 0)
    assert least <= int(most[0]) <= highest


def test_a_look_ahead_shorter_than_the_way_is_said(agent: Agent, make: Any) -> None:
    with far_away(agent, FAR_S) as address:
        loader = make(None, address, options=OPTIONS, policy="no-off", batch_size=2, num_workers=1, prefetch_factor=2)
        assert len(samples_of(loader)) == FILES
        assert STARVED_NOTE in loader.report().notes
    near = make(policy="no-off", batch_size=2, num_workers=1)
    assert len(samples_of(near)) == FILES
    assert STARVED_NOTE not in near.report().notes


@pytest.mark.parametrize(
    ("how", "further"),
    [({}, True), ({"prefetch_factor": 2}, False), ({"sampler": SeenIndex([n % FILES for n in range(96)])}, False)],
)
def test_by_itself_it_looks_as_far_as_the_way_is_long(
    root: Path, agent: Agent, make: Any, most: torch.Tensor, how: dict[str, Any], further: bool
) -> None:
    """In torch's own samplers, unless the user has said how far; the samples are the same."""
    times = 96 // FILES + 1
    data = ConcatDataset([folder(root, v1.Compose([v1.CenterCrop(8), v1.PILToTensor()]))] * times)
    with far_away(agent, 0.2) as address:
        loader = make(data, address, options=OPTIONS, policy="no-off", batch_size=4, num_workers=1, seed=3, **how)
        found = samples_of(loader)
        report = loader.report()
    assert report.totals.retries == report.totals.fallbacks == 0
    assert len(found) == report.totals.samples == (96 if "sampler" in how else FILES * times)
    assert found == samples_of(make(data, None, batch_size=4, num_workers=1, seed=3, **how))
    assert any("torch has yet to hand out" in note for note in report.notes) == further
    assert (int(most[0]) > 8) == further


# --- the relay ----------------------------------------------------------------------------------------------------


@contextmanager
def both_ends(round_trip_s: float, mbit: float) -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a connection through a relay."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        relay = stack.enter_context(Relay(server.getsockname(), round_trip_s, mbit))
        near = stack.enter_context(socket.create_connection(("127.0.0.1", relay.port)))
        yield near, stack.enter_context(server.accept()[0])


def test_bytes_come_as_they_are_and_not_before_their_time() -> None:
    sent = bytes(range(256)) * 5000
    with both_ends(round_trip_s=0.2, mbit=1000.0) as (near, far):
        started_s = time.monotonic()
        writer = threading.Thread(target=near.sendall, args=(sent,))
        writer.start()
        received = b""
        while len(received) < len(sent):
            received += far.recv(1 << 16)
            assert time.monotonic() - started_s >= 0.1
        writer.join()
        assert received == sent
        far.sendall(b"answer")
        assert near.recv(100) == b"answer"
        assert time.monotonic() - started_s >= 0.2
        near.shutdown(socket.SHUT_WR)
        assert far.recv(100) == b"", "an end of one direction is passed on"
        far.sendall(b"more")
        assert near.recv(100) == b"more", "and the other goes on"


def test_no_more_is_held_back_than_lies_on_such_a_link() -> None:
    """A reader that stops is felt by the writer, as far as the kernel's own buffers are full."""
    with both_ends(round_trip_s=1.0, mbit=8.0) as (near, far):
        for one in (near, far):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        near.settimeout(2.0)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 64 << 20:
                sent += near.send(bytes(1 << 16))
        held_nbytes = 1.25 * 1e6 * 0.5 + 3 * CHUNK_NBYTES
        kernel_nbytes = 16 << 20
        assert sent <= held_nbytes + kernel_nbytes


def test_a_relay_to_nobody_and_one_that_is_closed_break_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = server.getsockname()
    with Relay(target, 0.0, 100.0) as relay, socket.create_connection(("127.0.0.1", relay.port)) as near:
        assert near.recv(10) == b""
    until(lambda: not [one for one in threading.enumerate() if one.name == "relay"], "its threads end")
    with both_ends(0.0, 100.0) as (near, far):
        near.sendall(b"x")
        assert far.recv(1) == b"x"
    until(lambda: not [one for one in threading.enumerate() if one.name == "relay"], "all threads of relays end")
