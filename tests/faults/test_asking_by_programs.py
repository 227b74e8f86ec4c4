"""Faults of agents with another torch, which are asked by programs: no sample is another one for them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from tests.e2e.test_other_agent import EARLIER, OTHER_TORCH, Cropping, modules, needs_crop
from tests.faults.test_other_values import replacing
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder, picture
from tests.support.relay import SpoiltRelay
from tests.support.replicas import sent, until_asked
from tests.support.spreader import Spreader
from tests.support.warm import Warm, shared

FILES = 32
PATIENT = replace(QUICK, dead_after_s=20.0, resend_after_s=2.0, window=8, verify=0.0)
"""On a busy host an agent may be silent for longer than `QUICK` waits."""
LOADER: dict[str, Any] = {"batch_size": 4, "policy": "resize-off", "seed": 3, "options": PATIENT}
OTHER_PILLOW = OTHER_TORCH.replace('"torch"', '"pillow"')
Samples = list[tuple[str, Any]]


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """What agents with another torch are forked from."""
    made = Warm(modules(tmp_path_factory.mktemp("torch"), OTHER_TORCH))
    yield made
    assert made._process is not None
    made._process.kill()  # its socket may be open in loader workers, too
    made.close()


@pytest.fixture(scope="module")
def agent(root: Path, torch: Warm) -> Iterator[Agent]:
    """An agent with another torch, in the place of the usual one."""
    with agent_for(root, warm=torch) as running:
        yield running.ready()


@pytest.fixture(scope="module")
def earlier(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent of a release without programs, also with another torch."""
    with agent_for(root, modules=modules(tmp_path_factory.mktemp("earlier"), OTHER_TORCH + EARLIER)) as running:
        yield running.ready()


def again(loader: Any) -> Samples:
    """The samples of epoch 0."""
    loader.set_epoch(0)
    return samples_of(loader)


def of_size(nbytes: int, image: Image.Image) -> bytes:
    """A JPEG file of a size."""
    image.save(held := io.BytesIO(), "jpeg")
    return held.getvalue().ljust(nbytes, b"\0")


def crossed_smaller(loader: Any) -> int:
    """Samples of the last epoch that crossed as something else than their files."""
    choices = loader.report().as_dict()["choices"]
    return int(sum(choices.values()) - choices.get("file", 0))


@needs_crop
@pytest.mark.parametrize(("what", "to_agent"), [("flip", True), ("flip header", False), ("drop", False)])
def test_messages_that_are_spoilt(relay: SpoiltRelay, make: Any, expected: Samples, what: Any, to_agent: bool) -> None:
    """Before each of three batches two messages, one of which is the question for headers or its answer."""
    loader = make(None, relay.address("pictures"))
    batches = iter(loader)
    found = samples_of([next(batches)])
    for _ in range(3 if what != "drop" else 1):
        relay.strike(what, 2, to_agent)
        found += samples_of([next(batches)])
    assert found + samples_of(batches) == expected
    assert again(loader) == expected
    assert crossed_smaller(loader) > FILES // 2, "headers were learnt from files and from late answers"


@needs_crop
@pytest.mark.parametrize(
    ("comes_back", "policy", "workers"),
    [("alike", "resize-off", 2), ("pillow", "resize-off", 0), ("pillow", Cropping(), 2)],
)
def test_an_agent_that_comes_back_as_other_software(
    root: Path, tmp_path: Path, make: Any, expected: Samples, torch: Warm, comes_back: str, policy: Any, workers: int
) -> None:
    with agent_for(root, warm=torch) as mortal:
        patient = replace(PATIENT, dead_after_s=30.0, resend_after_s=20.0)
        loader = make(None, mortal.address(), num_workers=workers, policy=policy, options=patient)
        batches = iter(loader)
        found = samples_of([next(batches)])
        mortal.kill()
        mortal._warm = shared()
        if comes_back == "pillow":
            mortal.modules = modules(tmp_path, OTHER_PILLOW)
        mortal.start()
        assert found + samples_of(batches) == expected
        mortal.ready()
        assert again(loader) == expected
        report = loader.report().as_dict()
    assert report["fallbacks"] == 0
    if comes_back == "pillow" and policy == "resize-off":
        assert report["cuts"] == {0: FILES}, "its pixels could differ"
    else:
        assert crossed_smaller(loader) > FILES // 3, "parts of files do not, nor do pixels of the same Pillow"


