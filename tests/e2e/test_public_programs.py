"""Public training programs with one line changed: losses are the same with an agent, which has prepared pictures.

Each program is written as its project writes it (torchvision's references, DINO, accelerate, transformers), with a
small model and small pictures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms, tv_tensors
from torchvision.transforms import functional as F
from torchvision.transforms import v2

from sophon_loader import OffloadingDataLoader
from sophon_loader.recording.opener import can_defer
from tests.support.agents import Agent, agent_for
from tests.support.pictures import picture

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
FILES, CLASSES = 12, 3
MakeLoader = Callable[..., Any]
"""torch's `DataLoader`, or what stands in its place."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same pictures as VOC's folders, as those of COCO, and as a folder per class."""
    root = tmp_path_factory.mktemp("public") / "data"
    voc = root / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (voc / name).mkdir(parents=True)
    names = [f"2012_{number:06}" for number in range(FILES)]
    (voc / "ImageSets/Segmentation/train.txt").write_text("\n".join(names))
    boxes = []
    for number, name in enumerate(names):
        width, height = 560 + 10 * (number % 4), 440
        image = picture(width, height, number)
        image.save(voc / "JPEGImages" / f"{name}.jpg", quality=95)
        folder = root / "folder" / f"class{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"pet_{number}.jpg", quality=95)
        mask = Image.fromarray(np.asarray(image.convert("L")) // 64, "P")
        mask.putpalette([value for color in range(256) for value in (color, 255 - color, 7 * color % 256)])
        mask.save(voc / "SegmentationClass" / f"{name}.png")
        boxes += [
            {"image_id": number, "category_id": 1 + number % CLASSES, "bbox": [20 * box, 30, 90, 80 + number]}
            for box in range(1 + number % 3)
        ]
    images = [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate(names)]
    (root / "instances.json").write_text(json.dumps({"images": images, "annotations": boxes}))
    return root


@pytest.fixture(scope="module")
def agent(data: Path) -> Iterator[Agent]:
    with agent_for({"data": data}) as running:
        yield running.ready()


def trained(loader: Any, model: nn.Module, loss_of: Callable[..., torch.Tensor]) -> list[float]:
    """The losses of one epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in loader:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# --- torchvision's segmentation reference ---------------------------------------------------------------------


class PairedTransforms:
    """Those of the reference for its backend "PIL", on a picture and its mask."""

    def __call__(self, image: Any, target: Any) -> Any:
        size = [int(torch.randint(200, 300, (1,)))]
        image, target = F.resize(image, size), F.resize(target, size, F.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, target = F.hflip(image), F.hflip(target)
        box = transforms.RandomCrop.get_params(image, (96, 96))
        image, target = F.crop(image, *box), F.crop(target, *box)
        target = torch.as_tensor(np.array(target), dtype=torch.int64)
        image = F.convert_image_dtype(F.pil_to_tensor(image), torch.float)
        return F.normalize(image, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), target


def paired() -> Any:
    return PairedTransforms()


def typed() -> Any:
    """Those for its datapoints, with masks as `tv_tensors.Mask`."""
    chain = v2.Compose(
        [
            v2.RandomCrop(200),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype({tv_tensors.Mask: torch.int64, "others": torch.float32}, scale=True),
        ]
    )
    return lambda image, target: chain(image, tv_tensors.Mask(F.pil_to_tensor(target)[0]))


def segmentation(data: Path, loader_of: MakeLoader, transforms_of: Callable[[], Any]) -> Any:
    dataset = datasets.VOCSegmentation(str(data), image_set="train", transforms=transforms_of())
    loader = loader_of(dataset, batch_size=4, shuffle=True, num_workers=1, drop_last=True)
    model = nn.Conv2d(3, 256, 3, padding=1)
    return loader, trained(loader, model, lambda model, one: nn.functional.cross_entropy(model(one[0]), one[1]))


# --- torchvision's detection reference ------------------------------------------------------------------------


class CocoDetection(datasets.VisionDataset):
    """torchvision's, without the need of pycocotools, and with boxes as v2 takes them."""

    def __init__(self, root: str, annotations: Path, transforms: Any) -> None:
        super().__init__(root, transforms)
        told = json.loads(annotations.read_text())
        self.names = {one["id"]: one["file_name"] for one in told["images"]}
        self.ids = sorted(self.names)
        self.annotations = told["annotations"]

    def _load_image(self, number: int) -> Image.Image:
        return Image.open(Path(self.root) / self.names[number]).convert("RGB")

    def _load_target(self, number: int, size: tuple[int, int]) -> Any:
        mine = [one for one in self.annotations if one["image_id"] == number]
        boxes: Any = tv_tensors.BoundingBoxes(
            [one["bbox"] for one in mine],
            format="XYWH",
            canvas_size=(size[1], size[0]),
        )
        boxes = v2.functional.convert_bounding_box_format(boxes, new_format="XYXY")
        return {"image_id": number, "boxes": boxes, "labels": torch.tensor([one["category_id"] for one in mine])}

    def __getitem__(self, index: int) -> Any:
        number = self.ids[index]
        image = self._load_image(number)
        target = self._load_target(number, image.size)
        assert self.transforms is not None
        return self.transforms(image, target)

    def __len__(self) -> int:
        return len(self.ids)


LARGE_JITTER = (v2.ScaleJitter((80, 80), (1.0, 2.0)), v2.RandomCrop((60, 60), pad_if_needed=True))
"""The reference's "lsj", which resizes first."""
SSD = (v2.RandomPhotometricDistort(), v2.RandomIoUCrop(), v2.Resize((120, 120)))
"""Its "ssd", which changes colours first."""


def detection(data: Path, loader_of: MakeLoader, first: tuple[Any, ...]) -> Any:
    rest = (v2.RandomHorizontalFlip(), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True))
    chain = v2.Compose([*first, *rest, v2.SanitizeBoundingBoxes(min_size=1)])
    images = data / "VOCdevkit" / "VOC2012" / "JPEGImages"
    dataset = CocoDetection(str(images), data / "instances.json", chain)
    loader = loader_of(
        dataset, batch_size=3, shuffle=True, num_workers=1, collate_fn=lambda batch: tuple(zip(*batch, strict=True))
    )
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        images, targets = batch
        means = [target["boxes"].float().sum(0) / 500 for target in targets]
        found = torch.cat([model(image[None]) for image in images])
        return nn.functional.smooth_l1_loss(found, torch.stack(means).as_subclass(torch.Tensor))

    return loader, trained(loader, model, loss_of)


