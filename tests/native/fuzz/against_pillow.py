"""The crop of changed files against Pillow: pixel by pixel, in one process; and the changes.

What is cropped of a file must be what Pillow sees in the whole of it, however the file was damaged. The scans are long
enough for libjpeg-turbo's fast loop, which gives up 512 bytes per block before the end; and changes favour FF bytes,
whose meaning depends on what follows.
"""

from __future__ import annotations

import io
import math
import random
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

from PIL import Image

from sophon_loader import native
from tests.native.make_jpeg import LAYOUTS, Spec, index_of_pictures, make_jpeg, with_segment
from tests.native.make_progressive import make_progressive, scripts
from tests.native.pixels import cut, decode, random_box

MAX_PX = 1 << 20
"""A larger picture, by a changed header, is left out: it would take as long as thousands of others."""


def seeds() -> list[bytes]:
    """Whole files: every layout, with and without restarts, progressive ones, and what Pillow writes."""
    return [*_seeds()]


@cache
def _seeds() -> tuple[bytes, ...]:
    made = [
        make_jpeg(Spec(*size, sampling, seed, interval, optimise, density=density))
        for seed, sampling in enumerate(LAYOUTS.values())
        for size, interval, optimise, density in [
            ((60, 44), 0, True, 0.3),
            ((60, 44), 3, False, 0.05),
            ((150, 120), 0, seed % 2 == 0, 0.4),
            ((150, 120), 7, seed % 2 == 1, 0.4),
        ]
    ]
    grey = make_jpeg(Spec(200, 160, LAYOUTS["grey"], density=1.0, restart_interval=40, fill_bytes=2))
    several = with_segment(made[0], 0xE2, index_of_pictures([(0x030000, 100, 0), (0, 50, 100)], ">")) + made[1]
    progressive = [
        make_progressive(Spec(*size, LAYOUTS[layout], restart_interval=interval, density=0.3), script)
        for layout, size, interval in [("4:2:0", (90, 80), 0), ("4:4:4", (60, 44), 3)]
        for script in scripts(3).values()
    ]
    return (*made, grey, several, *progressive, *_written_by_pillow())


def _written_by_pillow() -> list[bytes]:
    found = []
    rng = random.Random(0)
    noise = Image.frombytes("RGB", (160, 130), rng.randbytes(3 * 160 * 130))
    smooth = noise.resize((20, 16)).resize((160, 130), Image.Resampling.BICUBIC)
    for quality in (50, 95):
        for subsampling in ("4:4:4", "4:2:0"):
            for restart in ({}, {"restart_marker_rows": 1}):
                out = io.BytesIO()
                picture = Image.blend(smooth, noise, 0.2)
                picture.save(out, "JPEG", quality=quality, subsampling=subsampling, **restart)
                found.append(out.getvalue())
    return found


def changed(rng: random.Random, data: bytes) -> bytes:
    """Damage a file: single bits, bytes, FF put in, a deleted, doubled or exchanged stretch."""
    buffer = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(2, len(buffer))
        kind = rng.randrange(9)
        if kind <= 2:
            buffer[at] ^= 1 << rng.randrange(8)
        elif kind == 3:
            buffer[at] = rng.choice((0, 0xFF, 0xD0, 0xD9, rng.randrange(256)))
        elif kind == 4:
            del buffer[at : at + rng.choice((1, 1, 2, 20))]
        elif kind == 5:
            buffer[at:at] = buffer[max(0, at - rng.choice((1, 4, 30))) : at]
        elif kind == 6:
            buffer[at:at] = b"\xff" * rng.choice((1, 1, 2, 5))
        else:
            near_ff(rng, buffer, at)
    return bytes(buffer)


def near_ff(rng: random.Random, buffer: bytearray, at: int) -> None:
    """Change what stands at the next FF: more of it, its zero away, another byte behind it."""
    ff = buffer.find(0xFF, at)
    if ff < 0 or ff + 1 >= len(buffer):
        return
    kind = rng.randrange(4)
    if kind <= 1:
        buffer[ff:ff] = b"\xff" * rng.choice((1, 1, 2, 5))
    elif kind == 2:
        del buffer[ff + 1]
    else:
        buffer[ff + 1] = rng.choice((0, 1, 0xFF, 0xD0 + rng.randrange(8), rng.randrange(256)))


def is_cropped_alike(data: bytes, rng: random.Random) -> bool:
    """True if a file was cropped: then Pillow must read the whole, too, and see the same; False if it was refused."""
    size = native.image_size(data)
    if size is None or size[0] * size[1] > MAX_PX:
        return False
    box = random_box(rng, *size)
    result = native.crop(data, *box)
    if isinstance(result, native.NotCropped):
        return False
    want = cut(decode(data), box)
    got = cut(decode(result.data), (result.dx, result.dy, *box[2:]))
    assert want.tobytes() == got.tobytes(), box
    return True


def compare(
    is_alike: Callable[[bytes, random.Random], bool],
    rng: random.Random,
    failed: Path,
    seconds: float = math.inf,
    files: float = math.inf,
) -> tuple[int, int]:
    """Change and compare files for so long, or so many.

    Args:
        is_alike: compares one; whether there was something to compare. It raises where something differs.
        rng: draws the changes.
        failed: where the file goes for which that raises.
        seconds: how long, s.
        files: how many.

    Returns:
        How many were compared, and for how many of them there was something.
    """
    end_s = time.monotonic() + seconds
    inputs = seeds()
    count = found = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about damaged metadata
        while time.monotonic() < end_s and count < files:
            data = changed(rng, rng.choice(inputs))
            count += 1
            try:
                found += is_alike(data, rng)
            except Exception:
                failed.write_bytes(data)
                raise
    return count, found
