"""`resampling.finish` against numpy's arithmetic of axes, and against torchvision's ops on Pillow's pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms
from torchvision.transforms import v2

from sophon_loader.native import resampling

pytestmark = pytest.mark.skipif(not resampling.available, reason="the C extension is not built")

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def strided(shape: tuple[int, ...], axes: tuple[int, ...], signs: tuple[int, ...], dtype: Any) -> Any:
    """An array with its axes in this order in memory, some of them backwards, and gaps in the last."""
    sides = [shape[axis] for axis in axes]
    memory = np.full((*sides[:-1], sides[-1] * 2), 99, dtype)[..., ::2]
    return memory.transpose(np.argsort(axes))[tuple(slice(None, None, sign) for sign in signs)]


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 4)),
    window=st.tuples(*[st.integers(-50, 50)] * 2, *[st.integers(1, 60)] * 2),
    turned=st.tuples(*[st.booleans()] * 3),
    axes=st.permutations((0, 1, 2)),
    signs=st.tuples(*[st.sampled_from((1, -1))] * 3),
    looked=st.sampled_from([None, np.uint8, np.float32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_is_numpys(
    shape: tuple[int, int, int],
    window: tuple[int, int, int, int],
    turned: tuple[bool, bool, bool],
    axes: list[int],
    signs: tuple[int, int, int],
    looked: Any,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    left, top, width, height = window
    transpose, horizontal, vertical = turned
    channels = shape[2]
    pixels = rng.integers(0, 256, shape, np.uint8)
    fill = rng.integers(0, 256, channels, np.uint8)
    table = None if looked is None else rng.integers(0, 256, (channels, 256)).astype(looked)

    margin = 120
    canvas = np.empty((shape[0] + 2 * margin, shape[1] + 2 * margin, channels), np.uint8)
    canvas[:] = fill
    canvas[margin:-margin, margin:-margin] = pixels
    expected = canvas[margin + top :, margin + left :][:height, :width].transpose(2, 0, 1)
    expected = expected.transpose(0, 2, 1) if transpose else expected
    expected = expected[:, :, ::-1] if horizontal else expected
    expected = expected[:, ::-1] if vertical else expected
    if table is not None:
        expected = np.stack([table[c][expected[c]] for c in range(channels)])

    out = strided(expected.shape, tuple(axes), signs, expected.dtype)
    around = out.base if out.base is not None else out
    assert resampling.finish(
        pixels,
        table,
        out,
        left=left,
        top=top,
        fill=fill.tobytes(),
        transpose=transpose,
        flip_horizontal=horizontal,
        flip_vertical=vertical,
    )
    assert np.array_equal(out, expected)
    while around.base is not None:
        around = around.base
    assert (around[..., 1::2] == 99).all()


def image_of(height: int, width: int, mode: str = "RGB") -> tuple[Image.Image, resampling.Pixels]:
    channels = 3 if mode == "RGB" else 1
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, channels), np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels), pixels


def table_of(end: Any, mode: str) -> Any:
    """What the ops make of each value, as [c, 256]."""
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    picture = Image.fromarray(ramp if mode == "L" else np.stack([ramp] * 3, 2))
    return end(picture).contiguous().numpy().reshape(-1, 256)


ENDS: list[tuple[Any, str]] = [
    (transforms.PILToTensor(), "RGB"),
    (transforms.PILToTensor(), "L"),
    (transforms.ToTensor(), "RGB"),
    (transforms.ToTensor(), "L"),
    (transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)]), "RGB"),
    (transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.1307], [0.3081])]), "L"),
    (v2.Compose([v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]), "RGB"),
]
CHAINS: list[tuple[Any, dict[str, Any]]] = [
    (lambda image: image, {}),
    (transforms.RandomHorizontalFlip(1), {"flip_horizontal": True}),
    (transforms.RandomVerticalFlip(1), {"flip_vertical": True}),
    (transforms.Pad(4), {"left": -4, "top": -4}),
    (transforms.Pad((1, 2, 3, 4), fill=(7, 8, 9)), {"left": -1, "top": -2, "fill": bytes((7, 8, 9))}),
    (transforms.CenterCrop(20), {"left": 10, "top": 5}),
    (transforms.CenterCrop(60), {"left": -10, "top": -15}),
    (lambda image: image.transpose(Image.Transpose.TRANSPOSE), {"transpose": True}),
    (lambda image: image.transpose(Image.Transpose.ROTATE_90), {"transpose": True, "flip_vertical": True}),
    (lambda image: image.transpose(Image.Transpose.ROTATE_180), {"flip_horizontal": True, "flip_vertical": True}),
    (lambda image: image.transpose(Image.Transpose.ROTATE_270), {"transpose": True, "flip_horizontal": True}),
    (
        lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        {"transpose": True, "flip_horizontal": True, "flip_vertical": True},
    ),
]


@pytest.mark.parametrize("chain", range(len(CHAINS)))
@pytest.mark.parametrize("end", range(len(ENDS)))
def test_it_is_torchvisions(chain: int, end: int) -> None:
    (tail, mode), (op, how) = ENDS[end], CHAINS[chain]
    if mode == "L" and "fill" in how:
        op, how = transforms.Pad((1, 2, 3, 4), fill=7), {**how, "fill": bytes((7,))}
    image, pixels = image_of(30, 40, mode)
    expected = tail(op(image))
    made = torch.empty_strided(expected.shape, expected.stride(), dtype=expected.dtype)
    table = None if expected.dtype == torch.uint8 else table_of(tail, mode)
    assert resampling.finish(pixels, table, made.numpy(), **how)
    assert made.numpy().tobytes() == expected.numpy().tobytes()


def test_a_slot_of_a_batch_is_filled_and_no_other() -> None:
    batch = torch.full((3, 3, 30, 40), 5.0)
    image, pixels = image_of(30, 40)
    tail = ENDS[4][0]
    resampling.finish(pixels, table_of(tail, "RGB"), batch[1].numpy(), flip_horizontal=True)
    assert torch.equal(batch[1], tail(transforms.functional.hflip(image)))
    assert (batch[[0, 2]] == 5).all()


def test_arguments_that_do_not_fit_are_refused() -> None:
    pixels = np.zeros((4, 5, 3), np.uint8)
    table = np.zeros((3, 256), np.float32)
    out = np.zeros((3, 4, 5), np.float32)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((pixels[:, ::2], table, out), {}, "pixels must be uint8"),
        ((pixels, None, out), {}, "out and table must both be"),
        ((pixels, table.astype(np.float64), out.astype(np.float64)), {}, "out and table must both be"),
        ((pixels, table[:2], out), {}, "table must be"),
        ((pixels, table[:, ::-1], out), {}, "table must be"),
        ((pixels, table, out[:2]), {}, "as many channels"),
        ((pixels, table, out[0]), {}, "three axes"),
        ((pixels, table, out[:, :0]), {}, "sides must be"),
        ((pixels, table, out), {"fill": b"ab"}, "fill must have"),
        ((pixels, table, out), {"left": 1 << 40}, "left and top"),
        ((np.zeros((4, 5, 5), np.uint8), None, np.zeros((5, 4, 5), np.uint8)), {}, "channels 1 to 4"),
    ]
    for arguments, how, said in cases:
        with pytest.raises(ValueError, match=said):
            resampling.finish(*arguments, **how)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError), match="read-only"):
        resampling.finish(pixels, table, out)
