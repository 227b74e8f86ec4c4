"""A loader with several agents that hold the same files, as on other hosts: batches are those of no agent at all."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sophon_loader import OffloadingDataLoader, OffloadWarning, RemoteImageFolder
from sophon_loader.errors import AgentUnreachable, ConfigError
from sophon_loader.fleet.contacts import Contacts
from sophon_loader.fleet.homes import MOST
from tests.e2e.test_other_agent import OTHER_TORCH, modules
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.loaders import run_epoch, samples_of
from tests.support.pictures import eval_transform, folder, train_transform
from tests.support.replicas import LOADER, PATIENT, SOON, loader_of, see_shares, sent, until_asked

FILES = 48

pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture(scope="module")
def expected(root: Path) -> list[tuple[str, Any]]:
    return run_epoch(OffloadingDataLoader(folder(root), policy="no-off", **LOADER))


@pytest.fixture
def other(root: Path) -> Iterator[Agent]:
    with agent_for({EXPORT: root}) as running:
        yield running


@pytest.mark.parametrize("policy", ["auto", "no-off", "all-off", "resize-off"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_of_no_agent_and_both_have_a_share(
    root: Path, agent: Agent, other: Agent, expected: Any, policy: str, workers: int
) -> None:
    loader = loader_of(folder(root), agent, other, policy=policy, num_workers=workers, options=PATIENT)
    assert len(expected) == FILES
    see_shares(loader, expected)


def test_of_many_agents_each_worker_is_connected_to_some(root: Path, agent: Agent) -> None:
    """So that descriptors have a limit; over all workers each agent has work. They name the folder in unlike ways."""
    with contextlib.ExitStack() as stack:
        exports: list[dict[str, Path | str]] = [{EXPORT: root.parent}, {EXPORT: root}]
        others = [stack.enter_context(agent_for(exports[number % 2])) for number in range(MOST + 1)]
        how: dict[str, Any] = {"num_workers": 3, "persistent_workers": True, "policy": "no-off"}
        order = list(range(FILES)) * 6
        loader = loader_of(folder(root), *others, agent, **how, sampler=order)
        try:
            plain = OffloadingDataLoader(folder(root), sampler=order, policy="no-off", **LOADER)
            assert samples_of(loader) == samples_of(plain)
            # 48 files at most have their homes, by chance, at 18 of 20 agents.
            assert sum(sent(loader)) == len(order) and sum(count > 0 for count in sent(loader)) >= 12
            ports = {int(one.endpoint.rpartition(":")[2]) for one in (*others, agent)}
            for worker in multiprocessing.active_children():
                reached = {one.raddr.port for one in psutil.Process(worker.pid).net_connections("tcp") if one.raddr}
                assert len(reached & ports) == MOST
        finally:
            loader.close()


@pytest.mark.parametrize("mounted", [True, False])
@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_dies_hands_over_to_the_other_and_has_its_share_again(
    root: Path, agent: Agent, other: Agent, mounted: bool, workers: int
) -> None:
    dataset: Any = folder(root)
    if not mounted:
        dataset = RemoteImageFolder(agent.address(), transform=train_transform(), options=SOON)
    loader = loader_of(dataset, agent, other, policy="all-off", num_workers=workers)
    plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
    try:
        for epoch in range(2):
            plain.set_epoch(epoch)
            reference, found = samples_of(plain), []
            loader.set_epoch(epoch)
            for number, batch in enumerate(loader):
                if (epoch, number) == (0, 5):
                    other.kill()
                found += samples_of([batch])
            assert found == reference
            assert loader.report().as_dict()["fallbacks"] == 0, "the other one lives"
        other.start()
        other.ready()
        before = sent(loader)

        def used() -> bool:
            samples_of(loader)
            return sent(loader)[1] > before[1]

        until(used, "it has its share again")
    finally:
        loader.close()


def test_a_forked_worker_that_waits_looks_at_no_connection_of_the_main_process(
    root: Path, agent: Agent, other: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy of one that is being tried out has no thread behind it: a look at it would never end."""
    looked, main = multiprocessing.Array("i", 2), os.getpid()
    look = Contacts.look

    def counted(contacts: Contacts) -> bool:
        looked[os.getpid() != main] += 1
        return look(contacts)

    monkeypatch.setattr(Contacts, "look", counted)
    dataset = RemoteImageFolder(agent.address(), transform=train_transform(), options=PATIENT)
    loader = loader_of(dataset, agent, other, policy="all-off", num_workers=1, options=PATIENT)
    try:
        samples_of(loader)
        agent.pause()
        other.pause()
        again = [threading.Timer(1.0, one.go_on) for one in (agent, other)]
        for timer in again:
            timer.start()
        samples_of(loader)
        for timer in again:
            timer.join()
        assert looked[0] and not looked[1]
    finally:
        loader.close()


