"""Sample constructions of every registered op, with the kinds of values they take and give.

The contract tests run each of them; `tests/property/strategies.py` draws chains from them. Kinds: `pil` (RGB),
`u8` (uint8 tensor or tv_tensors.Image), `float` (float32, about 0 to 1), `norm` (float32 of any range). Every op
without a `size` keeps both sides of an image at 8 px or more, if they were before, so that any sequence can run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2

Kinds = tuple[str, ...]
PIL: Kinds = ("pil",)
U8: Kinds = ("u8",)
FLOAT: Kinds = ("float",)
BYTES: Kinds = ("pil", "u8")
TENSOR: Kinds = ("u8", "float", "norm")
COLOR: Kinds = ("pil", "u8", "float")
ANY: Kinds = ("pil", "u8", "float", "norm")

_MODULES: dict[str, Any] = {"v1": v1, "v2": v2}
_MEAN_STD = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_BICUBIC = InterpolationMode.BICUBIC
_BILINEAR = InterpolationMode.BILINEAR


@dataclass(frozen=True)
class Example:
    """One way to construct an op.

    Args:
        name: the registered name it must be described under.
        make: builds a fresh transform.
        takes: kinds of values it can be given.
        gives: kind of its result; None: the kind it was given.
        size: the (height, width) in px that it needs, if it needs one.
        contiguous: whether it refuses a tensor whose memory is shared between elements, or in another order, as
            some ops before it may leave it; chains do without it.
        grey: whether it turns an RGB image into one of a single channel.
    """

    name: str
    make: Callable[[], Any]
    takes: Kinds
    gives: str | None = None
    size: tuple[int, int] | None = None
    contiguous: bool = False
    grey: bool = False

    @property
    def keeps(self) -> bool:
        """Whether any op that could stand before it could also stand behind it."""
        return self.gives is None and self.size is None and not self.grey


def _matrix() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    n = 3 * 2 * 2
    matrix = torch.rand((n, n), generator=generator) / n
    return {"transformation_matrix": matrix, "mean_vector": torch.rand(n, generator=generator)}


# class -> (kinds, keyword arguments of each construction), for the classes that both modules have
_BOTH: dict[str, tuple[Kinds, list[dict[str, Any]]]] = {
    "AugMix": (BYTES, [{}, {"severity": 5, "mixture_width": 2, "chain_depth": 2, "alpha": 0.5, "all_ops": False}]),
    "AutoAugment": (BYTES, [{"policy": policy} for policy in AutoAugmentPolicy] + [{"fill": [1.0, 2.0, 3.0]}]),
    "CenterCrop": (ANY, [{"size": 8}, {"size": (9, 12)}, {"size": [11]}, {"size": 40}]),
    "ColorJitter": (
        COLOR,
        [
            {},
            {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
            {"brightness": (0.5, 0.9), "hue": (-0.2, 0.3)},
            {"contrast": [0.2, 3], "saturation": 0},
        ],
    ),
    "ElasticTransform": (
        ANY,
        [{"alpha": 30.0, "sigma": 0.5}, {"alpha": [10.0, 90.0], "sigma": [0.3, 0.6], "interpolation": _BICUBIC}],
    ),
    "GaussianBlur": (ANY, [{"kernel_size": 3}, {"kernel_size": (3, 5), "sigma": 0.7}, {"kernel_size": [5, 3]}]),
    "Grayscale": (COLOR, [{"num_output_channels": 3}]),
    "RandAugment": (
        BYTES,
        [{}, {"num_ops": 3, "magnitude": 5, "num_magnitude_bins": 11, "interpolation": _BILINEAR, "fill": [7, 8, 9]}],
    ),
    "RandomAdjustSharpness": (COLOR, [{"sharpness_factor": 2}, {"sharpness_factor": 0.3, "p": 0.9}]),
    "RandomAffine": (
        ANY,
        [
            {"degrees": 20},
            {"degrees": (-5, 40), "translate": (0.1, 0.2), "scale": (0.8, 1.2), "shear": 10},
            {"degrees": 0, "shear": [-5, 5, -3, 3], "interpolation": _BILINEAR, "center": [3, 4], "fill": 9},
            {"degrees": 0, "shear": (1, 2), "fill": (1, 2, 3)},
        ],
    ),
    "RandomAutocontrast": (COLOR, [{}, {"p": 1.0}]),
    "RandomCrop": (
        ANY,
        [
            {"size": 8},
            {"size": (8, 8)},
            {"size": [8], "padding": 2},
            {"size": 20, "padding": (1, 2), "pad_if_needed": True},
            {"size": 24, "padding": [1, 2, 3, 4], "pad_if_needed": True, "fill": 7},
            {"size": (12, 30), "pad_if_needed": True},
        ],
    ),
    "RandomEqualize": (BYTES, [{}, {"p": 1.0}]),
    "RandomErasing": (
        TENSOR,
        [{}, {"p": 1.0, "scale": (0.1, 0.2), "ratio": (0.5, 2)}, {"value": 3, "inplace": True}, {"value": (1, 2, 3)}],
    ),
    "RandomGrayscale": (ANY, [{}, {"p": 0.7}]),
    "RandomHorizontalFlip": (ANY, [{}, {"p": 0.3}]),
    "RandomInvert": (COLOR, [{}, {"p": 1.0}]),
    "RandomPerspective": (ANY, [{}, {"distortion_scale": 0.2, "p": 1.0, "interpolation": InterpolationMode.NEAREST}]),
    "RandomPosterize": (BYTES, [{"bits": 3}, {"bits": 6, "p": 1.0}]),
    "RandomResizedCrop": (
        ANY,
        [
            {"size": 16},
            {"size": (12, 20), "scale": (0.3, 0.7), "ratio": (0.5, 1.0), "interpolation": _BICUBIC},
            {"size": [13], "interpolation": InterpolationMode.NEAREST},
        ],
    ),
    "RandomRotation": (
        ANY,
        [
            {"degrees": 30},
            {"degrees": (10, 80), "expand": True, "interpolation": _BILINEAR, "fill": 3},
            {"degrees": [0, 90], "center": (4, 5), "fill": (5, 6, 7)},
        ],
    ),
    "RandomSolarize": (BYTES, [{"threshold": 128}, {"threshold": 64.5, "p": 1.0}]),
    "RandomVerticalFlip": (ANY, [{}]),
    "Resize": (
        ANY,
        [
            {"size": 24},
            {"size": (20, 28)},
            {"size": [17]},
            {"size": 16, "max_size": 900},
            {"size": [10, 11], "interpolation": _BICUBIC},
            {"size": 12, "interpolation": 0},
            {"size": 13, "interpolation": Image.Resampling.BICUBIC},
        ],
    ),
    "TrivialAugmentWide": (BYTES, [{}, {"num_magnitude_bins": 5, "fill": [1, 2, 3]}]),
}

_PADS: list[dict[str, Any]] = [
    {"padding": 2},
    {"padding": (1, 3), "fill": 5},
    {"padding": [1, 2, 3, 4], "padding_mode": "reflect"},
    {"padding": 3, "padding_mode": "edge"},
    {"padding": [2], "padding_mode": "symmetric"},
]

# JPEG: on a tensor it warns, in new versions, that it will leave torchvision.
_V2: dict[str, tuple[Kinds, list[dict[str, Any]]]] = {
    "GaussianNoise": (("u8", "float"), [{}, {"mean": 0.1, "sigma": 0.3, "clip": False}]),
    "Identity": (ANY, [{}]),
    "JPEG": (PIL, [{"quality": 30}, {"quality": (20, 90)}, {"quality": [5, 5]}]),
    "Pad": (
        ANY,
        [*_PADS, {"padding": 1, "fill": (1, 2, 3)}, {"padding": 1, "fill": {tv_tensors.Image: 9, "others": 4}}],
    ),
    "RGB": (COLOR, [{}]),
    "RandomChannelPermutation": (ANY, [{}]),
    "RandomCrop": (ANY, [{"size": 8, "padding": 0}, {"size": 10, "padding": 1, "fill": {"others": [1, 2, 3]}}]),
    "RandomPhotometricDistort": (COLOR, [{}, {"brightness": (0.5, 1.5), "hue": [-0.2, 0.1], "p": 0.9}]),
    "RandomResize": (ANY, [{"min_size": 10, "max_size": 20}]),
    "RandomShortestSize": (ANY, [{"min_size": 12}, {"min_size": (9, 14), "max_size": 500}]),
    "RandomZoomOut": (ANY, [{"side_range": (1.0, 1.5)}, {"fill": (9, 8, 7), "side_range": [1.1, 1.2], "p": 1.0}]),
    "Resize": (ANY, [{"size": 18, "interpolation": "bicubic"}]),
    "ToPureTensor": (ANY, [{}]),
}


def _silently(build: Callable[..., Any], **params: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build(**params)


def _from_table(prefix: str, table: dict[str, tuple[Kinds, list[dict[str, Any]]]]) -> Iterable[Example]:
    for cls, (takes, constructions) in table.items():
        for params in constructions:
            make = partial(getattr(_MODULES[prefix], cls), **params)
            yield Example(f"{prefix}.{cls}", make, takes, contiguous="inplace" in params)


def _of_both(prefix: str) -> Iterable[Example]:
    """Constructions that need more said than their kinds, for `v1` or `v2`."""
    module = _MODULES[prefix]

    def example(cls: str, takes: Kinds, gives: str | None = None, **params: Any) -> Example:
        make = partial(_silently, getattr(module, cls), **params)
        return Example(f"{prefix}.{cls}", make, takes, gives, contiguous="inplace" in params)

    yield example("ConvertImageDtype", U8, "float", dtype=torch.float32)
    yield example("ConvertImageDtype", FLOAT, "u8", dtype=torch.uint8)
    yield replace(example("Grayscale", COLOR), grey=True)
    yield replace(example("LinearTransformation", FLOAT, "norm", **_matrix()), size=(2, 2), contiguous=prefix == "v1")
    yield example("Normalize", FLOAT, "norm", **_MEAN_STD)
    yield example("Normalize", FLOAT, "norm", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), inplace=True)
    yield example("Normalize", FLOAT, "norm", mean=[0.1], std=[np.float32(0.3)])
    yield example("PILToTensor", PIL, "u8")
    yield example("RandomErasing", ("float", "norm"), value="random", p=0.8)
    yield example("RandomSolarize", FLOAT, threshold=0.5)
    yield example("RandomResizedCrop", TENSOR, size=14, antialias=False)
    yield example("Resize", TENSOR, size=14, antialias=None)
    yield example("ToPILImage", U8, "pil")
    yield example("ToPILImage", U8, "pil", mode="RGB")
    yield example("ToTensor", PIL, "float")


def _of_v1() -> Iterable[Example]:
    for params in _PADS:
        yield Example("v1.Pad", partial(v1.Pad, **params), ANY)
    yield Example("v1.Pad", lambda: v1.Pad(2, fill=(1, 2, 3)), PIL)


def _of_v2() -> Iterable[Example]:
    dtypes: dict[Any, Any] = {tv_tensors.Image: torch.float32, "others": torch.float32}
    yield Example("v2.ToDtype", lambda: v2.ToDtype(torch.float32, scale=True), U8, "float")
    yield Example("v2.ToDtype", lambda: v2.ToDtype(torch.uint8, scale=True), FLOAT, "u8")
    yield Example("v2.ToDtype", lambda: v2.ToDtype(dict(dtypes), scale=True), U8, "float")
    yield Example("v2.ToDtype", lambda: v2.ToDtype({torch.Tensor: None, "others": None}), ANY)
    yield Example("v2.ToImage", v2.ToImage, PIL, "u8")
    yield Example("v2.ToImage", v2.ToImage, TENSOR)
    yield Example("v2.Resize", lambda: v2.Resize(None, max_size=24), ANY, size=(20, 30))
    yield Example("v2.ScaleJitter", lambda: v2.ScaleJitter((24, 24), (0.5, 1.5)), ANY, size=(24, 24))


def _containers() -> Iterable[Example]:
    def add(name: str, make: Callable[[], Any], takes: Kinds = COLOR) -> Example:
        return Example(name, make, takes)

    yield add("v1.Compose", lambda: v1.Compose([v1.RandomCrop(8), v1.ColorJitter(0.4)]))
    yield add("v1.Compose", lambda: v1.Compose([v1.Resize(12)]), ANY)
    yield add("v2.Compose", lambda: v2.Compose([v2.RandomResizedCrop(9), v1.RandomGrayscale()]))
    yield add("v1.RandomApply", lambda: v1.RandomApply([v1.ColorJitter(0.4), v1.GaussianBlur(3)], p=0.8))
    yield add("v1.RandomApply", lambda: v1.RandomApply(nn.ModuleList([v1.RandomCrop(8), v1.RandomInvert()])))
    yield add("v2.RandomApply", lambda: v2.RandomApply([v2.RandomRotation(30), v1.RandomCrop(8)], p=0.3), ANY)
    yield add("v2.RandomApply", lambda: v2.RandomApply(nn.ModuleList([v2.RandomAffine(30)])), ANY)
    yield add("v1.RandomChoice", lambda: v1.RandomChoice([v1.Resize(9), v1.RandomCrop(8), v1.CenterCrop(10)]), ANY)
    yield add("v1.RandomChoice", lambda: v1.RandomChoice([v1.RandomInvert(), v2.Resize(11)], p=[0.7, 2]))
    yield add("v2.RandomChoice", lambda: v2.RandomChoice([v2.CenterCrop(8 + n) for n in range(6)]), ANY)
    yield add(
        "v2.RandomChoice", lambda: v2.RandomChoice([v2.Resize(9), v1.Resize(10), nn.Identity()], p=[1, 2, 4]), ANY
    )
    yield add("v1.RandomOrder", lambda: v1.RandomOrder([v1.Resize(12), v1.RandomCrop(8), v1.Pad(1)]), ANY)
    yield add("v2.RandomOrder", lambda: v2.RandomOrder([v2.Resize(12), v2.RandomCrop(8), v1.RandomChoice([v1.Pad(1)])]))
    yield add(
        "v2.RandomApply",
        lambda: v2.RandomApply([v1.RandomOrder([v1.RandomApply([v2.Compose([v1.RandomCrop(8)])]), v2.Resize(10)])]),
    )
    yield add("nn.Identity", nn.Identity, ANY)
    yield add("nn.Sequential", lambda: nn.Sequential(v2.RandomCrop(8), v2.RandomHorizontalFlip()), ANY)


EXAMPLES: list[Example] = [
    *_from_table("v1", _BOTH),
    *_from_table("v2", _BOTH),
    *_from_table("v2", _V2),
    *_of_both("v1"),
    *_of_both("v2"),
    *_of_v1(),
    *_of_v2(),
    *_containers(),
]

_GREY_READY = """
    CenterCrop ConvertImageDtype GaussianBlur Identity PILToTensor RandomHorizontalFlip RandomResizedCrop
    RandomVerticalFlip ToDtype ToImage ToPureTensor ToTensor
