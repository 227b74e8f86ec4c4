"""Pictures asked of a scripted agent: no answer, by whatever thread it is asked for, makes a sample another one."""

from __future__ import annotations

import math
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.encodings.registry import encode
from sophon_loader.host.shared import SharedArray
from sophon_loader.kinds.image.header import header_of, pack
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.source import source_of
from sophon_loader.measures.counters import Statistics
from sophon_loader.programs.program import Step
from sophon_loader.recording.opener import Opener, can_defer
from sophon_loader.wire.messages import Failed, Sample
from sophon_loader.workers.agent_pictures import AgentPictures
from sophon_loader.workers.file_roots import FileRoots, Place
from sophon_loader.workers.headers_by_key import HeadersByKey
from tests.support.pictures import picture

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
CROP = (20, 30, 90, 80)
STEPS: list[Step] = [("crop", *CROP), ("resize", 40, 30, 2, None, None)]
Answer = tuple[int, Any]
"""A segment, and the value there."""


class Scripted:
    """A session whose agent knows the header of every file below a folder, and gives the same answer to all questions.

    Args:
        root: the folder.
        answer: takes the number of the question, from 0.
    """

    def __init__(self, root: Path, answer: Callable[[int], Answer | Failed]) -> None:
        self.root, self.answer = root, answer
        self.header_questions = SimpleNamespace(told=None)
        self.lanes, self.gone, self.shortest_net_s = [self], False, math.inf
        self.received_nbytes = self.retries = self.corrupt = self.malformed = self.fresh = self.asked = 0
        self.headers_asked = 0
        self.waited_s = self.starved_s = self.net_s = self.queued_s = 0.0
        self.within: set[int] = set()
        self.met = threading.Event()
        self.wanted: list[Wanted] = []

    def _enter(self) -> None:
        self.within.add(threading.get_ident())
        if len(self.within) > 1:
            self.met.set()

    def ask_headers(self, wanted: list[Wanted]) -> None:
        self._enter()
        self.headers_asked += 1
        data = (self.root / wanted[0].key).read_bytes()
        header = header_of(data)
        assert header is not None and self.header_questions.told is not None
        self.header_questions.told([wanted[0].sample], [len(data)], [pack(header)])

    def await_headers(self, timeout_s: float) -> None:
        self.within.discard(threading.get_ident())

    def keep(self, batches: Any) -> None:
        self.within.discard(threading.get_ident())

    def want(self, batch: BatchId, wanted: list[Wanted]) -> None:
        self._enter()
        self.wanted = wanted

    def next(self, batch: BatchId) -> Reply:
        (wanted,) = self.wanted
        answer = self.answer(self.asked)
        self.asked += 1
        if isinstance(answer, Failed):
            return Reply(wanted, 0, failed=answer)
        segment, value = answer
        names = {bytes: "file", PartOfFile: "roi-jpeg", Image.Image: "pixels"}
        made = encode(value, names[type(value)])
        sample = Sample(0, segment, made.encoding, made.meta, 10, [0.0, 0.0, 0.0, 0.0], 0.0, 0.0, "")
        return Reply(wanted, 0, sample, made.payload)

    def close(self) -> None:
        pass


@pytest.fixture
def path(tmp_path: Path) -> Path:
    picture(120, 100, 3).save(tmp_path / "a.jpg", quality=90)
    return tmp_path / "a.jpg"


def pictures_of(session: Scripted) -> AgentPictures:
    roots = FileRoots(str(session.root))
    roots.agreed_on([Place("", "")])
    statistics = Statistics(1, ["file", "roi-jpeg", "pixels"])
    made = AgentPictures([], roots, statistics, None, HeadersByKey(8), SharedArray(np.ones(1, np.int64)))
    ways = SimpleNamespace(look=lambda: False, session=lambda *_: session, trust=lambda *_, **__: None)
    ways.terms = None
    ways.note, ways.hear = lambda *_: None, lambda *_: (1.0, 1.0)
    made._ways = ways  # type: ignore[assignment]
    return made


def sample_of(file: Path) -> Any:
    return np.asarray(Image.open(file).convert("RGB").crop(CROP).resize((40, 30), Image.Resampling.BILINEAR)).copy()


def part_of(data: bytes, box: tuple[int, int, int, int], **more: Any) -> PartOfFile:
    source = source_of(data)
    assert source is not None
    part = source.part_of(source.region([("crop", *box), STEPS[1]]))
    assert isinstance(part, PartOfFile)
    return replace(part, window=replace(part.window, **more))


