"""A job that starts while its agent, as on another host, is away: it reads here, says so once, and uses it later."""

from __future__ import annotations

import socketserver
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import (
    KeyRefused,
    OffloadingDataLoader,
    OffloadOptions,
    OffloadWarning,
    RemoteImageFolder,
    UnknownExport,
)
from sophon_loader.client.handshakes import has_keys
from sophon_loader.errors import AgentUnreachable, ConfigError, VersionMismatch
from storage_agent.clients.key_files import KeyFolder
from tests.e2e.test_ranks import run
from tests.support.agents import EXPORT, Agent, until
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import eval_transform, folder, train_transform
from tests.support.ranks import Indexed, seen

FILES = 48
LOADER: dict[str, Any] = {"batch_size": 3, "seed": 3}
SOON = replace(QUICK, connect_timeout_s=0.5, agent_missing="read-here")
RAISE = replace(SOON, agent_missing="raise")
WAIT = replace(SOON, agent_missing="wait")
NOWHERE = "tcp://127.0.0.1:9/pictures"
OTHER_RELEASE = """
import sophon_loader.wire.version as version
version.VERSIONS = (99,)
"""

pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture
def away(root: Path) -> Iterator[Agent]:
    """An agent that is not there yet: `start` starts it."""
    agent = Agent({EXPORT: root}, "--end-with-stdin")
    agent.end()
    yield agent
    agent.end()


def told(caught: Any) -> list[str]:
    return [str(one.message) for one in caught if one.category is OffloadWarning]


def reference(root: Path, epoch: int) -> list[tuple[str, Any]]:
    loader = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
    loader.set_epoch(epoch)
    return samples_of(loader)


def summary(loader: Any) -> str:
    return str(loader.report().as_dict()["summary"])


def used(loader: Any, root: Path, epoch: int) -> None:
    """Iterate until samples cross."""

    def crossed() -> bool:
        nonlocal epoch
        assert samples_of(loader) == reference(root, epoch)
        epoch += 1
        report = loader.report().as_dict()
        assert (report["samples"], report["fallbacks"]) == (FILES, 0)
        return bool(report["wire_bytes"])

    until(crossed, "the agent is used")


SPAWNED = {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True}