# --- a class of one's own with masks --------------------------------------------------------------------------


class Carvana(Dataset[Any]):
    """The dataset of a U-Net: picture and mask by name, both resized, and given in a dictionary."""

    def __init__(self, images: Path, masks: Path) -> None:
        self.images, self.masks = images, masks
        self.ids = sorted(path.stem for path in images.iterdir())

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        mask = Image.open(self.masks / f"{self.ids[index]}.png")
        image = Image.open(self.images / f"{self.ids[index]}.jpg")
        assert image.size == mask.size
        size = (image.width // 8, 55)
        small = np.asarray(image.resize(size, resample=Image.Resampling.BICUBIC)).transpose(2, 0, 1) / 255
        wanted = np.asarray(mask.resize(size, resample=Image.Resampling.NEAREST))
        small, wanted = small[:, :, :70], wanted[:, :70]
        return {"image": torch.as_tensor(small.copy()).float(), "mask": torch.as_tensor(wanted.copy()).long()}


def masks(data: Path, loader_of: MakeLoader) -> Any:
    voc = data / "VOCdevkit" / "VOC2012"
    dataset = Carvana(voc / "JPEGImages", voc / "SegmentationClass")
    loader = loader_of(dataset, batch_size=4, shuffle=True, num_workers=1)
    model = nn.Conv2d(3, 256, 3, padding=1)
    loss_of = nn.functional.cross_entropy
    return loader, trained(loader, model, lambda model, one: loss_of(model(one["image"]), one["mask"]))


# --- DINO -----------------------------------------------------------------------------------------------------


class MultiCrop:
    """DINO's augmentation: two global crops and several local ones of a picture."""

    def __init__(self, local_crops: int = 4) -> None:
        jitter = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
        end = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.25] * 3)])
        flip, cubic = transforms.RandomHorizontalFlip(), transforms.InterpolationMode.BICUBIC
        whole = transforms.RandomResizedCrop(64, scale=(0.4, 1.0), interpolation=cubic)
        part = transforms.RandomResizedCrop(32, scale=(0.05, 0.4), interpolation=cubic)
        self.of_all = transforms.Compose([whole, flip, jitter, transforms.RandomSolarize(128, 0.2), end])
        self.of_parts = transforms.Compose([part, flip, jitter, end])
        self.local_crops = local_crops

    def __call__(self, image: Any) -> list[Any]:
        return [self.of_all(image), self.of_all(image)] + [self.of_parts(image) for _ in range(self.local_crops)]