WRONG: dict[str, Callable[[bytes], Answer]] = {
    "pixels of another size": lambda _: (2, picture(41, 30, 1)),
    "pixels of another mode": lambda _: (2, picture(40, 30, 1).convert("L")),
    "pixels before the crop": lambda _: (2, picture(120, 100, 3)),
    "the file behind the crop": lambda data: (2, data),
    "another file": lambda data: (0, data + b"more"),
    "no file": lambda _: (0, b""),
    "a part that lies elsewhere": lambda data: (0, part_of(data, (90, 80, 120, 100))),
    "a part of another picture": lambda data: (0, part_of(data, CROP, full_width=121)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_of_the_program_is_read_here(path: Path, name: str) -> None:
    session = Scripted(path.parent, lambda _: WRONG[name](path.read_bytes()))
    pictures = pictures_of(session)
    expected = sample_of(path)
    pictures.begin()
    with Opener(elsewhere=pictures).opening() as opened:
        found = sample_of(path)
    pictures.end()
    assert (found == expected).all() and session.asked == 1
    assert not opened.failed, "the sample would be made again"
    totals = pictures._statistics.totals(1)
    assert (totals.malformed, totals.fallbacks) == ("no file" not in name and "another file" not in name, 1)


def test_a_part_that_no_decoder_takes(path: Path) -> None:
    def spoilt(data: bytes) -> PartOfFile:
        part = part_of(data, CROP)
        return replace(part, data=part.data[: len(part.data) // 2])

    session = Scripted(path.parent, lambda _: (0, spoilt(path.read_bytes())))
    pictures = pictures_of(session)
    expected = sample_of(path)
    pictures.begin()
    with Opener(elsewhere=pictures).opening() as opened:
        assert (sample_of(path) == expected).all()
    assert not opened.failed, "the sample would be made again"


def test_threads_ask_one_after_the_other(path: Path) -> None:
    def slow(number: int) -> Answer:
        session.met.wait(0.05)
        return 0, path.read_bytes()

    session = Scripted(path.parent, slow)
    pictures = pictures_of(session)
    expected = sample_of(path)
    with Opener(elsewhere=pictures).opening():
        pictures.begin()
        images = [Image.open(path) for _ in range(2)]
        looks = [threading.Thread(target=image.tobytes) for image in images]
        for look in looks:
            look.start()
        picture(50, 40, 1).save(path.with_name("b.jpg"))
        Image.open(path.with_name("b.jpg"))
        assert (sample_of(path) == expected).all()
        pictures.end()
        for look in looks:
            look.join()
    assert session.asked == 3 and not session.met.is_set(), "a connection is used by one thread at a time"


def test_a_process_forked_while_a_thread_asks(path: Path) -> None:
    asks, go_on = threading.Event(), threading.Event()

    def waiting(number: int) -> Answer:
        if os.getpid() == parent:
            asks.set()
            go_on.wait(10)
        return 0, path.read_bytes()

    parent = os.getpid()
    pictures = pictures_of(Scripted(path.parent, waiting))
    with Opener(elsewhere=pictures).opening():
        pictures.begin()
        images = [Image.open(path) for _ in range(2)]
        look = threading.Thread(target=images[0].tobytes)
        look.start()
        assert asks.wait(10)
        child = multiprocessing.get_context("fork").Process(target=images[1].tobytes)
        child.start()
        child.join(10)
        ended = child.exitcode
        child.kill()
        go_on.set()
        look.join()
    assert ended == 0


def test_a_forked_process_leaves_the_connection_to_its_parent(path: Path) -> None:
    """When it opens a picture of its own, of which no header is known."""
    session = Scripted(path.parent, lambda _: (0, path.read_bytes()))
    pictures, expected = pictures_of(session), sample_of(path)

    def opens() -> None:
        pixels = sample_of(path)
        raise SystemExit(0 if (pixels == expected).all() and not session.headers_asked else 1)

    with Opener(elsewhere=pictures).opening():
        pictures.begin()
        child = multiprocessing.get_context("fork").Process(target=opens)
        child.start()
        child.join(10)
        ended = child.exitcode
        child.kill()
    assert ended == 0


def test_a_header_of_another_file_there(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Such as an agent has whose files are of another day: the picture is opened here."""
    there = tmp_path_factory.mktemp("there")
    picture(90, 70, 4).save(there / "a.jpg")
    session = Scripted(there, lambda _: (0, (there / "a.jpg").read_bytes()))
    session.root, pictures = there, pictures_of(session)
    pictures._roots = FileRoots(str(path.parent))
    pictures._roots.agreed_on([Place("", "")])
    expected = sample_of(path)
    with Opener(elsewhere=pictures).opening() as opened:
        for _ in range(2):
            pictures.begin()
            assert (sample_of(path) == expected).all()
            pictures.end()
    assert session.asked == 0 and not opened.failed


def test_a_relative_path_is_that_of_the_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow has opened the file by then, whatever folder is the current one at the look."""
    monkeypatch.chdir(path.parent)
    expected = sample_of(path)
    pictures = pictures_of(Scripted(path.parent, lambda _: Failed("missing", "it has gone", [0], "")))
    pictures.begin()
    with Opener(elsewhere=pictures).opening() as opened:
        crop = Image.open("a.jpg").convert("RGB").crop(CROP)
        monkeypatch.chdir("/")
        assert (np.asarray(crop.resize((40, 30), Image.Resampling.BILINEAR)) == expected).all()
    assert not opened.failed