"""
GREY_READY = _GREY_READY.split()
"""Classes of which every construction above takes an image of a single channel."""


def example_ids(examples: Iterable[Example]) -> list[str]:
    """A readable, unique id for each example: its name and its number among those of the name."""
    seen: dict[str, int] = {}
    ids = []
    for example in examples:
        seen[example.name] = seen.get(example.name, -1) + 1
        ids.append(f"{example.name}-{seen[example.name]}")
    return ids


def by_name(examples: Sequence[Example]) -> dict[str, list[tuple[str, Example]]]:
    """Name of an op -> its examples, each behind its id."""
    found: dict[str, list[tuple[str, Example]]] = {}
    for label, example in zip(example_ids(examples), examples, strict=True):
        found.setdefault(example.name, []).append((label, example))
    return found


@lru_cache(maxsize=256)
def _pixels(height: int, width: int, seed: int) -> np.ndarray:
    """Drawn once, since values are copies of them; nobody may write to them."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    return pixels


def value_of(kind: str, height: int = 21, width: int = 17, seed: int = 0) -> Any:
    """A random value of a kind, `height` x `width` px."""
    pixels = _pixels(height, width, seed)
    if kind == "pil":
        return Image.fromarray(pixels)
    tensor = torch.tensor(pixels).permute(2, 0, 1).contiguous()
    if kind == "u8":
        return tensor
    return tensor / 255 if kind == "float" else (tensor / 255 - 0.5) * 4


def same_value(a: Any, b: Any) -> bool:
    """Whether two values are of one class and equal, bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Image.Image):
        return (a.mode, a.size) == (b.mode, b.size) and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        same_type = a.dtype == b.dtype and a.shape == b.shape
        return same_type and a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()
    return bool(a == b)
