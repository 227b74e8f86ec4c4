"""Faults of one agent beside a good one with the same files: its samples come from the other, bit for bit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.errors import SampleDiffers
from sophon_loader.report.rows import rows_of
from storage_agent.clients.key_files import KeyFolder
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.held import nothing_more_held
from tests.support.loaders import said, samples_of
from tests.support.pictures import folder, train_transform
from tests.support.replicas import LOADER, SOON, loader_of, sent

FILES = 48

pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture
def other(root: Path) -> Iterator[Agent]:
    with agent_for({EXPORT: root}) as running:
        yield running


def dataset_of(root: Path, agent: Agent, mounted: bool) -> Any:
    if mounted:
        return folder(root)
    return RemoteImageFolder(agent.address(), transform=train_transform(), options=SOON)


def epochs(loader: Any, count: int, harm: Callable[[], None] = lambda: None) -> list[list[tuple[str, Any]]]:
    """Samples of some epochs; `harm` is done before the sixth batch of the first."""
    found: list[list[tuple[str, Any]]] = []
    for epoch in range(count):
        loader.set_epoch(epoch)
        found.append([])
        for number, batch in enumerate(loader):
            if (epoch, number) == (0, 5):
                harm()
            found[-1] += samples_of([batch])
    return found


def plain(root: Path, count: int) -> list[list[tuple[str, Any]]]:
    return epochs(OffloadingDataLoader(folder(root), policy="no-off", **LOADER), count)


def fallbacks(loader: Any) -> int:
    return int(loader.report().as_dict()["fallbacks"])


@pytest.mark.parametrize("how", ["processes of each epoch", "persistent", "spawned", "none", "remote"])
def test_one_that_stands_still_hands_over_and_has_its_share_again(
    root: Path, agent: Agent, other: Agent, how: str
) -> None:
    more: dict[str, dict[str, Any]] = {
        "persistent": {"persistent_workers": True},
        "spawned": {"multiprocessing_context": "spawn"},
    }
    workers = {"num_workers": 0 if how in ("none", "remote") else 1, **more.get(how, {})}
    loader = loader_of(dataset_of(root, agent, how != "remote"), agent, other, policy="all-off", **workers)
    try:
        assert epochs(loader, 3, other.pause) == plain(root, 3)
        assert fallbacks(loader) == 0, "the other one lives"
        other.go_on()
        before = sent(loader)

        def used() -> bool:
            samples_of(loader)
            return sent(loader)[1] > before[1] + FILES // 4

        until(used, "it has its share again")
    finally:
        other.go_on()
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_stands_still_is_not_waited_for_until_it_is_given_up(
    root: Path, agent: Agent, other: Agent, workers: int
) -> None:
    patient = replace(SOON, dead_after_s=60.0, resend_after_s=60.0)
    how: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "options": patient}
    loader = loader_of(folder(root), agent, other.ready(), policy="all-off", **how)
    try:
        loader.set_epoch(1)
        samples_of(loader)  # so that something is known of both
        since_s = time.monotonic()
        assert epochs(loader, 1, other.pause) == plain(root, 1)
        assert time.monotonic() - since_s < 20.0 and fallbacks(loader) == 0
    finally:
        other.go_on()
        loader.close()


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, 1])
def test_one_that_is_slow_gets_less(root: Path, agent: Agent, workers: int) -> None:
    nbytes = sum(path.stat().st_size for path in root.rglob("*.jpg")) / FILES
    with agent_for({EXPORT: root}, "--limit-mbit", f"{8e-6 * nbytes * 10:.6f}") as slow:  # ten pictures per second
        slow.ready()
        how: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        loader = loader_of(folder(root), agent, slow, policy="no-off", **how)
        try:
            assert epochs(loader, 5) == plain(root, 5)
            assert fallbacks(loader) == 0
            before, since_s = sent(loader), time.monotonic()
            samples_of(loader)
            took_s, shares = (
                time.monotonic() - since_s,
                [now - then for now, then in zip(sent(loader), before, strict=True)],
            )
            assert shares[1] < FILES // 6 and took_s < 2.0, (shares, took_s)
        finally:
            loader.close()


@pytest.fixture(scope="module")
def lying(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent each of whose files has one other number in a quantisation table."""
    twin = Path(shutil.copytree(root, tmp_path_factory.mktemp("lying") / "twin"))
    for path in twin.rglob("*.jpg"):
        whole = bytearray(path.read_bytes())
        table = whole.index(b"\xff\xdb") + 5
        whole[table] = whole[table] % 255 + 1
        path.write_bytes(whole)
    with agent_for({EXPORT: twin}) as running:
        yield running


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_one_that_lies_is_named(root: Path, agent: Agent, lying: Agent, policy: str, workers: int) -> None:
    options = replace(SOON, verify=1.0)
    loader = loader_of(folder(root), agent, lying, policy=policy, num_workers=workers, options=options)
    try:
        with pytest.raises(SampleDiffers) as caught:
            for _ in range(3):
                samples_of(loader)
        words = said(caught.value)
        assert lying.endpoint in words and agent.endpoint not in words, words
        keys = [str(path.relative_to(root)) for path in root.rglob("*.jpg")]
        assert any(key in words for key in keys), words
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("first", [True, False], ids=["lists", "second"])
@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_one_that_lies_is_held_against_the_other_where_no_file_is_mounted(
    root: Path, agent: Agent, lying: Agent, policy: str, first: bool, workers: int
) -> None:
    """Nobody here knows which of the two is right, so the error names both."""
    names = [one.address() for one in ((lying, agent) if first else (agent, lying))]
    dataset = RemoteImageFolder(names, transform=train_transform(), options=SOON)
    loader = OffloadingDataLoader(
        dataset, options=replace(SOON, verify=1.0), policy=policy, num_workers=workers, **LOADER
    )
    try:
        with pytest.raises(SampleDiffers) as caught:
            for _ in range(3):
                samples_of(loader)
        words = str(caught.value)
        assert all(f"agent {name}" in words for name in names), words
        assert " here" not in words and "Train with neither" in words, words
        keys = [str(path.relative_to(root)) for path in root.rglob("*.jpg")]
        assert any(key in words for key in keys), words
    finally:
        loader.close()


