"""Transforms that hold a whole pipeline, as torchvision and timm have them: taken apart, and the same bits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from timm.data import create_transform
from timm.data.random_erasing import RandomErasing
from torch import nn
from torchvision import transforms as v1
from torchvision.models import get_weight
from torchvision.transforms import v2

from sophon_loader.datasets.pipelines import pipeline_of, same_pipeline
from sophon_loader.pipeline.chain import Chain, chain_from, chain_of, description_of
from sophon_loader.pipeline.op import Op, OpSpec
from sophon_loader.pipeline.op_registry import op_of
from sophon_loader.pipeline.presets import steps_of
from sophon_loader.pipeline.randomness import Draw
from tests.support.op_examples import same_value
from tests.support.pictures import picture

WEIGHTS = tuple(
    f"{name}.IMAGENET1K_{version}"
    for name, version in [("ResNet50_Weights", "V1"), ("ResNet50_Weights", "V2"), ("ViT_L_16_Weights", "SWAG_E2E_V1")]
)
TIMM: list[dict[str, Any]] = [
    {"is_training": True},
    {"is_training": True, "auto_augment": "rand-m7-mstd0.5-inc1", "re_prob": 0.9, "re_mode": "pixel", "re_count": 2},
    {"is_training": True, "auto_augment": "original-mstd0.5", "interpolation": "random", "vflip": 0.5},
    {"is_training": True, "auto_augment": "augmix-m5-w4-d2", "use_prefetcher": True},
    {"is_training": True, "color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
    {"is_training": True, "train_crop_mode": "rkrc"},
    {"is_training": True, "train_crop_mode": "rkrr", "auto_augment": "3a"},
    {"is_training": True, "no_aug": True},
    {},
    {"crop_pct": 0.9, "interpolation": "bicubic", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    {"crop_mode": "border"},
    {"crop_mode": "squash", "crop_border_pixels": 3},
    {"input_size": (3, 40, 52), "normalize": False},
]


class Train:
    """What torchvision's reference script for classification trains with, in the same form."""

    def __init__(self, module: Any, augment: Any) -> None:
        steps = [module.RandomResizedCrop(40, antialias=True), module.RandomHorizontalFlip(0.5), augment]
        to_float = v2.ToDtype(torch.float, scale=True) if module is v2 else v1.ConvertImageDtype(torch.float)
        steps += [module.PILToTensor(), to_float, module.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
        self.transforms = module.Compose([*steps, module.RandomErasing(p=0.5)])

    def __call__(self, img: Any) -> Any:
        """As there."""
        return self.transforms(img)


def values(chain: Chain, upto: int | None = None) -> list[Any]:
    """Pictures run through a chain, in two runs if a stage is given."""
    found = []
    with chain.isolated():
        for index in range(6):
            value, draw = picture(90, 70 - 5 * index, index), Draw(7, 0, index)
            if upto is not None:
                value = chain_from(chain.description).run(value, 1, upto, draw)
            found.append(chain.run(value, upto or 1, len(chain), draw))
    return found


def alike(one: list[Any], other: list[Any]) -> bool:
    return all(map(same_value, one, other))


def assert_any_cut_gives_the_same(transform: Any) -> None:
    chain = chain_of(transform)
    assert (chain.local_ops, len(chain_from(chain.description))) == ((), len(chain))
    whole = values(chain)
    assert all(alike(values(chain, stage), whole) for stage in range(2, len(chain)))


@pytest.mark.parametrize("arguments", TIMM, ids=lambda arguments: ",".join(map(str, arguments.values())) or "eval")
def test_timm_s_presets_are_known_op_by_op(arguments: dict[str, Any]) -> None:
    assert_any_cut_gives_the_same(create_transform(**{"input_size": 40, **arguments}))


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("augment", ["RandAugment", "TrivialAugmentWide", "AugMix", "AutoAugment"])
def test_presets_like_those_of_torchvision_s_reference_scripts(module: Any, augment: str) -> None:
    assert_any_cut_gives_the_same(Train(module, getattr(module, augment)()))


def test_presets_of_a_module_without_the_imports_from_the_future_of_ours() -> None:
    """As those scripts are: such an import is a flag of all code behind it."""
    names: dict[str, Any] = {}
    text = "class Plain:\n    def __call__(self, img):\n        return self.transforms(img)\n"
    exec(compile(text, "presets.py", "exec", dont_inherit=True), names)
    transform = names["Plain"]()
    transform.transforms = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])
    assert steps_of(transform) == transform.transforms.transforms


