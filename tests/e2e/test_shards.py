"""A loader with several agents that hold different files of its dataset: batches are those of no agent at all."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from sophon_loader import OffloadingDataLoader, OffloadWarning, RemoteFiles, RemoteImageFolder
from sophon_loader.errors import AgentUnreachable, ConfigError, SampleDiffers, SampleMissing
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.flat import members_of, pictures_in, write_flat
from tests.support.loaders import run_epoch, samples_of
from tests.support.pictures import folder, make_tree, train_transform
from tests.support.replicas import LOADER, PATIENT, SOON, loader_of, see_shares, sent
from tests.support.rostered import MakeAgent

FILES = 48
Holds = Callable[[int, str], bool]
"""Whether an agent, by its number, has the file of a key."""
PARTS: dict[str, Holds] = {
    "by class": lambda number, key: int(key.split("_")[1][0]) % 2 == number,
    "by file": lambda number, key: sum(key.encode()) % 2 == number,
    "one is whole": lambda number, key: number == 0 or sum(key.encode()) % 3 == 0,
}

pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("whole") / "photos", FILES)


@pytest.fixture(scope="module")
def expected(root: Path) -> list[tuple[str, Any]]:
    return run_epoch(OffloadingDataLoader(folder(root), policy="no-off", **LOADER))


def shard(root: Path, above: Path, number: int, holds: Holds) -> Path:
    """A copy of what an agent has."""
    here = above / str(number) / root.name
    for path in sorted(root.rglob("*.*")):
        key = path.relative_to(root).as_posix()
        if holds(number, key):
            (here / key).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, here / key)
    return here


@pytest.fixture
def shards(root: Path, tmp_path: Path) -> Iterator[Callable[[Holds], list[Agent]]]:
    with ExitStack() as stack:

        def make(holds: Holds) -> list[Agent]:
            roots = [shard(root, tmp_path, number, holds) for number in range(2)]
            return [stack.enter_context(agent_for({EXPORT: one})) for one in roots]

        yield make


def counted(agents: Sequence[Agent]) -> int:
    """Files that the agents were asked for in vain."""
    return sum(one.status()["refusals"].get("missing", 0) for one in agents)


@pytest.mark.parametrize("how", PARTS)
@pytest.mark.parametrize(("mounted", "workers"), [(True, 0), (True, 2), (False, 2)])
def test_batches_are_those_of_no_agent_and_each_has_its_share(
    root: Path, shards: Callable[[Holds], list[Agent]], expected: Any, how: str, mounted: bool, workers: int
) -> None:
    agents = shards(PARTS[how])
    addresses = [one.address() for one in agents]
    dataset: Any = folder(root)
    if not mounted:
        dataset = RemoteImageFolder(addresses, transform=train_transform(), options=PATIENT)
        assert [key for key, _ in dataset.samples] == [
            f"{dataset.address}/{Path(path).relative_to(root).as_posix()}" for path, _ in folder(root).samples
        ]
        assert dataset.targets == folder(root).targets and dataset[0][1] == 0 and dataset[-1][1] == 3
    loader = loader_of(dataset, *agents, policy="all-off", num_workers=workers, options=PATIENT)
    see_shares(loader, expected)


@pytest.mark.parametrize("how", ["by class", "by file"])
def test_who_has_a_sample_is_learnt_once(root: Path, shards: Callable[[Holds], list[Agent]], how: str) -> None:
    """By workers of which each epoch has new ones; the report says what each agent lacks."""
    agents = shards(PARTS[how])
    loader = loader_of(folder(root), *agents, policy="all-off", num_workers=2, options=PATIENT)
    try:
        for _ in range(5):
            samples_of(loader)
        assert 0 < counted(agents) <= FILES + 6, "each agent for each at most once; notes made at once may be lost"
        notes = [note for note in loader.report().as_dict()["notes"] if " lacks " in note]
        assert len(notes) == 2 and all(" samples (" in note for note in notes), loader.report()
        assert sum(sent(loader)) == 5 * FILES
    finally:
        loader.close()


def test_they_are_used_in_proportion(root: Path, shards: Callable[[Holds], list[Agent]]) -> None:
    agents = shards(lambda number, key: (int(key.split("_")[1][0]) == 0) == (number == 0))
    loader = loader_of(folder(root), *agents, policy="all-off", num_workers=2, options=PATIENT)
    try:
        assert len(samples_of(loader)) == FILES
        assert sent(loader) == [FILES // 4, FILES - FILES // 4]
    finally:
        loader.close()


def test_a_key_that_none_holds_is_an_error_that_names_all(root: Path, shards: Callable[[Holds], list[Agent]]) -> None:
    agents = shards(lambda number, key: "deeper" not in key and PARTS["by file"](number, key))
    loader = loader_of(folder(root), *agents, policy="all-off", num_workers=1, options=PATIENT)
    with pytest.raises(SampleMissing) as caught:
        samples_of(loader)
    assert all(one.endpoint in str(caught.value) for one in agents), caught.value
    loader.close()


def test_an_agent_that_has_none_of_the_files_is_refused(root: Path, tmp_path: Path) -> None:
    other = make_tree(tmp_path / "other" / "cats", 4)
    for path in sorted(other.rglob("*.*")):
        path.rename(path.with_name(f"other_{path.name}"))
    with agent_for({EXPORT: root}) as agent, agent_for({EXPORT: other}) as wrong:
        for dataset in (folder(root), RemoteImageFolder(agent.address(), transform=train_transform())):
            loader = loader_of(dataset, agent, wrong)
            with pytest.raises(ConfigError, match="each of several agents must have some files") as caught:
                samples_of(loader)
            assert wrong.endpoint in str(caught.value)
            loader.close()


@pytest.mark.parametrize("mounted", [True, False])
def test_one_that_is_restarted_is_waited_for(
    root: Path, shards: Callable[[Holds], list[Agent]], expected: Any, mounted: bool
) -> None:
    agents = shards(PARTS["by class"])
    addresses = [one.address() for one in agents]
    dataset: Any = folder(root)
    if not mounted:
        dataset = RemoteImageFolder(addresses, transform=train_transform(), options=PATIENT)
    loader = loader_of(dataset, *agents, policy="all-off", num_workers=1, options=PATIENT)
    try:
        samples_of(loader)
        loader.set_epoch(0)
        found = []
        for number, batch in enumerate(loader):
            if number == 5:
                agents[1].end()
                agents[1].start()
            found += samples_of([batch])
        assert found == expected
        assert loader.report().as_dict()["fallbacks"] == 0
    finally:
        loader.close()


@pytest.mark.parametrize("mounted", [True, False])
def test_one_that_dies(root: Path, shards: Callable[[Holds], list[Agent]], expected: Any, mounted: bool) -> None:
    """Its files are read on this host, or there is an error that names it; the others' go on."""
    agents = shards(PARTS["by file"])
    addresses = [one.address() for one in agents]
    dataset: Any = folder(root)
    if not mounted:
        dataset = RemoteImageFolder(addresses, transform=train_transform(), options=SOON)
    loader = loader_of(dataset, *agents, policy="all-off", num_workers=1)

    def found() -> list[tuple[str, Any]]:
        loader.set_epoch(0)
        samples = []
        for number, batch in enumerate(loader):
            if number == 5:
                agents[1].kill()
            samples += samples_of([batch])
        return samples

    try:
        samples_of(loader)
        if mounted:
            assert found() == expected
            assert 0 < loader.report().as_dict()["fallbacks"] < FILES
        else:
            with pytest.raises(AgentUnreachable, match="has no such file") as caught:
                found()
            assert agents[1].endpoint in str(caught.value)
    finally:
        loader.close()


