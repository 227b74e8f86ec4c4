"""Tiny copies of the folders that datasets of torchvision and timm expect, and the datasets over them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.io import savemat
from timm.data import ImageDataset
from torchvision import datasets
from torchvision.datasets.folder import default_loader
from torchvision.transforms import v2

from tests.support.pictures import picture

PER_CLASS = 3
Transform = Any


def put(path: Path, *, grey: bool = False) -> None:
    """A picture, another one for each name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = picture(40 + len(path.name), 50, sum(map(ord, str(path.name))) + len(path.parent.name))
    (image.convert("L") if grey else image).save(path)


def put_some(folder: Path, form: str = "{:03}.jpg", count: int = PER_CLASS) -> list[str]:
    names = [form.format(n) for n in range(1, count + 1)]
    for name in names:
        put(folder / name)
    return names


def image_net(root: Path, **arguments: Any) -> Any:
    for wnid in ("n01440764", "n02102040"):
        put_some(root / "train" / wnid, "{:03}.JPEG")
    torch.save(({"n01440764": ("tench",), "n02102040": ("springer",)}, []), root / "meta.bin")
    return datasets.ImageNet(root, "train", **arguments)


def flowers(root: Path, **arguments: Any) -> Any:
    folder = root / "flowers-102"
    put_some(folder / "jpg", "image_{:05}.jpg", 6)
    savemat(folder / "imagelabels.mat", {"labels": [[3, 1, 2, 3, 1, 2]]})
    savemat(folder / "setid.mat", {"trnid": [[2, 4, 5]], "valid": [[1, 3]], "tstid": [[6, 2]]})
    unchecked = {key: (name, None) for key, (name, _) in datasets.Flowers102._file_dict.items()}
    with patch.object(datasets.Flowers102, "_file_dict", unchecked):
        return datasets.Flowers102(root, "train", **arguments)


def food(root: Path, **arguments: Any) -> Any:
    folder = root / "food-101"
    listed = {name: [f"{name}/{n}" for n in range(1, 4)] for name in ("ramen", "pho")}
    for name in listed:
        put_some(folder / "images" / name, "{}.jpg")
    (folder / "meta").mkdir()
    (folder / "meta" / "train.json").write_text(json.dumps(listed))
    return datasets.Food101(root, **arguments)


def pets(root: Path, **arguments: Any) -> Any:
    folder = root / "oxford-iiit-pet"
    names = [name.removesuffix(".jpg") for name in put_some(folder / "images", "Beagle_{}.jpg", 5)]
    (folder / "annotations").mkdir()
    lines = [f"{name} {1 + n // 3} {1 + n % 2} 1\n" for n, name in enumerate(names)]
    (folder / "annotations" / "trainval.txt").write_text("".join(lines))
    return datasets.OxfordIIITPet(root, **arguments)


def euro_sat(root: Path, **arguments: Any) -> Any:
    for name in ("Forest", "River"):
        put_some(root / "eurosat" / "2750" / name)
    return datasets.EuroSAT(root, **arguments)


def caltech_101(root: Path, **arguments: Any) -> Any:
    for name in ("BACKGROUND_Google", "ant", "bass"):
        put_some(root / "caltech101" / "101_ObjectCategories" / name, "image_{:04}.jpg")
    put(root / "caltech101" / "101_ObjectCategories" / "ant" / "image_0002.jpg", grey=True)
    return datasets.Caltech101(root, **arguments)


def caltech_256(root: Path, **arguments: Any) -> Any:
    for number, name in enumerate(("001.ak47", "002.flag"), 1):
        put_some(root / "caltech256" / "256_ObjectCategories" / name, f"{number:03}_{{:04}}.jpg")
    return datasets.Caltech256(root, **arguments)


def country(root: Path, **arguments: Any) -> Any:
    for name in ("AD", "ZW"):
        put_some(root / "country211" / "valid" / name)
    return datasets.Country211(root, "valid", **arguments)


def aircraft(root: Path, **arguments: Any) -> Any:
    folder = root / "fgvc-aircraft-2013b" / "data"
    names = put_some(folder / "images")
    (folder / "variants.txt").write_text("707-320\nA 340\n")
    lines = [f"{name.removesuffix('.jpg')} {('A 340', '707-320')[n % 2]}\n" for n, name in enumerate(names)]
    (folder / "images_variant_trainval.txt").write_text("".join(lines))
    return datasets.FGVCAircraft(root, **arguments)