def test_both_die(root: Path, agent: Agent, other: Agent, expected: Any) -> None:
    loader = loader_of(folder(root), agent, other, policy="all-off", num_workers=1)
    try:
        found = []
        for number, batch in enumerate(loader):
            if number == 5:
                other.kill()
                agent.kill()
            found += samples_of([batch])
        assert found == expected
        report = loader.report().as_dict()
        assert 0 < report["fallbacks"] < FILES
        assert [one["state"] for one in report["agents"]] == ["does not answer"] * 2
        assert sum("does not answer now" in note for note in report["notes"]) == 2
    finally:
        agent.start()
        loader.close()


def test_one_that_is_missing_at_first_joins(root: Path, agent: Agent, other: Agent) -> None:
    other.kill()
    loader = loader_of(folder(root), agent, other, policy="all-off", num_workers=1)
    plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
    try:
        with pytest.warns(OffloadWarning, match="cannot be used yet: .* The other agents do its part until it comes"):
            assert samples_of(loader) == samples_of(plain)
        assert (sent(loader)[0], loader.report().as_dict()["fallbacks"]) == (FILES, 0)
        other.start()
        other.ready()
        until_asked(loader, 1)
    finally:
        loader.close()


def noted(loader: Any, agent: Agent) -> str:
    """What the report says of an agent."""
    return "; ".join(note for note in loader.report().as_dict()["notes"] if agent.endpoint in note)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_report_says_within_an_epoch_that_one_has_come_and_that_it_has_gone(
    root: Path, agent: Agent, other: Agent, workers: int
) -> None:
    other.kill()
    loader = loader_of(
        folder(root), agent, other, policy="all-off", num_workers=workers, sampler=list(range(FILES)) * 500
    )
    batches = iter(loader)
    try:

        def said(what: str) -> bool:
            next(batches)
            return what in noted(loader, other)

        assert said("it has yet to come, and the others do its part")
        other.start()
        other.ready()
        until(lambda: not said("it has yet to come") and sent(loader)[1] > 0, "it is used in the same epoch")
        other.kill()
        until(lambda: said("does not answer now"), "it is known to have gone")
        assert "it has yet to come" not in noted(loader, other) and sent(loader)[1] > 0
        other.start()
        other.ready()
        until(lambda: not said("does not answer now"), "it is known to be back")
    finally:
        loader.close()


def test_what_one_that_joins_later_cannot_do_is_said(root: Path, tmp_path: Path, agent: Agent) -> None:
    with agent_for({EXPORT: root}, modules=modules(tmp_path, OTHER_TORCH)) as other:
        other.kill()
        loader = loader_of(folder(root), agent, other, policy="all-off", sampler=list(range(FILES)) * 500)
        batches = iter(loader)
        try:
            next(batches)
            assert "no op behind" not in noted(loader, other)
            other.start()
            other.ready()

            def said() -> bool:
                next(batches)
                return "no op behind the last crop or resize" in noted(loader, other)

            until(said, "what it cannot do")
        finally:
            loader.close()


def test_a_job_starts_while_all_are_missing(root: Path, agent: Agent, other: Agent, expected: Any) -> None:
    other.kill()
    agent.kill()
    try:
        loader = loader_of(folder(root), agent, other, policy="all-off", num_workers=1)
        assert samples_of(loader) == expected
        assert "is missing" in loader.report().as_dict()["summary"]
        loader.close()
        raising = loader_of(folder(root), agent, other, options=replace(SOON, agent_missing="raise"))
        with pytest.raises(AgentUnreachable) as caught:
            next(iter(raising))
        assert all(one.endpoint in str(caught.value) for one in (agent, other))
    finally:
        agent.start()


