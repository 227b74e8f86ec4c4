"""The Python side: arguments, sizes, threads, and life without the extension."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from sophon_loader import native
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg
from tests.native.pixels import random_box
from tests.native.test_crop_pictures import picture, saved
from tests.support.drawn import FULL

SPEC = Spec(70, 50, LAYOUTS["4:2:0"])


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize(
    "box",
    [
        *[(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (70, 0, 1, 1), (0, 50, 1, 1)],
        *[(60, 0, 11, 1), (0, 40, 1, 11), (1 << 32, 0, 1, 1), (0, 0, 1 << 40, 1), (1, 0, 0xFFFFFFFF, 1)],
    ],
)
def test_a_rectangle_outside_of_the_picture_is_an_error(box: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"rectangle must be inside the picture.*, got \("):
        native.crop(make_jpeg(SPEC), *box)


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_contiguous_bytes_will_do(kind: type) -> None:
    data = make_jpeg(SPEC)
    assert native.crop(kind(data), 5, 6, 7, 8) == native.crop(data, 5, 6, 7, 8)
    assert native.image_size(kind(data)) == (70, 50)


@pytest.mark.usefixtures("extension")
def test_a_memoryview_with_gaps_is_refused() -> None:
    with pytest.raises(BufferError):
        native.crop(memoryview(make_jpeg(SPEC))[::2], 0, 0, 1, 1)


@pytest.mark.usefixtures("extension")
def test_image_size_needs_only_the_header() -> None:
    assert native.image_size(make_jpeg(SPEC)[:700]) == (70, 50)
    assert native.image_size(saved(picture(33, 44), progressive=True)[:700]) == (33, 44)
    assert native.image_size(saved(picture(33, 44).convert("CMYK"))) == (33, 44)
    assert native.image_size(make_jpeg(SPEC)[:20]) is None


@pytest.mark.usefixtures("extension")
def test_a_header_tells_whether_a_crop_may_be_tried() -> None:
    assert native.read_header(make_jpeg(SPEC)) == (70, 50, True, 3)
    assert native.read_header(saved(picture(33, 44), progressive=True)) == (33, 44, False, 3)
    assert native.read_header(saved(picture(33, 44).convert("CMYK"))) == (33, 44, False, 4)
    assert native.read_header(b"") is None


@pytest.mark.usefixtures("extension")
def test_threads_do_not_disturb_each_other() -> None:
    """Pictures with unlike tables, so that a shared context would show."""
    rng = random.Random(1)
    jobs = []
    for seed in range(40):
        sampling = rng.choice(list(LAYOUTS.values()))
        spec = Spec(rng.randint(1, 300), rng.randint(1, 200), sampling, seed, rng.choice((0, 3)), seed % 2 == 0)
        data = make_jpeg(replace(spec, density=0.3))
        jobs += [(data[: -rng.choice((0, 0, 0, 9)) or None], random_box(rng, spec.width, spec.height))]
    expected = [native.crop(data, *box) for data, box in jobs]
    with ThreadPoolExecutor(8) as pool:
        rounds = [pool.submit(native.crop, data, *box) for _ in range(25 if FULL else 5) for data, box in jobs]
        for i, future in enumerate(rounds):
            assert future.result() == expected[i % len(jobs)]


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, sophon_loader.native; print({'torch', 'PIL', 'numpy', 'zmq'} & sys.modules.keys())"
    assert run(code) == "set()"


def test_without_the_extension_every_file_is_refused() -> None:
    code = (
        "import sys; sys.modules['sophon_loader.native._jpegcrop'] = None\n"
        "from sophon_loader import native\n"
        "print(native.available, bool(native.reason), native.image_size(b''), native.crop(b'', 0, 0, 1, 1).kind)"
    )
    assert run(code) == "False True None unavailable"


def test_the_remedy_for_a_missing_extension_depends_on_the_place(tmp_path: Path) -> None:
    assert "pip install" in native.remedy(tmp_path)
    (tmp_path / "setup.py").touch()
    said = native.remedy(tmp_path)
    assert f"{sys.executable} setup.py build_ext --inplace" in said and f"the checkout {tmp_path}" in said
