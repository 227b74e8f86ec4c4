"""Datasets of classes of their own with an agent: batches are those of torch's DataLoader, and fewer bytes come."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision import transforms

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.errors import ConfigError, OffloadWarning, SampleDiffers
from sophon_loader.recording.opener import can_defer
from sophon_loader.workers.alike import difference
from tests.support.agents import Agent, agent_for
from tests.support.archives import location_of
from tests.support.loaders import QUICK
from tests.support.pictures import picture

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
FILES = 24
PROFILE = bytes(range(250)) * 12
"""Stands for a colour profile: metadata that nobody reads, and that need not cross the wire."""
LOADER: dict[str, Any] = {"batch_size": 4, "shuffle": True}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and masks: a damaged one, grey ones, with metadata, progressive and palette ones among them."""
    root = tmp_path_factory.mktemp("own") / "photos"
    turned = Image.Exif()
    turned[0x0112] = 6
    for number in range(FILES):
        for name in ("images", "masks"):
            (root / name / str(number % 3)).mkdir(parents=True, exist_ok=True)
        image = picture(300 + 7 * number, 260, number)
        path = root / "images" / str(number % 3) / f"{number:02}.jpg"
        if number % 8 == 5:
            image = image.convert("L")
        image.save(
            path, quality=93, progressive=number % 8 == 6, exif=turned if number % 8 == 3 else b"", icc_profile=PROFILE
        )
        mask = picture(300 + 7 * number, 260, number + 1).convert("L").point(lambda value: value // 64)
        mask.convert("P" if number % 2 else "L").save(root / "masks" / str(number % 3) / f"{number:02}.png")
    return root


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    with agent_for({"photos": root}, "--limit-mbit", "40") as running:
        yield running.ready()


class Pictures(Dataset[Any]):
    """A crop of a picture behind its EXIF orientation, all three generators, and one on `self`."""

    def __init__(self, root: Path) -> None:
        self.files = sorted((root / "images").rglob("*.jpg"))
        self.own = random.Random(4)
        self.augment = transforms.Compose(
            [transforms.RandomResizedCrop(64), transforms.ColorJitter(0.4, 0.4, 0.4), transforms.ToTensor()]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = self.augment(self.opened(index))
        draws = random.random(), float(np.random.rand()), self.own.random()
        return {"image": image, "draws": draws, "index": index}

    def opened(self, index: int) -> Image.Image:
        with open(self.files[index], "rb") as file:
            return ImageOps.exif_transpose(Image.open(file)).convert("RGB")


class Views(Pictures):
    """Two views of a picture, and the picture itself, small."""

    def __getitem__(self, index: int) -> Any:
        image = self.opened(index)
        views = [self.augment(image) for _ in range(2)]
        return {"views": views, "small": np.asarray(image.resize((9, 9))).copy(), "size": image.size}


class Masked(Pictures):
    """A crop of a picture and of its mask, the mask's values as they are."""

    def __getitem__(self, index: int) -> Any:
        path = self.files[index]
        image = Image.open(path).convert("RGB")
        mask = Image.open(Path(str(path).replace("images", "masks")).with_suffix(".png"))
        box = transforms.RandomCrop.get_params(image, (200, 200))
        image, mask = (transforms.functional.crop(one, *box).resize((50, 50), 0) for one in (image, mask))
        return {"image": transforms.functional.to_tensor(image), "mask": torch.from_numpy(np.array(mask))}


class Skips(Pictures):
    """Another one in place of a damaged or missing picture."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.files.append(root / "damaged.jpg")
        if not self.files[-1].exists():
            self.files[-1].write_bytes(self.files[0].read_bytes()[:9000])
        self.files.append(root / "images" / "missing.jpg")

    def __getitem__(self, index: int) -> Any:
        try:
            return self.augment(self.opened(index))
        except OSError:
            return self[(index + 3) % len(self)]


def seeded() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


def epochs(loader: Any, count: int = 2) -> list[Any]:
    seeded()
    return [list(loader) for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Pictures, Views, Masked, Skips])
def test_batches_are_torchs(root: Path, agent: Agent, kind: Any, workers: int) -> None:
    expected = epochs(DataLoader(kind(root), num_workers=workers, **LOADER))
    loader = OffloadingDataLoader(kind(root), num_workers=workers, agent=agent.address("photos"), **LOADER)
    assert difference(epochs(loader), expected) is None
    report = loader.report().as_dict()
    assert report["fallbacks"] <= (4 if kind is Skips else 0)
    assert 0 < report["wire_bytes"] < 1.05 * report["file_bytes"]
    assert " pictures " in report["summary"] and any("own code makes the samples" in one for one in report["notes"])
    loader.close()


@pytest.mark.parametrize("policy", ["auto", "no-off", "resize-off", "all-off"])
def test_policies_and_what_is_verified(root: Path, agent: Agent, policy: str) -> None:
    expected = epochs(DataLoader(Pictures(root), num_workers=1, **LOADER), 1)
    arguments: dict[str, Any] = {"num_workers": 1, "agent": agent.address("photos"), "policy": policy, **LOADER}
    first_only = OffloadOptions(verify=1e-12)  # so that no other picture is drawn, whatever the paths are
    loader = OffloadingDataLoader(Pictures(root), options=first_only, **arguments)
    assert difference(epochs(loader, 1), expected) is None
    report = loader.report().as_dict()
    reached = {"auto": max(report["cuts"]), "no-off": 0, "resize-off": 2, "all-off": 3}
    assert report["verified"] == 16 and max(report["cuts"]) == reached[policy]
    loader.close()


def test_seeded_samples_are_those_without_an_agent(root: Path, agent: Agent) -> None:
    alone = epochs(OffloadingDataLoader(Views(root), seed=3, **LOADER))
    loader = OffloadingDataLoader(Views(root), seed=3, agent=agent.address("photos"), num_workers=2, **LOADER)
    assert difference(epochs(loader), alone) is None
    seeded()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    other = OffloadingDataLoader(Views(root), seed=3, agent=agent.address("photos"), **LOADER)
    other.load_state_dict(state)
    assert difference(list(other), rest) is None


@pytest.mark.parametrize("workers", [0, 1])
def test_an_agent_that_is_killed_and_back(root: Path, workers: int) -> None:
    expected = epochs(DataLoader(ConcatDataset([Pictures(root)] * 4), num_workers=workers, **LOADER), 1)
    dataset = ConcatDataset([Pictures(root)] * 4)
    with agent_for({"photos": root}) as first:
        address = first.ready().address("photos")
        loader = OffloadingDataLoader(dataset, num_workers=workers, agent=address, options=QUICK, **LOADER)
        seeded()
        found = []
        with pytest.warns(OffloadWarning, match="does not answer"):
            for number, batch in enumerate(loader):
                found.append(batch)
                if number == 6:
                    os.kill(first.pid, 9)
        assert difference([found], expected) is None
        assert loader.report().as_dict()["fallbacks"] > 0
        loader.close()


def test_files_that_are_replaced_are_those_of_now(root: Path, tmp_path: Path) -> None:
    def written(seed: int) -> None:
        for number in range(8):
            (tmp_path / "images").mkdir(exist_ok=True)
            picture(200 + seed, 200 + number, seed + number).save(tmp_path / "images" / f"{number}.jpg")

    written(0)
    with agent_for({"photos": tmp_path}) as running:
        loader = OffloadingDataLoader(Views(tmp_path), agent=running.ready().address("photos"), **LOADER)
        for seed in (0, 50):
            written(seed)
            assert difference(epochs(loader, 1), epochs(DataLoader(Views(tmp_path), **LOADER), 1)) is None


class SwallowsAll(Pictures):
    """Code that catches each error."""

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except Exception:
            return {"image": torch.zeros(3, 64, 64), "draws": (0.0, 0.0, 0.0), "index": index}


@pytest.mark.parametrize("workers", [0, 1])
def test_pictures_that_differ_at_the_agent_end_the_run(tmp_path: Path, workers: int) -> None:
    """Copies of the same size and shape, with other pixels."""
    for name in ("here", "there"):
        (tmp_path / name / "images").mkdir(parents=True)
        for number in range(8):
            path = tmp_path / name / "images" / f"{number}.jpg"
            picture(200, 160, number + (name == "there")).save(path, quality=90)
    sizes = [max(one.stat().st_size for one in tmp_path.rglob(f"{number}.jpg")) for number in range(8)]
    for path in tmp_path.rglob("*.jpg"):
        os.truncate(path, sizes[int(path.stem)])  # zeros behind the end of the picture
    with agent_for({"photos": tmp_path / "there"}) as running:
        address = running.ready().address("photos")
        loader = OffloadingDataLoader(SwallowsAll(tmp_path / "here"), agent=address, num_workers=workers, **LOADER)
        with pytest.raises(SampleDiffers, match="must be the same at both ends"):
            list(loader)
        loader.close()


def test_a_folder_that_is_not_in_the_export(root: Path, agent: Agent, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / "images").mkdir(exist_ok=True)
        picture(90, 80, number).save(tmp_path / "images" / f"other{number}.jpg")
    loader = OffloadingDataLoader(Pictures(tmp_path), agent=agent.address("photos"), **LOADER)
    with pytest.raises(ConfigError, match="must name the dataset's folder"):
        list(loader)


@pytest.fixture(scope="module")
def apart(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pictures and that of masks, each mounted by itself, below names that no export has."""
    apart = tmp_path_factory.mktemp("mounts")
    (apart / "first/images").parent.mkdir()
    (apart / "first/images").symlink_to(root / "images")
    (apart / "second").symlink_to(root / "masks")
    return apart


class Apart(Masked):
    """As `Masked`; the masks lie in a folder of their own."""

    def __init__(self, apart: Path) -> None:
        super().__init__(apart / "first")
        self.masks = apart / "second"
        self.files = sorted((apart / "first/images").resolve().rglob("*.jpg"))
        self.files = [apart / "first/images" / path.parent.name / path.name for path in self.files]

    def __getitem__(self, index: int) -> Any:
        path = self.files[index]
        image = Image.open(path).convert("RGB")
        mask = Image.open(self.masks / path.parent.name / f"{path.stem}.png")
        return np.asarray(image.crop((9, 9, 60, 60))).copy(), np.array(mask.crop((9, 9, 60, 60)))


@pytest.mark.parametrize("folder", ["", "masks"])
def test_several_roots_that_the_user_gives(apart: Path, root: Path, agent: Agent, folder: str) -> None:
    expected = epochs(DataLoader(Apart(apart), **LOADER), 1)
    roots = {str(apart / "second"): "" if folder else "masks"}
    if not folder:
        roots[str(apart / "first")] = ""
    address = agent.address(f"photos/{folder}" if folder else "photos")
    loader = OffloadingDataLoader(Apart(apart), agent=address, options=OffloadOptions(roots=roots), **LOADER)
    assert difference(epochs(loader, 1), expected) is None
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"]) == (2 * FILES, 0), "pictures are counted"
    of_masks = 1.05 * sum(path.stat().st_size for path in root.glob("masks/*/*"))
    assert 0 < report["wire_bytes"] < of_masks if folder else of_masks < report["wire_bytes"]
    loader.close()


def test_roots_that_the_agent_does_not_have(apart: Path, agent: Agent) -> None:
    roots = {str(apart / "first"): "", str(apart / "second"): "images"}
    options = OffloadOptions(roots=roots)
    loader = OffloadingDataLoader(Apart(apart), agent=agent.address("photos"), options=options, **LOADER)
    with pytest.raises(ConfigError, match=r"has the files below .*second/, got 'images/./...png' for .*, and no such"):
        list(loader)


def test_roots_of_other_files(root: Path, agent: Agent) -> None:
    options = OffloadOptions(roots={"/elsewhere": ""})
    loader = OffloadingDataLoader(Pictures(root), agent=agent.address("photos"), options=options, **LOADER)
    with pytest.warns(OffloadWarning, match="open no picture below /elsewhere"):
        assert len(list(loader)) == FILES // 4
    assert not loader.report().offloading


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"policy": "sophon"}, "plans for each sample"), ({"agent": "local"}, "an agent on this host gains nothing")],
)
def test_what_such_a_dataset_cannot_have(root: Path, agent: Agent, arguments: dict[str, Any], says: str) -> None:
    with pytest.warns(OffloadWarning, match=says):
        loader = OffloadingDataLoader(Pictures(root), **{"agent": agent.address("photos"), **LOADER, **arguments})
    assert difference(epochs(loader, 1), epochs(DataLoader(Pictures(root), **LOADER), 1)) is None


