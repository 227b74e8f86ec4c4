"""A look at the user's objects that leaves no trace: what a call changes is as it was, and what goes wrong is said."""

from __future__ import annotations

import functools
import itertools
import logging
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from sophon_loader.run.trial_process import NotTried, tried_apart
from tests.support.held import nothing_more_held

_calls = 0


class Counts:
    """Has a state in every place where Python code can have one."""

    of_all = 0

    def __init__(self) -> None:
        self.calls = 0
        self.own = np.random.default_rng(1)
        self.numbers = itertools.count()
        self.kept: list[int] = []
        self.locked = threading.Lock()  # cannot be copied, nor pickled
        self.add = self._closure()

    def _closure(self) -> Callable[[], int]:
        calls, drawn = [0], random.Random(2)

        def add() -> int:
            calls[0] += 1
            return calls[0] * 1000 + drawn.randrange(1000)

        return add

    @functools.lru_cache  # noqa: B019  # of the class, as libraries have it
    def cached(self, number: int) -> int:
        self.kept.append(number)
        return number

    def __call__(self) -> list[Any]:
        global _calls
        _calls += 1
        Counts.of_all += 1
        with self.locked:
            self.calls += 1
        self.cached(next(self.numbers))
        return [
            _calls, Counts.of_all, self.calls, self.own.random(), self.kept[-1], len(self.kept), self.add(),
            torch.rand(1).item(), np.random.random(), Counts.cached.cache_info().misses,
        ]  # fmt: skip


def test_no_state_moves() -> None:
    counts, twin = Counts(), Counts()
    before = torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()
    found = tried_apart(lambda: repr([random.random() and counts(), twin(), counts()]))
    assert before == (torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate())
    assert repr([counts(), twin(), counts()]) == found, "the first call here is what the first one was there"


def test_positions_in_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_bytes(bytes(range(256)) * 200)
    with path.open("rb") as buffered, path.open("rb", buffering=0) as raw, path.open("r+b", buffering=0) as written:
        assert (buffered.read(3), raw.read(3)) == (b"\0\1\2",) * 2
        assert tried_apart(
            lambda: repr((buffered.read(20_000)[-1], raw.read(3), raw.seek(7), written.read(2)))
        ) == repr(((20_000 + 2) % 256, b"\3\4\5", 7, b"\0\1"))
        assert raw.tell() == 3 and raw.read(1) == b"\3"
        rest = buffered.read()
        assert len(rest) == 256 * 200 - 3 and rest[9_000] == (9_000 + 3) % 256
        with pytest.raises(NotTried, match="OSError"):
            tried_apart(lambda: str(written.write(b"x")))
        assert written.tell() == 0
    assert path.read_bytes() == bytes(range(256)) * 200


def _say_something() -> None:
    print("seen", flush=True)
    print("seen", file=sys.stderr, flush=True)
    os.write(1, b"seen")
    os.write(2, b"seen")
    logging.getLogger("a library").error("seen")
    warnings.simplefilter("always")
    warnings.warn("seen", UserWarning, stacklevel=1)


def test_nothing_is_sent_or_printed_in_our_name(capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    with ours, theirs:
        with pytest.raises(NotTried, match="OSError"):
            tried_apart(lambda: str(ours.send(b"x")))
        tried_apart(lambda: str(os.write(writing, b"x")))
        tried_apart(_say_something)
        theirs.setblocking(False)
        os.set_blocking(reading, False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        with pytest.raises(BlockingIOError):
            os.read(reading, 1)
    os.close(reading)
    os.close(writing)
    assert capfd.readouterr() == ("", "")


def test_shared_memory_stays() -> None:
    steps, shared, large = multiprocessing.Value("i", 3), torch.zeros(5).share_memory_(), torch.zeros(1 << 20)
    large.share_memory_()

    def look() -> str:
        with steps.get_lock():
            steps.value += 4
        shared.add_(1)
        return f"{steps.value} {shared.sum():g} {large.sum():g}"

    assert tried_apart(look) == tried_apart(look) == "7 5 0"
    assert steps.value == 3 and not shared.any()
    with pytest.raises(NotTried, match=f"was ended by signal {int(signal.SIGSEGV)}"):
        tried_apart(lambda: str(large.add_(1)))
    assert not large.any()


def test_several_threads_of_torch_are_not_waited_for() -> None:
    """Ones of this process do not go along; a library that believes in them stands still."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ones = torch.ones(300, 300)
        assert (ones @ ones).sum() == 300**3
        assert tried_apart(lambda: f"{(ones @ ones).sum():g} {torch.get_num_threads()}") == "2.7e+07 1"
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_from_a_thread() -> None:
    found: list[str | None] = []
    thread = threading.Thread(target=lambda: found.append(tried_apart(lambda: "it")))
    thread.start()
    thread.join()
    assert found == ["it"]


# --- what goes wrong ------------------------------------------------------------------------------------------------


def _held_elsewhere() -> str:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
    return "never"


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (sys.exit, "raised SystemExit: "),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by signal 9"),
        (lambda: os._exit(3), "ended with status 3"),
        (_held_elsewhere, "took longer than 0.2 s"),
    ],
    ids=["raises", "exits", "killed", "ends", "stands still"],
)
def test_what_goes_wrong_is_said(look: Any, said: str) -> None:
    with pytest.raises(NotTried, match=f"^the process that compares {said}"):
        tried_apart(look, wait_s=0.2 if look is _held_elsewhere else 60.0)


def test_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", none_left)
    with (
        nothing_more_held(),
        pytest.raises(NotTried, match=r"no process for that could be started: .*unavailable"),
    ):
        tried_apart(lambda: None)


def test_a_long_text_is_cut() -> None:
    assert tried_apart(lambda: "\N{SNOWMAN}" * 100_000) == "\N{SNOWMAN}" * 1333 + "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    children = set(psutil.Process().children())
    with nothing_more_held(spare_descriptors=3):  # shared memory has some of its own
        yield
    assert set(psutil.Process().children()) <= children, "neither a process nor a zombie"
