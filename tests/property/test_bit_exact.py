"""The central property: a sample is the same, bit for bit, wherever its ops run and however it crosses the wire.

run_tail(decode(encode(run_head(x, cut))), cut) == run_all(x)
"""

from __future__ import annotations

import itertools
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.registry import decode, encode
from sophon_loader.pipeline.chain import Chain, chain_from, chain_of
from sophon_loader.pipeline.randomness import Draw
from tests.property.strategies import chains, draws, image_files
from tests.support.drawn import examples
from tests.support.op_examples import EXAMPLES, by_name, value_of

ENCODINGS = encoding_names()
OPS = by_name(EXAMPLES)


def assert_same(one: Any, other: Any) -> None:
    """Same class, and equal in everything that an op can see."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert _bits(one) == _bits(other)
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif isinstance(one, Image.Image):
        assert (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())
    else:
        assert one == other


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.as_subclass(torch.Tensor).contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def over_the_wire(value: Any, encoding: str, keep_info: bool = False) -> Any:
    """Encode and decode, with everything as plain bytes in between; stage 0 always crosses as the file."""
    encoded: Encoded = encode(value, "file" if isinstance(value, bytes) else encoding, keep_info=keep_info)
    meta = msgpack.unpackb(msgpack.packb(encoded.meta), strict_map_key=False)
    return decode(encoded.encoding, meta, bytes(encoded.payload))


def run(chain: Chain, value: Any, start: int, stop: int, draw: Draw) -> Any:
    """As either end runs it, after somebody else has used the generators."""
    with chain.isolated():
        return chain.run(value, start, stop, draw)


@examples(250, suppress_health_check=[HealthCheck.too_slow])
@given(chain=chains(), data=image_files(), draw=draws(), cut=st.integers(0, 99), encoding=st.sampled_from(ENCODINGS))
def test_every_cut_and_encoding_gives_the_same_bits(
    chain: Chain, data: bytes, draw: Draw, cut: int, encoding: str
) -> None:
    whole = run(chain, data, 0, len(chain), draw)
    cut %= len(chain) + 1
    there = chain_from(chain.description)
    assert len(there) == len(chain)
    torch.rand(3), np.random.random()
    crossed = over_the_wire(run(there, data, 0, cut, draw), encoding)
    assert_same(run(chain, crossed, cut, len(chain), draw), whole)


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(chain=chains(), data=image_files(), draw=draws(), encoding=st.sampled_from(ENCODINGS))
def test_the_value_itself_survives_at_every_stage(chain: Chain, data: bytes, draw: Draw, encoding: str) -> None:
    """Not only what the tail makes of it: every stage's value, and with it the next op alone."""
    value: Any = data
    for stage in range(len(chain)):
        crossed = over_the_wire(value, encoding, keep_info=True)
        assert_same(crossed, value)
        value = run(chain, value, stage, stage + 1, draw)
        assert_same(run(chain, crossed, stage, stage + 1, draw), value)
    assert_same(over_the_wire(value, encoding, keep_info=True), value)


@examples(40)
@given(data=image_files(), draw=draws())
def test_seed_epoch_and_index_each_change_the_numbers(data: bytes, draw: Draw) -> None:
    chain = chain_of(v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.GaussianNoise()]))
    seed, epoch, index = draw.seed, draw.epoch, draw.index
    several = {draw, Draw(seed ^ 1, epoch, index), Draw(seed, epoch + 1, index), Draw(seed, epoch, index + 1)}
    several.add(Draw(seed, index, epoch))
    images = {_bits(run(chain, data, 0, len(chain), one)) for one in several}
    assert len(images) == len(several)


@pytest.mark.parametrize("name", OPS)
def test_every_op_on_either_side_of_the_wire(name: str) -> None:
    """Each registered op, given what crossed the wire in each encoding, does what it does without."""
    for (label, example), encoding in itertools.product(OPS[name], ENCODINGS):
        print(label, encoding)  # the last one is shown when it fails
        kind = example.takes[0]
        size = example.size or (21, 17)
        value = value_of(kind, *size)
        chain = chain_of(example.make())
        draw = Draw(1, 2, 3)
        crossed = over_the_wire(value, encoding)
        assert_same(crossed, value)
        here = run(chain, value_of(kind, *size), 1, len(chain), draw)
        assert_same(run(chain, crossed, 1, len(chain), draw), here)
        assert_same(over_the_wire(here, encoding), here)


def test_the_check_sees_one_bit() -> None:
    a = torch.zeros(4)
    for other in (a.double(), -a, torch.zeros(2, 2), a.numpy(), torch.tensor([0, 0, 0, 1e-45])):
        with pytest.raises(AssertionError):
            assert_same(a, other)
    image = Image.new("RGB", (3, 2))
    changed = image.copy()
    changed.putpixel((2, 1), (0, 0, 1))
    for wrong in (changed, image.convert("L"), image.resize((2, 3))):
        with pytest.raises(AssertionError):
            assert_same(image, wrong)
