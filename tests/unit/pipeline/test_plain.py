"""Parameters as plain data: what goes in comes out, and whatever is malformed is refused with PipelineError."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline import op_catalogue, plain
from sophon_loader.pipeline.op import OpSpec
from sophon_loader.pipeline.op_registry import build_op
from sophon_loader.pipeline.plain import MAX_PLAIN_DEPTH, MAX_PLAIN_NBYTES, from_plain, to_plain
from sophon_loader.pipeline.state import same_state
from tests.support.drawn import examples

# --- there and back -------------------------------------------------------------------------------------------

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


# --- malformed ------------------------------------------------------------------------------------------------


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


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


_NAMES = st.sampled_from(sorted(op_catalogue.registered()))
_TAGS = st.sampled_from([*plain._READERS, "code", 3, None])
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


@examples(400)
@given(_GARBAGE)
def test_garbage_is_read_or_refused(value: Any) -> None:
    with contextlib.suppress(PipelineError):
        from_plain(value)


@examples(400)
@given(_NAMES, st.dictionaries(st.sampled_from(_PARAMS), _GARBAGE, max_size=3))
def test_ops_of_garbage_are_built_or_refused(name: str, params: dict[str, Any]) -> None:
    with contextlib.suppress(PipelineError):
        build_op(OpSpec(name, params))
