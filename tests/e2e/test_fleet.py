"""A fleet of two real agents with the same files: every sample comes, and is what the file is, whoever dies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.session import Session, Terms
from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import AgentUnreachable
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from tests.support.agents import Agent, agent_for, until
from tests.support.loaders import QUICK
from tests.support.pictures import train_transform

BATCHES, SIZE = 30, 16
OPTIONS = replace(QUICK, dead_after_s=2.0, window=8)


def terms_of(agent: Agent, folder: str = "") -> Terms:
    """Agreed on as the main process does."""
    registration = registration_of(chain_of(train_transform()), software())
    address = Address.parse(agent.address())
    connection = Connection(address, 1, OPTIONS)
    welcome = connection.greet(20.0)
    connection.register(registration, 20.0)
    connection.close()
    place = replace(address, folder=folder)
    return Terms(place, OPTIONS, welcome.instance, (registration,), (False,), Seed(5), encoding_names())


@contextmanager
def fleet_of(*terms: Terms) -> Iterator[Fleet]:
    fleet = Fleet(terms)
    try:
        yield fleet
    finally:
        fleet.close()


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))


def batch_of(number: int, keys: list[str]) -> tuple[BatchId, list[Wanted]]:
    """Files and pixels by turns, a different occurrence of each sample in every batch."""
    wanted = []
    for place in range(SIZE):
        sample = (number * SIZE + place) % len(keys)
        cut, encoding = [(0, "file"), (1, "pixels")][place % 2]
        wanted.append(Wanted(0, sample, cut, encoding, keys[sample], occurrence=number))
    return BatchId(1, 0, number), wanted


def fetched(fleet: Fleet | Session, number: int, keys: list[str], in_order: bool) -> list[Reply]:
    """The replies of a batch, by position, while the next one is asked for."""
    batch, wanted = batch_of(number, keys)
    following, ahead = batch_of(number + 1, keys)
    fleet.keep([batch, following])
    fleet.want(batch, wanted)
    fleet.want(following, ahead)
    replies = [fleet.next(batch, place if in_order else None) for place in range(fleet.missing(batch))]
    fleet.keep([following])
    assert [reply.position for reply in (replies if in_order else sorted(replies, key=lambda one: one.position))] == [
        *range(SIZE)
    ]
    return sorted(replies, key=lambda one: one.position)


def payloads(replies: list[Reply]) -> list[tuple[str, bytes]]:
    """What the agents have sent; an agent may answer with an earlier cut, which this one has no reason to."""
    return [(reply.sample.encoding, bytes(reply.payload)) for reply in replies if reply.sample is not None]


@pytest.mark.parametrize("in_order", [False, True])
def test_an_agent_that_falls_silent_costs_no_sample(root: Path, in_order: bool) -> None:
    keys = files_of(root)
    with (
        agent_for(root) as one,
        agent_for(root) as other,
        fleet_of(terms_of(one.ready()), terms_of(other.ready())) as fleet,
    ):
        expected = [payloads(fetched(fleet, number, keys, in_order)) for number in range(4)]
        one.pause()
        assert [payloads(fetched(fleet, number, keys, in_order)) for number in range(4)] == expected
        # Given up, or what it owed was taken over before.
        assert fleet.lanes[0].why == ("got silence for 2 s" if fleet.lanes[0].gone else "")
        one.go_on()
        fleet.trust(gone=False, left_s=10.0, agent=0)
        assert [payloads(fetched(fleet, number, keys, in_order)) for number in range(4)] == expected
        assert not fleet.gone and fleet.malformed == 0


@pytest.mark.parametrize("in_order", [False, True])
def test_an_agent_that_is_killed_costs_no_sample_and_no_time(root: Path, in_order: bool) -> None:
    keys = files_of(root)
    with agent_for(root) as one, agent_for(root) as other:
        alone = Session(terms_of(one.ready()))
        expected = [payloads(fetched(alone, number, keys, True)) for number in range(BATCHES)]
        alone.close()
        assert all(len(found) == SIZE for found in expected)
        patient = [
            replace(found, options=replace(OPTIONS, dead_after_s=60.0))
            for found in (terms_of(one), terms_of(other.ready()))
        ]
        with fleet_of(*patient) as fleet:
            for number in range(BATCHES):
                if number == BATCHES // 3:
                    assert all(lane.received_nbytes > 10_000 for lane in fleet.lanes), "both have a share"
                    one.kill()
                assert payloads(fetched(fleet, number, keys, in_order)) == expected[number]
            assert [lane.gone for lane in fleet.lanes] == [True, False]
            assert fleet.waited_s < 20, "a closed connection is no silence"
            one.start()
            one.ready()
            before = fleet.lanes[0].received_nbytes
            fleet.trust(gone=False, left_s=10.0, agent=0)

            def has_a_share() -> bool:
                # All batches take a quarter of a second, which a new connection may take, too, on a busy machine.
                for number in range(BATCHES):
                    assert payloads(fetched(fleet, number, keys, in_order)) == expected[number]
                return fleet.lanes[0].received_nbytes > before + 10_000

            until(has_a_share, "it takes its share again")
            assert not fleet.gone and fleet.malformed == 0


def test_a_copy_in_another_folder_that_lacks_files(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = files_of(root)
    shutil.copytree(root, tmp_path / "copies" / "photos")
    lacking = keys[::3]
    for key in lacking:
        (tmp_path / "copies" / "photos" / key).unlink()
    with (
        agent_for(root) as whole,
        agent_for(tmp_path) as partial,
        fleet_of(terms_of(whole.ready()), terms_of(partial.ready(), "copies/photos")) as fleet,
    ):
        for number in range(4):
            for reply in fetched(fleet, number, keys, False):
                assert reply.sample is not None
                if reply.sample.encoding == "file":
                    assert bytes(reply.payload) == (root / reply.wanted.key).read_bytes()
        assert fleet.lanes[1].received_nbytes > 10_000
    assert not any("sample not had" in text for text in caplog.messages), "what is a shard is nothing to warn of"


def test_what_the_agent_that_has_answered_makes_of_a_sample(root: Path) -> None:
    keys = files_of(root)
    with agent_for(root) as one, agent_for(root) as other:
        agents = [one.ready(), other.ready()]
        with fleet_of(*map(terms_of, agents)) as fleet:
            batch, wanted = batch_of(0, keys)
            fleet.want(batch, wanted)
            seen = set()
            for _ in wanted:
                reply = fleet.next(batch)
                sample, payload = fleet.again(reply.wanted, 0)
                assert reply.sample is not None and (sample.cut, bytes(payload)) == (
                    reply.sample.cut,
                    bytes(reply.payload),
                )
                number = fleet.lanes.index(fleet.answered)
                assert fleet.instance() == agents[number].status()["instance"]
                seen.add(number)
            assert seen == {0, 1}
            agents[1].kill()
            fleet.answered = fleet.lanes[1]
            with pytest.raises(AgentUnreachable):
                fleet.again(wanted[0], 0)
            following, ahead = batch_of(1, keys)
            fleet.want(following, ahead)
            assert all(fleet.next(following).sample is not None for _ in ahead)
