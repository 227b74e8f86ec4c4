"""Datasets that are known by their class, and those that list files, over one agent: what torch's DataLoader gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1

from sophon_loader import FileDataset, ImageFiles, OffloadingDataLoader, OffloadWarning
from sophon_loader.errors import ConfigError
from tests.support.agents import Agent, agent_for
from tests.support.known_datasets import AS_IT_IS, KNOWN, RGB, image_net, minus, naturalist, put_some
from tests.support.loaders import QUICK
from tests.support.pictures import eval_transform

HERE = eval_transform(24)
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
"""timm leaves files to be closed by the collector."""


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all")
    put_some(folder / "birds" / "pictures", count=6)
    return folder


@pytest.fixture(scope="module")
def agent(parent: Path) -> Iterator[Agent]:
    with agent_for({"all": parent}) as running:
        yield running


def assert_same(dataset: Any, address: str, policy: str = "all-off") -> None:
    """All is offloaded, and the batches are those of torch's DataLoader, with all types."""
    theirs = list(DataLoader(dataset, 4))
    loader = OffloadingDataLoader(dataset, 4, agent=address, policy=policy, options=QUICK)
    try:
        ours, report = list(loader), loader.report()
    finally:
        loader.close()
    assert report.offloading and not report.notes, report.notes
    assert (report.as_dict()["degraded"], report.as_dict()["fallbacks"]) == (0, 0)
    assert set(report.as_dict()["choices"]) == {"array"} and len(ours) == len(theirs)
    for (image, label), (other, other_label) in zip(ours, theirs, strict=True):
        assert torch.equal(image, other) and type(label) is type(other_label)
        several = isinstance(label, list)
        for one, two in zip(*((label, other_label) if several else ([label], [other_label])), strict=True):
            assert one.dtype == two.dtype and torch.equal(one, two)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_dataset_is_offloaded(parent: Path, agent: Agent, name: str) -> None:
    (parent / name).mkdir()
    dataset = KNOWN[name](parent / name, transform=HERE)
    assert_same(dataset, agent.address(f"all/{name}"))
    if "both" not in name:
        (parent / name / "more").mkdir()
        assert_same(KNOWN[name](parent / name / "more", transform=HERE, target_transform=minus),
                    agent.address(f"all/{name}/more"))  # fmt: skip


@pytest.mark.parametrize("name", AS_IT_IS)
def test_one_that_opens_files_in_their_own_mode_is_offloaded_behind_rgb(parent: Path, agent: Agent, name: str) -> None:
    root = parent / f"{name} as it is"
    root.mkdir()
    address = agent.address(f"all/{root.name}")
    dataset = AS_IT_IS[name](root, transform=HERE)
    plain = OffloadingDataLoader(dataset, 1, agent=address)
    assert len(list(plain)) == len(dataset)
    says = f"{name} opens each picture in its file's own mode, not as RGB; begin"
    assert says in str(plain.report().notes), "its pictures are asked for one by one"
    dataset.transform = v1.Compose([RGB(), HERE])
    assert_same(dataset, address)


def test_an_export_may_be_the_root_or_a_folder_in_it_that_holds_all_files(parent: Path, agent: Agent) -> None:
    (parent / "imagenet").mkdir()
    dataset = image_net(parent / "imagenet", transform=HERE)
    for folder in ("imagenet", "imagenet/train"):
        assert_same(dataset, agent.address(f"all/{folder}"))
        assert_same(Subset(dataset, [4, 1]), agent.address(f"all/{folder}"))
    (parent / "natural").mkdir()
    other = naturalist(parent / "natural", transform=v1.Compose([RGB(), HERE]))
    for folder in ("natural", "natural/2018"):
        assert_same(other, agent.address(f"all/{folder}"))
    assert_same(ConcatDataset([dataset, other]), agent.address("all"))
    with pytest.raises(ConfigError, match="the address must name the dataset's folder"):
        list(OffloadingDataLoader(dataset, 4, agent=agent.address("all/natural/2018/Aves"), options=QUICK))


# --- lists of files -------------------------------------------------------------------------------------------------


class Birds(ImageFiles):
    """A class of one's own, in a few lines."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.root, self.transform = str(root), transform
        self.birds = json.loads((root / "birds.json").read_text())

    def __len__(self) -> int:
        return len(self.birds)

    def key(self, index: int) -> str:
        return str(self.birds[index]["file"])

    def target(self, index: int) -> int:
        return int(self.birds[index]["species"])


def test_a_class_that_gives_keys_and_labels(parent: Path, agent: Agent) -> None:
    birds = parent / "birds"
    rows = [{"file": f"pictures/{n:03}.jpg", "species": 7 * n} for n in (3, 1, 2)]
    (birds / "birds.json").write_text(json.dumps(rows))
    assert_same(Birds(birds, HERE), agent.address("all/birds"))


@pytest.mark.parametrize(
    "targets",
    [
        [5, 4, 3],
        np.array([1, 2, 3], np.uint8),
        np.array([0.5, 0.25, 1.0], np.float32),
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]),
        [(1, 2.5), (3, 4.5), (5, 6.5)],
    ],
    ids=["int", "uint8", "float32", "rows", "tuples"],
)
def test_a_list_of_files_and_labels(parent: Path, agent: Agent, targets: Any) -> None:
    birds = parent / "birds"
    files: list[str | Path] = ["pictures/002.jpg", birds / "pictures" / "001.jpg", str(birds / "pictures" / "003.jpg")]
    for folder in ("birds", "birds/pictures"):
        assert_same(FileDataset(birds, files, targets, HERE), agent.address(f"all/{folder}"))


class Adds(FileDataset):
    """Does more than its parts."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image + 1, label


class NoLabels(Dataset[Any]):
    """Open and transform, and nobody can ask for a label."""

    def __init__(self, root: Path) -> None:
        self.root, self.transform = root, HERE

    def __len__(self) -> int:
        return 1

    def key(self, index: int) -> str:
        return "1.jpg"

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1), 1


def test_what_is_missing_is_named_with_the_remedy(parent: Path, agent: Agent) -> None:
    address, birds = agent.address("all/birds"), parent / "birds"
    loader = OffloadingDataLoader(NoLabels(birds), agent=address)
    with pytest.warns(OffloadWarning, match=r"it lacks target\(index\) .*sophon_loader.FileDataset"):
        assert len(list(loader)) == 1
    loader = OffloadingDataLoader(Adds(birds, ["pictures/001.jpg"], [1], HERE), agent=address, options=QUICK)
    with pytest.warns(OffloadWarning, match="does more than its parts"):
        list(loader)
