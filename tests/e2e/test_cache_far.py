"""A cache on this host of files that are not mounted, but lie in archives or in a far store."""

from __future__ import annotations

import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import DataLoader, Subset

from sophon_loader import OffloadingDataLoader, RemoteFiles, RemoteImageFolder
from sophon_loader.cache.cache import own_folder
from sophon_loader.errors import ConfigError
from tests.support import seaweed
from tests.support.agents import Agent, agent_for, until
from tests.support.archives import location_of
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import eval_transform, folder, make_tree

FILES = 40
SAFE = replace(QUICK, dead_after_s=20.0, verify=0.0)
LOADER: dict[str, Any] = {"batch_size": 4, "policy": "no-off", "seed": 3, "num_workers": 2}
FORMS = {"tar": "tarfile-gnu", "zip": "zipfile"}
Make = Callable[..., OffloadingDataLoader[Any]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree", FILES, plain=True)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Loaders with one cache, which are closed."""
    made: list[OffloadingDataLoader[Any]] = []

    def loader(*agents: Agent, dataset: Any = None, **arguments: Any) -> OffloadingDataLoader[Any]:
        addresses = [one.address("d") for one in agents]
        found = OffloadingDataLoader(
            dataset or RemoteImageFolder(addresses, transform=eval_transform(), options=SAFE),
            options=replace(SAFE, cache=str(tmp_path / "cache"), cache_gb=0.1),
            **{**LOADER, **arguments},
        )
        made.append(found)
        return found

    yield loader
    for one in made:
        one.close()


def by_torch(tree: Path) -> list[tuple[str, Any]]:
    return samples_of(DataLoader(folder(tree, eval_transform()), batch_size=4))


def report(loader: OffloadingDataLoader[Any]) -> dict[str, Any]:
    return loader.report().as_dict()


def serve(location: str, tmp_path: Path) -> AbstractContextManager[Agent]:
    return agent_for({"d": location}, "--index-folder", str(tmp_path / "indexes"))


def other_pictures(tree: Path, into: Path) -> Path:
    """Files of equal names and sizes, with other pictures in them."""
    shutil.copytree(tree, into)
    paths = sorted(into.rglob("*.jpg"))
    for path in paths:
        nbytes = path.stat().st_size
        draw = random.Random(path.name)
        Image.new("RGB", (32, 32), tuple(draw.randrange(256) for _ in range(3))).save(path, "JPEG", quality=30)
        data = path.read_bytes()
        assert len(data) <= nbytes
        path.write_bytes(data.ljust(nbytes, b"\0"))
    return into


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_epoch_sends_no_file(tree: Path, tmp_path: Path, make: Make, kind: str, workers: int) -> None:
    expected = by_torch(tree)
    with serve(location_of(tree, tmp_path / "a", FORMS[kind]), tmp_path) as agent:
        loader = make(agent, num_workers=workers)
        assert samples_of(loader) == expected
        assert report(loader)["cached"] == 0
        assert samples_of(loader) == expected
        second = report(loader)
        assert (second["cached"], second["fallbacks"]) == (FILES, 0)
        assert second["wire_bytes"] < 2_000
        spawned = make(agent, num_workers=2, multiprocessing_context="spawn")
        assert samples_of(spawned) == expected
        assert report(spawned)["cached"] == FILES
    with serve(location_of(tree, tmp_path / "a", FORMS[kind]), tmp_path) as agent:  # written anew, at another time
        loader = make(agent)
        for cached in (0, FILES):
            assert samples_of(loader) == expected
            assert report(loader)["cached"] == cached


@pytest.mark.parametrize("kind", FORMS)
def test_an_archive_that_was_replaced_between_two_jobs(tree: Path, tmp_path: Path, make: Make, kind: str) -> None:
    other = other_pictures(tree, tmp_path / "other")
    assert by_torch(other) != by_torch(tree)
    for one in (tree, other, tree):
        with serve(location_of(one, tmp_path / "a", FORMS[kind]), tmp_path) as agent:
            loader = make(agent)
            for cached in (0, FILES):
                assert samples_of(loader) == by_torch(one)
                assert report(loader)["cached"] == cached


@pytest.mark.parametrize("policy", ["no-off", "auto", "all-off"])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0], ids=lambda share: f"kept-{share}")
def test_an_agent_that_is_started_anew_with_other_files(
    tree: Path, tmp_path: Path, make: Make, policy: str, share: float
) -> None:
    other, old = other_pictures(tree, tmp_path / "other"), by_torch(tree)
    with serve(location_of(tree, tmp_path / "a", "tarfile-gnu"), tmp_path) as agent:
        dataset = RemoteImageFolder(agent.address("d"), transform=eval_transform(), options=SAFE)
        if share:
            samples_of(make(agent, dataset=Subset(dataset, range(int(share * FILES))), batch_size=1))
        loader = make(agent, dataset=dataset, policy=policy, batch_size=1, prefetch_factor=1)
        batches, found = iter(loader), []
        for _ in range(4):
            found.append(next(batches))
        agent.kill()
        location_of(other, tmp_path / "a", "tarfile-gnu")
        agent.start()
        try:
            for batch in batches:
                found.append(batch)
        except ConfigError as error:
            assert "agents must serve the same files" in str(error) and "make the loader anew" in str(error)
        else:  # copies of all were read before the agent was there again
            assert share == 1 and policy != "all-off"
        assert samples_of(found) == old[: len(found)]
        with pytest.raises(ConfigError, match="agents must serve the same files"):
            list(loader)
        assert samples_of(make(agent, policy=policy)) == by_torch(other)


