"""Every wait of the loader ends, whatever the agent says and wherever the connection breaks: same samples, a bounded
time, and the agent is used again once it is of use again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bench.bed.relay import Passing, Relay
from sophon_loader import OffloadingDataLoader, OffloadOptions, RemoteImageFolder
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.patience import MAX_RESENDS
from sophon_loader.client.session import Session
from sophon_loader.client.wanted import Wanted
from sophon_loader.errors import AgentUnreachable
from sophon_loader.fleet.agreement import proposed
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.software import software
from sophon_loader.routes import standing
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import (
    AT_WORK,
    AskSizes,
    AskStatus,
    Failed,
    Failure,
    Fetch,
    Hello,
    Message,
    Ping,
    Pong,
    Register,
    Registered,
    Sample,
    Sizes,
    Status,
    Welcome,
)
from sophon_loader.wire.version import VERSIONS
from sophon_loader.workers.fallback import FallbackFiles
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.loaders import samples_of
from tests.support.pictures import folder
from tests.support.relay import SpoiltRelay
from tests.unit.client.test_answers import Liar

FILES = 12
LOADER = {"batch_size": 3, "policy": "resize-off", "seed": 3}
SHORT = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=2.0, resend_after_s=0.5)
"""An agent that lives and sends no sample is given up within 1.5 s."""
BOUND_S = 60.0
"""On the busiest of machines; what is tested takes a few seconds."""

pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture
def liar() -> Iterator[Liar]:
    one = Liar()
    yield one
    one.end()


def seconds_of(block: Callable[[], object]) -> float:
    since_s = time.monotonic()
    block()
    return time.monotonic() - since_s


# --- an agent that says anything at all ---------------------------------------------------------------------------


def refusing(failure: str) -> Callable[[Fetch], Message]:
    return lambda fetch: Failed(failure, "for ever", [item.id for item in fetch.items], fetch.digest)


def of_nobody(fetch: Fetch) -> Message:
    return Sample(1 << 40, 0, "file", {}, 1, [0.0], 0.0, 0.0, "")


USELESS: dict[str, Callable[[Fetch], Message]] = {
    "busy": refusing(Failure.BUSY),
    "stopping": refusing(Failure.STOPPING),
    "unknown pipeline": refusing(Failure.UNKNOWN_PIPELINE),
    "unknown ids": of_nobody,
    "forgets": lambda fetch: Pong("i"),
    "restarts": lambda fetch: Pong(f"i-{fetch.items[0].id}-{time.monotonic()}"),
    "no message of ours": lambda fetch: Failed(Failure.MALFORMED, "for ever", []),
}


def useless(root: Path, answer: Callable[[Fetch], Message]) -> Callable[[Any], list[bytes]]:
    """An agent that greets well, registers well, and then ..."""

    def answers(message: Any) -> list[bytes]:
        if isinstance(message, Hello):
            return [pack(Welcome(VERSIONS[-1], "i", ["d"], ["file", "pixels", "array"], dict(software()), 1.0, 64))]
        if isinstance(message, AskSizes):
            return [pack(Sizes(str(root), [(root / key).stat().st_size for key in message.keys]))]
        if isinstance(message, Register):
            return [pack(Registered(message.digest, 2))]
        if isinstance(message, Ping):
            return [pack(Pong("i"))]
        if isinstance(message, AskStatus):
            return [pack(Status({AT_WORK: 0}))]
        said = answer(message)
        return [pack(said, b"x"), b"x"] if isinstance(said, Sample) else [pack(said)]

    return answers


@pytest.mark.parametrize("what", USELESS)
def test_an_agent_that_is_of_no_use_costs_a_bounded_time(
    root: Path, liar: Liar, make: Any, expected: Any, what: str
) -> None:
    liar.answer = useless(root, USELESS[what])
    loader = make(folder(root), str(liar.address), options=SHORT, num_workers=1)

    def epochs() -> None:
        for _ in range(2):
            loader.set_epoch(0)
            assert samples_of(loader) == expected
            assert loader.report().as_dict()["fallbacks"] == FILES

    assert seconds_of(epochs) < BOUND_S
    asked = sum(isinstance(message, (Fetch, Register)) for message in liar.heard)
    assert asked < 200, "refusals are answered with pauses"


@pytest.mark.parametrize("what", ["busy", "unknown ids"])
def test_where_no_file_is_here_it_is_an_error_that_says_so(root: Path, liar: Liar, make: Any, what: str) -> None:
    """The same address for both, and a root that no host has."""
    dataset = folder(root)
    liar.answer = useless(root, USELESS[what])
    options = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=2.0, resend_after_s=0.05)
    loader = make(dataset, str(liar.address), options=options)
    iterator = iter(loader)
    hidden = root.rename(root.with_name("hidden"))
    try:
        with pytest.raises(AgentUnreachable, match=r"got no sample for .* although it still talks; .* sample \d+ "):
            next(iterator)
    finally:
        hidden.rename(root)
    assert 2 ** (MAX_RESENDS + 1) * options.resend_after_s < BOUND_S


@pytest.mark.parametrize("failure", [Failure.BAD_PIPELINE, Failure.BUSY])
def test_a_pipeline_that_is_refused_in_mid_epoch_has_files_cross(
    root: Path, liar: Liar, make: Any, expected: Any, failure: str
) -> None:
    """It is the end neither of the epoch nor of the agent: offloading is a hint, so files are asked for."""
    well = useless(root, lambda fetch: Pong("i"))

    def answer(message: Any) -> list[bytes]:
        if isinstance(message, Register) and any(isinstance(one, Fetch) for one in liar.heard):
            return [pack(Failed(failure, "no more", [], message.digest))]
        if not isinstance(message, Fetch):
            return well(message)
        (item,) = message.items
        if item.cut or item.encoding != "file":
            return [pack(Failed(Failure.UNKNOWN_PIPELINE, "forgotten", [item.id], message.digest))]
        file = (root / item.key).read_bytes()
        return [pack(Sample(item.id, 0, "file", {}, len(file), [0.0], 0.0, 0.0, ""), file), file]

    liar.answer = answer
    patient = OffloadOptions(connect_timeout_s=20.0, dead_after_s=60.0, resend_after_s=60.0, window=1)
    loader = make(folder(root), str(liar.address), options=patient)
    assert samples_of(loader) == expected
    report = loader.report().as_dict()
    assert (report["fallbacks"], report["degraded"]) == (0, FILES)


@pytest.mark.parametrize("dies_at", [AskSizes, Register], ids=["sizes", "pipeline"])
def test_an_agent_that_dies_after_its_greeting_is_waited_for_no_longer_than_said(
    root: Path, liar: Liar, make: Any, dies_at: type
) -> None:
    """It was 65 s for a pipeline."""
    well = useless(root, lambda fetch: Pong("i"))
    liar.answer = lambda message: [] if any(isinstance(one, dies_at) for one in liar.heard) else well(message)
    loader = make(folder(root), str(liar.address), options=replace(SHORT, agent_missing="raise"))

    def refused() -> None:
        with pytest.raises(AgentUnreachable, match="got nothing within 2 s"):
            iter(loader)

    assert seconds_of(refused) < 15.0


@pytest.mark.parametrize("dies_at", [AskSizes, Register], ids=["sizes", "pipeline"])
def test_an_agent_that_dies_after_its_greeting_is_asked_again(
    root: Path, liar: Liar, make: Any, expected: Any, dies_at: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read here meanwhile, also while it is being asked; then it comes back, with another greeting."""
    monkeypatch.setattr(standing, "MAX_SHARE", 1.0)  # else it is left alone for 40 s after a trial of 2 s
    well, alive = useless(root, lambda fetch: Pong("i")), False
    liar.answer = lambda message: (
        well(message) if alive or not any(isinstance(one, dies_at) for one in liar.heard) else []
    )
    options = replace(SHORT, connect_timeout_s=2.0)
    loader = make(folder(root), str(liar.address), options=options, num_workers=1)

    def epoch() -> None:
        loader.set_epoch(0)
        assert samples_of(loader) == expected

    assert seconds_of(epoch) < 15.0
    assert "is missing" in loader.report().as_dict()["summary"]
    asked = len(liar.heard)
    alive = True

    def agreed() -> bool:
        epoch()
        return bool(loader._engine.run.agreement)

    until(agreed, "it is asked again")
    assert any(isinstance(one, Hello) for one in liar.heard[asked:]), "and greeted anew"


