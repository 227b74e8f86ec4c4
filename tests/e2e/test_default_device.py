"""A loader under another default device, as around a large model: what torch's DataLoader gives there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from tests.support.loaders import digest_of
from tests.support.pictures import folder

FILES = 12
LOADER = {"policy": "all-off"}
PIPELINES: dict[str, Callable[[], Any]] = {
    "v1": lambda: v1.Compose([v1.CenterCrop(24), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]),
    "v2": lambda: v2.Compose([v2.CenterCrop(24), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]),
}
AGENTS = [pytest.param({"agent": None}, id="none"), pytest.param({}, id="agent")]
META = torch.device("meta")


def told(value: torch.Tensor) -> Any:
    return (str(value.device), value.dtype, tuple(value.shape), "" if value.is_meta else digest_of(value))


def batches(make: Callable[[], Any], where: str) -> list[Any]:
    """What comes of a loader that is made, or asked for its next batches, under another default device."""
    torch.manual_seed(3)
    with META if where == "made" else nullcontext():
        loader = make()
    rest = iter(loader)
    with META if where == "next" else nullcontext():
        return [tuple(map(told, batch)) for batch in rest]


def meta(worker: int) -> None:
    torch.set_default_device(META)


@pytest.mark.parametrize("given", AGENTS)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("where", ["made", "next"])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_batches_are_those_of_torch(
    root: Path, make: Callable[..., Any], given: dict[str, Any], workers: int, where: str, pipeline: str
) -> None:
    dataset = folder(root, PIPELINES[pipeline]())
    how: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    how["shuffle"] = where == "made"  # torch shuffles on the default device when the first batch is asked for
    expected = batches(lambda: DataLoader(dataset, **how), where)
    assert batches(lambda: make(dataset, **how, **given), where) == expected


@pytest.mark.parametrize("given", AGENTS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_default_device_of_workers(
    root: Path, make: Callable[..., Any], given: dict[str, Any], pipeline: str
) -> None:
    dataset = folder(root, PIPELINES[pipeline]())
    how: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "worker_init_fn": meta}
    expected = batches(lambda: DataLoader(dataset, **how), "")
    assert batches(lambda: make(dataset, **how, **given), "") == expected


@pytest.mark.parametrize("given", AGENTS)
def test_an_iteration_begins_where_torchs_does(root: Path, make: Callable[..., Any], given: dict[str, Any]) -> None:
    """torch draws the seed of workers on the default device, which meta cannot."""
    dataset = folder(root, PIPELINES["v1"]())
    loaders = DataLoader(dataset), make(dataset, **given)
    said = []
    for loader in loaders:
        with META, pytest.raises(RuntimeError) as raised:
            iter(loader)
        said.append(str(raised.value))
    assert said[0] == said[1]
    assert len(list(loaders[1])) == FILES
