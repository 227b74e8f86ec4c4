"""Descriptions: what is described, what stays local, and that malformed ones are refused with PipelineError."""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline import registry
from sophon_loader.pipeline.op import GENERATORS, OpSpec
from sophon_loader.pipeline.registry import (
    MAX_PLAIN_DEPTH,
    MAX_PLAIN_NBYTES,
    OpType,
    add_op_type,
    build_op,
    draws_of,
    from_plain,
    knows,
    op_of,
    register_op,
    same_state,
    to_plain,
)


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
    registry.load_ops()
    monkeypatch.setattr(registry, "_BY_NAME", dict(registry._BY_NAME))
    monkeypatch.setattr(registry, "_BY_CLASS", dict(registry._BY_CLASS))


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
    assert op.crop is None


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


def test_names_are_given_away_once() -> None:
    register_op("test.Brighten", Brighten)
    register_op("test.Brighten", Brighten)
    with pytest.raises(PipelineError, match=r"op name must be free, got 'test\.Brighten'"):
        register_op("test.Brighten", ResizeOfMine)


def test_draws_must_be_known() -> None:
    with pytest.raises(PipelineError, match=r"draws must be a subset of .* got \['cuda'\]"):
        register_op("test.Brighten", Brighten, draws=("torch", "cuda"))


def test_an_unknown_op_is_refused_with_the_remedy() -> None:
    with pytest.raises(PipelineError, match=r"got 'mylab\.X'; register it with register_op"):
        build_op(OpSpec("mylab.X", {}))


# --- plain data -----------------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([*v1.InterpolationMode, *v1.AutoAugmentPolicy, Image.Resampling.BICUBIC])
    | st.sampled_from([torch.float16, torch.uint8, torch.bfloat16, torch.Tensor, tv_tensors.Image, Image.Image])
    | st.sampled_from([np.float32(0.1), np.float64(0.1), np.int64(-5), np.uint8(7), np.bool_(True)])
    | st.sampled_from([np.eye(3), np.zeros((2, 0, 3), np.int16), np.array(3.0), np.array([1 + 2j])])
    | st.sampled_from([torch.arange(6).reshape(2, 3), torch.rand(()), torch.zeros(0, 3), torch.tensor([True])]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9) | st.just(torch.Tensor), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_VALUES)
def test_plain_data_crosses_the_wire_unchanged(value: Any) -> None:
    read = from_plain(msgpack.unpackb(msgpack.packb(to_plain(value))))
    assert same_state(read, value)


@pytest.mark.parametrize("value", [-0.0, 5e-324, float("inf"), 0.1 + 0.2])
def test_floats_keep_every_bit(value: float) -> None:
    assert from_plain(msgpack.unpackb(msgpack.packb(to_plain(value)))).hex() == value.hex()


def test_ops_and_modules_are_parameters_too() -> None:
    value = {"steps": nn.ModuleList([v2.Resize(8), v1.RandomApply([v1.Pad(1)])]), "one": v1.ToTensor()}
    assert same_state(from_plain(to_plain(value)), value)


def test_an_array_read_back_can_be_written_to() -> None:
    array = from_plain(to_plain(np.zeros(3)))
    array[0] = 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ("1", b"1"),
        (np.float32(0.5), 0.5),
        (np.float32(0.5), np.float64(0.5)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(3), torch.zeros(1, 3)),
        (torch.rand(3, 3).t(), torch.rand(3, 3)),
        (torch.zeros(3), torch.zeros(3, requires_grad=True)),
        (np.zeros(3), np.zeros(3, np.float32)),
        (v1.Resize(8), v2.Resize(8)),
        (v2.Resize(8), v2.Resize(9)),
        (v1.RandomApply([v1.Pad(1)]), v1.RandomApply([v1.Pad(2)])),
        (functools.partial(len), functools.partial(max)),
        (len, max),
        (v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC),
    ],
)
def test_state_differs_in_type_value_or_layout(a: Any, b: Any) -> None:
    assert not same_state(a, b)
    assert same_state(a, a)


# --- malformed ------------------------------------------------------------------------------------------------


def _nested(levels: int) -> Any:
    return functools.reduce(lambda inner, _: [inner], range(levels), 1)


