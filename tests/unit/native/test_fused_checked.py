"""What differs from the installed Pillow is told once, and not used."""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sophon_loader.native import resampling

NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = FILTERS = range(6)
PIXELS = np.zeros((10, 10, 3), np.uint8)
built = pytest.mark.skipif(
    not resampling.available or not resampling.EXACT, reason="the C extension is not built, or not used"
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    resampling.checked.cache_clear()
    yield
    resampling.checked.cache_clear()


@built
def test_nothing_differs_from_the_installed_pillow(caplog: pytest.LogCaptureFixture) -> None:
    assert resampling.differing() == []
    assert resampling.checked() == {*FILTERS, resampling.FINISH}
    assert not caplog.records


@built
def test_it_takes_no_time() -> None:
    times = []
    for _ in range(5):
        begin = time.thread_time()
        resampling.differing()
        times.append(time.thread_time() - begin)
    assert min(times) < 0.05


@built
@pytest.mark.parametrize("changed", FILTERS)
def test_a_filter_that_differs_is_not_used(
    changed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    resize = Image.Image.resize

    def other(image: Image.Image, size: Any, resample: int, *rest: Any) -> Image.Image:
        made = resize(image, size, resample, *rest)
        if resample == changed and made.width == 61:  # one value of one picture is off by one
            first = made.getpixel((0, 0))
            assert isinstance(first, tuple)
            made.putpixel((0, 0), (first[0] ^ 1, *first[1:]))
        return made

    monkeypatch.setattr(Image.Image, "resize", other)
    with caplog.at_level(logging.WARNING):
        for filter in FILTERS:
            assert (resampling.resize(PIXELS, (5, 5), filter=filter) is None) == (filter == changed)
    assert resampling.FINISH in resampling.checked()
    assert [resampling._NAMES[changed] in record.getMessage() for record in caplog.records] == [True]


@built
@pytest.mark.parametrize("bits", [*range(13, 22), "as many as fit 16"])
def test_weights_of_fewer_bits_are_seen(bits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in builds of Pillow for speed, which differ from it in the mean of a few px that lies between two values."""
    resize = Image.Image.resize

    def other(image: Image.Image, size: tuple[int, int], resample: int, box: Any = None) -> Image.Image:
        across, down = image.width / size[0], image.height / size[1]
        n = int(max(across, down))
        if resample != BOX or box or (across, down) not in ((n, 1), (1, n)):
            return resize(image, size, resample, box)
        windows = np.asarray(image).astype(np.int64).reshape(size[1], int(down), size[0], int(across), -1)
        shift = 14 + (n - 1).bit_length() if isinstance(bits, str) else bits
        made = windows.sum(axis=(1, 3)) * round((1 << shift) / n) + (1 << shift - 1) >> shift
        return Image.fromarray(made.clip(0, 255).astype(np.uint8).squeeze())

    monkeypatch.setattr(Image.Image, "resize", other)
    assert resampling.differing() == [BOX]


@built
@pytest.mark.parametrize("order", ["DOWN_FIRST_NEVER", "DOWN_FIRST_TALL", "DOWN_FIRST_CHEAPER"])
def test_another_order_of_the_passes_is_seen(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = resampling.order_of(Image.__version__)
    monkeypatch.setattr(resampling, "_ORDER", getattr(resampling._resample, order))
    weighing = [] if order == right else [LANCZOS, BILINEAR, BICUBIC, HAMMING]
    assert [filter for filter in resampling.differing() if filter != BOX] == weighing


@built
def test_a_finish_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "transpose", lambda image, method: image)
    assert resampling.differing() == [resampling.FINISH]
    out = np.full((3, 10, 10), 7, np.uint8)
    assert not resampling.finish(PIXELS, None, out)
    assert (out == 7).all()


@built
def test_on_other_processors_pillow_resizes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(resampling, "EXACT", False)
    assert resampling.checked() == {resampling.FINISH}
    assert resampling.resize(PIXELS, (5, 5)) is None
    assert not caplog.records


@built
def test_a_pillow_that_raises_is_one_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "fromarray", None)
    assert resampling.differing() == [*FILTERS, resampling.FINISH]


def _times_checked(queue: Any) -> None:
    resampling.resize(PIXELS, (5, 5))
    queue.put(resampling.checked.cache_info().misses)


@built
def test_forked_processes_know_it_already() -> None:
    resampling.checked()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_times_checked, args=(queue,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert queue.get() == 1


def test_without_the_extension_nothing_is_done() -> None:
    script = """
import sys
sys.modules["sophon_loader.native._resample"] = None
import numpy as np
from sophon_loader.native import resampling
pixels = np.zeros((10, 10, 3), np.uint8)
assert not resampling.available and resampling.checked() == frozenset()
assert resampling.resize(pixels, (5, 5)) is None
assert resampling.finish(pixels, None, np.zeros((3, 10, 10), np.uint8)) is False
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