# --- what is listed ---------------------------------------------------------------------------------------------


def test_a_shard_that_is_missing_when_files_are_listed(root: Path, shards: Callable[[Holds], list[Agent]]) -> None:
    """A dataset without its files would be another one, with other numbers of classes."""
    agents = [*shards(PARTS["by class"]), *shards(PARTS["by class"])]
    agents[0].kill()
    addresses = [one.address() for one in agents]
    short = replace(SOON, agent_missing="raise")
    with pytest.raises(AgentUnreachable):
        RemoteImageFolder(addresses, options=short)
    with pytest.warns(OffloadWarning, match="taken for replicas of those that do") as warned:
        found = RemoteImageFolder([addresses[0], addresses[2]], options=short)
    assert agents[0].endpoint in str(warned[0].message)
    assert found.classes == ["class_0", "class_2"]


def test_samples_of_several_files_are_listed_together(tmp_path: Path) -> None:
    pictures = pictures_in(tmp_path / "pictures", 12)
    members = [members_of(number, picture) for number, picture in enumerate(pictures)]
    parts = {"whole": [members], "even": [members[::2]], "odd": [members[1::2]]}
    for name, shards in parts.items():
        write_flat(tmp_path / name, shards)
    with agent_for({name: tmp_path / name / "folders" for name in parts}) as agent:
        whole = RemoteFiles(agent.address("whole"), target="cls")
        both = RemoteFiles([agent.address("odd"), agent.address("even"), agent.address("odd")], target="cls")
        assert (both.keys, both.targets) == (whole.keys, whole.targets)


