"""A cache on this host: what has been read once crosses no wire again, and every sample is what it is without."""

from __future__ import annotations

import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, Subset

from sophon_loader import OffloadingDataLoader, OffloadOptions, OffloadWarning, RemoteImageFolder
from sophon_loader.cache import stuck, worker_cache
from sophon_loader.cache.cache import own_folder
from sophon_loader.cache.segment import Segment, SegmentEntry
from sophon_loader.errors import ConfigError, SampleDiffers
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, said, samples_of
from tests.support.pictures import eval_transform, folder, make_tree, train_transform

FILES = 40
HANGS_S = 4.0
SAFE = replace(QUICK, dead_after_s=20.0, verify=0.0)
LOADER: dict[str, Any] = {"batch_size": 4, "policy": "no-off", "seed": 3, "num_workers": 2}
Samples = list[tuple[str, Any]]
Make = Callable[..., OffloadingDataLoader[Any]]


@pytest.fixture(autouse=True)
def files_of_today_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' files are new. A test that changes one waits until the file system's time has moved on."""
    monkeypatch.setattr(worker_cache, "YOUNG_S", 0.0)
    monkeypatch.setattr(worker_cache, "BEHIND_S", 0.0)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", FILES, plain=True)


@pytest.fixture
def agent(tree: Path) -> Iterator[Agent]:
    with agent_for(tree) as one:
        yield one.ready()


@pytest.fixture
def make(tree: Path, tmp_path: Path) -> Iterator[Make]:
    """Loaders with one cache, which are closed."""
    made: list[OffloadingDataLoader[Any]] = []

    def loader(
        *agents: Agent, dataset: Any = None, options: OffloadOptions = SAFE, gb: float = 0.1, **arguments: Any
    ) -> OffloadingDataLoader[Any]:
        addresses = [one.address() for one in agents]
        found = OffloadingDataLoader(
            folder(tree, eval_transform()) if dataset is None else dataset,
            agent=addresses or None,
            options=replace(options, cache=str(tmp_path / "cache"), cache_gb=gb),
            **{**LOADER, **arguments},
        )
        made.append(found)
        return found

    yield loader
    for one in made:
        one.close()


def by_torch(tree: Path) -> Samples:
    return samples_of(DataLoader(folder(tree, eval_transform()), batch_size=4))


def report(loader: OffloadingDataLoader[Any]) -> dict[str, Any]:
    return loader.report().as_dict()


def test_the_second_epoch_sends_no_file(tree: Path, agent: Agent, make: Make) -> None:
    loader, expected = make(agent), by_torch(tree)
    nbytes = sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    assert samples_of(loader) == expected
    first = report(loader)
    assert (first["cached"], first["file_bytes"]) == (0, nbytes)
    assert first["wire_bytes"] > nbytes
    assert samples_of(loader) == expected
    second = report(loader)
    assert (second["cached"], second["file_bytes"], second["wire_bytes"]) == (FILES, nbytes, 0)
    assert (second["fallbacks"], second["samples"]) == (0, FILES)
    assert not any("cache" in note for note in second["notes"])
    assert f"{FILES} samples (100 %)" in str(loader.report())
    # Another job finds them, and one without an agent.
    for other in (make(agent), make(), make(num_workers=0)):
        assert samples_of(other) == expected
        assert report(other)["cached"] == FILES


def test_what_is_read_over_a_mount_is_kept(tree: Path, make: Make) -> None:
    loader, expected = make(), by_torch(tree)
    assert samples_of(loader) == expected
    assert report(loader)["cached"] == 0
    assert samples_of(loader) == expected
    assert report(loader)["cached"] == FILES


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_inherit_nothing(tree: Path, agent: Agent, make: Make, context: str) -> None:
    samples_of(make())
    loader = make(agent, multiprocessing_context=context, persistent_workers=True)
    assert [samples_of(loader) for _ in range(2)] == [by_torch(tree)] * 2
    assert report(loader)["cached"] == FILES


def test_room_for_a_part_serves_a_part(tree: Path, agent: Agent, make: Make) -> None:
    nbytes = sum(path.stat().st_size for path in tree.rglob("*.jpg"))
    loader, expected = make(agent, gb=nbytes / 1e9), by_torch(tree)
    for _ in range(3):
        assert samples_of(loader) == expected
    found = report(loader)
    assert 0.2 * FILES < found["cached"] < FILES
    assert 0 < found["wire_bytes"] < 0.8 * nbytes


@pytest.mark.parametrize("with_agent", [True, False])
def test_a_file_that_is_replaced_in_mid_run(tree: Path, agent: Agent, make: Make, with_agent: bool) -> None:
    loader = make(*[agent][: 1 * with_agent], shuffle=False)
    samples_of(loader)
    paths = sorted(tree.rglob("*.jpg"))
    batches = iter(loader)
    next(batches)
    for path in (paths[-1], paths[-2]):
        status, data = path.stat(), path.read_bytes()
        other = paths[0].read_bytes()  # another picture, of the same size: what is behind its end is not read
        assert len(data) != len(other)
        nbytes = max(len(data), len(other))
        path.write_bytes(other.ljust(nbytes, b"\0"))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    list(batches)
    for _ in range(2):
        assert samples_of(loader) == by_torch(tree)
    # Now of the same size and time of modification; only the time of change tells.
    path, status, data = paths[-1], paths[-1].stat(), paths[-1].read_bytes()
    path.write_bytes(paths[1].read_bytes()[: len(data)].ljust(len(data), b"\0"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        assert samples_of(loader) == by_torch(tree)
    assert report(loader)["cached"] == FILES


@pytest.mark.parametrize("what", ["flipped", "truncated", "removed", "read-only"])
def test_harm_to_the_cache_in_mid_run(tree: Path, agent: Agent, make: Make, tmp_path: Path, what: str) -> None:
    loader, expected, draw = make(agent), by_torch(tree), random.Random(what)
    samples_of(loader)
    place = Path(own_folder(str(tmp_path / "cache")))
    batches = iter(loader)
    found = [next(batches)]
    for path in list(place.iterdir()):
        if what == "flipped":
            data = bytearray(path.read_bytes())
            for _ in range(len(data) // 1000):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        elif what == "truncated":
            os.truncate(path, path.stat().st_size // 3)
        elif what == "read-only":
            path.chmod(0o400)
    if what == "removed":
        shutil.rmtree(place, ignore_errors=True)  # a worker may open a segment meanwhile
    found += batches
    assert samples_of(found) == expected
    assert samples_of(loader) == expected
    assert report(loader)["samples"] == FILES


def test_two_jobs_and_train_and_val_share_one(tree: Path, agent: Agent, make: Make) -> None:
    loaders, expected = [make(agent), make(agent), make()], by_torch(tree)
    for _ in range(3):
        found: list[list[Any]] = [[] for _ in loaders]
        for batches in zip(*loaders, strict=True):
            for its, batch in zip(found, batches, strict=True):
                its.append(batch)
        assert [samples_of(one) for one in found] == [expected] * 3
    assert [report(one)["cached"] for one in loaders] == [FILES] * 3


@pytest.mark.parametrize("policy", ["auto", "sophon", "fastflow", "all-off", "resize-off"])
@pytest.mark.parametrize("workers", [0, 2])
def test_every_policy_gives_the_same(tree: Path, agent: Agent, make: Make, policy: str, workers: int) -> None:
    dataset = folder(tree, train_transform())
    without = OffloadingDataLoader(dataset, agent=None, **LOADER)
    expected = [samples_of(without) for _ in range(3)]
    without.close()
    samples_of(make())  # all is there
    loader = make(agent, dataset=dataset, policy=policy, num_workers=workers)
    assert [samples_of(loader) for _ in range(3)] == expected
    assert report(loader)["fallbacks"] == 0
    unknowing = [note for note in report(loader)["notes"] if "does not know which files are in the cache" in note]
    assert len(unknowing) == (policy != "auto")


def test_auto_reads_what_is_in_the_cache(tree: Path, agent: Agent, make: Make) -> None:
    """Also before the agent has told what samples cost; some are asked for all the same, so that it tells."""
    loader, expected = make(agent, policy="auto"), by_torch(tree)
    samples_of(make())  # all is there
    for _ in range(3):
        assert samples_of(loader) == expected
        assert report(loader)["cached"] >= 0.7 * FILES


def test_several_agents_one_of_which_dies(tree: Path, agent: Agent, make: Make) -> None:
    expected = by_torch(tree)
    with agent_for(tree) as other:
        loader = make(agent, other.ready(), options=replace(SAFE, dead_after_s=1.5), gb=0.0004)
        for _ in range(2):
            assert samples_of(loader) == expected
        assert 0 < report(loader)["cached"] < FILES
        batches = iter(loader)
        found = [next(batches)]
        other.kill()
        found += batches
        assert samples_of(found) == expected
        assert samples_of(loader) == expected


def test_a_mounted_file_that_is_lost_comes_from_the_agent(tree: Path, make: Make, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(tree, twin)
    expected = by_torch(tree)
    with agent_for(twin) as agent:
        loader = make(agent.ready())
        assert samples_of(loader) == expected
        sorted(tree.rglob("*.jpg"))[3].unlink()
        assert samples_of(loader) == expected
        assert report(loader)["cached"] == FILES - 1


@pytest.fixture
def stale(tree: Path, tmp_path: Path) -> Iterator[Agent]:
    """An agent with older files of equal sizes, which one command mends."""
    twin = Path(shutil.copytree(tree, tmp_path / "twin"))
    paths = sorted(twin.rglob("*.jpg"))
    for path, other in zip(paths, paths[::-1], strict=True):
        nbytes = max(path.stat().st_size, other.stat().st_size)
        for one in (path, other, tree / path.relative_to(twin), tree / other.relative_to(twin)):
            one.write_bytes(one.read_bytes().ljust(nbytes, b"\0"))
    for path, data in zip(paths, [path.read_bytes() for path in paths[::-1]], strict=True):
        path.write_bytes(data)
    with agent_for(twin) as agent:
        yield agent.ready()


@pytest.mark.parametrize("workers", [0, 2])
def test_what_an_agent_has_sent_that_was_found_out_is_not_served(
    tree: Path, stale: Agent, make: Make, tmp_path: Path, workers: int
) -> None:
    verified = replace(SAFE, verify=0.001)
    samples_of(make(stale, dataset=Subset(folder(tree, eval_transform()), range(8)), num_workers=workers))
    with pytest.raises(SampleDiffers) as caught:
        list(make(stale, options=verified, num_workers=workers))
    assert "no copy that an agent has sent is taken from the cache any more" in said(caught.value)
    shutil.copytree(tree, tmp_path / "twin", dirs_exist_ok=True)
    loader = make(stale, options=verified, num_workers=workers)
    assert samples_of(loader) == by_torch(tree), "what is cached now is what a busy host has read itself"
    assert samples_of(loader) == by_torch(tree)
    assert report(loader)["cached"] == FILES


def test_without_a_mount_it_is_refused(agent: Agent, make: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"a cache must be of mounted files, or of archives .*, got tcp://.*; mount the folder here"
    ):
        samples_of(make(dataset=RemoteImageFolder(agent.address(), transform=eval_transform())))


def test_a_place_that_cannot_be_used_is_told_and_the_loader_does_without(
    tree: Path, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(OffloadWarning, match="No file is kept on this host: .* cannot be made"):
        loader = make()
    assert samples_of(loader) == by_torch(tree)
    assert report(loader)["cached"] == 0


def test_a_folder_that_is_exchanged_between_epochs_is_told_and_the_cache_left_alone(
    tree: Path, make: Make, tmp_path: Path
) -> None:
    loader, place = make(), Path(own_folder(str(tmp_path / "cache")))
    samples_of(loader)
    place.chmod(0o777)
    with pytest.warns(OffloadWarning, match="is not a folder of this user alone any more") as told:
        assert samples_of(loader) == by_torch(tree)
        assert samples_of(loader) == by_torch(tree)
    assert len(told) == 1 and f"remove {place}" in str(told[0].message)
    assert report(loader)["cached"] == 0
    assert any("is not a folder of this user alone any more" in note for note in report(loader)["notes"])


class Own(Dataset[Any]):
    """Nobody can take it apart."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


