"""Several agents behind one address: every sample is what it is without them, or an error says which agent differs."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import SampleDiffers, SampleMissing
from storage_agent.clients.key_files import FIRST, KeyFolder
from storage_agent.command.status import ask_status
from tests.e2e.test_other_agent import OTHER_TORCH, Cropping, Samples, modules
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import QUICK, said, samples_of
from tests.support.pictures import folder
from tests.support.spreader import Spreader

LOADER: dict[str, Any] = {"batch_size": 2, "policy": "all-off", "seed": 3, "num_workers": 2}
PATIENT = replace(QUICK, dead_after_s=20.0, window=4, verify=0.0)
"""On a busy host an agent may be silent for longer than `QUICK` waits; samples read here then would show nothing."""
CHECKED = replace(PATIENT, verify=1.0)
SILENT = "ignore:the agent at .*:sophon_loader.errors.OffloadWarning"
"""What a busy host may bring before the error that a test waits for: that the agent is silent."""


@pytest.fixture(scope="module")
def plain(root: Path) -> Samples:
    """What a plain run without an agent gives."""
    return samples_of(OffloadingDataLoader(folder(root), agent=None, **LOADER))


@pytest.fixture(scope="module")
def alike(root: Path) -> Iterator[list[Agent]]:
    """Two replicas."""
    with agent_for(root) as one, agent_for(root) as other:
        yield [one.ready(), other.ready()]


@pytest.fixture(scope="module")
def other_files(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent whose files are other pictures, of the same sizes."""
    with agent_with(root, tmp_path_factory.mktemp("flipped") / "twin", flip) as agent:
        yield agent


@contextmanager
def agent_with(root: Path, twin: Path, change: Callable[[Path], object]) -> Iterator[Agent]:
    """An agent with a copy of the files in which every JPEG file has been changed."""
    shutil.copytree(root, twin)
    for path in twin.rglob("*.jpg"):
        change(path)
    with agent_for(twin) as agent:
        yield agent.ready()


def flip(path: Path) -> None:
    """Another picture, of as many bytes."""
    with Image.open(path) as image:
        image.load()
    nbytes, held = path.stat().st_size, io.BytesIO()
    image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(held, "jpeg", quality=40)
    path.write_bytes(held.getvalue().ljust(nbytes, b"\0"))


def instance(agent: Agent) -> str:
    return str(agent.status()["instance"])


# --- replicas -------------------------------------------------------------------------------------------------


def test_connections_are_spread_over_agents_that_share_a_key_folder(
    root: Path, tmp_path: Path, make: Any, plain: Samples
) -> None:
    keys = KeyFolder(tmp_path / "keys")
    token = str(keys.add(FIRST))
    with ExitStack() as stack:
        shared = ("--keys", str(keys.path))
        agents = [stack.enter_context(agent_for({EXPORT: root}, *shared)) for _ in range(3)]
        spreader = stack.enter_context(Spreader(agents))
        loader = make(None, spreader.address(), num_workers=4, options=replace(PATIENT, key=token))
        assert samples_of(loader) == plain
        assert loader.report().as_dict()["fallbacks"] == 0
        answered = [sum(ask_status(one.endpoint, 10.0, key=token)["answers"].values()) for one in agents]
        loader.close()
    assert min(answered) > 0 and min(spreader.spread) > 0


@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "remote"])
def test_an_agent_is_killed_in_mid_epoch(
    root: Path, make: Any, plain: Samples, alike: list[Agent], mounted: bool
) -> None:
    with agent_for(root) as mortal, Spreader([mortal.ready(), *alike]) as spreader:
        dataset = folder(root)
        if not mounted:
            dataset = RemoteImageFolder(spreader.address(), dataset.transform, options=PATIENT)
        loader = make(dataset, spreader.address(), options=PATIENT, num_workers=3)
        batches = iter(loader)
        found = samples_of([next(batches) for _ in range(3)])
        mortal.kill()
        found += samples_of(batches)
    assert found == plain
    report = loader.report().as_dict()
    assert report["fallbacks"] == 0 and report["samples"] == len(plain)


# --- agents that are not replicas -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False], ids=["other first", "other last"])
@pytest.mark.parametrize("policy", ["all-off", Cropping(), "auto"], ids=["all-off", "cropping", "auto"])
def test_one_agent_is_other_software(
    root: Path, tmp_path: Path, make: Any, plain: Samples, alike: list[Agent], policy: Any, first: bool
) -> None:
    with agent_for(root, modules=modules(tmp_path, OTHER_TORCH)) as other:
        agents = [other.ready(), alike[0]] if first else [alike[0], other.ready()]
        with Spreader(agents) as spreader:
            loader = make(None, spreader.address(), policy=policy, options=PATIENT)
            found = samples_of(loader)
            report = loader.report().as_dict()
            loader.close()
    assert found == plain and report["fallbacks"] == 0
    assert min(spreader.spread) > 0


@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "remote"])
@pytest.mark.filterwarnings(SILENT)
def test_one_agent_lacks_files(root: Path, tmp_path: Path, make: Any, alike: list[Agent], mounted: bool) -> None:
    with agent_with(root, tmp_path / "twin", Path.unlink) as poor, Spreader([alike[0], poor]) as spreader:
        dataset: Any = folder(root)
        if not mounted:
            dataset = RemoteImageFolder(alike[0].address(), dataset.transform, options=QUICK)
        with pytest.raises((SampleMissing, SampleDiffers)) as caught:
            list(make(dataset, spreader.address(), num_workers=3, options=CHECKED))
        assert instance(poor) in said(caught.value) and ".jpg" in said(caught.value)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("policy", ["no-off", "all-off", "auto"])
@pytest.mark.filterwarnings(SILENT)
def test_one_agent_holds_other_bytes(
    make: Any, alike: list[Agent], other_files: Agent, policy: str, workers: int
) -> None:
    """It is asked once more itself, although a new connection would lead to another agent."""
    with Spreader([alike[0], other_files]) as spreader, pytest.raises(SampleDiffers) as caught:
        for _ in range(3):
            list(make(None, spreader.address(), policy=policy, options=CHECKED, num_workers=workers))
            spreader.skip()  # a connection was made twice, as it is on a busy host: the worker's led to the right files
    text = said(caught.value)
    assert "must be the same at both ends" in text and ".jpg" in text
    assert spreader.address() in text and f"instance {instance(other_files)}" in text


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.filterwarnings(SILENT)
def test_one_agent_holds_a_file_of_another_size(
    root: Path, tmp_path: Path, make: Any, alike: list[Agent], workers: int
) -> None:
    def longer(path: Path) -> None:
        path.write_bytes(path.read_bytes() + b"more")

    with agent_with(root, tmp_path / "twin", longer) as other, Spreader([alike[0], other]) as spreader:
        with pytest.raises(SampleDiffers) as caught:
            for _ in range(3):
                list(make(None, spreader.address(), num_workers=workers, options=PATIENT))
                spreader.skip()  # as above
        assert f"instance {instance(other)}" in said(caught.value)
        assert "bring one of the two files up to date" in said(caught.value)


@pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")
def test_other_bytes_go_unnoticed_where_nothing_is_verified(
    root: Path, make: Any, plain: Samples, alike: list[Agent], other_files: Agent
) -> None:
    """As docs/several-agents.md says."""
    with Spreader([alike[0], other_files]) as spreader:
        found = samples_of(make(None, spreader.address(), options=replace(PATIENT, verify=0.0)))
    assert len(found) == len(plain) and found != plain
