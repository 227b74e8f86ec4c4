"""An agent that has other files, or computes something else: found out, and named."""

from __future__ import annotations

import io
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader, OffloadOptions, RemoteImageFolder
from sophon_loader.errors import SampleDiffers
from sophon_loader.workers.verifying import FIRST_FILES
from tests.support import agent_ops
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, said, samples_of
from tests.support.pictures import folder, picture

FILES = 24
OTHER_OPS = '''
from sophon_loader.pipeline.op_registry import register_op

class Invert:
    """What `tests.Invert` was in an earlier release of its author's."""

    def __call__(self, value):
        return value.point(lambda px: 254 - px if px == 77 else 255 - px)

register_op("tests.Invert", Invert, draws=(), reads_info=False)
'''


def options(verify: float) -> OffloadOptions:
    return OffloadOptions(**{**vars(QUICK), "verify": verify})


def transform() -> Any:
    return v1.Compose([v1.RandomResizedCrop(48), agent_ops.Invert(), v1.ToTensor()])


def arguments(workers: int = 0) -> dict[str, Any]:
    return {"batch_size": 4, "policy": "all-off", "seed": 3, "num_workers": workers}


@pytest.fixture(scope="module")
def other(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent with an op that differs in one value of 256."""
    modules = tmp_path_factory.mktemp("modules")
    (modules / "other_ops.py").write_text(OTHER_OPS)
    with agent_for(root, "--ops", "other_ops", modules=modules) as agent:
        yield agent


def dataset_of(root: Path, agent: Agent, *, mounted: bool, verify: float) -> Any:
    if mounted:
        return folder(root, transform())
    return RemoteImageFolder(agent.address(), transform(), options=options(verify))


@pytest.mark.parametrize(("mounted", "workers"), [(True, 1), (False, 0)], ids=["mounted", "remote"])
def test_an_op_that_is_another_one_there(root: Path, other: Agent, make: Any, mounted: bool, workers: int) -> None:
    plain = samples_of(OffloadingDataLoader(folder(root, transform()), **arguments()))
    dataset = dataset_of(root, other, mounted=mounted, verify=1.0)
    unchecked = make(dataset, other.address(), options=options(0.0), **arguments(workers))
    assert samples_of(unchecked) != plain, "nothing else tells"
    with pytest.raises(SampleDiffers) as caught:
        list(make(dataset, other.address(), options=options(1.0), **arguments(workers)))
    for part in (
        "value after ops 0 to 3 (decode to v1.ToTensor) of sample ", "must be the same at both ends, got a Tensor of",
        other.address(), "at cut 4 in encoding 'array'", "Do not train with this agent until you know the cause",
    ):  # fmt: skip
        assert part in said(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "remote"])
def test_an_agent_that_does_well(root: Path, agent: Agent, make: Any, mounted: bool, workers: int) -> None:
    """All are verified, and are what they are without that; a share is the same one however many workers there are.

    Where the files are here, the first ones come on top.
    """
    dataset: Any = (
        folder(root) if mounted else RemoteImageFolder(agent.address(), folder(root).transform, options=QUICK)
    )
    plain = samples_of(make(folder(root), None, **arguments()))
    found = {}
    for verify in (1.0, 0.3):
        loader = make(dataset, options=options(verify), **arguments(workers))
        assert samples_of(loader) == plain
        found[verify] = loader.report().as_dict()["verified"]
    first = FIRST_FILES if mounted else 0
    assert found[1.0] == FILES and max(6, first) <= found[0.3] <= 6 + first


SPOILT = 10
"""A sample that the look at eight files before the first epoch does not meet."""


@pytest.fixture(scope="module")
def stale(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent one of whose files is four bytes longer."""
    twin = Path(shutil.copytree(root, tmp_path_factory.mktemp("stale") / "twin"))
    path = Path(folder(root).samples[SPOILT][0])
    (twin / path.relative_to(root)).write_bytes(path.read_bytes() + b"more")
    with agent_for(twin) as agent:
        yield agent


@pytest.mark.parametrize(("policy", "workers"), [("no-off", 0), ("all-off", 1), ("auto", 1)])
def test_a_file_of_another_size_there(root: Path, stale: Agent, make: Any, policy: str, workers: int) -> None:
    path = Path(folder(root).samples[SPOILT][0])
    nbytes = path.stat().st_size
    only_sizes = replace(QUICK, verify=0.0)
    loader = make(folder(root), stale.address(), **{**arguments(workers), "policy": policy, "options": only_sizes})
    with pytest.raises(SampleDiffers) as caught:
        for _ in range(20):  # a busy host may leave out some looks
            list(loader)
    for part in (f"file of sample {SPOILT} ", f"got {nbytes} bytes in {path} here", f"{nbytes + 4} bytes at agent"):
        assert part in said(caught.value)
    assert stale.endpoint in said(caught.value)


@pytest.fixture(scope="module")
def flipped(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent whose files have each one bit in the middle of the scan that is another one."""
    twin = Path(shutil.copytree(root, tmp_path_factory.mktemp("flipped") / "twin"))
    for path in twin.rglob("*.jpg"):
        data = bytearray(path.read_bytes())
        at = len(data) // 3
        while 0xFF in data[at - 1 : at + 2] or data[at] ^ 4 == 0xFF:
            at += 1
        data[at] ^= 4
        path.write_bytes(data)
    with agent_for(twin) as agent:
        yield agent


@pytest.mark.parametrize(("policy", "workers"), [("no-off", 0), ("all-off", 2), ("auto", 1)])
def test_a_bit_that_differs_in_files_of_one_size(
    root: Path, flipped: Agent, make: Any, policy: str, workers: int
) -> None:
    """Noticed with the first batches, and not only by the one in a thousand."""
    loader = make(folder(root), flipped.address(), **{**arguments(workers), "policy": policy}, options=options(0.001))
    with pytest.raises(SampleDiffers, match="must be the same at both ends") as caught:
        list(loader)
    assert flipped.endpoint in said(caught.value)


@contextmanager
def replacing(paths: list[Path], contents: list[bytes]) -> Iterator[None]:
    """Have files replaced by complete ones all the time."""
    draw, ended = random.Random(1), threading.Event()

    def replace_some() -> None:
        while not ended.wait(0.001):
            path = draw.choice(paths)
            new = path.with_suffix(".new")
            new.write_bytes(draw.choice(contents))
            os.replace(new, path)

    thread = threading.Thread(target=replace_some)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("suffix", "policy"), [("jpg", "auto"), ("jpg", "all-off"), ("bmp", "all-off")])
def test_files_that_are_replaced_meanwhile(tmp_path: Path, make: Any, policy: str, suffix: str) -> None:
    """Both ends have one disk: each sample is of one picture or the other, and none an error."""
    (tmp_path / "a").mkdir()
    contents = []
    for number, size in enumerate(((90, 60), (80, 70), (70, 50))):
        picture(*((72, 54) if suffix == "bmp" else size), number).save(
            held := io.BytesIO(), suffix.replace("jpg", "jpeg")
        )
        contents.append(held.getvalue())
    paths = [tmp_path / "a" / f"{number}.{suffix}" for number in range(8)]
    for path in paths:
        path.write_bytes(contents[0])
    plan = {**arguments(1), "policy": policy, "options": options(1.0)}
    crop = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])
    with agent_for(tmp_path) as agent, replacing(paths, contents):
        loader = make(folder(tmp_path, crop), agent.address(), **plan)
        for _ in range(10):
            assert sum(len(labels) for _, labels in loader) == len(paths)