def test_a_preset_whose_class_is_defined_in_a_function() -> None:
    """That is a flag of its code, too."""

    class Within:
        def __init__(self) -> None:
            self.transforms = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])

        def __call__(self, img: Any) -> Any:
            return self.transforms(img)

    transform = Within()
    assert steps_of(transform) == transform.transforms.transforms


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_presets_of_weights(name: str) -> None:
    preset = get_weight(name).transforms()
    image = picture(300, 200, 1)
    chain = chain_of(v1.Compose([v1.RandomHorizontalFlip(0.0), preset]))
    labels = "v1.RandomHorizontalFlip v1.Resize v1.CenterCrop v1.PILToTensor v1.ConvertImageDtype v1.Normalize"
    assert [op.label for op in chain.ops[1:]] == labels.split()
    with chain.isolated():
        assert same_value(chain.run(image, 1, len(chain), Draw(0, 0, 0)), preset(image))


def test_a_preset_that_was_changed_is_followed_or_stays_whole() -> None:
    class Owner:
        transform: Any = get_weight(WEIGHTS[0]).transforms()
        target_transform = None

    first = pipeline_of(Owner)
    assert same_pipeline(first, pipeline_of(Owner)), "its steps are made anew at each look"
    Owner.transform.mean = [0.1, 0.2, 0.3]
    assert not same_pipeline(first, pipeline_of(Owner))
    Owner.transform.crop_size = [30, 40]
    assert chain_of(Owner.transform).local_ops == ("ImageClassification",)


class Twice(Train):
    def __call__(self, img: Any) -> Any:
        return self.transforms(self.transforms(img))


class Counting(Train):
    calls = 0

    def __call__(self, img: Any) -> Any:
        self.calls += 1
        return self.transforms(img)


class AsModule(nn.Module):
    """Hooks may be called along with it."""

    def __init__(self) -> None:
        super().__init__()
        self.transforms = v1.Compose([v1.CenterCrop(8)])

    def forward(self, img: Any) -> Any:
        return self.transforms(img)


class Several(Train):
    def __call__(self, *img: Any) -> Any:
        return self.transforms(img)


@pytest.mark.parametrize("kind", [Twice, Counting, Several])
def test_what_does_more_than_call_its_compose_stays_whole(kind: Any) -> None:
    transform = kind(v1, v1.RandAugment())
    assert steps_of(transform) == [transform] and chain_of(transform).describable == 1


def test_what_holds_no_compose_stays_whole() -> None:
    transform = Train(v1, v1.RandAugment())
    transform.transforms = v1.CenterCrop(8)
    for whole in (transform, AsModule(), len, None, v1.CenterCrop(8)):
        assert steps_of(whole) == [whole]


def test_a_timm_op_of_another_release_is_not_known() -> None:
    ops = chain_of(create_transform(40, is_training=True)).ops
    assert [op.spec.name for op in ops[1:2]] == [ops[1].label] and ops[1].label.startswith("timm.")
    other = Op("", len, (), OpSpec(ops[1].label.partition("@")[0] + "@0.1.0", dict(ops[1].spec.params)))
    assert len(chain_from(description_of(ops))) == len(ops)
    assert len(chain_from(description_of([ops[0], other, *ops[2:]]))) == 1


def test_erasing_on_a_gpu_stays_at_the_loader() -> None:
    assert op_of(RandomErasing(device="cuda")).spec is None
    assert op_of(RandomErasing(device="cpu")).spec is not None


WITHOUT = """
import sys
import torchvision.transforms as v1
import sophon_loader.loader
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.op_registry import knows
assert chain_of(v1.Resize(8)).describable == 2 and "timm" not in sys.modules
sys.modules["timm"] = None
assert not knows("timm.RandAugment@1.0.0") and knows("v1.Resize")
"""


@pytest.mark.slow_start
def test_timm_is_loaded_only_where_it_is_met_and_need_not_be_there() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True, timeout=150)
