"""The tail: a batch of bytes becomes what its ops, run per sample, and default_collate would have made of it."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import transforms as timm
from torch import nn
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from sophon_loader.device.tail import Split, channels_last, device_of, split
from sophon_loader.epoch.account import Account
from sophon_loader.epoch.epoch import Epoch, EpochIterator
from sophon_loader.errors import ConfigError, PipelineError
from sophon_loader.pipeline import op_catalogue
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.op_registry import register_op
from sophon_loader.pipeline.randomness import Draw
from tests.support.drawn import FULL
from tests.support.loaders import as_list, said, times_two

CPU = torch.device("cpu")
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def _silent_to_tensor() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return v2.ToTensor()


MAKERS: dict[str, Callable[[], Any]] = {
    "v1.ToTensor": v1.ToTensor,
    "v1.PILToTensor": v1.PILToTensor,
    "v2.ToTensor": _silent_to_tensor,
    "v2.PILToTensor": v2.PILToTensor,
    "timm.MaybeToTensor": timm.MaybeToTensor,
    "timm.MaybePILToTensor": timm.MaybePILToTensor,
    "v2.ToImage": v2.ToImage,
}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int16, torch.int32)
CONVERSIONS: dict[str, Callable[[], list[Any]]] = {
    "none": list,
    **{f"v1.ConvertImageDtype {dtype}": lambda dtype=dtype: [v1.ConvertImageDtype(dtype)] for dtype in DTYPES},
    **{f"v2.ConvertImageDtype {dtype}": lambda dtype=dtype: [v2.ConvertImageDtype(dtype)] for dtype in DTYPES},
    **{f"v2.ToDtype scaled {dtype}": lambda dtype=dtype: [v2.ToDtype(dtype, scale=True)] for dtype in DTYPES},
    **{f"v2.ToDtype {dtype}": lambda dtype=dtype: [v2.ToDtype(dtype)] for dtype in DTYPES},
    "image": lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "image to pure": lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()],
    "there and back": lambda: [v2.ToDtype(torch.float32, scale=True), v1.ConvertImageDtype(torch.uint8)],
}
NORMALIZATIONS: list[list[Any]] = [
    [],
    [v1.Normalize(MEAN, STD)],
    [v2.Normalize(MEAN, STD)],
    [v1.Normalize(MEAN, STD, inplace=True), v2.Normalize([0.25], [3.0], inplace=True)],
    [v1.Normalize((0, 1, 2), (3, 4, 5))],
    [v2.Normalize([0, 1, 2], [3, 4, 5])],
    [v1.Normalize([0.5], [np.float32(0.3)])],
    [v1.Normalize(torch.tensor(MEAN), torch.tensor(STD, dtype=torch.float64))],
    [v1.Normalize(torch.linspace(0, 1, 2 * 19 * 23).view(2, 19, 23)[:1], torch.full((1, 19, 23), 3.0))],
    [v1.Normalize(MEAN, [0.1, 0.0, 0.1])],
    [v2.Normalize(MEAN, [0.1, 0.0, 0.1])],
]
HEADS: list[list[Any]] = [[], [v1.Grayscale()], [v2.Grayscale(3)]]


@cache
def pictures() -> list[Image.Image]:
    """Four of one size; every value of a byte is among them."""
    pixels = np.random.default_rng(1).integers(0, 256, (4, 19, 23, 3), dtype=np.uint8)
    pixels.reshape(-1)[:256] = np.arange(256)
    return [Image.fromarray(one) for one in pixels]


def pairs_of(maker: int, conversion: int) -> list[tuple[list[Any], list[Any]]]:
    """Heads and normalizations of one case: all in `make long`, else a fifth, which differs from case to case.

    Any two of maker, conversion, head and normalization still meet, and no normalization at all is in every case.
    """
    pairs = list(itertools.product(HEADS, NORMALIZATIONS))
    if FULL:
        return pairs
    return [(HEADS[(maker + conversion) % len(HEADS)], []), *pairs[(maker + 3 * conversion) % 5 :: 5]]


def run(chain: Chain) -> list[tuple[Any, int]]:
    """The samples of `pictures` behind a chain's ops."""
    with chain.isolated():
        return [(chain.run(image, 1, len(chain), Draw(0, 0, i)), i) for i, image in enumerate(pictures())]


def moved(steps: list[Any]) -> Split:
    found = split([chain_of(v1.Compose(steps))], default_collate, CPU)
    assert found.tail is not None, found.notes
    return found