@pytest.mark.parametrize("policy", ["auto", "resize-off"])
def test_several_agents_of_unlike_software(
    root: Path, make: Any, expected: Samples, agent: Agent, earlier: Agent, policy: str
) -> None:
    """Each is asked for no more than it reaches: what one cannot make of a program, another may of the pipeline."""
    with agent_for(root) as alike:
        loader = make(None, [one.address() for one in (alike.ready(), agent, earlier)], num_workers=2, policy=policy)
        asked = [0, 0, 0]
        for _ in range(3):
            assert again(loader) == expected
            report = loader.report().as_dict()
            assert report["fallbacks"] == report["malformed"] == 0
            asked = [before + now for before, now in zip(asked, sent(loader), strict=True)]
        assert crossed_smaller(loader) > FILES // 4
        for number in range(3):
            if not asked[number]:
                until_asked(loader, number)


@needs_crop
@pytest.mark.parametrize("first", ["other", "earlier"])
def test_a_balancer_in_front_of_unlike_releases(
    make: Any, expected: Samples, agent: Agent, earlier: Agent, first: str
) -> None:
    """A worker whose connection leads to the release without programs asks it for files."""
    with Spreader([agent, earlier] if first == "other" else [earlier, agent]) as spreader:
        loader = make(None, spreader.address(), num_workers=2, persistent_workers=True)
        for _ in range(2):
            assert again(loader) == expected
        assert min(spreader.spread) > 0
        report = loader.report().as_dict()
        assert report["fallbacks"] == 0 and (crossed_smaller(loader) == FILES // 2) == (first == "other")


def test_an_agent_that_lets_one_sample_wait(root: Path, make: Any, expected: Samples, torch: Warm) -> None:
    with agent_for(root, "--max-queued", "1", warm=torch) as busy:
        loader = make(None, busy.address(), num_workers=2)
        assert again(loader) == expected
        report = loader.report().as_dict()
    assert report["fallbacks"] == 0 and "file" in report["choices"]


@pytest.mark.parametrize("policy", ["auto", "resize-off", Cropping()])
def test_files_that_are_replaced_meanwhile(tmp_path: Path, make: Any, torch: Warm, policy: Any) -> None:
    """By pictures of other sizes in files of equal size: each sample is of one of them, at its own crop."""
    pictures = [((90, 60), "RGB"), ((60, 90), "RGB"), ((90, 60), "RGB"), ((75, 75), "L")]
    contents = [of_size(1 << 13, picture(*size, number).convert(mode)) for number, (size, mode) in enumerate(pictures)]
    crop = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    allowed = []
    plain = {**LOADER, "policy": "no-off"}
    for number, content in enumerate(contents):
        (tmp_path / f"{number}" / "a").mkdir(parents=True)
        for file in range(8):
            (tmp_path / f"{number}" / "a" / f"{file}.jpg").write_bytes(content)
        allowed.append(again(OffloadingDataLoader(folder(tmp_path / f"{number}", crop), **plain)))
    root = tmp_path / "0"
    with agent_for(root, warm=torch) as agent, replacing(sorted((root / "a").iterdir()), contents):
        loader = make(folder(root, crop), agent.address(), policy=policy, num_workers=1)
        smaller = 0
        for _ in range(8):
            for sample, may in zip(again(loader), zip(*allowed, strict=True), strict=True):
                assert sample in may
            smaller += crossed_smaller(loader)
    assert smaller > 0