@pytest.mark.parametrize("lost", [AskSizes, Register], ids=["sizes", "pipeline"])
def test_an_agent_that_restarts_after_its_greeting_is_asked_again(
    root: Path, liar: Liar, make: Any, lost: type
) -> None:
    """What was on its way to the first is sent to the second; no time-out that a test would outlive comes first."""
    well = useless(root, lambda fetch: Pong("i"))

    def answer(message: Any) -> list[bytes]:
        if sum(isinstance(one, lost) for one in liar.heard) > 1 or not isinstance(message, lost):
            return well(message)
        relay.cut()
        return []

    liar.answer = answer
    with SpoiltRelay(liar.address.endpoint) as relay:
        options = OffloadOptions(connect_timeout_s=600.0, heartbeat_s=300.0, dead_after_s=600.0)
        loader = make(folder(root), relay.address("d"), options=options)
        assert seconds_of(lambda: iter(loader)) < BOUND_S


# --- a connection that breaks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_a_connection_that_is_cut_costs_less_than_asking_again(
    relay: SpoiltRelay, make: Any, expected: Any, workers: int
) -> None:
    """With a time of `resend_after_s` that a test would not outlive."""
    options = OffloadOptions(connect_timeout_s=20.0, resend_after_s=600.0, dead_after_s=600.0)
    loader = make(None, relay.address("pictures"), options=options, num_workers=workers)
    iterator, found = iter(loader), []
    for batch in iterator:
        relay.cut()
        found += samples_of([batch])
    assert found == expected
    report = loader.report().as_dict()
    assert report["fallbacks"] == 0 and report["samples"] == FILES