def cars(root: Path, **arguments: Any) -> Any:
    folder = root / "stanford_cars"
    names = put_some(folder / "cars_train")
    (folder / "devkit").mkdir()
    rows = np.array([(name, 2 - n % 2) for n, name in enumerate(names)], [("fname", object), ("class", object)])
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": rows})
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi", "Fiat"], object)})
    return datasets.StanfordCars(root, **arguments)


def textures(root: Path, **arguments: Any) -> Any:
    folder = root / "dtd" / "dtd"
    names = [f"{cls}/{name}" for cls in ("banded", "dotted") for name in put_some(folder / "images" / cls)]
    (folder / "labels").mkdir()
    (folder / "labels" / "train1.txt").write_text("\n".join(names))
    return datasets.DTD(root, **arguments)


def scenes(root: Path, **arguments: Any) -> Any:
    folder = root / "SUN397"
    for name in ("a/abbey", "b/bar/indoor"):
        put_some(folder / name, "sun_{}.jpg")
    (folder / "ClassName.txt").write_text("/a/abbey\n/b/bar/indoor\n")
    return datasets.SUN397(root, **arguments)


def places(root: Path, **arguments: Any) -> Any:
    names = put_some(root / "val_256", "Places365_val_{}.jpg")
    (root / "categories_places365.txt").write_text("/a/abbey 0\n/b/bar 1\n")
    (root / "places365_val.txt").write_text("".join(f"{name} {n % 2}\n" for n, name in enumerate(names)))
    with patch("torchvision.datasets.places365.check_integrity", lambda file, md5: True):
        return datasets.Places365(root, "val", small=True, **arguments)


def sentiment(root: Path, **arguments: Any) -> Any:
    for name in ("negative", "positive"):
        put_some(root / "rendered-sst2" / "train" / name, "{}.png")
    return datasets.RenderedSST2(root, **arguments)


def signs(root: Path, **arguments: Any) -> Any:
    for name in ("00000", "00001"):
        put_some(root / "gtsrb" / "GTSRB" / "Training" / name, "{}.ppm")
    return datasets.GTSRB(root, **arguments)


def naturalist(root: Path, **arguments: Any) -> Any:
    for name in ("Aves/0", "Aves/2", "Fungi/1"):
        put_some(root / "2018" / name)
    return datasets.INaturalist(root, "2018", **arguments)


def imagenette(root: Path, **arguments: Any) -> Any:
    for wnid in ("n01440764", "n02102040"):
        put_some(root / "imagenette2" / "train" / wnid, "{:03}.jpeg")
    return datasets.Imagenette(root, **arguments)


def clevr(root: Path, **arguments: Any) -> Any:
    folder = root / "clevr" / "CLEVR_v1.0"
    names = put_some(folder / "images" / "train", "CLEVR_{}.png")
    (folder / "scenes").mkdir()
    found = [{"image_filename": name, "objects": [{}] * n} for n, name in enumerate(names)]
    (folder / "scenes" / "CLEVR_train_scenes.json").write_text(json.dumps({"scenes": found}))
    return datasets.CLEVRClassification(root, **arguments)


def of_timm(root: Path, **arguments: Any) -> Any:
    for name in ("cat", "dog"):
        put_some(root / "deep" / name)
    return ImageDataset(str(root), **arguments)


def minus(target: Any) -> Any:
    return -1 - target


KNOWN: dict[str, Callable[..., Any]] = {
    "ImageNet": image_net,
    "Flowers102": flowers,
    "Food101": food,
    "OxfordIIITPet": pets,
    "OxfordIIITPet-both": partial(pets, target_types=["category", "binary-category"]),
    "EuroSAT": euro_sat,
    "Country211": country,
    "FGVCAircraft": aircraft,
    "StanfordCars": cars,
    "DTD": textures,
    "SUN397": scenes,
    "Places365": places,
    "RenderedSST2": sentiment,
    "GTSRB": signs,
    "INaturalist": partial(naturalist, loader=default_loader),
    "INaturalist-both": partial(naturalist, loader=default_loader, target_type=["super", "full"]),
    "Imagenette": imagenette,
    "CLEVR": clevr,
    "timm": of_timm,
}
"""Those that open their files as RGB."""
AS_IT_IS: dict[str, Callable[..., Any]] = {
    "Caltech101": caltech_101,
    "Caltech256": caltech_256,
    "INaturalist": naturalist,
}
"""Those that open them in the mode of the file."""
RGB = v2.RGB