def _array(**fields: Any) -> dict[str, Any]:
    return {"$": "ndarray", "dtype": "<f4", "shape": [1], "data": bytes(4), **fields}


MALFORMED = {
    "unknown tag": {"$": "code", "source": "1"},
    "no tag": {"a": 1},
    "tag that is no text": {"$": [1]},
    "text for a list": {"$": "tuple", "items": "abc"},
    "no items": {"$": "tuple"},
    "pairs that are none": {"$": "dict", "items": [[1, 2, 3]]},
    "key that cannot be one": {"$": "dict", "items": [[[1], 2]]},
    "unknown enum": {"$": "enum", "type": "Color", "member": "RED"},
    "unknown member": {"$": "enum", "type": "InterpolationMode", "member": "__class__"},
    "list for an enum": {"$": "enum", "type": ["InterpolationMode"], "member": "BOX"},
    "attribute for a dtype": {"$": "dtype", "name": "load"},
    "module for a dtype": {"$": "dtype", "name": "_inductor"},
    "unknown type": {"$": "type", "name": "builtins.eval"},
    "unknown op": {"$": "op", "name": "os.system", "params": {}},
    "list for an op": {"$": "op", "name": ["v2.Resize"], "params": {}},
    "op without params": {"$": "op", "name": "v2.Resize"},
    "list for params": {"$": "op", "name": "v2.Resize", "params": [1]},
    "modules that are none": {"$": "modules", "items": [1, 2]},
    "objects": _array(dtype="|O"),
    "structure": _array(dtype="<f4,<f4"),
    "dtype as a list": _array(dtype=[["a", "<f4"]]),
    "no dtype": _array(dtype=None),
    "text array": _array(dtype="<U1"),
    "shape too large": _array(shape=[1 << 40]),
    "shape that overflows": _array(shape=[1 << 62, 1 << 62], data=b""),
    "negative shape": _array(shape=[-1]),
    "shape of floats": _array(shape=[1.0]),
    "data of another size": _array(data=bytes(3)),
    "data that is text": _array(data="abcd"),
    "big-endian tensor": _array(**{"$": "tensor"}, dtype=">f4"),
    "nested too deep": _nested(MAX_PLAIN_DEPTH + 1),
    "nested far too deep": _nested(100_000),
    "list too long": [0] * (MAX_PLAIN_NBYTES // 8),
    "bytes too long": bytes(MAX_PLAIN_NBYTES),
    "int too large": 1 << 64,
    "broken text": "\ud800",
    "object": object(),
    "set": {1, 2},
    "tuple": (1, 2),
    "text subclass": np.str_("a"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_parameters_are_refused(name: str) -> None:
    with pytest.raises(PipelineError) as caught:
        from_plain(MALFORMED[name])
    assert len(str(caught.value)) < 600
    with pytest.raises(PipelineError):
        build_op(OpSpec("v1.Normalize", {"mean": MALFORMED[name], "std": [1.0]}))


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


_NAMES = st.sampled_from(sorted(registry.registered()))
_TAGS = st.sampled_from([*registry._READERS, "code", 3, None])
_FIELDS = ["items", "name", "params", "type", "member", "dtype", "shape", "data"]
_PARAMS = ["size", "p", "transforms", "scale", "ratio", "fill", "padding", "mean", "std", "dtype", "degrees", "bits"]
_GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=8) | _NAMES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(_PARAMS) | st.text(max_size=3), inner, max_size=3)
        | st.builds(
            lambda tag, fields: {"$": tag, **fields},
            _TAGS,
            st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4),
        )
    ),
    max_leaves=10,
)


@settings(max_examples=400)
@given(_GARBAGE)
def test_garbage_is_read_or_refused(value: Any) -> None:
    with contextlib.suppress(PipelineError):
        from_plain(value)


@settings(max_examples=400)
@given(_NAMES, st.dictionaries(st.sampled_from(_PARAMS), _GARBAGE, max_size=3))
def test_ops_of_garbage_are_built_or_refused(name: str, params: dict[str, Any]) -> None:
    with contextlib.suppress(PipelineError):
        build_op(OpSpec(name, params))
