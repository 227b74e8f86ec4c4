"""A loader whose agents announce themselves in a folder: they come and go, and batches are those of no agent."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sophon_loader import OffloadingDataLoader, OffloadWarning, RemoteImageFolder
from sophon_loader.errors import AgentUnreachable, ConfigError, KeyRefused
from sophon_loader.fleet import rostered
from sophon_loader.fleet.rostered import MAX_AGENTS, Rostered
from sophon_loader.wire.entry import AgentEntry
from tests.support.agents import EXPORT, Agent, agent_for, run_command, until
from tests.support.loaders import run_epoch, samples_of
from tests.support.pictures import eval_transform, folder, train_transform
from tests.support.replicas import LOADER, PATIENT, SOON, see_shares, sent
from tests.support.rostered import FILES, SAMPLER, Epoch, Listening, MakeAgent, left, no_warning

NOBODY = Listening("tcp://127.0.0.1:9")


@pytest.fixture(scope="module")
def expected(root: Path) -> list[tuple[str, Any]]:
    return run_epoch(OffloadingDataLoader(folder(root), policy="no-off", **LOADER))


def loader_of(root: Path, roster: Path, **arguments: Any) -> OffloadingDataLoader[Any]:
    given = {"options": SOON, "policy": "all-off", **LOADER, **arguments}
    return OffloadingDataLoader(folder(root), agent=f"file://{roster}/{EXPORT}", **given)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["auto", "all-off"])
def test_batches_are_those_of_no_agent_and_each_has_a_share(
    root: Path,
    roster: Path,
    announced: MakeAgent,
    expected: Any,
    policy: str,
    workers: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    announced(), announced()
    loader = loader_of(root, roster, policy=policy, num_workers=workers, options=PATIENT)
    assert len(expected) == FILES
    with no_warning(caplog):
        see_shares(loader, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_that_appears_joins_and_one_that_leaves_in_order_is_not_missed(
    root: Path, roster: Path, announced: MakeAgent, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    one = announced()
    loader = loader_of(root, roster, num_workers=workers, sampler=SAMPLER)
    try:
        with no_warning(caplog):
            epoch = Epoch(loader, root)
            epoch.until(lambda: epoch.sent(one) > 0, "the first is used")
            other = announced()
            epoch.until(lambda: epoch.sent(other) > 20, "the other has its share in the same epoch", 15.0)
            one.process.terminate()
            epoch.until(lambda: f"{one.endpoint}" in left(loader), "it has left")
            assert one.process.wait(20.0) == 0
            before = epoch.sent(other)
            epoch.until(lambda: epoch.sent(other) > before + 20, "the other goes on")
        assert loader.report().as_dict()["fallbacks"] == 0
    finally:
        loader.close()


def test_no_entry_at_first(root: Path, roster: Path, announced: MakeAgent, expected: Any) -> None:
    """As an agent that is missing: read here with a warning, or waited for, or the error."""
    with pytest.raises(AgentUnreachable, match=f"no agent of '{EXPORT}' is announced in {roster}"):
        next(iter(loader_of(root, roster, options=replace(SOON, agent_missing="raise"))))
    loader = loader_of(root, roster, num_workers=1, sampler=SAMPLER)
    try:
        with pytest.warns(
            OffloadWarning, match=f"{roster}/{EXPORT} cannot be used yet: no agent of '{EXPORT}' is anno"
        ):
            epoch = Epoch(loader, root)
        epoch.next()
        assert f"no agent of '{EXPORT}' is announced in {roster}" in loader.report().as_dict()["summary"]
        one = announced()
        epoch.until(lambda: epoch.sent(one) > 20, "it is used", 15.0)
        other = announced()
        epoch.until(lambda: epoch.sent(other) > 20, "the other one, too", 15.0)
    finally:
        loader.close()


def test_it_is_waited_for_where_the_files_are_not_here(root: Path, roster: Path, announced: MakeAgent) -> None:
    one = announced()
    dataset = RemoteImageFolder(one.address(), transform=train_transform(), options=SOON)
    one.end()
    plain = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
    loader = OffloadingDataLoader(dataset, agent=f"file://{roster}/{EXPORT}", options=SOON, policy="all-off", **LOADER)
    starting = threading.Timer(1.0, announced)
    starting.start()
    try:
        with pytest.warns(OffloadWarning, match="It is waited for, for up to"):
            assert samples_of(loader) == samples_of(plain)
        assert loader.report().as_dict()["fallbacks"] == 0
    finally:
        starting.join()
        loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_one_is_killed_and_comes_back(
    root: Path, roster: Path, announced: MakeAgent, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Its entry stays: it is lost, not gone, and used again once it answers."""
    one, other = announced(), announced()
    loader = loader_of(root, roster, num_workers=workers, sampler=SAMPLER)
    try:
        epoch = Epoch(loader, root)
        epoch.until(lambda: min(epoch.sent(one), epoch.sent(other)) > 0, "both are used")
        other.kill()
        epoch.until(lambda: "does not answer now" in noted(loader, other), "it is known to have gone")
        epoch.until(lambda: "agent gone" in caplog.text, "the log says so")
        other.start()
        other.ready()
        before = epoch.sent(other)
        epoch.until(lambda: epoch.sent(other) > before + 10, "it has its share again", 20.0)
        assert loader.report().as_dict()["fallbacks"] == 0
    finally:
        loader.close()