def test_an_agent_that_is_started_anew_with_the_same_files(tree: Path, tmp_path: Path, make: Make) -> None:
    old = by_torch(tree)
    with serve(location_of(tree, tmp_path / "a", "tarfile-gnu"), tmp_path) as agent:
        loader = make(agent, batch_size=1)
        batches = iter(loader)
        found = [next(batches) for _ in range(4)]
        agent.kill()
        agent.start()
        found += batches
        assert samples_of(found) == old
        samples_of(loader)
        assert samples_of(loader) == old
        assert report(loader)["cached"] == FILES


def test_replicas_share_copies_and_others_are_refused(tree: Path, tmp_path: Path, make: Make) -> None:
    location = location_of(tree, tmp_path / "a", "tarfile-gnu")
    with serve(location, tmp_path) as one, serve(location, tmp_path) as two:
        loader = make(one, two)
        assert [samples_of(loader) for _ in range(2)] == [by_torch(tree)] * 2
        assert report(loader)["cached"] == FILES
        other = location_of(other_pictures(tree, tmp_path / "other"), tmp_path / "b", "tarfile-gnu")
        refused = pytest.raises(ConfigError, match="give all agents copies of equal paths, sizes and times")
        with serve(other, tmp_path) as three, refused:
            list(make(one, three))


@pytest.mark.parametrize("what", ["flipped", "truncated", "removed"])
def test_harm_to_the_copies(tree: Path, tmp_path: Path, make: Make, what: str) -> None:
    with serve(location_of(tree, tmp_path / "a", "tarfile-gnu"), tmp_path) as agent:
        loader, expected = make(agent), by_torch(tree)
        samples_of(loader)
        place = Path(own_folder(str(tmp_path / "cache")))
        for path in place.glob("*.data"):
            if what == "flipped":
                data = bytearray(path.read_bytes())
                for at in range(5000, len(data), 1000):
                    data[at] ^= 1
                path.write_bytes(data)
            elif what == "truncated":
                os.truncate(path, 5000)
        if what == "removed":
            shutil.rmtree(place)
        assert samples_of(loader) == expected
        assert report(loader)["cached"] < FILES
        assert report(loader)["fallbacks"] == 0

        def kept_anew() -> bool:  # a write that finds its segment locked for long is left to a later epoch
            assert samples_of(loader) == expected
            return what == "removed" or report(loader)["cached"] == FILES

        until(kept_anew, "all are kept anew")


def test_samples_of_web_datasets(tree: Path, tmp_path: Path, make: Make) -> None:
    with tarfile.open(tmp_path / "w.tar", "w") as tar:
        for number, path in enumerate(sorted(tree.rglob("*.jpg"))):
            tar.add(path, f"{number:04}.jpg")
            (tmp_path / "label").write_text(str(number))
            tar.add(tmp_path / "label", f"{number:04}.cls")
    with serve(f"tar://{tmp_path}/w.tar", tmp_path) as agent:
        dataset = RemoteFiles(agent.address("d"), eval_transform(), target="cls", options=SAFE)
        expected = samples_of(DataLoader(dataset, batch_size=4))
        loader = make(agent, dataset=dataset)
        assert [samples_of(loader) for _ in range(2)] == [expected] * 2
        assert report(loader)["cached"] == FILES


def test_objects_of_a_bucket(tree: Path, tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "indexes").mkdir(mode=0o700)
    (tmp_path / "server").mkdir()
    with seaweed.for_tests(tmp_path / "server") as server:
        server.bucket("photos")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        for one in (tree, other_pictures(tree, tmp_path / "other" / "tree")):
            server.put_tree("photos", one.parent)
            with serve("s3://photos/tree", tmp_path) as agent:
                loader = make(agent)
                for cached in (0, FILES):
                    assert samples_of(loader) == by_torch(one)
                    assert report(loader)["cached"] == cached
            with serve("s3://photos/tree", tmp_path) as agent:  # listed anew, and nothing has changed
                loader = make(agent)
                assert samples_of(loader) == by_torch(one)
                assert report(loader)["cached"] == FILES


def test_a_folder_is_refused(tree: Path, make: Make) -> None:
    with agent_for({"d": tree}) as agent, pytest.raises(ConfigError, match="must be of mounted files, or of archives"):
        make(agent)
