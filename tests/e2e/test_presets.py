"""The transforms that people have, over a real agent: its ops run there, and the samples stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from timm.data import create_transform
from torchvision.models import get_weight

from sophon_loader import OffloadingDataLoader
from tests.support.loaders import run_epoch, samples_of
from tests.support.pictures import folder

FILES = 24
LOADER = {"batch_size": 7, "policy": "all-off", "seed": 3}


def timm_train() -> Any:
    return create_transform(
        48, is_training=True, auto_augment="rand-m7-mstd0.5-inc1", re_prob=0.5, re_mode="pixel", interpolation="random"
    )


def weights() -> Any:
    return get_weight("ResNet18_Weights.IMAGENET1K_V1").transforms()


PRESETS = [
    (timm_train, "all-off", {7}, {"array"}),
    (timm_train, "resize-off", {2}, {"pixels"}),
    (timm_train, "auto", None, None),  # which begins with the part of the file that the crop reads
    (weights, "all-off", {6}, {"array"}),
]


@pytest.mark.parametrize(("preset", "policy", "cuts", "encodings"), PRESETS)
def test_presets_are_offloaded(
    root: Path, make: Any, preset: Callable[[], Any], policy: str, cuts: Any, encodings: Any
) -> None:
    dataset = folder(root, preset())
    expected = run_epoch(OffloadingDataLoader(dataset, 7, seed=3))
    loader = make(dataset, policy=policy)
    assert samples_of(loader) == expected
    report = loader.report().as_dict()
    assert (report["fallbacks"], report["degraded"]) == (0, 0)
    if cuts is None:
        assert "roi-jpeg" in report["choices"]
    else:
        assert (set(report["cuts"]), set(report["choices"])) == (cuts, encodings)