def test_one_that_lies_goes_unnoticed_without_verify(root: Path, agent: Agent, lying: Agent) -> None:
    """As docs/several-agents.md says."""
    loader = loader_of(folder(root), agent, lying, policy="no-off", options=replace(SOON, verify=0.0))
    try:
        assert epochs(loader, 1) != plain(root, 1)
        assert min(sent(loader)) > 0
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "remote"])
@pytest.mark.parametrize("what", ["export", "key"])
def test_one_that_comes_back_and_refuses(
    root: Path, agent: Agent, other: Agent, tmp_path: Path, what: str, mounted: bool, workers: int
) -> None:
    def harm() -> None:
        other.kill()
        if what == "export":
            other.exports = {"others": root}
        else:
            keys = KeyFolder(tmp_path / "keys")
            keys.add("gpu")
            other.arguments = ("--end-with-stdin", "--keys", str(keys.path))
        other.start()

    loader = loader_of(dataset_of(root, agent, mounted), agent, other, policy="all-off", num_workers=workers)
    try:
        assert epochs(loader, 3, harm) == plain(root, 3)
        assert fallbacks(loader) == 0, "the other one serves"
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_goes_on_elsewhere(root: Path, agent: Agent, other: Agent, workers: int) -> None:
    """Begun with two agents of which one dies, and gone on with none, with one, and with two."""
    first = loader_of(folder(root), agent, other, policy="all-off", num_workers=workers)
    found, state = [], {}
    for number, batch in enumerate(first):
        found += samples_of([batch])
        if number == 4:
            other.kill()
        if number == 9:
            state = first.state_dict()
            told = dict(rows_of(first.report()))["problems"]
            assert f"{other.address()} was lost at" in told and f"the one at {agent.address()} took over" in told
            break
    first.close()
    other.start()
    expected = plain(root, 1)[0]
    assert found == expected[: len(found)]
    for agents in ([], [agent], [other, agent]):
        if agents:
            again = loader_of(folder(root), *agents, policy="resize-off", num_workers=workers)
        else:
            again = OffloadingDataLoader(folder(root), policy="no-off", **LOADER)
        again.load_state_dict(state)
        assert samples_of(again) == expected[len(found) :]
        again.close()


def test_no_descriptor_is_left(root: Path, agent: Agent, other: Agent) -> None:
    def use() -> None:
        loader = loader_of(folder(root), agent, other, policy="all-off")
        assert epochs(loader, 1) == plain(root, 1)
        loader.close()

    use()
    with nothing_more_held():
        use()
        use()