def test_the_report_says_what_such_a_dataset_cannot_have(root: Path, agent: Agent, tmp_path: Path) -> None:
    options = OffloadOptions(cache=str(tmp_path / "cache"), cache_gb=1)
    loader = OffloadingDataLoader(Pictures(root), agent=agent.address("photos"), options=options, **LOADER)
    epochs(loader, 1)
    about = [note for note in loader.report().notes if "kept" in note or "cache" in note]
    assert about == ["no file is kept on this host, because the dataset cannot be taken apart"]
    assert loader.report().offloading and not (tmp_path / "cache").exists()
    loader.close()


@pytest.mark.parametrize("writer", ["tarfile-gnu", "zipfile"])
def test_an_archive_of_the_mounted_folder(root: Path, tmp_path: Path, writer: str) -> None:
    expected = epochs(DataLoader(Masked(root), **LOADER), 1)
    exports = {"photos": location_of(root, tmp_path / "archive", writer)}
    with agent_for(exports, "--index-folder", str(tmp_path / "indexes")) as running:
        address = running.ready().address("photos")
        loader = OffloadingDataLoader(Masked(root), agent=address, **LOADER)
        assert difference(epochs(loader, 1), expected) is None
        report = loader.report().as_dict()
        assert report["fallbacks"] == 0 < report["wire_bytes"] < 0.9 * report["file_bytes"], "parts of files are sent"
        loader.close()


def test_without_recording_nothing_is_asked_for(root: Path, agent: Agent) -> None:
    with pytest.warns(OffloadWarning, match="Nothing is offloaded"):
        loader = OffloadingDataLoader(
            Pictures(root), agent=agent.address("photos"), options=OffloadOptions(record=False), **LOADER
        )
    epochs(loader, 1)
    assert not loader.report().offloading


def test_the_log_tells_of_each_epoch_and_that_pictures_were_offloaded(root: Path, agent: Agent, tmp_path: Path) -> None:
    options = OffloadOptions(log=tmp_path / "log")
    loader = OffloadingDataLoader(Pictures(root), agent=agent.address("photos"), options=options, **LOADER)
    epochs(loader)
    loader.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    reports = [line["values"] for line in lines if line["kind"] == "report"]
    assert [one["epoch"] for one in reports] == [0, 1] and {one["unit"] for one in reports} == {"picture"}, reports
    assert [line["loader"] for line in lines if line["kind"] == "begin"] == [f"Pictures of {FILES}"] * 2