class Unlabelled(datasets.ImageFolder):
    """A folder of pictures whose labels nobody needs."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


def dino(data: Path, loader_of: MakeLoader) -> Any:
    loader = loader_of(Unlabelled(str(data / "folder"), MultiCrop()), batch_size=4, shuffle=True, num_workers=1)
    model = nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16))

    def loss_of(model: nn.Module, views: Any) -> torch.Tensor:
        teacher = model(torch.cat(views[:2])).softmax(1).detach().chunk(2)
        return torch.stack([-(one * model(view).log_softmax(1)).mean() for one in teacher for view in views]).sum()

    return loader, trained(loader, model, loss_of)


# --- accelerate's and transformers' examples ------------------------------------------------------------------


class PetsDataset(Dataset[Any]):
    """That of accelerate's `cv_example.py`."""

    def __init__(self, files: list[Path], image_transform: Any) -> None:
        self.files, self.image_transform = files, image_transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = self.image_transform(Image.open(self.files[index]).convert("RGB"))
        return {"image": image, "label": int(self.files[index].parent.name[-1])}


def pets(data: Path, transform: Any) -> PetsDataset:
    return PetsDataset(sorted((data / "folder").rglob("*.jpg")), transform)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 7, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


def accelerated(data: Path, loader_of: MakeLoader) -> Any:
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    dataset = pets(data, transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()]))
    loader = loader_of(dataset, shuffle=True, batch_size=4, num_workers=1)
    model, batches = accelerator.prepare(classifier(), loader)

    def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model((batch["image"] - 0.45) / 0.22), batch["label"])

    return batches, trained(batches, model, loss_of)


def processed(image: Any, processor: Any) -> Any:
    return processor(image, return_tensors="pt")["pixel_values"][0]


def transformers_example(data: Path, loader_of: MakeLoader, processor_crops: bool) -> Any:
    """Its image classification: `_transforms` as its `with_transform`, or the processor inside of the dataset."""
    hugging_face: Any = pytest.importorskip("transformers")
    if processor_crops:
        processor = hugging_face.ViTImageProcessor(size={"height": 64, "width": 64})
        dataset = pets(data, partial(processed, processor=processor))
    else:
        steps = [transforms.RandomResizedCrop(64), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        dataset = pets(data, transforms.Compose([*steps, transforms.Normalize([0.5] * 3, [0.5] * 3)]))
    shape: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hugging_face.ViTConfig(image_size=64, patch_size=16, intermediate_size=32, num_labels=CLASSES, **shape)
    model = hugging_face.ViTForImageClassification(config)
    loader = loader_of(dataset, batch_size=4, shuffle=True, num_workers=1)
    return loader, trained(loader, model, lambda model, one: model(pixel_values=one["image"], labels=one["label"]).loss)


PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "segmentation": (partial(segmentation, transforms_of=paired), FILES),
    "segmentation-v2": (partial(segmentation, transforms_of=typed), FILES),
    "detection-lsj": (partial(detection, first=LARGE_JITTER), FILES),
    "detection-ssd": (partial(detection, first=SSD), 0),
    "masks": (masks, FILES),
    "dino": (dino, 0),
    "accelerate": (accelerated, FILES),
    "transformers": (partial(transformers_example, processor_crops=False), FILES),
    "transformers-processor": (partial(transformers_example, processor_crops=True), 0),
}
"""Programs, and how many pictures the agent prepares at least. Those are few where a program changes colours, takes an
array, or makes several views before it crops: the agent then sends files."""


def losses_of(program: Callable[..., Any], data: Path, loader_of: MakeLoader) -> tuple[Any, list[float]]:
    """The loader of a program, and its losses."""
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    loader, losses = program(data, loader_of)
    return loader, losses


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_learns_the_same_from_pictures_that_an_agent_has_prepared(
    data: Path, agent: Agent, name: str
) -> None:
    program, least = PROGRAMS[name]
    # Within so few samples, `auto` would learn too little of the network to be the same each time.
    offloaded: dict[str, Any] = {"agent": agent.address("data"), "policy": "resize-off"}
    _, expected = losses_of(program, data, DataLoader)
    loader, found = losses_of(program, data, partial(OffloadingDataLoader, **offloaded))
    report = loader.report().as_dict()
    loader.close()
    assert found == expected and len(found) > 2
    prepared = sum(count for encoding, count in report["choices"].items() if encoding != "file")
    assert prepared >= least and not report["fallbacks"], report