@pytest.mark.parametrize(
    ("policy", "arguments"),
    [
        ("auto", {}),
        ("auto", {"num_workers": 2}),
        ("auto", {"num_workers": 2, "persistent_workers": True}),
        ("auto", SPAWNED),
        ("all-off", {"num_workers": 1, "persistent_workers": True}),
        ("sophon", {"num_workers": 1}),
        ("sophon", {"num_workers": 1, "persistent_workers": True}),
        ("fastflow", {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("comes", ["in mid-epoch", "between epochs"])
def test_it_is_used_once_it_comes(
    root: Path, away: Agent, make: Any, policy: str, arguments: dict[str, Any], comes: str
) -> None:
    loader = make(folder(root), away.address(), policy=policy, options=SOON, **arguments)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, batch in enumerate(loader):
            if number == 3:
                assert f"the agent at {away.address()} is missing" in summary(loader)
                if comes == "in mid-epoch":
                    away.start()
                    away.ready()
            found += samples_of([batch])
        assert found == reference(root, 0)
        assert loader.report().as_dict()["fallbacks"] == 0
        if comes == "between epochs":
            assert loader.report().as_dict()["wire_bytes"] == 0
            away.start()
            away.ready()
        used(loader, root, 1)
    (warning,) = told(caught)
    assert "got nothing within 0.5 s" in warning and "Files are read on this host until it comes" in warning
    assert "is missing" not in summary(loader)
    assert not any("until it comes" in note for note in loader.report().as_dict()["notes"])
    if policy in ("all-off", "sophon", "fastflow"):
        assert loader.report().as_dict()["plan_reason"]


@pytest.mark.parametrize("policy", ["auto", "all-off"])
def test_the_first_row_says_when_it_came(root: Path, away: Agent, make: Any, policy: str) -> None:
    loader = make(folder(root), away.address(), policy=policy, options=SOON)
    iterator = iter(loader)
    found = samples_of([next(iterator)])
    away.start()
    away.ready()

    def came() -> bool:
        loader._engine.wanted()
        return bool(loader._engine.run.agreement)

    until(came, "it is agreed with")
    found += samples_of(iterator)
    assert found == reference(root, 0)
    assert f"the agent at {away.address()} was ready after 3 of {FILES} samples" in summary(loader)


def test_a_host_that_is_unknown(root: Path, make: Any) -> None:
    loader = make(folder(root), "tcp://no-such-host.invalid:5555/pictures", options=SOON)
    with pytest.warns(OffloadWarning, match="'no-such-host.invalid'.*Files are read on this host until it comes"):
        assert samples_of(loader) == reference(root, 0)
    assert "no-such-host.invalid" in summary(loader)


def test_an_agent_of_another_release(root: Path, tmp_path: Path, make: Any) -> None:
    (tmp_path / "sitecustomize.py").write_text(OTHER_RELEASE)
    agent = Agent({EXPORT: root}, "--end-with-stdin", modules=tmp_path)
    try:
        loader = make(folder(root), agent.address(), options=replace(SOON, connect_timeout_s=20.0))
        said = r"got \[4, 5\] from 'sophon_loader .*' and \[99\] from sophon-agent .*; upgrade the loader's host first"
        with pytest.warns(OffloadWarning, match=said + ".*Files are read on this host until"):
            assert samples_of(loader) == reference(root, 0)
        loader = make(folder(root), agent.address(), options=replace(RAISE, connect_timeout_s=20.0))
        with pytest.raises(VersionMismatch):
            iter(loader)
    finally:
        agent.end()


# --- what is asked for otherwise ------------------------------------------------------------------------------


def test_an_error_where_that_is_asked_for(root: Path, make: Any) -> None:
    loader = make(folder(root), NOWHERE, options=RAISE)
    for _ in range(2):
        with pytest.raises(AgentUnreachable, match=r"got nothing within 0\.5 s"):
            iter(loader)
    with pytest.raises(AgentUnreachable, match=r"got nothing within 0\.5 s"):
        RemoteImageFolder(NOWHERE, options=RAISE)


def test_a_wait_that_ends(root: Path, make: Any) -> None:
    short = replace(WAIT, missing_wait_s=1.5)
    for begin in (
        lambda: iter(make(folder(root), NOWHERE, options=short)),
        lambda: RemoteImageFolder(NOWHERE, options=replace(short, agent_missing="read-here")),
        lambda: make(folder(root), NOWHERE, options=replace(short, agent_missing="read-here")).measure(),
    ):
        since_s = time.monotonic()
        warns = pytest.warns(OffloadWarning, match=r"It is waited for, for up to 1\.5 s")
        with warns as caught, pytest.raises(AgentUnreachable) as error:
            begin()
        assert 1.5 <= time.monotonic() - since_s < 10 and len(told(caught)) == 1
        assert "missing_wait_s" in str(error.value) + " ".join(getattr(error.value, "__notes__", []))


def later(start: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(1.5, start)
    timer.start()
    return timer


def test_a_wait_until_it_comes(root: Path, away: Agent, make: Any) -> None:
    timer = later(away.start)
    with pytest.warns(OffloadWarning, match="It is waited for, for up to 300 s"):
        loader = make(folder(root), away.address(), policy="all-off", options=WAIT)
        assert samples_of(loader) == reference(root, 0)
    timer.join()
    assert loader.report().as_dict()["wire_bytes"] and "is missing" not in summary(loader)


def test_a_remote_folder_waits_for_it(root: Path, away: Agent, make: Any) -> None:
    timer = later(away.start)
    with pytest.warns(OffloadWarning, match="It is waited for, for up to 300 s"):
        dataset = RemoteImageFolder(away.address(), options=SOON)
    timer.join()
    assert len(dataset) == FILES


def test_measuring_waits_for_it(root: Path, away: Agent, make: Any) -> None:
    timer = later(away.start)
    loader = make(folder(root), away.address(), policy="sophon", options=SOON)
    with pytest.warns(OffloadWarning, match="It is waited for, for up to 300 s") as caught:
        report = loader.measure().as_dict()
    timer.join()
    assert report["wire_bytes"] and len(told(caught)) == 1


def test_measuring_in_vain_leaves_the_agent_to_come(root: Path, away: Agent, make: Any) -> None:
    """With workers that persist, which no new run begins for."""
    options = replace(SOON, missing_wait_s=0.6)
    loader = make(folder(root), away.address(), options=options, num_workers=1, persistent_workers=True)
    assert samples_of(loader) == reference(root, 0)
    with pytest.raises(AgentUnreachable):
        loader.measure()
    away.start()
    used(loader, root, 1)


@pytest.mark.parametrize("values", [{"agent_missing": "ignore"}, {"agent_missing": None}, {"missing_wait_s": 0}])
def test_options_that_cannot_work(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        OffloadOptions(**values)


# --- what is raised whatever is asked -------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_an_agent_whose_key_is_lacking(root: Path, tmp_path: Path, away: Agent, make: Any, late: bool) -> None:
    away.arguments = ("--end-with-stdin", "--keys", str(tmp_path / "keys"))
    if not late:
        away.start()
    loader = make(folder(root), away.address(), options=replace(SOON, connect_timeout_s=2.0), num_workers=1)
    with pytest.raises(KeyRefused, match="has keys, got none"):
        iterator = iter(loader)
        away.start()
        for _ in range(100):
            samples_of(iterator)
            iterator = iter(loader)


def test_whether_an_agent_has_keys_is_seen_before_it_hangs_up(root: Path, tmp_path: Path) -> None:
    for keys in ((), ("--keys", str(tmp_path / "keys"))):
        agent = Agent({EXPORT: root}, "--end-with-stdin", *keys)
        try:
            assert has_keys(agent.endpoint) == bool(keys)
        finally:
            agent.end()
        assert not has_keys(agent.endpoint)


def test_connections_that_are_closed_without_a_reason(root: Path, tmp_path: Path, make: Any) -> None:
    """A proxy with nothing behind it is a missing agent, but for a loader with a key."""
    options = replace(SOON, connect_timeout_s=1.5)
    token = KeyFolder(tmp_path / "keys").add("of-some-agent")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        address = f"tcp://127.0.0.1:{proxy.server_address[1]}/{EXPORT}"
        try:
            with pytest.warns(OffloadWarning, match="connections that are closed at once.*Files are read on this host"):
                assert samples_of(make(folder(root), address, options=options)) == reference(root, 0)
            with pytest.raises(KeyRefused):
                iter(make(folder(root), address, options=replace(options, key=str(token))))
        finally:
            proxy.shutdown()
            thread.join()


@pytest.mark.parametrize("late", [False, True], ids=["at once", "later"])
def test_an_export_that_it_does_not_have(root: Path, away: Agent, make: Any, late: bool) -> None:
    if not late:
        away.start()
    loader = make(folder(root), away.address("other"), options=replace(SOON, connect_timeout_s=2.0))
    with pytest.raises(UnknownExport):
        iterator = iter(loader)
        away.start()
        while True:
            samples_of(iterator)
            iterator = iter(loader)


def test_files_that_differ(root: Path, tmp_path: Path, away: Agent, make: Any) -> None:
    """Found out later: the error comes once, no batch is lost, and the next iteration says it again."""
    loader = make(folder(root, eval_transform()), away.address(), options=SOON)
    iterator = iter(loader)
    found = samples_of([next(iterator)])
    path = sorted(root.rglob("*.jpg"))[0]
    before = path.read_bytes()
    away.exports = {EXPORT: tmp_path / "other"}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "one.jpg").write_bytes(before)
    away.start()
    away.ready()
    with pytest.raises(ConfigError, match="address must name the dataset's folder"):
        while True:
            found += samples_of([next(iterator)])
            time.sleep(0.1)
            if len(found) == FILES:
                iterator, found = iter(loader), []
    with pytest.raises(ConfigError, match="address must name the dataset's folder"):
        iter(loader)


# --- two ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["sophon", "auto"])
def test_two_ranks(root: Path, away: Agent, tmp_path: Path, policy: str) -> None:
    (tmp_path / "address").write_text(away.address())
    (tmp_path / "policy").write_text(policy)

    def come() -> None:
        until(lambda: all((tmp_path / f"begun {rank}").exists() for rank in (0, 1)), "both have begun", 120.0)
        away.start()
        (tmp_path / "comes").touch()

    thread = threading.Thread(target=come)
    thread.start()
    ranks = run(2, "late", root, tmp_path)
    thread.join()
    both = sorted(one for rank in ranks for one in rank["seen"])
    assert both == sorted(seen(OffloadingDataLoader(Indexed(root, train_transform()), 3, seed=1)))
    for rank in ranks:
        assert rank["used"]
        (warning,) = rank["told"]
        assert "Files are read on this host until it comes" in warning
