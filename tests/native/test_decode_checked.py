"""A decoder that differs from the installed Pillow is told once, and not used."""

from __future__ import annotations

import io
import logging
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image, JpegImagePlugin

from sophon_loader.native import decoding, fused
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg

pytestmark = pytest.mark.skipif(not decoding.available, reason="there is no decoder here")
DATA = make_jpeg(Spec(60, 44, LAYOUTS["4:2:0"]))
N_FILES = 14


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    decoding.checked.cache_clear()
    yield
    decoding.checked.cache_clear()


def test_nothing_differs_from_the_installed_pillow(caplog: pytest.LogCaptureFixture) -> None:
    assert decoding.checked() == {fused.DECODE}
    assert fused.checked() >= {fused.DECODE, fused.FINISH}
    assert not caplog.records


def test_files_are_of_every_kind() -> None:
    files = list(decoding._files())
    assert len(files) == N_FILES
    sampled = {data[data.index(b"\xff\xc0") + 11] for data in files if b"\xff\xc2" not in data}
    assert sampled == {0x11, 0x21, 0x12, 0x22, 0x41, 0x14}
    assert {Image.open(io.BytesIO(data)).mode for data in files} == {"RGB", "L"}
    assert any(b"\xff\xdd" in data for data in files) and any(b"\xff\xc2" in data for data in files)


def test_it_takes_no_time() -> None:
    times = []
    for _ in range(5):
        begin = time.thread_time()
        assert decoding._is_pillows(fused.DECODE)
        times.append(time.thread_time() - begin)
    assert min(times) < 0.02


@pytest.mark.parametrize("changed", range(N_FILES))
def test_one_file_that_differs_is_enough(
    changed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One value of one picture is off by one, as where another library mixes chroma otherwise."""
    opened = Image.open
    number = -1

    def other(*given: Any) -> Image.Image:
        nonlocal number
        image: Image.Image = opened(*given)
        number += 1
        if number // 2 == changed:  # each file is compared whole and in part
            image = image.copy()
            first = image.getpixel((0, 0))
            image.putpixel((0, 0), (first[0] ^ 1, *first[1:]) if isinstance(first, tuple) else int(first or 0) ^ 1)
        return image

    monkeypatch.setattr(Image, "open", other)
    with caplog.at_level(logging.WARNING):
        assert fused.decode(DATA) is None and fused.decode(DATA) is None
    assert fused.DECODE not in fused.checked() and fused.FINISH in fused.checked()
    assert ['differing=["decode"]' in record.getMessage() for record in caplog.records] == [True]
    assert fused.decode(DATA, plain=True) is not None


def test_a_pillow_that_raises_is_one_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", None)
    assert decoding.checked() == frozenset()


def _times_checked(queue: Any) -> None:
    fused.decode(DATA)
    queue.put(decoding.checked.cache_info().misses)


def test_forked_processes_know_it_already() -> None:
    decoding.checked()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=_times_checked, args=(queue,))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert queue.get() == 1