@pytest.mark.parametrize("policy", ["auto", "resize-off"])
def test_the_first_that_comes_is_used_and_then_the_other(root: Path, agent: Agent, other: Agent, policy: str) -> None:
    other.kill()
    agent.kill()
    loader = loader_of(folder(root), agent, other, policy=policy, num_workers=1)
    plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
    epoch = 0

    def used(number: int) -> bool:
        nonlocal epoch
        before = sent(loader)[number] if epoch else 0
        plain.set_epoch(epoch)
        loader.set_epoch(epoch)
        assert samples_of(loader) == samples_of(plain)
        epoch += 1
        return sent(loader)[number] > before

    try:
        assert not used(1) and not used(0)
        for number, one in ((1, other), (0, agent)):
            one.start()
            one.ready()
            until(lambda number=number: used(number), "it is used")
        report = loader.report().as_dict()
        assert (report["samples"], report["fallbacks"]) == (FILES, 0)
        if policy == "auto":
            assert loader._engine is not None and loader._engine._live is not None
    finally:
        loader.close()
        if not agent.alive():
            agent.start()


@pytest.mark.parametrize("dead", [False, True])
def test_a_dataset_at_several_agents_names_them_itself(
    root: Path, agent: Agent, other: Agent, expected: Any, dead: bool
) -> None:
    """Under unlike names of exports and folders. Listed by the first that answers."""
    names = [agent.address(f"above/{root.name}"), other.address()]
    if dead:
        agent.kill()
    try:
        dataset = RemoteImageFolder(names, transform=train_transform(), options=SOON)
        assert str(dataset.address) == names[dead]
        loader = OffloadingDataLoader(dataset, options=SOON, policy="all-off", num_workers=1, **LOADER)
        assert [label for _, label in samples_of(loader)] == [label for _, label in expected]
        loader.set_epoch(0)
        assert samples_of(loader) == expected
        report = loader.report().as_dict()
        assert (report["samples"], report["fallbacks"]) == (FILES, 0) and len(sent(loader)) == 2
        assert sent(loader)[0] == 0 if dead else min(sent(loader)) > 0
        loader.close()
        with pytest.raises(ConfigError, match="'sophon', which plans for one"):
            OffloadingDataLoader(dataset, policy="sophon", **LOADER)
    finally:
        if dead:
            agent.start()


def test_after_a_wait_in_vain_the_agents_are_looked_for_as_before(root: Path, agent: Agent, other: Agent) -> None:
    other.kill()
    agent.kill()
    try:
        short = replace(SOON, missing_wait_s=1.0)
        loader = loader_of(folder(root), agent, other, policy="all-off", num_workers=1, options=short)
        assert len(samples_of(loader)) == FILES
        with pytest.raises(AgentUnreachable):
            loader.measure()
        other.start()
        other.ready()
        until_asked(loader, 1)
        loader.close()
    finally:
        agent.start()


@pytest.mark.parametrize("later", [False, True])
def test_one_that_exports_another_folder_of_the_dataset_is_refused_each_time(
    root: Path, tmp_path: Path, later: bool
) -> None:
    """No loader goes on without it and without a word."""
    tree = tmp_path / "tree"
    shutil.copytree(root, tree / "only")
    with agent_for({EXPORT: tree}) as whole, agent_for({EXPORT: tree / "only"}) as inner:
        if later:
            inner.kill()
        loader = loader_of(folder(tree), whole, inner, policy="all-off")
        if later:
            assert len(samples_of(loader)) == FILES
            inner.start()
            inner.ready()
        for _ in range(2):
            with pytest.raises(ConfigError, match="all agents must export the same folder") as caught:
                for _ in range(200):
                    samples_of(loader)
            assert all(one.endpoint in str(caught.value) for one in (whole, inner))
        loader.close()


def test_one_that_holds_other_files_is_refused(root: Path, agent: Agent, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    victim = sorted(copy.rglob("*.jpg"))[0]
    victim.write_bytes(victim.read_bytes() + b"more")
    with agent_for({EXPORT: copy}) as other:
        loader = loader_of(folder(root), agent, other)
        with pytest.raises(ConfigError, match="the export must hold the same files") as caught:
            next(iter(loader))
        assert other.endpoint in str(caught.value)


def test_what_cannot_be_several_is_refused_with_words(root: Path, agent: Agent) -> None:
    def refused(match: str, *agents: str, **arguments: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            OffloadingDataLoader(folder(root, eval_transform()), agent=list(agents), **arguments)

    one, other = "tcp://127.0.0.1:5/x", "tcp://127.0.0.1:6/x"
    refused("each agent must be given once, got tcp://127.0.0.1:5/x 2 times", one, other, one)
    refused("a list of agents must have addresses alone", "local", one)
    for policy in ("sophon", "fastflow"):
        refused(f"got '{policy}', which plans for one", one, other, policy=policy)
    OffloadingDataLoader(folder(root), agent=[agent.address()], policy="sophon", **LOADER).close()
