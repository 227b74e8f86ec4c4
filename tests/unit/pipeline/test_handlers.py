"""What the handler of a signal raises leaves the road from file to sample, wherever the signal comes."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from PIL import Image
from torchvision import transforms as v1

import sophon_loader
from sophon_loader.errors import must_leave, raised_by_handler
from sophon_loader.kinds.image.fused_picture import DecodeTally
from sophon_loader.native import decoding
from sophon_loader.pipeline import ends
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.described import begin_on_file, run_from_file
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw, preserved
from tests.support.picture_files import file_of
from tests.support.pictures import picture

DRAW = Draw(0, 0, 0)
PACKAGE = os.path.join(os.path.dirname(sophon_loader.__file__), "")


@pytest.fixture(autouse=True, scope="module")
def _keep_generators() -> Iterator[None]:
    with preserved(GENERATORS):
        yield


@pytest.fixture
def alarmed() -> Iterator[None]:
    """SIGALRM raises TimeoutError, which is an OSError, as those of damaged files are."""

    def ring(*_: object) -> None:
        raise TimeoutError("late")

    before = signal.signal(signal.SIGALRM, ring)
    yield
    signal.signal(signal.SIGALRM, before)


def signalled_at(call: int, run: Any) -> bool:
    """Whether a signal came at this call of a Python function, of those that `run` makes; what the handler raises
    leaves."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR  # also called to be closed, where nothing may raise
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE) and not is_generator:
            calls += 1
            if calls == call:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls >= call


def chain() -> Chain:
    return chain_of(v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor(), v1.Normalize([0.5], [0.5])]))


@pytest.mark.parametrize("fused", [False, True])
def test_a_time_out_leaves_the_road_at_every_call(alarmed: None, fused: bool) -> None:
    data, lost, at = file_of("jpeg 4:2:0", 120, 90), [], 0
    run_from_file(chain(), data, 4, DRAW, tally=DecodeTally())  # what is seen once in a process
    while True:
        at += 1
        one = chain()  # whose table is not made yet
        try:
            if not signalled_at(at, lambda: run_from_file(one, data, 4, DRAW, tally=DecodeTally() if fused else None)):  # noqa: B023
                break
            lost.append(at)
        except TimeoutError as error:
            assert raised_by_handler(error)
    assert at > 20 and not lost


def test_a_time_out_leaves_what_begins_without_pixels(alarmed: None) -> None:
    data, at = file_of("jpeg 4:2:0", 120, 90), 0
    begin_on_file(chain(), data, DRAW)
    while True:
        at += 1
        try:
            if not signalled_at(at, lambda: begin_on_file(chain(), data, DRAW)):
                break
        except TimeoutError:
            continue
        pytest.fail(f"the signal at call {at} was lost")


def test_no_memory_is_not_tried_again_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    if not decoding.checked():
        pytest.skip("the C extension is not built")
    monkeypatch.setattr(decoding, "_decoded", full)
    with pytest.raises(MemoryError):
        run_from_file(chain(), file_of("jpeg 4:2:0", 120, 90), 4, DRAW, tally=DecodeTally())


class Stopwatch:
    """Handlers of several forms."""

    def ring(self, number: int, frame: FrameType | None) -> None:
        del frame
        raise TimeoutError

    @staticmethod
    def climb(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not climbed.__code__:
            frame = frame.f_back
        signal.signal(number, signal.SIG_IGN)
        raise TimeoutError


def climbed() -> None:
    signal.raise_signal(signal.SIGALRM)


@pytest.mark.parametrize("handler", [Stopwatch().ring, Stopwatch.climb, partial(Stopwatch().ring)])
def test_a_handler_is_known_in_every_form(alarmed: None, handler: Any) -> None:
    signal.signal(signal.SIGALRM, handler)
    with pytest.raises(TimeoutError) as raised:
        climbed()
    assert raised_by_handler(raised.value)


def test_an_error_of_an_op_s_own_is_none_of_a_handler() -> None:
    def late(number: int) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError) as plain:
        late(1)
    assert not raised_by_handler(plain.value) and must_leave(MemoryError())


def test_a_table_whose_op_refuses_the_pictures_is_none() -> None:
    def refuse(image: Image.Image) -> None:
        raise ValueError("224 px are wanted")

    end = ends.PointwiseEnd(1, [])
    end._calls = [refuse]
    assert end.run(picture(40, 30, 0)) is None