def reason(*pipelines: list[Any], collate_fn: Any = default_collate) -> str:
    """Why nothing is moved."""
    chains = [chain_of(v1.Compose(steps)) for steps in pipelines]
    found = split(chains, collate_fn, CPU)
    assert found.tail is None and found.collate_fn is collate_fn and found.chains == tuple(chains)
    (note,) = found.notes
    return note


def collated(samples: list[Any]) -> Any:
    """A batch for the tail."""
    return default_collate(channels_last(samples))


def by_batch(steps: list[Any]) -> Any:
    parts = moved(steps)
    assert parts.tail is not None
    return parts.tail(collated(run(parts.chains[0])))


def outcome(make: Callable[[], Any]) -> Any:
    """What a function gives, or how it fails."""
    try:
        return make()
    except Exception as error:
        text = str(error)
        return type(error), text if sys.version_info >= (3, 11) else text.partition("\nin ")[0]  # there with its note


def assert_same_batch(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, tuple):
        assert a == b
        return
    assert torch.equal(a[1], b[1])
    one, other = a[0], b[0]
    assert (type(one), one.dtype, one.shape, one.stride()) == (type(other), other.dtype, other.shape, other.stride())
    bits = [image.as_subclass(torch.Tensor).contiguous().view(torch.uint8) for image in (one, other)]
    assert torch.equal(*bits)


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


# --- the same bits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("maker", MAKERS)
def test_a_batch_is_what_its_samples_would_be(maker: str, conversion: str) -> None:
    """Errors are the same too: of a zero std, of bytes that are to be normalized, of casts that are not safe."""
    worked = 0
    for head, normalization in pairs_of([*MAKERS].index(maker), [*CONVERSIONS].index(conversion)):
        steps = [*head, MAKERS[maker](), *CONVERSIONS[conversion](), *normalization]
        per_sample = outcome(lambda steps=steps: default_collate(run(chain_of(v1.Compose(steps)))))
        assert_same_batch(outcome(lambda steps=steps: by_batch(steps)), per_sample)
        worked += isinstance(per_sample, list)
    assert worked or "int" in conversion


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("maker", MAKERS)
def test_under_another_default_dtype(maker: str, dtype: torch.dtype, default_dtype: Any) -> None:
    default_dtype(dtype)
    for rest in ([], [v2.ToDtype(dtype, scale=True)], [v2.ToDtype(dtype, scale=True), v1.Normalize(MEAN, STD)]):
        steps = [MAKERS[maker](), *rest]
        assert_same_batch(by_batch(steps), default_collate(run(chain_of(v1.Compose(steps)))))


@pytest.mark.parametrize("return_type", ["Tensor", "TVTensor"])
@pytest.mark.parametrize("last", [[], [v2.ToPureTensor()]], ids=["image", "pure"])
def test_the_class_of_a_batch_is_what_collation_makes_it(return_type: str, last: list[Any]) -> None:
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), *last]
    with tv_tensors.set_return_type(return_type):
        batch, expected = by_batch(steps), default_collate(run(chain_of(v1.Compose(steps))))
    assert_same_batch(batch, expected)
    assert (type(batch[0]) is tv_tensors.Image) == (return_type == "TVTensor" and not last)


def test_the_check_sees_one_bit() -> None:
    steps = [v1.ToTensor()]
    batch, other = by_batch(steps), by_batch(steps)
    assert_same_batch(batch, other)
    other[0].view(torch.int32)[3, 2, 5, 7] ^= 1
    with pytest.raises(AssertionError):
        assert_same_batch(batch, other)


def test_sizes_may_change_from_batch_to_batch() -> None:
    parts = moved([v1.ToTensor(), v1.Normalize(MEAN, STD)])
    assert parts.tail is not None
    for side in (8, 9, 8):
        images = [(torch.full((3, side, side + 1), value, dtype=torch.uint8), value) for value in (0, 255)]
        found = parts.tail(collated(images))[0]
        expected = v1.Normalize(MEAN, STD)(torch.stack([image for image, _ in images]) / 255)
        assert torch.equal(found, expected)


def test_images_of_several_sizes_fail_as_in_torch() -> None:
    samples = [(torch.zeros(3, side, 4, dtype=torch.uint8), 0) for side in (4, 5)]
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        collated(samples)


