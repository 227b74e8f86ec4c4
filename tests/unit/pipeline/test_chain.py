"""Chains: any split of a run gives the same value, wherever it is rebuilt; malformed descriptions are refused."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
import io
import pickle
import random
import re
import time
from collections.abc import Iterator
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
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError, TooManyPixels
from sophon_loader.pipeline import op_catalogue
from sophon_loader.pipeline.chain import Chain, chain_from, chain_of, decode, specs_of
from sophon_loader.pipeline.described import begin_on_size
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.op_registry import register_op
from sophon_loader.pipeline.randomness import Draw, seed_generators
from sophon_loader.pipeline.registration import Registration
from sophon_loader.wire.limits import MAX_DESCRIPTION_NBYTES, MAX_DESCRIPTION_VALUES, MAX_OPS
from tests.property.strategies import chains, draws, image_files
from tests.support.drawn import examples
from tests.support.loaders import said
from tests.support.op_examples import same_value, value_of

DRAW = Draw(1, 2, 3)


class Noise:
    """Draws from all three generators, and does nothing that differs between machines."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, values: Any) -> Any:
        own = torch.rand(self.size) + torch.from_numpy(np.random.randint(0, 9, self.size)) + random.randrange(9)
        return own if isinstance(values, Image.Image) else own * values


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    op_catalogue.load_ops()
    monkeypatch.setattr(op_catalogue, "_BY_NAME", dict(op_catalogue._BY_NAME))
    monkeypatch.setattr(op_catalogue, "_BY_CLASS", dict(op_catalogue._BY_CLASS))


@pytest.fixture
def noise() -> None:
    register_op("test.Noise", Noise)