def test_a_dataset_that_cannot_be_taken_apart_is_told(make: Make) -> None:
    loader = make(dataset=Own())
    list(loader)
    assert "no file is kept on this host, because the dataset cannot be taken apart" in report(loader)["notes"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_read_that_hangs_is_told_and_the_cache_left_alone(
    tree: Path, make: Make, monkeypatch: pytest.MonkeyPatch, workers: int, tmp_path: Path
) -> None:
    """The disk is stood for by a read that sleeps, once: none can be had here that stands still."""
    samples_of(make())
    data, slept = Segment.data, tmp_path / "slept"

    def hanging(segment: Segment, entry: SegmentEntry) -> bytes | None:
        if not slept.exists():
            slept.touch()
            time.sleep(HANGS_S)
        return data(segment, entry)

    monkeypatch.setattr(Segment, "data", hanging)
    monkeypatch.setattr(stuck, "STUCK_S", 0.3)
    loader, told_s = make(num_workers=workers), []

    def showwarning(message: Any, *_: Any) -> None:
        told_s.append(time.monotonic() - began_s)
        assert "A disk hangs: a read in" in str(message) and str(tmp_path / "cache") in str(message)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", showwarning)
        began_s = time.monotonic()
        assert samples_of(loader) == by_torch(tree)
        assert samples_of(loader) == by_torch(tree)
    (at_s,) = told_s
    assert (at_s < HANGS_S) == (workers > 0), "it is told while the read hangs, but for one of this process"
    assert report(loader)["cached"] == 0
    assert any("has taken more than" in note for note in report(loader)["notes"])
