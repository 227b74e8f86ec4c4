"""Several agents with the same files: each wanted sample gets one reply, whatever they and the network do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sophon_loader.client import session as session_module
from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Ask, BatchId, Instruction, RegisterAgain, Renew, Reply, Say, Wanted
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import CorruptMessage, MalformedMessage, VersionMismatch, WireError
from sophon_loader.fleet import fleet as fleet_module
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.fleet.lacking import Lacking, nbytes_for
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.messages import Failed, Failure, Fetch, Message, Register, Sample
from tests.support.clocks import FakeClock
from tests.support.drawn import examples
from tests.support.lossy import FATES, LossyAgent, Spoilt, batches_of

OPTIONS = OffloadOptions(window=5, window_nbytes=4000, heartbeat_s=0.5, dead_after_s=2.0, resend_after_s=3.0)
REGISTRATIONS = (b"a", b"b")
PADDING = 600


class Wire:
    """Stands in for the links of a fleet: what its agents say comes in rounds, and waiting moves the clock."""

    def __init__(self, agents: Sequence[LossyAgent]) -> None:
        self.clock = FakeClock()
        self.agents = agents
        self.links: list[Link] = []
        self.waits = 0

    def connection(self, *_: object) -> Link:
        self.links.append(Link(self.agents[len(self.links) % len(self.agents)]))
        return self.links[-1]

    def arrived(self, links: Sequence[Link], timeout_s: float) -> list[int]:
        assert list(links) == self.links
        found = [n for n, link in enumerate(links) if link.news or link.agent.outbox]
        if not found and timeout_s:
            self.clock.now_s += timeout_s
            self.waits += 1
            if self.waits % 37 == 0:
                for agent in self.agents:
                    agent.release()
        return found


class Link:
    """Stands in for the connection with one agent."""

    def __init__(self, agent: LossyAgent) -> None:
        self.agent = agent
        self.received_nbytes = self.reconnects = 0
        self.lost = False
        self.news: list[Exception] = []
        """Errors that come in place of messages."""
        self.keys: dict[int, str] = {}
        self.asked: list[str] = []
        self.exports: set[str] = set()
        self.lacks: Callable[[str], bool] = lambda key: False
        """Whether the agent has no file of this key."""

    def send(self, message: Message, payload: bytes | None = None) -> None:
        what: Instruction = Say(message)
        if isinstance(message, Register):
            what = RegisterAgain(REGISTRATIONS.index(payload or b""))
        elif isinstance(message, Fetch):
            source = [content_hash(one) for one in REGISTRATIONS].index(message.digest)
            numbers = [item.id for item in message.items]
            self.keys |= {item.id: item.key for item in message.items}
            self.asked += [item.key for item in message.items]
            self.exports.add(message.export)
            anything = Wanted(source, 0, 0, "file", "")
            what = Ask(BatchId(0, 0, 0), source, [(number, anything) for number in numbers])
        self.agent.handle([what])

    def renew(self) -> None:
        self.reconnects += 1
        self.lost = False
        self.agent.handle([Renew()])

    def receive(self, timeout_s: float) -> tuple[Message, Payload] | None:
        if self.news:
            raise self.news.pop()
        message = self.agent.says()
        if isinstance(message, Spoilt):
            error: WireError = (CorruptMessage if message.damaged else MalformedMessage)("because")
            error.request = message.request
            raise error
        if message is None:
            return None
        if isinstance(message, Sample) and self.lacks(self.keys[message.id]):
            return Failed(Failure.MISSING, "no such file", [message.id]), b""
        payload = self.keys[message.id].encode().ljust(PADDING) if isinstance(message, Sample) else b""
        return message, payload

    def arrived_nbytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Scene:
    """A fleet over stand-ins."""

    def __init__(self, scripts: Sequence[Sequence[str]], folders: Sequence[str] = ()) -> None:
        self.agents = [LossyAgent(script) for script in scripts]
        self.wire = Wire(self.agents)
        self.terms = [
            Terms(
                Address(f"tcp://host{n}:1", f"export{n}", folders[n] if folders else ""),
                OPTIONS,
                "1",
                REGISTRATIONS,
                (False, False),
                Seed(9),
                ("file", "pixels"),
            )
            for n in range(len(scripts))
        ]
        self.fleet = Fleet.__new__(Fleet)

    def __enter__(self) -> Scene:
        self._patches: list[Any] = [
            patch.object(session_module, "Connection", self.wire.connection),
            patch.object(session_module, "now_s", self.wire.clock),
            patch.object(fleet_module, "now_s", self.wire.clock),
            patch.object(fleet_module, "arrived", self.wire.arrived),
        ]
        for one in self._patches:
            one.start()
        self.fleet = Fleet(self.terms)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()

    def fetch(
        self,
        batch: BatchId,
        want: list[Wanted],
        ahead: Sequence[tuple[BatchId, list[Wanted]]] = (),
        in_order: bool = False,
    ) -> list[Reply]:
        """As workers/dataset.py does."""
        fleet = self.fleet
        behind = [one for one, _ in ahead]
        fleet.keep([batch, *behind])
        fleet.want(batch, () if fleet.knows(batch) else want)
        for following, samples in ahead:
            fleet.want(following, samples)
        assert fleet.missing(batch) == len(want)
        replies = []
        for position in range(len(want)):
            reply = fleet.next(batch, position if in_order else None)
            living = [lane.terms.address for lane in fleet.lanes if not lane.gone]
            assert not reply.is_nothing or all(f"{one}: has no such file" in reply.why for one in living), (
                "an agent lives that has not been asked"
            )
            replies.append(reply)
            self.check()
        assert fleet.missing(batch) == 0
        fleet.keep(behind)
        return replies

    def check(self) -> None:
        for lane in self.fleet.lanes:
            requests = lane._requests
            assert len(requests._asked) <= OPTIONS.window
            held = sum(len(reply.payload) for replies in requests._ready.values() for reply in replies.values())
            assert requests._held_nbytes == held
            assert set(requests._requests) >= set(requests._queue) or requests._queue
        places = [(r.batch, r.position) for lane in self.fleet.lanes for r in lane._requests._requests.values()]
        ready = [
            (batch, position)
            for lane in self.fleet.lanes
            for batch, replies in lane._requests._ready.items()
            for position in replies
        ]
        assert len(places + ready) == len(set(places + ready)), "each sample is wanted at one agent"

    def restart(self, number: int) -> None:
        """The agent is there again, and that is known."""
        agent = self.agents[number]
        agent.script.clear()
        agent.alive = True
        self.fleet.trust(gone=False, left_s=math.inf, agent=number)


@pytest.fixture
def good() -> Iterator[Scene]:
    with Scene([[], [], []]) as scene:
        yield scene


# --- whatever happens -----------------------------------------------------------------------------------------

_SCRIPT = st.lists(st.sampled_from(FATES), max_size=40)


@examples(300)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    scripts=st.lists(_SCRIPT, min_size=2, max_size=4),
    looks_ahead=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    in_order=st.booleans(),
    trusts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=6),
    left_s=st.sampled_from([math.inf, 5.0]),
)
@example([9, 9], [["die"] * 40, []], [1] * 6, True, [], math.inf)
@example([9, 9, 9], [["die"] * 40, ["die"] * 40], [2] * 6, False, [(1, 0, False)], 5.0)
@example([9, 9, 9], [["missing"] * 40, ["answer", "die"]], [2] * 6, True, [(1, 1, True), (2, 1, False)], math.inf)
def test_every_sample_gets_one_reply_whatever_happens(
    sizes: list[int],
    scripts: list[list[str]],
    looks_ahead: list[int],
    in_order: bool,
    trusts: list[tuple[int, int, bool]],
    left_s: float,
) -> None:
    with Scene(scripts) as scene:
        batches = batches_of(sizes)
        for number, (batch, want) in enumerate(batches):
            for _, agent, gone in [one for one in trusts if one[0] == number and one[1] < len(scripts)]:
                scene.fleet.trust(gone=gone, left_s=left_s, agent=agent)
            ahead = batches[number + 1 :][: looks_ahead[number]]
            replies = scene.fetch(batch, want, ahead, in_order)
            positions = [reply.position for reply in replies]
            assert (positions if in_order else sorted(positions)) == list(range(len(want)))
            for reply in replies:
                assert reply.wanted is want[reply.position]
                assert reply.sample is None or bytes(reply.payload).decode().strip() == reply.wanted.key
        scene.fleet.keep([])
        assert not scene.fleet._refusals
        for lane in scene.fleet.lanes:
            assert not lane._requests._requests and not lane._requests._ready and not lane._requests._queue
        spent_s = scene.wire.clock.now_s - FakeClock().now_s
        assert spent_s <= 10 + 30 * OPTIONS.resend_after_s * (1 + sum(map(len, scripts)))


@examples(150)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    scripts=st.lists(_SCRIPT, min_size=1, max_size=3),
    in_order=st.booleans(),
)
def test_with_one_good_agent_every_sample_comes(sizes: list[int], scripts: list[list[str]], in_order: bool) -> None:
    with Scene([*scripts, []]) as scene:
        batches = batches_of(sizes)
        for number, (batch, want) in enumerate(batches):
            replies = scene.fetch(batch, want, batches[number + 1 :][:2], in_order)
            assert all(reply.sample is not None for reply in replies)


def test_good_agents_cost_no_retries_and_no_time_and_share_the_work(good: Scene) -> None:
    batches = batches_of([40, 40])
    good.fetch(*batches[0], batches[1:])
    good.fetch(*batches[1])
    assert good.fleet.retries == 0 and good.fleet.waited_s == 0.0
    asked = [len(link.asked) for link in good.wire.links]
    assert sum(asked) == 80 and min(asked) >= 15


# --- agents that go and come ----------------------------------------------------------------------------------


def test_what_a_dead_agent_has_not_answered_goes_to_the_others_at_once(good: Scene) -> None:
    batches = batches_of([30, 30])
    good.agents[0].script.extend(["die"] + ["drop"] * 1000)
    with patch.object(fleet_module, "too_much", return_value=0):  # else the others take over before it is given up
        replies = good.fetch(*batches[0], batches[1:])
    assert all(reply.sample is not None for reply in replies)
    assert [lane.gone for lane in good.fleet.lanes] == [True, False, False]
    spent_s = good.wire.clock.now_s
    good.fetch(*batches[1])
    assert good.wire.clock.now_s == spent_s, "what had been asked for ahead went along"


def test_what_goes_to_another_agent_is_asked_for_before_its_later_batches(good: Scene) -> None:
    batches = batches_of([30, 30])
    for batch, want in batches:
        good.fleet.want(batch, want)
    good.fleet.trust(gone=True, left_s=math.inf, agent=0)
    assert good.fleet.lanes[0].unanswered == 0 and sum(map(good.fleet.missing, [one for one, _ in batches])) == 60
    for lane in good.fleet.lanes[1:]:
        turns = [lane._requests._requests[number].batch.number for number in lane._requests._queue]
        assert turns == sorted(turns) and set(turns) == {0, 1}


def test_an_agent_that_closes_its_connection_is_not_waited_for_while_another_lives(good: Scene) -> None:
    batch, want = batches_of([30])[0]
    good.fleet.want(batch, want)
    for agent, link in zip(good.agents[:2], good.wire.links, strict=False):
        agent.outbox.clear()
        link.lost = True
    assert all(good.fleet.next(batch).sample is not None for _ in range(good.fleet.missing(batch)))
    assert [lane.gone for lane in good.fleet.lanes] == [True, True, False]
    good.fleet.trust(gone=False, left_s=math.inf, agent=0)
    assert not good.wire.links[0].lost, "it is given a new chance by a new connection"


def test_an_agent_that_is_trusted_again_takes_its_share(good: Scene) -> None:
    good.fleet.trust(gone=True, left_s=math.inf, agent=1)
    batches = batches_of([12, 40])
    good.fetch(*batches[0])
    assert not good.wire.links[1].asked
    good.fleet.trust(gone=False, left_s=math.inf, agent=1)
    good.fetch(*batches[1])
    assert len(good.wire.links[1].asked) >= 8


def test_what_was_given_up_with_the_last_agent_is_asked_for_when_one_is_back(good: Scene) -> None:
    batches = batches_of([6, 6])
    for number in range(3):
        good.fleet.trust(gone=True, left_s=math.inf, agent=number)
    replies = good.fetch(*batches[0], batches[1:])
    assert all(reply.is_nothing for reply in replies)
    assert all(f"tcp://host{n}:1" in replies[0].why for n in range(3))
    good.fleet.trust(gone=False, left_s=math.inf, agent=2)
    assert all(reply.sample is not None for reply in good.fetch(*batches[1]))


def test_an_agent_of_another_version_raises_only_when_it_is_the_last(good: Scene) -> None:
    batch, want = batches_of([12])[0]
    good.fleet.want(batch, want)
    for number in (0, 1):
        good.wire.links[number].news.append(VersionMismatch(f"agent {number} is too old"))
        good.agents[number].outbox.clear()
    good.fleet.next(batch)
    assert [lane.gone for lane in good.fleet.lanes] == [True, True, False]
    good.wire.links[2].news.append(VersionMismatch("agent 2 is too old"))
    with pytest.raises(VersionMismatch, match=r"agent 2 is too old; given up before: tcp://host0:1/.*tcp://host1:1/"):
        for _ in want:
            good.fleet.next(batch)


# --- what one replica refuses ---------------------------------------------------------------------------------


def test_a_file_that_one_replica_lacks_comes_from_another(good: Scene, caplog: pytest.LogCaptureFixture) -> None:
    batch, want = batches_of([30])[0]
    good.agents[0].script.extend(["missing"] * 100)
    replies = good.fetch(batch, want)
    assert all(reply.sample is not None for reply in replies)
    assert len(good.wire.links[0].asked) >= 2 and not caplog.messages, "it may be a shard"


def test_a_file_that_all_replicas_lack_is_missing_once_each_was_asked(good: Scene) -> None:
    batch, want = batches_of([4])[0]
    for agent in good.agents:
        agent.script.extend(["missing"] * 100)
    for reply in good.fetch(batch, want, in_order=True):
        assert reply.failed is not None and reply.failed.failure == Failure.MISSING
        assert sum(f"tcp://host{n}:1/" in reply.failed.text for n in range(3)) == 2, "besides the one that is named"
    assert sorted(key for link in good.wire.links for key in link.asked) == sorted(3 * [one.key for one in want])


@pytest.mark.parametrize("back", [False, True])
def test_an_agent_that_dies_over_what_another_refused(back: bool) -> None:
    """Nobody knows whether it has the file; it is asked where it is back by then."""
    with Scene([["missing"] * 100, []]) as scene:
        batch, want = batches_of([8])[0]
        scene.fleet.want(batch, want)
        refused = len(scene.wire.links[0].asked)
        scene.fleet._take_in([1] * len(scene.agents[1].outbox), fresh=False)
        taken = [scene.fleet.next(batch) for _ in range(len(want) - refused)]
        assert refused and all(reply.sample is not None for reply in taken)
        scene.agents[1].alive = False
        scene.fleet._take_in([0] * len(scene.agents[0].outbox), fresh=False)
        assert scene.fleet._ready(batch, None) is None, "asked for elsewhere"
        scene.fleet.trust(gone=True, left_s=math.inf, agent=1)
        if back:
            scene.agents[1].alive = True
            scene.fleet.trust(gone=False, left_s=math.inf, agent=1)
        replies = [scene.fleet.next(batch) for _ in range(scene.fleet.missing(batch))]
        assert all(reply.sample is not None if back else reply.is_nothing for reply in replies)
        assert back or all("host0:1/export0: has no such file" in reply.why for reply in replies)
        assert len(replies) == refused


def bits() -> list[NDArray[np.uint8]]:
    return [np.zeros(nbytes_for(1000), np.uint8) for _ in range(3)]


def shards(scene: Scene, known: list[NDArray[np.uint8]]) -> None:
    """Agent 0 has the even folders, 1 the odd ones, and 2 both but for what ends in 7."""
    scene.wire.links.clear()
    scene.fleet = Fleet(scene.terms, lacking=Lacking(known))
    for number, link in enumerate(scene.wire.links):
        link.lacks = lambda key, number=number: (
            key.endswith("7") if number == 2 else int(key.split("/")[0]) % 2 != number
        )


def in_folders(sizes: Sequence[int]) -> list[tuple[BatchId, list[Wanted]]]:
    """Batches of the same 40 samples in four folders."""
    return [
        (batch, [replace(one, sample=i, key=f"{i % 4}/{i}") for i, one in enumerate(want)])
        for batch, want in batches_of(sizes)
    ]


def test_who_lacks_a_sample_is_not_asked_for_it_again(good: Scene) -> None:
    known = bits()
    shards(good, known)
    batches = in_folders([40, 40, 40])
    assert all(reply.sample is not None for reply in good.fetch(*batches[0]))
    in_vain = sum(len(link.asked) for link in good.wire.links) - 40
    assert in_vain > 0
    for number in range(1, 3):  # another worker, which learns from what the first has noted
        shards(good, known)
        assert all(reply.sample is not None for reply in good.fetch(*batches[number]))
        asked = [len(link.asked) for link in good.wire.links]
        assert min(asked) >= 4 and sum(asked) - 40 <= in_vain / 4, f"{asked}, {in_vain} in vain at first"


def test_a_folder_whose_files_an_agent_lacks_is_asked_of_it_once(good: Scene) -> None:
    shards(good, bits())
    for batch, want in in_folders([40] * 5)[:5]:
        moved = [replace(one, sample=one.sample + 50 * batch.number, key=f"{one.key}_{batch.number}") for one in want]
        assert all(reply.sample is not None for reply in good.fetch(batch, moved))
        before = [len(link.asked) for link in good.wire.links]
        if batch.number == 0:
            first = sum(before)
    assert sum(before) - first < 160 + 8, "nearly each of the others was had from the first that was asked"


def test_an_idle_agent_takes_over_nothing_that_it_lacks(good: Scene) -> None:
    known = bits()
    shards(good, known)
    for agent in (1, 2):
        known[agent][:-1] = 255
        known[agent][-1] = 1
    shards(good, known)
    batch, want = in_folders([40])[0]
    with patch.object(fleet_module, "too_much", return_value=5):
        good.fetch(batch, [replace(one, key=f"0/{one.sample}") for one in want])
    assert [len(link.asked) for link in good.wire.links] == [40, 0, 0]


def test_what_others_may_have_is_soon_had_from_them_where_a_shard_closes_its_connection(good: Scene) -> None:
    known = bits()
    shards(good, known)
    batches = in_folders([40, 40])
    good.fetch(*batches[0])
    shards(good, known)
    batch, want = batches[1]
    good.fleet.want(batch, want)
    good.agents[0].outbox.clear()
    good.wire.links[0].lost = True
    spent_s = good.wire.clock.now_s
    good.agents[0].alive = False
    replies = [good.fleet.next(batch) for _ in want]
    assert all(reply.sample is not None for reply in replies) and good.wire.clock.now_s - spent_s < 3


def test_a_shard_that_closes_its_connection_is_waited_for(good: Scene) -> None:
    """The others cannot replace it, so it is asked again by the next connection, as the only agent is."""
    known = bits()
    shards(good, known)
    good.fleet._lacking.note(1, 999, "0/999")
    batch, want = in_folders([40])[0]
    good.fleet.want(batch, want)
    good.agents[0].outbox.clear()
    good.wire.links[0].lost = True
    replies = [good.fleet.next(batch) for _ in range(good.fleet.missing(batch))]
    assert all(reply.sample is not None for reply in replies) and not good.fleet.lanes[0].gone


# --- each agent's own -----------------------------------------------------------------------------------------


def test_each_agent_is_asked_by_its_own_export_and_folder() -> None:
    with Scene([[], [], []], folders=["train", "", "copies/train"]) as scene:
        batch, want = batches_of([30])[0]
        want = [replace(one, key=f"train/{one.key}") for one in want]
        scene.fleet.want(batch, want)
        for number, (link, folder) in enumerate(zip(scene.wire.links, ["train/", "", "copies/train/"], strict=True)):
            assert link.exports == {f"export{number}"}
            assert link.asked and all(key.startswith(f"{folder}0/") for key in link.asked)
        assert {scene.fleet.next(batch).wanted.key for _ in want} == {one.key for one in want}


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]])
def test_a_key_has_its_home_in_whatever_order_the_agents_were_given_or_came(order: list[int]) -> None:
    """Workers that met the agents in unlike orders call a file as the first of each has it."""
    folders = ["train", "", "copies/train"]
    homes: list[dict[str, str]] = []
    for found in ([0, 1, 2], order):
        with Scene([[], [], []], folders=folders) as scene:
            scene.fleet = Fleet([scene.terms[number] for number in found])
            links = scene.wire.links[-3:]
            batch, want = batches_of([30])[0]
            first = folders[found[0]]
            scene.fleet.want(batch, [replace(one, key=f"{first}/{one.key}".lstrip("/")) for one in want])
            homes.append(
                {
                    key.removeprefix(folders[number]).lstrip("/"): folders[number]
                    for number, link in zip(found, links, strict=True)
                    for key in link.asked
                }
            )
    assert homes[0] == homes[1] and len(set(homes[0].values())) == 3


def test_what_is_known_of_the_way_is_each_agents_own(good: Scene) -> None:
    batch, want = batches_of([12])[0]
    good.fleet.want(batch, want)
    good.wire.clock.now_s += 0.5
    for _ in want:
        good.fleet.next(batch)
    good.fleet.lanes[0].shortest_net_s = 0.25
    assert [lane.shortest_net_s for lane in good.fleet.lanes] == [0.25, math.inf, math.inf]


def test_the_room_for_replies_is_shared(good: Scene) -> None:
    assert [lane.terms.options.window_nbytes for lane in good.fleet.lanes] == [OPTIONS.window_nbytes // 3] * 3