def test_a_sample_with_unlike_labels_is_refused(tmp_path: Path) -> None:
    pictures = pictures_in(tmp_path / "pictures", 2)
    for name, numbers in {"one": [0, 1], "other": [0, 2]}.items():
        members = [members_of(number, picture) for number, picture in zip([0, 1], pictures, strict=True)]
        for member, number in zip(members, numbers, strict=True):
            member |= {key: str(number).encode() for key in member if key.endswith(".cls")}
        write_flat(tmp_path / name, [members])
    with (
        agent_for({name: tmp_path / name / "folders" for name in ("one", "other")}) as agent,
        pytest.raises(SampleDiffers, match="unlike members"),
    ):
        RemoteFiles([agent.address("one"), agent.address("other")], target="cls")


def at_roster(root: Path, roster: Path, **arguments: Any) -> OffloadingDataLoader[Any]:
    named = f"file://{roster}/{EXPORT}"
    return OffloadingDataLoader(folder(root), agent=named, policy="all-off", options=PATIENT, **{**LOADER, **arguments})


def test_a_shard_joins_in_mid_epoch(root: Path, tmp_path: Path, roster: Path, announced: MakeAgent) -> None:
    """Until then its files are read on this host; then they come from it. Two ranks, with a sampler of torch's."""
    parts = [shard(root, tmp_path, number, PARTS["by file"]) for number in range(2)]
    first = announced(parts[0])
    samplers = [DistributedSampler(range(400 * FILES), 2, rank, shuffle=False) for rank in range(2)]  # type: ignore[arg-type]
    orders = [[number % FILES for number in sampler] for sampler in samplers]
    loaders = [at_roster(root, roster, sampler=order, num_workers=1) for order in orders]
    plain = [OffloadingDataLoader(folder(root), policy="no-off", sampler=order, **LOADER) for order in orders]
    try:
        each = [zip(one, other, strict=True) for one, other in zip(loaders, plain, strict=True)]

        def fallbacks() -> int:
            """After twenty batches more of each rank."""
            for one in each:
                for found, expected in itertools.islice(one, 20):
                    assert samples_of([found]) == samples_of([expected])
            return sum(int(loader.report().as_dict()["fallbacks"]) for loader in loaders)

        assert 0 < fallbacks() < 2 * 40
        second = announced(parts[1])
        until(
            lambda: all(second.endpoint in str(loader.report()) or fallbacks() < 0 for loader in loaders), "it is used"
        )
        fallbacks(), fallbacks()  # what was asked for before
        before = fallbacks()
        assert fallbacks() == before and first.alive()
    finally:
        for loader in loaders:
            loader.close()


def test_one_that_a_roster_names_no_longer(root: Path, tmp_path: Path, roster: Path, expected: Any) -> None:
    """Nobody knows whether it comes back: files that the others lack are read on this host, and counted."""
    announce = ["--announce", str(roster)]
    parts = [shard(root, tmp_path, number, PARTS["by file"]) for number in range(2)]
    with agent_for({EXPORT: parts[0]}, *announce) as one:
        loader = at_roster(root, roster, num_workers=1)
        try:
            with agent_for({EXPORT: parts[1]}, *announce):
                until(lambda: len(list(roster.glob("*.json"))) == 2, "both are announced")
                assert samples_of(loader) == expected
                assert loader.report().as_dict()["fallbacks"] == 0
            for _ in range(2):
                loader.set_epoch(0)
                assert samples_of(loader) == expected
                assert 0 < loader.report().as_dict()["fallbacks"] < FILES
            assert one.alive()
        finally:
            loader.close()