def noted(loader: Any, agent: Agent) -> str:
    return "; ".join(note for note in loader.report().as_dict()["notes"] if agent.endpoint in note)


def test_all_go_and_another_comes(root: Path, roster: Path, announced: MakeAgent) -> None:
    one = announced()
    loader = loader_of(root, roster, num_workers=2, sampler=SAMPLER)
    try:
        epoch = Epoch(loader, root)
        epoch.until(lambda: epoch.sent(one) > 0, "it is used")
        assert one.end() == 0
        with pytest.warns(OffloadWarning, match="None of the agents at .* sends what was asked for"):
            epoch.until(lambda: loader.report().as_dict()["fallbacks"] > 0, "files are read here")
        other = announced()
        epoch.until(lambda: epoch.sent(other) > 20, "another one is used", 15.0)
        epoch.until(lambda: one.endpoint in left(loader), "it has left")
    finally:
        loader.close()


@pytest.mark.parametrize("at_first", [True, False])
def test_one_that_holds_other_files_is_left_out(
    root: Path, tmp_path: Path, roster: Path, announced: MakeAgent, at_first: bool
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    victim = min(copy.rglob("*.jpg"))
    victim.write_bytes(victim.read_bytes() + b"more")
    one = announced()
    made = announced(copy) if at_first else None
    loader = loader_of(root, roster, num_workers=1, sampler=SAMPLER)
    refused = "is not used: the export must hold the same files, got .* bytes in .* and .* bytes in"
    try:
        with pytest.warns(OffloadWarning, match=refused):
            epoch = Epoch(loader, root)
            other = made or announced(copy)
            epoch.until(
                lambda: "is not used: the export must hold the same files" in noted(loader, other), "it is said"
            )
        epoch.until(lambda: epoch.sent(one) > 20, "the first is used")
        assert epoch.sent(other) == 0
        victim.write_bytes(min(root.rglob("*.jpg")).read_bytes())
        other.end()
        other.start()
        epoch.until(lambda: epoch.sent(other) > 20, "it is mended, started anew, and used")
    finally:
        loader.close()


def test_one_alone_with_other_files_is_the_error(
    root: Path, tmp_path: Path, roster: Path, announced: MakeAgent
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    for path in copy.rglob("*.*"):
        path.unlink()
    agent = announced(copy)
    loader = loader_of(root, roster)
    for _ in range(2):
        with pytest.raises(ConfigError, match="each of several agents must have some files") as caught:
            next(iter(loader))
        assert agent.endpoint in str(caught.value)


def test_those_of_other_exports_are_not_asked(root: Path, roster: Path, announced: MakeAgent, expected: Any) -> None:
    with agent_for({"others": root}, "--announce", str(roster)):
        until(lambda: list(roster.glob("*.json")), "it is announced")
        with pytest.raises(AgentUnreachable, match=f"no agent that is announced serves '{EXPORT}'; they serve others"):
            next(iter(loader_of(root, roster, options=replace(SOON, agent_missing="raise"))))
        one = announced()
        loader = loader_of(root, roster)
        assert samples_of(loader) == expected and sent(loader) == [FILES]
        assert agents_told(loader) == [one.endpoint]
        loader.close()


def agents_told(loader: Any) -> list[str]:
    return [one["agent"].rpartition("/")[0] for one in loader.report().as_dict()["agents"]]


def test_an_agent_of_two_addresses_counts_once(root: Path, roster: Path, announced: MakeAgent, expected: Any) -> None:
    """Also where two entries name it by unlike addresses, and where the first of them leads nowhere."""
    one = announced()
    (path,) = roster.glob("*.json")
    entry = AgentEntry.parse(path.read_text())
    port = one.endpoint.rpartition(":")[2]
    addresses = ["tcp://127.0.0.1:9", *entry.addresses, f"tcp://localhost:{port}"]
    (roster / "more.json").write_text(replace(entry, addresses=addresses).text())
    (roster / "nobodys.json").write_text(AgentEntry([f"tcp://127.0.0.2:{port}"], "", entry.exports).text())
    loader = loader_of(root, roster, sampler=SAMPLER)
    try:
        epoch = Epoch(loader, root)
        for _ in range(FILES):
            epoch.next()
        assert sum(sent(loader)) == 2 * FILES and len(sent(loader)) == 1
    finally:
        loader.close()


def test_the_key_is_that_of_what_the_user_wrote(
    root: Path, tmp_path: Path, roster: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    assert run_command("key", "add", "first", "--keys", str(keys)).returncode == 0
    given = [Agent({EXPORT: root}, "--keys", str(keys), "--announce", str(roster)) for _ in range(2)]
    try:
        until(lambda: len(list(roster.glob("*.json"))) == 2, "both are announced")
        home = tmp_path / "config" / "sophon" / "keys"
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        name = f"{roster}/{EXPORT}".replace("/", "_")
        with pytest.raises(KeyRefused, match=str(home / name)):
            next(iter(loader_of(root, roster)))
        home.mkdir(parents=True)
        (home / name).write_text((keys / "tokens" / "first").read_text())
        (home / name).chmod(0o600)
        for options in (SOON, replace(SOON, key=str(keys / "tokens" / "first"))):
            loader = loader_of(root, roster, num_workers=1, options=options)
            assert samples_of(loader) == expected and len(sent(loader)) == 2 and sum(sent(loader)) == FILES
            loader.close()
            monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    finally:
        for agent in given:
            agent.end()


def test_a_folder_that_others_may_write_to_is_not_believed_without_a_key(root: Path, roster: Path) -> None:
    roster.chmod(0o777)
    with pytest.raises(AgentUnreachable, match="is not believed without a key: others may write there"):
        next(iter(loader_of(root, roster, options=replace(SOON, agent_missing="raise"))))


def test_a_roster_that_flaps_leaves_nothing_behind(root: Path, roster: Path, announced: MakeAgent) -> None:
    """As many look-ups as of half an hour, over 1,000 of them a minute: they find names of nobody, a file that is no
    entry, and nothing at all."""
    one = announced()
    loader = loader_of(root, roster, sampler=SAMPLER)
    process, held, nbytes = psutil.Process(), [], []
    try:
        epoch = Epoch(loader, root)
        epoch.next()
        assert loader._engine is not None
        contact = loader._engine._contact
        assert isinstance(contact, Rostered)
        began_s = time.monotonic()
        for number in range(210):
            for path in roster.glob("flapping*"):
                path.unlink()
            text = ["{", AgentEntry([f"tcp://127.0.0.1:{1 + number}"], f"i{number}", [EXPORT]).text()][number % 3 > 0]
            if number % 5:
                (roster / f"flapping{number % 7}.json").write_text(text)
            contact._look_at_s = 0.0
            if number % 20 == 0:
                epoch.next()
            until(lambda: contact.look() is False and not contact._roster.is_looking, "it has been looked at")
            if number % 70 == 69:
                held.append((process.num_fds(), process.num_threads(), len(contact._each), len(contact._free)))
                nbytes.append(process.memory_info().rss)
        assert 210 / (time.monotonic() - began_s) > 1000 / 60
        fds, threads = held[0][:2]
        assert nbytes[-1] - nbytes[0] < 8 << 20, "entries, contacts and sockets take more than 8 MiB for 140 look-ups"
        assert all(route.lacked == 0 for route in contact.routes)
        assert max(one[0] for one in held) <= fds + 12 and max(one[1] for one in held) <= threads + 3
        assert all(len(contact._each) + len(contact._free) == MAX_AGENTS and met <= 3 for _, _, met, _ in held)
        assert contact._in_use and epoch.sent(one) > 0
    finally:
        loader.close()


def test_what_cannot_be_is_refused_with_words(root: Path, roster: Path) -> None:
    def refused(match: str, agent: Any, **arguments: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            next(iter(OffloadingDataLoader(folder(root), agent=agent, **arguments)))

    here = f"file://{roster}/{EXPORT}"
    refused("a list of agents must have addresses alone, got .*; give 'file:///", [here, "tcp://127.0.0.1:5/x"])
    refused("write file:///FOLDER/EXPORT", "file://agents/x")
    refused("agent must name an export behind the folder", f"file://{roster}")
    for policy in ("sophon", "fastflow"):
        refused(f"where agents are named by a folder .*, got '{policy}', which plans for one", here, policy=policy)
    with pytest.raises(ConfigError, match="which names a folder of agents; give it by itself"):
        RemoteImageFolder([here, "tcp://127.0.0.1:5/x"])
    with pytest.raises(ConfigError, match="agent must name an export behind the folder"):
        RemoteImageFolder(f"file://{roster}")
    refused("a list of agents must have addresses alone, got .*; give 'ray://h", ["ray://h:8265/x", "tcp://h:5/x"])
    refused("where agents are named by a Ray cluster .*, got 'sophon'", "ray://h:8265/x", policy="sophon")
    with pytest.raises(ConfigError, match="which names a Ray cluster of agents; give it by itself"):
        RemoteImageFolder(["rays://h:8265/x", "tcp://127.0.0.1:5/x"])


def test_other_transforms_begin_a_new_run_with_the_agents_of_now(
    root: Path, roster: Path, announced: MakeAgent
) -> None:
    one, other = announced(), announced()
    dataset, plain = folder(root), folder(root)
    loader = OffloadingDataLoader(dataset, agent=f"file://{roster}/{EXPORT}", options=SOON, policy="all-off", **LOADER)
    reference = OffloadingDataLoader(plain, policy="no-off", **LOADER)
    try:
        assert samples_of(loader) == samples_of(reference)
        one.end()
        dataset.transform = plain.transform = eval_transform()
        for epoch in (1, 2):
            loader.num_workers = 1  # by other places in memory
            for each in (loader, reference):
                each.set_epoch(epoch)
            assert samples_of(loader) == samples_of(reference)
        assert loader.report().as_dict()["fallbacks"] == 0
        assert agents_told(loader)[0] == other.endpoint or sent(loader)[0] == 0
    finally:
        loader.close()


def test_they_come_and_go_at_random(root: Path, roster: Path, announced: MakeAgent) -> None:
    """Drawn joins, leaves, deaths and returns while two loaders with spawned and forked workers read."""
    drawn = random.Random(20)
    agents = [announced()]
    loaders = [
        loader_of(root, roster, num_workers=2, sampler=SAMPLER, multiprocessing_context=how)
        for how in ("fork", "spawn")
    ]
    epochs = [Epoch(loader, root) for loader in loaders]
    try:
        for _ in range(8):
            living = [one for one in agents if one.process.poll() is None]
            what = drawn.choice(["join", "leave", "kill", "back"])
            if what == "join" or len(living) < 2:
                agents.append(announced())
            elif what == "back" and len(living) < len(agents):
                drawn.choice([one for one in agents if one not in living]).start()
            else:
                drawn.choice(living).end(signal.SIGKILL if what == "kill" else signal.SIGTERM)
            end = time.monotonic() + drawn.uniform(0.5, 4.0)
            while time.monotonic() < end:
                for epoch in epochs:
                    epoch.next()
        assert all(loader.report().as_dict()["fallbacks"] == 0 for loader in loaders)
    finally:
        for loader in loaders:
            loader.close()


def test_more_than_can_be_used_are_counted_at_once(
    root: Path, roster: Path, announced: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rostered, "MAX_AGENTS", 1)
    announced(), announced(), announced()
    loader = loader_of(root, roster, num_workers=0)
    try:
        assert len(samples_of(loader)) == FILES
        assert "2 agents are not used, since a loader has at most 1" in str(loader.report())
    finally:
        loader.close()


@pytest.mark.filterwarnings("ignore::sophon_loader.OffloadWarning")
@pytest.mark.parametrize("first", ["silent", "silent and leave", "refused"])
def test_those_that_serve_nothing_keep_no_place(
    root: Path, roster: Path, tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are two places: the agent whose entry comes third gets one, and serves."""
    monkeypatch.setattr(rostered, "MAX_AGENTS", 2)
    monkeypatch.setattr(rostered, "_SOON_S", 0.2)
    empty = tmp_path / "empty"
    shutil.copytree(root, empty, copy_function=lambda source, target: None)
    with agent_for(root) as agent, agent_for(empty) if first == "refused" else nullcontext(NOBODY) as other:
        others = [roster / f"{number}.json" for number in range(2)]
        for path, host in zip(others, ("127.0.0.1", "localhost"), strict=True):
            path.write_text(AgentEntry([other.endpoint.replace("127.0.0.1", host)], path.stem, [EXPORT]).text())
        entry = AgentEntry([agent.endpoint], "third", [EXPORT]).text()
        if first != "silent and leave":
            (roster / "third.json").write_text(entry)
        loader = loader_of(root, roster, num_workers=0, sampler=SAMPLER)
        try:
            epoch = Epoch(loader, root)
            if first == "silent and leave":
                others[0].write_text(entry)
                others[1].unlink()
            epoch.until(lambda: epoch.sent(agent) > 20, "the agent has its turn, and stays", 10.0)
            assert loader.report().as_dict()["offloading"], loader.report()
        finally:
            loader.close()
