"""Pictures decoded, resized and finished by C of our own: the samples that Pillow and torchvision make."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageFilter
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader import OffloadOptions
from sophon_loader.native import fused
from tests.e2e.test_other_agent import Cropping
from tests.support.loaders import QUICK, as_list, samples_of
from tests.support.pictures import eval_transform, folder, make_tree, picture, train_transform

pytestmark = pytest.mark.skipif(fused.DECODE not in fused.checked(), reason="our decoder cannot be used here")
FILES = 48
LOADER = {"batch_size": 7, "policy": "no-off", "seed": 3}


def sharpened(image: Image.Image) -> Image.Image:
    """A function of the user's own, which looks at pixels."""
    return image.filter(ImageFilter.SHARPEN)


def with_its_orientation(image: Image.Image) -> torch.Tensor:
    """One that looks at a picture's metadata, too."""
    return v1.functional.to_tensor(image.resize((40, 40))) + image.getexif().get(0x0112, 0)


V2 = [v2.RandomResizedCrop(32), v2.RandomVerticalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
TRANSFORMS = {
    "train": train_transform(),
    "eval": eval_transform(),
    "v2": v2.Compose([*V2, v2.Normalize([0.5] * 3, [0.25] * 3), v2.RandomErasing(0.5)]),
    "bytes": v1.Compose([v1.RandomResizedCrop(24), v1.PILToTensor()]),
    "padded": v1.Compose([v1.Resize(40), v1.RandomCrop(48, pad_if_needed=True), v1.ToTensor()]),
    "turned": v1.Compose([v1.CenterCrop(300), v1.RandomRotation(30), v1.Resize((32, 48)), v1.ToTensor()]),
    "a function first": v1.Compose([sharpened, v1.Resize((32, 32)), v1.ToTensor()]),
    "a function behind": v1.Compose([v1.RandomResizedCrop(32), sharpened, v1.ToTensor()]),
    "metadata": with_its_orientation,
    "augmented": v1.Compose([v1.RandomResizedCrop(32), v1.RandAugment(), v1.ToTensor()]),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_samples_are_those_of_pillow(root: Path, make: Any, name: str, workers: int) -> None:
    def loader(**options: Any) -> Any:
        dataset = folder(root, TRANSFORMS[name])
        return make(dataset, agent=None, num_workers=workers, options=OffloadOptions(**options))

    ours, pillows = loader(), loader(fused=False)
    assert samples_of(ours) == samples_of(pillows)
    totals, others = ours.report().totals, pillows.report().totals
    assert (totals.fused, totals.unfused) == (FILES - 1, 1), "all but a PNG"
    assert (others.fused, others.unfused) == (0, 0)
    assert f"{totals.fused} pictures by C of our own, {totals.unfused} picture by Pillow" in str(ours.report())
    assert "by Pillow" not in str(pillows.report())


FILES_OF: dict[str, tuple[str, str, dict[str, Any]]] = {
    "baseline": ("RGB", "a.jpg", {}),
    "progressive": ("RGB", "a.jpg", {"progressive": True}),
    "png": ("RGB", "a.png", {}),
    "palette": ("P", "a.png", {}),
    "gif": ("P", "a.png", {"format": "GIF"}),
    "16 bits": ("I;16", "a.png", {}),
    "1 bit": ("1", "a.png", {}),
    "a transparent colour": ("RGB", "a.png", {"transparency": (1, 2, 3)}),
}
LOOKS = [v1.Compose([v1.CenterCrop(64), v1.ToTensor()]), v1.FiveCrop(40), sharpened]


@pytest.mark.parametrize("transform", LOOKS, ids=["table", "five", "pixels"])
@pytest.mark.parametrize("kind", FILES_OF)
def test_each_picture_counts_once(tmp_path: Path, make: Any, kind: str, transform: Any) -> None:
    mode, name, options = FILES_OF[kind]
    (tmp_path / "class").mkdir()
    Image.new("RGB", (96, 80), (200, 100, 50)).convert("L").convert(mode).save(tmp_path / "class" / name, **options)
    loader = make(folder(tmp_path, transform), agent=None, collate_fn=as_list)
    list(loader)
    totals = loader.report().totals
    assert (totals.fused, totals.unfused) == ((1, 0) if kind in ("baseline", "progressive") else (0, 1))


def broken(image: Image.Image) -> torch.Tensor:
    """An op that fails for one of the pictures."""
    if image.width == 33:
        raise ValueError("33 px")
    return v1.functional.to_tensor(image)


def test_a_picture_whose_sample_failed_counts_for_no_other(tmp_path: Path, make: Any) -> None:
    (tmp_path / "class").mkdir()
    Image.new("L", (33, 40)).save(tmp_path / "class" / "a.jpg")
    Image.new("P", (40, 40)).save(tmp_path / "class" / "b.png")
    loader = make(folder(tmp_path, broken), agent=None, batch_size=1)
    batches = iter(loader)
    with pytest.raises(ValueError, match="33 px"):
        next(batches)
    next(batches)
    assert (loader.report().totals.fused, loader.report().totals.unfused) == (0, 1)


@pytest.mark.parametrize("policy", ["no-off", "all-off", "resize-off", "auto"])
def test_so_they_are_beside_an_agent(make: Any, policy: str) -> None:
    def loader(**arguments: Any) -> Any:
        return make(policy=policy, num_workers=1, **arguments)

    ours, pillows = loader(options=QUICK), loader(options=replace(QUICK, fused=False))
    for _ in range(2):
        assert samples_of(ours) == samples_of(pillows)
    assert pillows.report().totals.fused == 0
    assert policy != "no-off" or ours.report().totals.fused > 0


def test_parts_of_files_go_the_same_way(make: Any) -> None:
    def loader(**options: Any) -> Any:
        chosen = replace(QUICK, verify=0.5, **options)
        return make(policy=Cropping(), num_workers=1, options=chosen)

    ours, pillows = loader(), loader(fused=False)
    assert samples_of(ours) == samples_of(pillows)
    totals = ours.report().totals
    assert totals.encodings["roi-jpeg"] > 10 and totals.fused >= totals.encodings["roi-jpeg"]
    assert totals.malformed == 0 and totals.verified > 5


def test_damaged_files_fail_as_with_pillow(tmp_path: Path, make: Any) -> None:
    make_tree(tmp_path, files=3, plain=True)
    file = io.BytesIO()
    picture(90, 80, 1).save(file, "JPEG")
    (tmp_path / "class_0" / "zzz.jpg").write_bytes(file.getvalue()[:-400])
    for on in (True, False):
        loader = make(folder(tmp_path, eval_transform()), agent=None, options=OffloadOptions(fused=on))
        with pytest.raises(OSError, match="image file is truncated"):
            list(loader)


def test_whoever_allows_truncated_files_gets_what_pillow_makes_of_them(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)
    make_tree(tmp_path, files=3, plain=True)
    file = io.BytesIO()
    picture(90, 80, 1).save(file, "JPEG")
    (tmp_path / "class_0" / "zzz.jpg").write_bytes(file.getvalue()[:-400])
    dataset = folder(tmp_path, eval_transform())
    ours = make(dataset, agent=None)
    assert samples_of(ours) == samples_of(make(dataset, agent=None, options=OffloadOptions(fused=False)))
    assert ours.report().totals.unfused >= 1
