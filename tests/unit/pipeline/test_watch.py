"""What a look at transforms tells of them later."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.watch import Watch
from tests.support.op_examples import EXAMPLES, Example, example_ids, value_of


def watch(transform: Any) -> Watch:
    return Watch([transform], [op.call for op in chain_of(transform).ops if op.spec is not None])


def pipeline() -> Any:
    steps = [v2.RandomApply([v2.RandomRotation(3)], 0.5), v1.ToTensor(), v1.Normalize(torch.ones(3), np.ones(3))]
    return v1.Compose([v1.RandomResizedCrop([24, 24], [0.5, 1.0]), nn.Sequential(*steps[:1]), v1.Compose(steps[1:])])


def _set(get: Callable[[Any], Any], name: str, value: Any) -> Callable[[Any], None]:
    return lambda transform: setattr(get(transform), name, value)


def _item(get: Callable[[Any], Any], value: Any) -> Callable[[Any], None]:
    def change(transform: Any) -> None:
        get(transform)[0] = value

    return change


CHANGES = {
    "attribute": _set(lambda t: t.transforms[0], "antialias", False),
    "item": _item(lambda t: t.transforms[0].scale, 0.25),
    "step": _item(lambda t: t.transforms, v1.CenterCrop(8)),
    "appended": lambda t: t.transforms.append(abs),
    "nested list": lambda t: t.transforms[2].transforms.clear(),
    "in a sequence": _item(lambda t: t.transforms[1], v1.CenterCrop(8)),
    "held by an op": _set(lambda t: t.transforms[1][0].transforms[0], "degrees", [0.0, 9.0]),
    "held list": lambda t: t.transforms[1][0].transforms.append(v2.RandomHorizontalFlip()),
    "probability": _set(lambda t: t.transforms[1][0], "p", 1.0),
    "tensor": _item(lambda t: t.transforms[2].transforms[1].mean, 0.5),
    "array": _item(lambda t: t.transforms[2].transforms[1].std, 0.5),
    "another tensor": _set(lambda t: t.transforms[2].transforms[1], "mean", torch.zeros(3)),
    "hook": lambda t: t.transforms[0].register_forward_hook(print),
    "new attribute": _set(lambda t: t.transforms[0], "forward", abs),
    "of a tensor's memory": lambda t: t.transforms[2].transforms[1].mean.numpy().fill(3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_seen(name: str) -> None:
    transform = pipeline()
    looked = watch(transform)
    assert not looked.changed()
    CHANGES[name](transform)
    assert looked.changed()
    assert not watch(transform).changed()


def test_what_is_put_back_is_as_before() -> None:
    transform = pipeline()
    looked, crop = watch(transform), transform.transforms[0]
    crop.scale[0] = 0.25
    crop.scale[0] = 0.5
    transform.transforms[0] = crop
    assert not looked.changed()


def test_attributes_of_objects() -> None:
    owner = SimpleNamespace(transform=abs, samples=[(1, 2)], labels=np.zeros(3))
    looked = Watch([], [], [(owner, ["transform", "samples", "labels"])])
    assert not looked.changed()
    owner.samples.append((3, 4))
    assert looked.changed()
    owner.samples.pop()
    assert not looked.changed()
    owner.labels = np.zeros(3)  # nobody can say whether that is a change
    assert looked.changed()
    del owner.labels
    assert looked.changed()


def test_what_is_not_described_is_left_alone() -> None:
    class Large:
        def __init__(self) -> None:
            self.pictures = [torch.zeros(3)]

        def __call__(self, image: Any) -> Any:
            return image

        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError("copied")

    large = Large()
    looked = watch(v1.Compose([v1.ToTensor(), large]))
    large.pictures.append(torch.ones(3))
    assert not looked.changed(), "it runs as the object that it is"


@pytest.mark.parametrize("example", EXAMPLES, ids=example_ids(EXAMPLES))
def test_no_op_changes_by_being_called(example: Example) -> None:
    transform = example.make()
    looked = watch(transform)
    for kind in example.takes:
        transform(value_of(kind, *(example.size or (21, 17))))
    assert not looked.changed()