def test_every_connection_is_made_with_the_options_of_the_user(
    root: Path, agent: Agent, make: Any, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those for one question: the listing, the handshake, a file, the burst, dry runs."""
    options = OffloadOptions(connect_timeout_s=20.0, dead_after_s=33.0)
    seen: list[OffloadOptions] = []
    monkeypatch.setattr(Connection, "_find_out_soon", lambda _, given: seen.append(given))
    dataset = RemoteImageFolder(agent.ready().address(), folder(root).transform, options=options)
    assert dataset[0][1] == 0
    loader = make(dataset, policy="sophon", options=options)
    assert samples_of(loader) == expected
    terms = proposed([chain_of(None)], dataset.address, options, Seed(1))
    instead, session = FallbackFiles(None, terms), Session(terms)  # type: ignore[arg-type]
    instead.session = session
    assert instead.there(Wanted(0, 0, 0, "file", "class_0/000.jpg")) == (root / "class_0/000.jpg").read_bytes()
    instead.close()
    session.close()
    assert len(seen) > 5
    assert all(one.dead_after_s == 33.0 for one in seen)


class SlowRelay(Relay):
    """What comes from the agent takes long, byte by byte."""

    MBIT = 14.0

    def passing(self, to_target: bool) -> Passing:
        def slowly(chunk: bytes) -> list[bytes]:
            time.sleep(0.0 if to_target else 8e-6 * len(chunk) / self.MBIT)
            return [chunk]

        return slowly


@pytest.mark.alone
def test_a_large_file_on_a_slow_wire(tmp_path: Path) -> None:
    """Longer than all time-outs: it is not asked for again, and the agent is not given up."""
    (tmp_path / "one").mkdir()
    noise = np.random.default_rng(0).integers(256, size=(1400, 1000, 3), dtype=np.uint8)
    for name in ("a", "b"):
        Image.fromarray(noise).save(tmp_path / "one" / f"{name}.bmp")  # 4.2 MB, 2.4 s
    with agent_for(tmp_path) as agent:
        host, port = agent.endpoint.removeprefix("tcp://").rsplit(":", 1)
        with SlowRelay((host, int(port)), 0.0, 1000.0) as relay:
            address = f"tcp://127.0.0.1:{relay.port}/{EXPORT}"
            options = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=2.0, resend_after_s=1.0)
            loader: Any = OffloadingDataLoader(
                folder(tmp_path), agent=address, policy="no-off", num_workers=1, seed=3, options=options
            )
            assert samples_of(loader) == samples_of(OffloadingDataLoader(folder(tmp_path), seed=3))
            report = loader.report().as_dict()
            loader.close()
            assert report["fallbacks"] == report["retries"] == 0
            assert report["wire_bytes"] < 1.1 * report["file_bytes"], "each has come once"
            connection = Connection(Address.parse(address), 1, options)
            assert len(connection.file("one/a.bmp", timeout_s=2.0)) > 4_000_000
            connection.close()


class ForgetfulRelay(SpoiltRelay):
    """Some of its connections carry nothing any more, and nobody is told."""

    made = forgotten = 0

    def passing(self, to_target: bool) -> Passing:
        passed = super().passing(to_target)
        self.made += 1
        number = self.made
        return lambda chunk: [] if number <= self.forgotten else passed(chunk)

    def forget(self) -> None:
        """As a firewall does that was restarted."""
        self.forgotten = self.made


def test_a_connection_that_carries_nothing_any_more_is_made_anew(agent: Agent, make: Any, expected: Any) -> None:
    options = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.5, dead_after_s=6.0, resend_after_s=600.0)
    relay = ForgetfulRelay(agent.ready().endpoint)
    with relay:
        loader = make(None, relay.address("pictures"), options=options)
        iterator = iter(loader)
        found = samples_of([next(iterator)])
        relay.forget()
        found += samples_of(iterator)
        assert found == expected
        until(lambda: relay.made > relay.forgotten, "it has connected anew")


# --- an agent that is of use again --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_agent_of_no_use_is_left_alone_and_used_again_when_it_is(
    root: Path, relay: SpoiltRelay, make: Any, expected: Any, workers: int
) -> None:
    """The epochs are much shorter than the pauses between two trials, and no worker outlives one."""
    loader = make(folder(root), relay.address("pictures"), options=SHORT, num_workers=workers)

    def fallbacks() -> int:
        loader.set_epoch(0)
        assert samples_of(loader) == expected
        return int(loader.report().as_dict()["fallbacks"])

    assert fallbacks() == 0
    relay.stall()
    assert fallbacks() > 0
    assert fallbacks() == FILES, "and without a wait"
    assert loader.report().totals.waited_s < SHORT.dead_after_s
    relay.go_on()
    until(lambda: fallbacks() == 0, "the agent is used again", BOUND_S)
