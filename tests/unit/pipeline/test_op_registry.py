"""Descriptions: what is described, what stays local, and that malformed ones are refused with PipelineError."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline import op_catalogue
from sophon_loader.pipeline.op import GENERATORS, OpSpec, OpType
from sophon_loader.pipeline.op_catalogue import add_op_type
from sophon_loader.pipeline.op_registry import build_op, draws_of, knows, op_of, reads_info_of, register_op


class Brighten:
    """A user's op that draws from numpy."""

    def __init__(self, amount: float, *, table: Any = None) -> None:
        self.amount = amount
        self.table = table

    def __call__(self, image: Image.Image) -> Image.Image:
        factor = 1 + self.amount * np.random.rand()
        return image.point(lambda value: int(min(255, value * factor)))


class ResizeOfMine(v2.Resize):
    """A subclass that may do anything."""


class Dropping(nn.Module):
    """A user's module whose mode matters."""

    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(x, training=self.training)


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    op_catalogue.load_ops()
    monkeypatch.setattr(op_catalogue, "_BY_NAME", dict(op_catalogue._BY_NAME))
    monkeypatch.setattr(op_catalogue, "_BY_CLASS", dict(op_catalogue._BY_CLASS))


# --- what stays local -----------------------------------------------------------------------------------------


def _patched() -> Any:
    resize = v2.Resize(8)
    resize.transform = lambda image, params: image
    return resize


def _hooked() -> Any:
    resize = v1.Resize(8)
    resize.register_forward_hook(lambda module, args, output: output)
    return resize


def _grown() -> Any:
    choice = v1.RandomOrder([v1.Pad(1)])
    choice.transforms.append(choice)
    return choice


LOCAL = {
    "function": lambda: len,
    "lambda": lambda: v1.Lambda(lambda image: image),
    "partial": lambda: functools.partial(Image.Image.rotate, angle=90),
    "user class": lambda: Brighten(0.5),
    "subclass": lambda: ResizeOfMine(8),
    "patched attribute": _patched,
    "forward hook": _hooked,
    "container of a lambda": lambda: v1.RandomApply([v1.Resize(8), v1.Lambda(len)]),
    "container of a subclass": lambda: v2.RandomChoice([v2.Identity(), ResizeOfMine(8)]),
    "container of itself": _grown,
    "container of numbers": lambda: v1.RandomApply([5]),
    "container that is no list": lambda: v1.RandomOrder(range(3)),
    "deep nest": lambda: functools.reduce(lambda inner, _: v1.RandomApply([inner]), range(40), v1.Pad(1)),
    "transposed matrix": lambda: v1.LinearTransformation(torch.rand(4, 4).t(), torch.rand(4)),
    "huge matrix": lambda: v1.LinearTransformation(torch.zeros(1100, 1100), torch.zeros(1100)),
    "half precision on another device": lambda: v1.Normalize(torch.zeros(3, device="meta"), [1.0]),
    "bfloat16": lambda: v1.Normalize(torch.zeros(3, dtype=torch.bfloat16), [1.0]),
    "gradient": lambda: v1.Normalize(torch.zeros(3, requires_grad=True), [1.0]),
    "not a number": lambda: v1.Normalize(torch.full((3,), float("nan")), [1.0]),
    "int beyond 64 bits": lambda: v1.Normalize([1 << 64], [1.0]),
    "broken text": lambda: v1.ToPILImage("\ud800"),
    "int subclass": lambda: v1.Normalize([type("Odd", (int,), {})(3)], [1.0]),
    "object array": lambda: v1.Normalize(np.array([object()]), [1.0]),
}


@pytest.mark.parametrize("name", LOCAL)
def test_what_cannot_be_described_for_certain_stays_local(name: str) -> None:
    op = op_of(LOCAL[name]())
    assert op.spec is None
    assert op.draws == GENERATORS
    assert not op.takes_deferred


def test_labels_of_local_ops_are_readable() -> None:
    assert op_of(len).label == "len"
    assert op_of(Brighten(1)).label == "Brighten"


def test_mode_of_a_transform_of_torchvisions_is_of_no_account() -> None:
    assert op_of(v2.Resize(8).eval()).spec == op_of(v2.Resize(8)).spec


# --- register_op ----------------------------------------------------------------------------------------------


def test_a_registered_class_is_described_and_draws_what_it_says() -> None:
    register_op("test.Brighten", Brighten, draws=("numpy",))
    op = op_of(Brighten(0.5, table=[1, (2, 3)]))
    assert op.spec == OpSpec("test.Brighten", {"amount": 0.5, "table": [1, {"$": "tuple", "items": [2, 3]}]})
    assert op.draws == ("numpy",)
    assert knows("test.Brighten")
    rebuilt = build_op(op.spec).call
    assert type(rebuilt) is Brighten
    assert vars(rebuilt) == {"amount": 0.5, "table": [1, (2, 3)]}


def test_by_default_a_registered_class_may_draw_from_anything() -> None:
    register_op("test.Brighten", Brighten, shrinks=True)
    op = op_of(Brighten(0.5))
    assert op.draws == GENERATORS
    assert op.shrinks


def test_containers_draw_what_their_children_draw() -> None:
    register_op("test.Brighten", Brighten, draws=("numpy",))
    assert op_of(v2.RandomApply([v2.Resize(3), Brighten(0.5)])).draws == ("torch", "numpy")
    assert op_of(v1.RandomOrder([v1.Compose([Brighten(0.5)])])).draws == ("numpy", "python")
    assert op_of(v2.RandomChoice([v1.Compose([v1.Resize(3)])])).draws == ("torch",)
    assert op_of(v1.Compose([v1.Resize(3), v1.Pad(1)])).draws == ()
    assert draws_of(v1.RandomApply([v1.Lambda(len)])) == GENERATORS


