"""The decoder on changed files against Pillow: Pillow's pixels or none, and none where Pillow raises or warns.

    python -m tests.native.fuzz.decoding_against_pillow --files 1000000 --seed 0

A file that fails is written to `decode.failed-pixels` in the working directory.
"""

from __future__ import annotations

import argparse
import io
import random
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sophon_loader.native import decoding
from tests.native.fuzz.against_pillow import MAX_PX, compare
from tests.native.pixels import random_box
from tests.native.test_decode_layouts import WAYS, pillow


def judged(data: bytes) -> NDArray[np.uint8] | None:
    """Pillow's pixels; None where it raises, warns, or takes the bytes for another format than JPEG."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with Image.open(io.BytesIO(data)) as image:
                if image.format not in ("JPEG", "MPO") or image.mode not in ("RGB", "L"):
                    return None
            return pillow(data)
        except Exception:
            return None


def assert_pixels_or_none(data: bytes, rng: random.Random) -> bool:
    """Whether there were pixels."""
    found = {}
    want = judged(data)
    height, width = (8, 8) if want is None else want.shape[:2]
    left, top, w, h = (0, 0, width, height) if rng.random() < 0.3 else random_box(rng, width, height)
    for plain in WAYS:
        got = decoding.decode(data, (left, top, left + w, top + h), plain=plain)
        found[plain] = got is not None
        if got is not None:
            assert want is not None, f"Pillow refuses it: {data!r}"
            np.testing.assert_array_equal(got, want[top : top + h, left : left + w], repr((data, left, top, w, h)))
    assert len(set(found.values())) == 1, f"plain C and vector code disagree: {data!r}"
    return found[True]


def is_huge(data: bytes) -> bool:
    """Whether a changed header asks for what takes long to compare."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                return image.width * image.height > MAX_PX
    except Exception:
        return False


def is_decoded_alike(data: bytes, rng: random.Random) -> bool:
    """Whether there were pixels; a large picture is left out."""
    return not is_huge(data) and assert_pixels_or_none(data, rng)


def main() -> None:
    """Compare as many files as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1_000_000, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    asked = parser.parse_args()
    count, decoded = compare(
        is_decoded_alike, random.Random(asked.seed), Path("decode.failed-pixels"), files=asked.files
    )
    print(f"{count} changed files, {decoded} of them decoded, with Pillow's pixels")


if __name__ == "__main__":
    main()