def test_an_error_names_the_op() -> None:
    with pytest.raises(ValueError, match="std evaluated to zero") as caught:
        by_batch([v1.ToTensor(), v1.Normalize(MEAN, [0.0] * 3)])
    assert "in the op v1.Normalize of the pipeline's tail, on cpu" in said(caught.value)


def test_the_user_s_objects_are_left_alone_and_may_change() -> None:
    """What is changed is meant for the next epoch, while batches of this one are still on their way."""
    expected = by_batch([v1.ToTensor(), v1.Normalize(MEAN, STD)])[0]
    normalize = v1.Normalize(list(MEAN), list(STD))
    parts = moved([v1.ToTensor(), normalize])
    assert parts.tail is not None and vars(normalize) == {**vars(normalize), "mean": MEAN, "std": STD}
    normalize.mean[0] = 9.0
    assert torch.equal(parts.tail(collated(run(parts.chains[0])))[0], expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("maker", MAKERS)
def test_on_cuda_it_waits_for_nothing_and_gives_what_the_ops_give_there(maker: str) -> None:
    rest = [v2.ToDtype(torch.float32, scale=True), v1.Normalize(MEAN, STD), v2.Normalize(MEAN, STD)]
    parts = split([chain_of(v1.Compose([MAKERS[maker](), *rest]))], default_collate, torch.device("cuda"))
    assert parts.tail is not None
    images, targets = collated(run(parts.chains[0]))
    batch = [images.pin_memory(), targets]
    parts.tail(batch)  # takes mean and std there
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that this mode does not see every synchronisation
            torch.cuda.set_sync_debug_mode("error")
        found = parts.tail(batch)[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    value = images.cuda().permute(0, 3, 1, 2).contiguous()
    value = value.to(torch.float32).div(255) if "ToTensor" in maker and "PIL" not in maker else value
    for op in rest:
        value = op(value)
    assert found.device.type == "cuda" and torch.equal(found, value)


# --- what is moved --------------------------------------------------------------------------------------------


def test_positions_of_the_other_ops_stay() -> None:
    steps = [v1.RandomCrop(8), v2.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    (head,) = moved(steps).chains
    assert [op.label for op in head.ops] == ["decode", "v1.RandomCrop", "v2.RandomHorizontalFlip", "v1.ToTensor"]
    assert [op.spec.name for op in head.ops if op.spec][-1] == "v1.PILToTensor", "what an agent runs"
    assert head.describable == len(head) and not head.keeps_info


def test_nested_steps_and_a_way_back_to_an_image() -> None:
    steps = [v1.ToTensor(), v1.RandomErasing(), v1.ToPILImage(), nn.Sequential(v2.ToImage(), v2.ToDtype(torch.float64))]
    (head,) = moved(steps).chains
    assert [op.label for op in head.ops][1:] == ["v1.ToTensor", "v1.RandomErasing", "v1.ToPILImage", "v2.ToImage"]


class Gamma:
    """A user's op on tensors, which does to a batch what it does to each."""

    def __init__(self, exponent: float) -> None:
        self.exponent = exponent

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value**self.exponent


class ToHalves:
    """A user's op that makes a tensor, and does to pixels what it does to an image."""

    def __call__(self, value: Any) -> torch.Tensor:
        pixels = v1.functional.pil_to_tensor(value) if isinstance(value, Image.Image) else value
        return pixels.to(torch.float32) / 2


@pytest.mark.parametrize("steps", [[v1.ToTensor(), Gamma(0.5)], [ToHalves(), Gamma(0.5), v1.Normalize(MEAN, STD)]])
def test_an_op_of_the_user_s_moves_if_it_says_that_it_takes_batches(
    steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    op_catalogue.load_ops()
    monkeypatch.setattr(op_catalogue, "_BY_NAME", dict(op_catalogue._BY_NAME))
    monkeypatch.setattr(op_catalogue, "_BY_CLASS", dict(op_catalogue._BY_CLASS))
    register_op("test.Gamma", Gamma, draws=())
    register_op("test.ToHalves", ToHalves, draws=(), makes="tensor")
    assert reason(steps).startswith("no op runs on cpu, because test.Gamma stands in the way")
    register_op("test.Gamma", Gamma, draws=(), on_batches=True)
    register_op("test.ToHalves", ToHalves, draws=(), makes="tensor", on_batches=True)
    assert not moved(steps).chains[0].keeps_info
    assert_same_batch(by_batch(steps), default_collate(run(chain_of(v1.Compose(steps)))))


class Normalized(v1.Normalize):
    """A subclass may do anything."""


def _hooked() -> Any:
    normalize = v1.Normalize(MEAN, STD)
    normalize.register_forward_hook(lambda *_: None)
    return normalize


@pytest.mark.parametrize(
    ("steps", "in_the_way"),
    [
        ([], "decode"),
        ([v1.RandomCrop(8)], "v1.RandomCrop"),
        ([v1.ToTensor(), v1.RandomErasing()], "v1.RandomErasing"),
        ([v1.ToTensor(), v1.RandomErasing(), v1.Normalize(MEAN, STD)], "v1.RandomErasing"),
        ([v1.ToTensor(), Normalized(MEAN, STD)], "Normalized"),
        ([v1.ToTensor(), _hooked()], "Normalize"),
        ([v1.ToTensor(), v1.Lambda(times_two)], "Lambda"),
        ([v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None})], "v2.ToDtype"),
        ([v1.ToTensor(), v1.RandomApply([v1.Normalize(MEAN, STD)])], "v1.RandomApply"),
    ],
    ids=str,
)
def test_what_stands_in_the_way_is_named(steps: list[Any], in_the_way: str) -> None:
    text = reason(steps)
    assert text.startswith(f"no op runs on cpu, because {in_the_way} stands in the way: ")


def test_other_reasons() -> None:
    tensor = [v1.PILToTensor(), v1.RandomErasing(), v2.ToImage(), v2.ToDtype(torch.float32)]
    assert "v2.ToImage gets the tensor that v1.PILToTensor has made, and must get an image" in reason(tensor)
    one, other = [v1.ToTensor(), v1.Normalize(MEAN, STD)], [v1.Resize(8), v1.ToTensor(), v1.Normalize(STD, MEAN)]
    assert "the pipelines of the dataset's parts end in different ops" in reason(one, other)
    assert "torch's default_collate" in reason(one, collate_fn=as_list)
    whole = chain_of(v1.Compose(one))
    assert split([whole], as_list, None) == Split((whole,), as_list)


def test_parts_with_one_tail() -> None:
    parts = split(
        [chain_of(v1.Compose([*head, v1.ToTensor(), v1.Normalize(MEAN, STD)])) for head in HEADS], default_collate, CPU
    )
    assert [len(chain) for chain in parts.chains] == [2, 3, 3] and parts.tail is not None


def test_what_only_shows_in_a_worker_has_a_remedy() -> None:
    (head,) = moved([v1.Lambda(np.asarray), v1.ToTensor()]).chains
    with pytest.raises(PipelineError, match=r"image of PIL, got <class 'numpy.ndarray'>; use tail='loader'"):
        run(head)
    (head,) = moved([v1.Lambda(lambda image: image.convert("F")), v1.ToTensor()]).chains
    with pytest.raises(PipelineError, match=r"8 bits, got torch.float32; use tail='loader'"):
        collated(run(head))


# --- the argument, and whose time it is -----------------------------------------------------------------------


def test_devices() -> None:
    assert device_of("loader") is None
    assert device_of("cpu") == device_of(torch.device("cpu")) == CPU
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else CPU
    assert device_of("device") == accelerator


@pytest.mark.parametrize("tail", ["gpu", "", "cuda:99", "meta", torch.device("cuda", 99), 3, None], ids=repr)
def test_devices_that_are_not_there(tail: Any) -> None:
    with pytest.raises(ConfigError, match=r"tail must be 'loader', 'device' or a device of this host \(cpu"):
        device_of(tail)


class Recorder:
    """An engine and its step clock, as far as an EpochIterator needs them."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.step_clock = self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.events.append(name)


def test_its_time_is_the_loader_s_and_not_the_step_s() -> None:
    recorder = Recorder()

    def tail(batch: Any) -> Any:
        recorder.events.append("tail")
        return batch

    epoch = Epoch(1, Account("auto", 0), pass_length=9, measuring=False, lag=0)
    batches: Any = EpochIterator(recorder, epoch, iter([1, 2]), 2, tail)  # type: ignore[arg-type]
    assert list(batches) == [1, 2]
    kept = [event for event in recorder.events if event in ("tail", "step_starts", "step_ends")]
    assert kept == ["tail", "step_starts", "step_ends", "tail", "step_starts", "step_ends"]