def test_a_description_of_the_users_own() -> None:
    register_op("test.Brighten", Brighten, describe=lambda op: {"amount": op.amount}, draws=("numpy",))
    assert op_of(Brighten(0.25)).spec == OpSpec("test.Brighten", {"amount": 0.25})
    assert op_of(Brighten(0.25, table=[1])).spec is None, "it leaves the table out"


def test_a_modules_mode_counts_for_a_class_of_the_users() -> None:
    register_op("test.Dropping", Dropping)
    assert op_of(Dropping()).spec is not None
    assert op_of(Dropping().eval()).spec is None


@pytest.mark.parametrize("odd", [functools.partial(len), random.Random(3), Image.new("L", (2, 2)), object()])
def test_state_that_cannot_be_seen_is_not_taken_for_equal(odd: Any) -> None:
    build = functools.partial(_brighten_with, type(odd))
    add_op_type(Brighten, OpType("test.Odd", build, lambda op: {"amount": op.amount}, ()))
    assert op_of(Brighten(0.5, table=odd)).spec is None


def _brighten_with(kind: type, amount: float) -> Brighten:
    makers: dict[type, Any] = {functools.partial: lambda: functools.partial(max), Image.Image: Image.new}
    if kind is Image.Image:
        return Brighten(amount, table=Image.new("L", (2, 2)))
    return Brighten(amount, table=makers.get(kind, kind)())


def test_an_op_of_the_user_s_may_look_at_metadata_unless_it_says_otherwise() -> None:
    register_op("test.Brighten", Brighten)
    assert op_of(Brighten(0.5)).reads_info is None, "so that a note can say what that costs"
    assert op_of(v1.RandomApply([v1.Compose([Brighten(0.5)])])).reads_info is None
    assert op_of(v2.RandomApply([v2.Resize(3)])).reads_info is False
    assert op_of(len).reads_info is True and reads_info_of(v1.RandomApply([len])) is True
    for said in (True, False):
        register_op("test.Brighten", Brighten, reads_info=said)
        assert op_of(v2.RandomApply([v2.Resize(3), Brighten(0.5)])).reads_info is said


def test_what_takes_tensors_has_no_metadata_to_look_at() -> None:
    register_op("test.Brighten", Brighten, draws=(), on_batches=True)
    assert op_of(Brighten(0.5)).reads_info is False
    register_op("test.Brighten", Brighten, makes="image")
    assert op_of(Brighten(0.5)).reads_info is False
    with pytest.raises(PipelineError, match="an op for batches must not read an image's info"):
        register_op("test.Brighten", Brighten, draws=(), on_batches=True, reads_info=True)


@pytest.mark.parametrize("makes", ["Tensor", "", 3])
def test_what_an_op_makes_is_one_of_two_words(makes: Any) -> None:
    with pytest.raises(PipelineError, match="makes must be 'tensor', 'image' or None"):
        register_op("test.Brighten", Brighten, makes=makes)


def test_an_op_for_batches_draws_nothing_and_makes_no_image() -> None:
    with pytest.raises(PipelineError, match="an op for batches must draw nothing"):
        register_op("test.Brighten", Brighten, on_batches=True)
    with pytest.raises(PipelineError, match="make no image"):
        register_op("test.Brighten", Brighten, draws=(), makes="image", on_batches=True)


def test_draws_must_be_known() -> None:
    with pytest.raises(PipelineError, match=r"draws must be a subset of .* got \['cuda'\]"):
        register_op("test.Brighten", Brighten, draws=("torch", "cuda"))


def test_an_unknown_op_is_refused_with_the_remedy() -> None:
    with pytest.raises(PipelineError, match=r"got 'mylab\.X'; register it with register_op"):
        build_op(OpSpec("mylab.X", {}))


# --- parameters that a class refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("v2.Resize", {}),
        ("v2.Resize", {"size": 8, "colour": 1}),
        ("v2.Resize", {"size": 8.5}),
        ("v2.Resize", {"size": [1, 2, 3]}),
        ("v1.CenterCrop", {"size": float("inf")}),
        ("v1.CenterCrop", {"size": []}),
        ("v2.RandomCrop", {"size": None}),
        ("v2.RandomChoice", {"transforms": [], "p": None}),
        ("v2.RandomChoice", {"transforms": [{"$": "op", "name": "v2.Identity", "params": {}}], "p": [0]}),
        ("v1.RandomApply", {"transforms": 5}),
        ("v1.RandomApply", {"transforms": [5]}),
        ("v1.RandomOrder", {"transforms": "abc"}),
        ("v1.Compose", {"transforms": {"$": "dtype", "name": "uint8"}}),
        ("nn.Sequential", {"transforms": 5}),
        ("nn.Sequential", {"transforms": [{"$": "op", "name": "v1.ToTensor", "params": {}}]}),
        ("v2.RandomErasing", {"scale": []}),
        ("v2.LinearTransformation", {"transformation_matrix": 1, "mean_vector": 2}),
        ("v2.AutoAugment", {"policy": "imagenet"}),
        ("v2.ToDtype", {"dtype": "float32"}),
        ("v1.ColorJitter", {"hue": 3}),
    ],
)
def test_parameters_that_a_class_refuses_are_pipeline_errors(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=r"parameters of op|steps of"):
        build_op(OpSpec(name, params))


def test_whatever_a_constructor_raises_is_a_pipeline_error() -> None:
    class Failing:
        def __init__(self, amount: int) -> None:
            raise StopIteration(amount)

    register_op("test.Failing", Failing)
    with pytest.raises(PipelineError, match=r"parameters of op 'test\.Failing' must suit its class.*StopIteration"):
        build_op(OpSpec("test.Failing", {"amount": 1}))
