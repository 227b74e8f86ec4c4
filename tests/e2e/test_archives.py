"""Loaders over tar and zip files: the samples of the folder, mounted or not, and words where an archive changes."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.errors import OffloadWarning, SampleUnreadable
from tests.support.agents import Agent, agent_for, run_command
from tests.support.archives import location_of
from tests.support.loaders import QUICK, run_epoch, samples_of
from tests.support.pictures import folder, make_tree, train_transform

FILES = 30
POLICIES = ["no-off", "all-off", "auto"]
EXPORTS = ["folder", "tar", "shards", "zip"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("archives") / "train", FILES)


def _shards(root: Path) -> str:
    """Each class in two archives."""
    above = root.parent
    for number in range(2):
        with tarfile.open(above / f"part-{number:03}.tar", "w") as tar:
            for path in sorted(root.rglob("*.*"))[number::2]:
                tar.add(path, f"./{path.relative_to(root)}")
    return f"tar://{above}/part-{{000..001}}.tar"


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    above = root.parent
    tar, zipped = location_of(root, above / "t", "tarfile-gnu"), location_of(root, above / "z", "zipfile")
    exports: dict[str, Path | str] = {"folder": root, "tar": tar, "shards": _shards(root), "zip": zipped}
    with agent_for(exports, "--index-folder", str(above / "indexes")) as running:
        yield running


@pytest.fixture(scope="module")
def reference(root: Path) -> list[tuple[str, Any]]:
    """The samples of two epochs without an agent."""
    return _two_epochs(folder(root), None, "no-off")


def _two_epochs(dataset: Any, address: str | None, policy: str) -> list[tuple[str, Any]]:
    order = torch.Generator().manual_seed(5)
    loader = OffloadingDataLoader(
        dataset, 7, agent=address, policy=policy, seed=3, shuffle=True, generator=order, options=QUICK
    )
    try:
        found = samples_of(loader) + samples_of(loader)
        assert address is None or loader.report().as_dict()["wire_bytes"] > 0 or policy == "no-off"
        return found
    finally:
        loader.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("export", EXPORTS)
def test_same_samples_of_a_mounted_folder(
    root: Path, agent: Agent, reference: list[Any], export: str, policy: str
) -> None:
    assert _two_epochs(folder(root), agent.address(export), policy) == reference


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("export", EXPORTS)
def test_same_samples_of_a_remote_folder(
    root: Path, agent: Agent, reference: list[Any], export: str, policy: str
) -> None:
    remote = RemoteImageFolder(agent.address(export), train_transform(), options=QUICK)
    here = folder(root)
    assert remote.classes == here.classes and remote.targets == here.targets
    assert _two_epochs(remote, agent.address(export), policy) == reference


def test_what_it_says_it_serves(agent: Agent) -> None:
    told = agent.announcement.exports
    assert "(index " in told["tar"] and told["shards"].startswith("tar:///")


def test_an_archive_that_changes_under_a_running_agent(root: Path, tmp_path: Path) -> None:
    here = shutil.copytree(root, tmp_path / "train")
    location = location_of(here, tmp_path / "t", "tarfile-gnu")
    with agent_for({"d": location}, "--index-folder", str(tmp_path / "indexes")) as agent:
        remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
        remote[0]
        status = os.stat(tmp_path / "t.tar")
        os.utime(tmp_path / "t.tar", ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))
        with pytest.raises(SampleUnreadable, match=r"t\.tar, which has changed, .* restart the agent"):
            remote[1]
        loader = OffloadingDataLoader(remote, 4, agent=agent.address("d"), policy="all-off", options=QUICK)
        with pytest.raises(SampleUnreadable, match="which has changed"):
            run_epoch(loader)
        assert agent.alive()
        mounted = OffloadingDataLoader(
            folder(here), 4, agent=agent.address("d"), policy="all-off", options=QUICK, seed=3
        )
        with pytest.warns(OffloadWarning, match="cannot read a file that this host can read"):
            found = run_epoch(mounted)
        assert found == run_epoch(OffloadingDataLoader(folder(here), 4, seed=3))


def test_an_index_made_beforehand(root: Path, tmp_path: Path) -> None:
    location = location_of(root, tmp_path / "t", "tarfile-gnu")
    done = run_command("index", location, "--index-folder", str(tmp_path / "indexes"))
    assert done.returncode == 0, done.stderr
    made = Path(done.stdout.strip())
    before = os.stat(made).st_mtime_ns
    assert os.stat(made.parent).st_mode & 0o777 == 0o700
    with agent_for({"d": location}, "--index-folder", str(tmp_path / "indexes")) as agent:
        assert len(RemoteImageFolder(agent.address("d"), options=QUICK)) == FILES
    assert os.stat(made).st_mtime_ns == before and [*made.parent.iterdir()] == [made]