def _file(kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    value_of("pil").save(file, kind)
    return file.getvalue()


def _picture(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def _run(chain: Chain, value: Any, start: int, stop: int, draw: Draw) -> Any:
    with chain.isolated():
        return chain.run(copy.deepcopy(value), start, stop, draw)


def _states() -> list[Any]:
    state: Any = np.random.get_state()
    keys, position, *rest = state[1:]
    return [torch.get_rng_state().tolist(), keys.tolist(), position, rest, random.getstate()]


# --- the central property, without encodings ------------------------------------------------------------------


@given(chains(), image_files(), draws())
def test_a_run_may_be_split_at_any_stage(chain: Chain, data: bytes, draw: Draw) -> None:
    n = len(chain)
    whole = _run(chain, data, 0, n, draw)
    for cut in range(n + 1):
        head = _run(chain, data, 0, cut, draw)
        assert same_value(_run(chain, head, cut, n, draw), whole)


@given(chains(), image_files(), draws())
def test_the_described_chain_gives_the_same_values(chain: Chain, data: bytes, draw: Draw) -> None:
    assert chain.describable == len(chain)
    rebuilt = chain_from(chain.description)
    assert [op.label for op in rebuilt.ops] == [op.label for op in chain.ops]
    assert (rebuilt.description, rebuilt.draws) == (chain.description, chain.draws)
    assert rebuilt.resize_cut == chain.resize_cut
    assert same_value(_run(rebuilt, data, 0, len(chain), draw), _run(chain, data, 0, len(chain), draw))


@given(chains(), image_files(), draws())
def test_the_value_depends_on_nothing_but_the_draw(chain: Chain, data: bytes, draw: Draw) -> None:
    """Not on the generators' states, nor on what ran before."""
    n = len(chain)
    with chain.isolated():
        seed_generators(GENERATORS, 5)
        first = chain.run(data, 0, n, draw)
        chain.run(data, 0, n, Draw(draw.seed, draw.epoch, draw.index + 1))
        assert same_value(chain.run(data, 0, n, draw), first)


@examples(50)
@given(chains(), image_files(), draws(), st.booleans())
def test_the_caller_does_not_notice(chain: Chain, data: bytes, draw: Draw, fails: bool) -> None:
    before, threads = _states(), torch.get_num_threads()
    try:
        with chain.isolated():
            chain.run(data[:20] if fails else data, 0, len(chain), draw)
            begin_on_size(chain, 30, 40, draw)
    except OSError:
        assert fails
    assert _states() == before
    assert torch.get_num_threads() == threads


def test_ops_run_on_one_thread_and_the_callers_threads_come_back() -> None:
    seen = []
    torch.set_num_threads(3)
    with contextlib.suppress(KeyError), chain_of(v1.Pad(1)).isolated():
        seen.append(torch.get_num_threads())
        raise KeyError("an op failed")
    assert [*seen, torch.get_num_threads()] == [1, 3]
    torch.set_num_threads(1)


@given(chains(), image_files(), draws())
def test_a_chain_can_be_sent_to_a_spawned_worker(chain: Chain, data: bytes, draw: Draw) -> None:
    sent = pickle.loads(pickle.dumps(chain))
    assert sent.description == chain.description
    assert same_value(_run(sent, data, 0, len(chain), draw), _run(chain, data, 0, len(chain), draw))


@pytest.mark.usefixtures("noise")
@pytest.mark.parametrize("field", ["seed", "epoch", "index"])
def test_each_number_of_the_draw_counts(field: str) -> None:
    chain = chain_of(Noise(4))
    other = Draw(**{**vars(DRAW), field: 9})
    assert not same_value(_run(chain, _file(), 0, 2, DRAW), _run(chain, _file(), 0, 2, other))


def test_two_equal_ops_draw_different_numbers() -> None:
    chain = chain_of(v1.Compose([Noise(4), Noise(4)]))
    first = _run(chain, value_of("pil"), 1, 2, DRAW)
    assert not same_value(_run(chain, torch.ones(4), 2, 3, DRAW), first)


@pytest.mark.usefixtures("noise")
def test_the_batches_of_a_release_stay() -> None:
    """See test_randomness: another digest means that every user's batches change."""
    chain = chain_of(v1.Compose([Noise(5), v1.RandomApply([Noise(5), Noise(5)], p=0.9), Noise(5)]))
    value = _run(chain, _file(), 0, 4, DRAW)
    assert hashlib.sha256(value.numpy().tobytes()).hexdigest()[:16] == "5b2cbe3eb5591971"
    assert hashlib.sha256(chain.description).hexdigest()[:16] == "364fd096c545f5ee"


# --- decode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_decoding_equals_torchvisions_loader(wrap: Any, tmp_path: Any) -> None:
    from torchvision.datasets.folder import pil_loader

    (tmp_path / "a.jpg").write_bytes(_file("JPEG"))
    assert same_value(decode(wrap(_file("JPEG"))), pil_loader(str(tmp_path / "a.jpg")))


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_a_decoded_image_is_what_convert_makes_of_it(mode: str) -> None:
    """Also where the conversion is left out: its class, mode and info, and pixels that can be changed."""
    kind = "JPEG" if mode == "CMYK" else "PNG"
    file = io.BytesIO()
    picture = Image.new(mode, (9, 7), 1)
    picture.save(file, kind, dpi=(72, 72))
    with Image.open(file) as image:
        expected = image.convert("RGB")
    found = decode(file.getvalue())
    assert type(found) is type(expected) is Image.Image and found.info == expected.info and same_value(found, expected)
    assert found.readonly == expected.readonly == 0
    found.putpixel((0, 0), (1, 2, 3))
    assert found.getpixel((0, 0)) == (1, 2, 3)


def test_a_failing_op_is_named() -> None:
    chain = chain_of(v1.Compose([v1.Resize(8), v1.RandomCrop(9)]))
    with pytest.raises(ValueError, match="Required crop size") as caught:
        _run(chain, _file(), 0, 3, DRAW)
    note = "in op 2 (v1.RandomCrop) of the pipeline"
    assert note in said(caught.value)


def test_progress_is_reported_by_stage() -> None:
    chain = chain_of(v1.Compose([v1.Resize(8), v1.ToTensor()]))
    seen: list[tuple[int, type]] = []
    with chain.isolated():
        chain.run(_file(), 0, 3, DRAW, after=lambda stage, value: seen.append((stage, type(value))))
    assert seen == [(1, Image.Image), (2, Image.Image), (3, torch.Tensor)]


@pytest.mark.parametrize("transform", [
    v1.Resize(64), v1.Pad([0, 30, 0, 30]),
    v2.RandomApply([v2.Compose([v2.Identity(), v2.RandomZoomOut(side_range=(1, 3))])]),
    v1.CenterCrop((20, 200)), v1.RandomRotation(5, expand=True),
])  # fmt: skip
def test_an_op_that_would_make_too_many_px_does_not_run(transform: Any) -> None:
    """Of a picture of 40 x 30; at an agent, whose chains have a limit."""
    free = chain_of(transform)
    limited = dataclasses.replace(free, max_px=40 * 30)
    data = _picture(40, 30)
    with free.isolated():
        free.run(data, 0, 2, DRAW)
        limited.run(data, 0, 1, DRAW)
        with pytest.raises(
            TooManyPixels, match=rf"at most 1200 px here, got {re.escape(free.ops[1].label)}, which would make \d+"
        ):
            limited.run(data, 0, 2, DRAW)
        with pytest.raises(TooManyPixels, match="decode, which would make 1200"):
            dataclasses.replace(free, max_px=1199).run(data, 0, 1, DRAW)


def test_what_an_op_makes_of_a_tensor_counts_as_well() -> None:
    limited = dataclasses.replace(chain_of(v2.Compose([v2.ToImage(), v2.Resize((90, 90))])), max_px=8000)
    with pytest.raises(TooManyPixels, match=r"v2\.Resize, which would make 8100"):
        limited.run(_picture(20, 20), 0, 3, DRAW)


# --- what a chain is made of ----------------------------------------------------------------------------------


def _labels(transform: Any) -> list[str]:
    return [op.label for op in chain_of(transform).ops]


def test_nested_composes_are_taken_apart() -> None:
    inner = v2.Compose([v2.Resize(9), nn.Sequential(v2.RandomCrop(8), v2.Identity())])
    expected = ["decode", "v1.Pad", "v2.Resize", "v2.RandomCrop", "v2.Identity", "v1.ToTensor"]
    assert _labels(v1.Compose([v1.Pad(1), inner, v1.ToTensor()])) == expected
    assert _labels(None) == ["decode"]
    assert _labels(v1.Compose([])) == ["decode"]


def _hooked(compose: Any) -> Any:
    compose.register_forward_hook(lambda module, args, output: output)
    return compose


def _patched(compose: Any) -> Any:
    compose.forward = lambda image: image
    return compose


class ComposeOfMine(v1.Compose):
    """A subclass that may do anything."""


@pytest.mark.parametrize(
    "compose",
    [
        _hooked(v2.Compose([v2.Resize(8)])),
        _hooked(nn.Sequential(v2.Resize(8))),
        _patched(v2.Compose([v2.Resize(8)])),
        _patched(v1.Compose([v2.Resize(8)])),
        ComposeOfMine([v2.Resize(8)]),
    ],
    ids=["hooked", "hooked sequential", "patched", "patched v1", "subclass"],
)
def test_a_compose_that_may_do_more_stays_whole_and_local(compose: Any) -> None:
    chain = chain_of(compose)
    assert len(chain) == 2
    assert chain.describable == 1


@pytest.mark.parametrize("unknown", [v1.Lambda(len), Noise(3), type("Sub", (v2.Resize,), {})(8)])
def test_what_stands_behind_an_unknown_op_stays_local(unknown: Any) -> None:
    chain = chain_of(v1.Compose([v1.Pad(1), unknown, v1.Resize(8)]))
    assert chain.describable == 2
    assert len(chain.local_ops) == 2
    assert chain.local_ops[1] == "v1.Resize"
    assert chain.resize_cut is None, "the resize is out of the agents' reach"
    assert len(chain_from(chain.description)) == 2


def test_the_first_crop_or_resize_is_the_resize_cut() -> None:
    assert chain_of(v1.Compose([v1.Pad(1), v1.RandomCrop(8), v1.Resize(4)])).resize_cut == 3
    assert chain_of(v1.ToTensor()).resize_cut is None


@pytest.mark.parametrize(
    ("steps", "keeps"),
    [
        ([v1.CenterCrop(8), v1.ToTensor()], False),
        ([v1.CenterCrop(8)], True),
        ([v1.CenterCrop(8), v1.Lambda(len), v1.ToTensor()], True),
        ([v1.CenterCrop(8), v1.ToTensor(), v1.Lambda(len)], True),
        ([v1.CenterCrop(8), Noise(3), v1.ToTensor()], True),
        ([v1.CenterCrop(8), v1.RandomApply([Noise(3)]), v1.ToTensor()], True),
        ([v1.CenterCrop(8), v1.ToTensor(), Noise(3)], False),
        ([v1.CenterCrop(8), v1.ToTensor(), v1.ToPILImage()], False),
    ],
    ids=["pixels", "an image", "function", "function behind", "op", "held op", "op behind", "image anew"],
)
def test_metadata_is_kept_for_whoever_may_look_at_it(steps: list[Any], keeps: bool) -> None:
    register_op("test.Noise", Noise)
    assert chain_of(v1.Compose(steps)).keeps_info is keeps


def test_draws_are_those_of_all_ops() -> None:
    assert chain_of(v2.Resize(8)).draws == ()
    assert chain_of(v1.Compose([v1.RandomOrder([v1.Pad(1)]), v2.RandomCrop(8)])).draws == ("torch", "python")
    assert chain_of(v1.Lambda(len)).draws == GENERATORS


def test_a_chain_has_a_limit() -> None:
    assert len(chain_of(v1.Compose([v1.Pad(1)] * (MAX_OPS - 1)))) == MAX_OPS
    with pytest.raises(PipelineError, match=f"1 to {MAX_OPS} ops, got {MAX_OPS + 1}"):
        chain_of(v1.Compose([v1.Pad(1)] * MAX_OPS))


def test_a_description_has_a_limit() -> None:
    one = v1.LinearTransformation(torch.zeros(700, 700), torch.zeros(700))
    chain = chain_of(v1.Compose([one, one, one]))
    assert chain.describable == 3, "1.96 MB each"
    assert len(chain.description) < MAX_DESCRIPTION_NBYTES
    assert len(chain_from(chain.description)) == 3


# --- descriptions ---------------------------------------------------------------------------------------------


def _described(*rows: Any) -> bytes:
    packed: bytes = msgpack.packb([["decode", {}], *rows])
    return packed


def test_a_chain_ends_before_the_first_op_unknown_here() -> None:
    inner = {"$": "op", "name": "mylab.X", "params": {}}
    crop = ["v2.Resize", {"size": 8}]
    assert len(chain_from(_described(crop, ["mylab.X", {"a": {"b": 1}}], crop))) == 2
    assert len(chain_from(_described(crop, ["v1.RandomApply", {"transforms": [inner]}], crop))) == 2


def test_a_known_op_of_unknown_parameters_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"parameters of op 'v2\.Resize' must suit its class"):
        chain_from(_described(["v2.Resize", {"length": 8}]))


_BOMB = functools.reduce(lambda inner, _: b"\x91" + inner, range(900), b"\xc0")
_NESTED = functools.reduce(lambda inner, _: b"\x82\xa1$\xa2op\xa1x" + inner, range(450), b"\xc0")
MALFORMED = {
    "empty": b"",
    "no msgpack": b"\xc1",
    "truncated": _described(["v2.Resize", {"size": 8}])[:-1],
    "trailing": _described() + b"\x00",
    "nothing in it": msgpack.packb([]),
    "no list": msgpack.packb(5),
    "a map": msgpack.packb({"ab": {}}),
    "text": msgpack.packb("ab"),
    "an inner name that is a list": _described(["v1.RandomApply", {"a": {"$": "op", "name": ["x"], "params": {}}}]),
    "no decode": msgpack.packb([["v2.Resize", {"size": 8}]]),
    "decode with parameters": msgpack.packb([["decode", {"mode": "L"}]]),
    "a row of three": _described(["v2.Resize", {"size": 8}, 1]),
    "a name that is no text": _described([7, {}]),
    "a name that is a list": _described([["v2.Resize"], {}]),
    "parameters as pairs": _described(["v2.Resize", [["size", 8]]]),
    "keys that are no text": _described(["v2.Resize", {8: 8}]),
    "an extension type": _described(["v2.Resize", {"size": msgpack.ExtType(4, b"x")}]),
    "a time": _described(["v2.Resize", {"size": msgpack.Timestamp(1)}]),
    "too many ops": _described(*[["v2.Identity", {}]] * MAX_OPS),
    "too large": _described(["v2.Identity", {"a": bytes(MAX_DESCRIPTION_NBYTES)}]),
    "too deep": b"\x92\x92\xa6decode\x80\x92\xa1x\x81\xa1a" + _BOMB,
    "too deep for msgpack": b"\x91" * 100_000,
    "ops too deep": b"\x92\x92\xa6decode\x80\x92\xa1x\x81\xa1a" + _NESTED,
    "a list that claims four billion": b"\xdd\xff\xff\xff\xff",
    "objects": _described(
        ["v1.Normalize", {"mean": {"$": "tensor", "dtype": "|O", "shape": [1], "data": b"12345678"}}]
    ),
    "unknown tag": _described(["v1.Normalize", {"mean": {"$": "pickle", "data": b"x"}, "std": 1}]),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_descriptions_are_refused(name: str) -> None:
    with pytest.raises(PipelineError) as caught:
        chain_from(MALFORMED[name])
    assert len(str(caught.value)) < 4000


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    _read(data)


@given(chains(), st.data())
def test_damaged_descriptions_are_read_or_refused(chain: Chain, data: st.DataObject) -> None:
    description = bytearray(chain.description)
    for _ in range(data.draw(st.integers(1, 3))):
        description[data.draw(st.integers(0, len(description) - 1))] = data.draw(st.integers(0, 255))
    _read(bytes(description))
    _read(chain.description[: data.draw(st.integers(0, len(chain.description)))])


_PLAIN = st.recursive(
    st.none() | st.integers(-9, 9) | st.floats() | st.sampled_from(["v2.Resize", "op", "tuple", "tensor", "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$", "name", "params", "items", "size"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@examples(300)
@given(st.lists(st.tuples(st.sampled_from(["v2.Resize", "v1.RandomApply", "nn.Sequential", "x"]) | _PLAIN, _PLAIN)))
def test_any_rows_are_read_or_refused(rows: list[tuple[Any, Any]]) -> None:
    _read(_described(*rows))


def _read(data: bytes) -> None:
    for read in (specs_of, chain_from):
        with contextlib.suppress(PipelineError):
            read(data)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_pipeline_of_too_many_values_stays_at_the_loader_and_is_refused_by_an_agent() -> None:
    """Ops within ops are cheap to write and dear to build: 4 MB of them took half a minute and 580 MB."""
    many = v2.RandomOrder([v2.RandomHorizontalFlip() for _ in range(2000)])
    chain = chain_of(v2.Compose([v2.Resize(8), many, many, many]))
    assert 2 <= chain.describable < len(chain)
    row = ["v2.RandomOrder", {"transforms": [{"$": "op", "name": "v2.Identity", "params": {}}] * 60_000}]
    description = msgpack.packb([["decode", {}], row])
    assert len(description) < MAX_DESCRIPTION_NBYTES
    since_s = time.process_time()
    with pytest.raises(PipelineError, match=f"and {MAX_DESCRIPTION_VALUES} values"):
        chain_from(description)
    with pytest.raises(PipelineError, match="a registration must hold at most"):
        Registration.from_bytes(msgpack.packb([[0] * 100_000, description]))
    assert time.process_time() - since_s < 1.0
