"""Ends as tables: what a table gives is what the ops give, in every respect, or there is no table."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import transforms as timm
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.functional import to_tensor

from sophon_loader.pipeline import ends
from sophon_loader.pipeline.chain import DECODE, Chain, chain_of
from sophon_loader.pipeline.ends import PointwiseEnd
from sophon_loader.pipeline.op import Op, OpSpec
from sophon_loader.pipeline.randomness import Draw

if not ends.AVAILABLE:
    pytest.skip("the C extension is not built", allow_module_level=True)

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
DRAW = Draw(0, 0, 0)

ENDS: dict[str, list[Any]] = {
    "v1.ToTensor": [v1.ToTensor()],
    "v1.ToTensor, Normalize": [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "v1.ToTensor, Normalize in place": [v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)],
    "v1.ToTensor, Normalize twice": [v1.ToTensor(), v1.Normalize([0.5], [0.25]), v1.Normalize(MEAN, STD)],
    "v1.PILToTensor, ConvertImageDtype": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
    "v1.PILToTensor, ConvertImageDtype, Normalize": [
        *(v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD))
    ],
    "v1.PILToTensor, ConvertImageDtype to int16": [v1.PILToTensor(), v1.ConvertImageDtype(torch.int16)],
    "v1.PILToTensor, ConvertImageDtype to float64 and back": [
        *(v1.PILToTensor(), v1.ConvertImageDtype(torch.float64), v1.ConvertImageDtype(torch.int32))
    ],
    "v2.ToImage, ToDtype": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
    "v2.ToImage, ToDtype to bool": [v2.ToImage(), v2.ToDtype(torch.bool)],
    "v2.ToImage, ToDtype, Normalize": [*(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))],
    "v2.ToImage, ToDtype, Normalize, in place, ToPureTensor": [
        *(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD, inplace=True)),
        *(v2.ToPureTensor(), v2.Identity(), nn.Identity()),
    ],
    "v2 in bfloat16": [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)],
    "v2 in float16": [v2.ToImage(), v2.ToDtype(torch.float16, scale=True), v2.Normalize([0.5], [1e-3])],
    "v2 in float64": [v2.PILToTensor(), v2.ToDtype(torch.float64, scale=True), v2.Normalize(MEAN, STD)],
    "v2.ConvertImageDtype": [v2.PILToTensor(), v2.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)],
    "a Compose in a Compose": [v1.Compose([v1.ToTensor(), nn.Sequential(v1.Normalize(MEAN, STD))])],
    "timm.ToTensor": [timm.ToTensor()],
    "timm.MaybeToTensor": [timm.MaybeToTensor(), v1.Normalize(MEAN, STD)],
    "timm.MaybePILToTensor": [timm.MaybePILToTensor(), v1.ConvertImageDtype(torch.float32)],
}
SIZES = [(2, 2), (2, 31), (33, 2), (3, 5), (17, 7), (16, 16), (224, 224), (501, 375)]
"""Width and height, px."""


@pytest.fixture
def default_dtype() -> Iterator[Callable[[torch.dtype], None]]:
    before = torch.get_default_dtype()
    yield torch.set_default_dtype
    torch.set_default_dtype(before)


def chain(*steps: Any) -> Chain:
    return chain_of(v1.Compose(list(steps)))


def end(*steps: Any) -> PointwiseEnd:
    found = chain(*steps).end
    assert found is not None
    return found


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    bands = (height, width) if mode == "L" else (height, width, 3)
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, bands, dtype=np.uint8), mode=None)


def by_ops(steps: list[Any], image: Image.Image) -> Any:
    return v1.Compose(steps)(image)


def assert_same(a: torch.Tensor | None, b: torch.Tensor) -> None:
    """Equal in whatever a program can see of a tensor, but for where it came from."""
    assert a is not None
    assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
    assert a.storage_offset() == b.storage_offset() == 0 and a.device == b.device and vars(a) == vars(b)
    assert a.is_inference() == b.is_inference() and a.requires_grad is b.requires_grad is False and a.is_leaf
    assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
    assert ends._bytes(a) == ends._bytes(b)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", ENDS)
def test_a_table_gives_what_the_ops_give(name: str, mode: str) -> None:
    steps = ENDS[name]
    one = end(*steps)
    for size in SIZES:
        image = picture(*size, mode)
        if mode == "L" and MEAN in (getattr(step, "mean", None) for step in chain(*steps).end._calls):
            assert one.run(image) is None  # means of three bands make three of one, or fail
        else:
            assert_same(one.run(image), by_ops(steps, image))


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ENDS)
def test_it_does_so_under_other_settings_of_torch(
    name: str, dtype: torch.dtype, inference: bool, default_dtype: Callable[[torch.dtype], None]
) -> None:
    steps, image = ENDS[name], picture(37, 21)
    one = end(*steps)
    assert_same(one.run(image), by_ops(steps, image))
    default_dtype(dtype)
    with torch.inference_mode(inference), torch.no_grad():
        assert_same(one.run(image), by_ops(steps, image))
        assert_same(end(*steps).run(image), by_ops(steps, image))
    assert_same(one.run(image), by_ops(steps, image))


class Counted:
    """ToTensor, which counts its calls."""

    def __init__(self, warns: bool = False) -> None:
        self.calls, self.warns = 0, warns

    def __call__(self, image: Image.Image) -> torch.Tensor:
        self.calls += 1
        if self.warns:
            warnings.warn("odd", stacklevel=1)
        return to_tensor(image)


def op(call: Callable[[Any], Any]) -> Op:
    return Op("op", call, (), OpSpec("op", {}), makes="tensor", pointwise=True)


def run(one: Chain, image: Any, start: int = 1, stop: int | None = None) -> Any:
    with one.isolated():
        return one.run(image, start, len(one) if stop is None else stop, DRAW)


def test_a_chain_runs_the_ops_only_to_make_the_table() -> None:
    counted = Counted()
    one = Chain((DECODE, op(counted)))
    for image in (picture(9, 8), picture(30, 40)):
        assert_same(run(one, image), to_tensor(image))
    assert counted.calls == 2


def test_profiling_sees_each_op() -> None:
    one, image, seen = chain(v1.ToTensor(), v1.Normalize(MEAN, STD)), picture(9, 8), []
    one.run(image, 1, 3, DRAW, after=lambda stage, value: seen.append((stage, value)))
    assert [stage for stage, _ in seen] == [2, 3]
    assert_same(seen[0][1], to_tensor(image))


def test_a_run_that_begins_or_ends_between_the_ops_runs_them() -> None:
    steps, image = [v1.CenterCrop(8), v1.ToTensor(), v1.Normalize(MEAN, STD)], picture(9, 20)
    one, whole = chain(*steps), by_ops([v1.CenterCrop(8), v1.ToTensor(), v1.Normalize(MEAN, STD)], picture(9, 20))
    assert one.end is not None and (one.end.first, one.end.stop) == (2, 4)
    for cut in range(1, 5):
        assert_same(run(one, run(one, image, 1, cut), cut), whole)


def test_what_follows_may_mix_pixels_and_draw() -> None:
    steps = [v1.RandomCrop(8), v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(1.0), v1.GaussianBlur(3)]
    one, image, steps_run = chain(*steps), picture(19, 20), []
    assert one.end is not None and (one.end.first, one.end.stop) == (2, 4)
    with one.isolated():
        one.run(image, 1, len(one), DRAW, after=lambda _, value: steps_run.append(value))
    assert_same(run(one, image), steps_run[-1])


@pytest.mark.parametrize(
    "steps",
    [
        *([], [v1.CenterCrop(8)], [v1.Lambda(v1.ToTensor()), v1.Normalize(MEAN, STD)], [v1.GaussianBlur(3)]),
        *([lambda image: image, v1.Lambda(v1.ToTensor())], [v1.RandomApply([v1.ToTensor()])]),
    ],
)
def test_a_chain_without_a_known_end_has_none(steps: list[Any]) -> None:
    assert chain(*steps).end is None


class Pixels(Image.Image):
    """A picture that may look otherwise to numpy."""

    def __init__(self, image: Image.Image) -> None:
        super().__init__()
        self.im, self._mode, self._size = image.im, image.mode, image.size


@pytest.mark.parametrize(
    "image",
    [
        *(picture(1, 8), picture(8, 1), picture(1, 1, "L"), picture(8, 8).convert("RGBA"), picture(8, 8).convert("1")),
        *(picture(8, 8).convert("P"), picture(8, 8).convert("I"), picture(8, 8).convert("F"), Image.new("RGB", (0, 5))),
        *(Pixels(picture(8, 8)), np.zeros((8, 8, 3), np.uint8)),
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'mode', '')} {getattr(value, 'size', '')}",
)
def test_other_values_are_left_to_the_ops(image: Any) -> None:
    one = end(v1.ToTensor(), v1.Normalize([0.5], [0.5]))
    assert one.run(image) is None


@pytest.mark.parametrize(
    "steps",
    [
        [v1.PILToTensor()],  # pixels alone: the ops are faster
        [v2.ToImage(), v2.ToDtype(torch.uint8)],
        [v1.ToTensor(), v1.Normalize(np.array(MEAN), STD)],  # could be written to unseen
        [v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True)],
        [v2.ToImage(), v2.ToDtype(torch.complex128)],
    ],
)
def test_ops_without_a_table(steps: list[Any]) -> None:
    image = picture(9, 8)
    assert end(*steps).run(image) is None
    assert_same(run(chain(*steps), image), by_ops(steps, image))


@pytest.mark.parametrize(
    ("steps", "mode"),
    [
        ([v1.ToTensor(), v1.Normalize(MEAN, [1, 0, 1])], "RGB"),
        ([v1.PILToTensor(), v1.Normalize(MEAN, STD)], "RGB"),
        ([v1.ToTensor(), v1.ConvertImageDtype(torch.int32)], "RGB"),
        ([v1.ToTensor(), v1.ToTensor()], "RGB"),
        ([v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)], "L"),
    ],
)
def test_errors_are_those_of_the_ops(steps: list[Any], mode: str) -> None:
    image, one = picture(9, 8, mode), chain(*steps)
    with pytest.raises((ValueError, TypeError, RuntimeError)) as expected:
        by_ops(steps, image)
    for _ in range(2):
        with pytest.raises(expected.type) as found:
            run(one, image)
        assert str(found.value) == str(expected.value)
        assert "in op 2" in getattr(found.value, "__notes__", [str(found.value)])[-1]


def test_warnings_are_those_of_the_ops() -> None:
    one = Chain((DECODE, op(Counted(warns=True))))
    for _ in range(2):
        with pytest.warns(UserWarning, match="odd") as said:
            run(one, picture(9, 8))
        assert len(said) == 1


@pytest.mark.parametrize(
    "call",
    [
        *(lambda image: to_tensor(image).flip(-1), lambda image: to_tensor(image).flip(0), lambda image: image),
        *(
            lambda image: to_tensor(image)[:, ::2],
            lambda image: to_tensor(image)[None],
            lambda _: torch.rand(3, 16, 16),
        ),
        *(lambda image: to_tensor(image).requires_grad_(), lambda image: to_tensor(image).mT),
        *(lambda image: to_tensor(image).to_sparse(), lambda image: to_tensor(image).to("meta"), lambda _: None),
        *(lambda image: tv_tensors.Mask(to_tensor(image)), lambda image: to_tensor(image).mean(0, keepdim=True)),
        lambda image: to_tensor(image) * torch.linspace(0, 1, image.width),
    ],
)
def test_an_op_that_is_not_what_it_says_has_no_table(call: Callable[[Any], Any]) -> None:
    one = Chain((DECODE, op(call))).end
    assert one is not None and one.run(picture(16, 16)) is None and one.run(picture(37, 13)) is None


def test_a_changed_parameter_is_seen() -> None:
    normalize, image = v1.Normalize(list(MEAN), list(STD)), picture(9, 8)
    one = end(v1.ToTensor(), normalize)

    def check() -> None:
        assert_same(one.run(image), by_ops([v1.ToTensor(), normalize], image))

    check()
    normalize.mean[0] = 0.25
    check()
    normalize.std = (0.5, 0.5, 0.5)
    check()
    normalize.std = np.array(STD)
    assert one.run(image) is None
    normalize.std = torch.tensor(STD)  # as timm gives them
    check()
    normalize.std[1] = 0.75
    check()
    normalize.std = 0.5
    check()


def test_the_default_device_is_left_to_the_ops() -> None:
    one, image = end(v1.ToTensor()), picture(9, 8)
    assert one.run(image) is not None
    with torch.device("meta"):
        assert one.run(image) is None


def test_a_copy_of_a_chain_has_a_table_too() -> None:
    one, image = chain(v1.ToTensor(), v1.Normalize(MEAN, STD)), picture(9, 8)
    expected = run(one, image)
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert_same(run(other, image), expected)


@pytest.mark.slow_start
def test_without_the_extension_the_ops_run() -> None:
    code = """
import sys
sys.modules["sophon_loader.native._table"] = None
import torch
from PIL import Image
from torchvision.transforms import ToTensor
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
chain, image = chain_of(ToTensor()), Image.new("RGB", (5, 6), (1, 2, 3))
print(chain.end, torch.equal(chain.run(image, 1, 2, Draw(0, 0, 0)), ToTensor()(image)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=150)
    assert done.stdout.strip() == "None True"
