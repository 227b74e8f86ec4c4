"""Requests by programs: what is asked for where, how answers are read, and what becomes of those that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.asking import messages_of
from sophon_loader.client.drawn_program import NO_STAGE, DrawnProgram, stages_of
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.requests import Requests
from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Ask, BatchId, Instruction, Reply, Wanted
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import CHEAPEST, Failed, Failure, Fetch, FetchPrograms, Offer
from tests.support.loaders import sample_message

BATCH = BatchId(1, 0, 0)
DRAWN = DrawnProgram(b"program", 100, stages=(0, 1, 2, 3))
PRICES = (1.0, 2.0, 3.0, 4.0)


def wanted(cut: int, encoding: str = "pixels", drawn: DrawnProgram | None = DRAWN, **more: Any) -> Wanted:
    return Wanted(0, 5, cut, encoding, "a.jpg", drawn=drawn, **more)


def choice(cut: int, drawn: DrawnProgram | None = DRAWN) -> Wanted:
    return wanted(cut, CHEAPEST, drawn, prices=PRICES)


def machine(known: int = -1, *, by_programs: bool = True) -> Requests:
    return Requests(OffloadOptions(window=8), "agent", 0.0, [known], by_programs=by_programs)


def asked(instructions: list[Instruction]) -> tuple[int, Wanted]:
    (ask,) = instructions
    assert isinstance(ask, Ask)
    (item,) = ask.items
    return item


ROI = wanted(0, "roi-jpeg")


@pytest.mark.parametrize(
    ("one", "known", "by_programs", "expected"),
    [
        (wanted(3), 6, True, wanted(3, drawn=None)),
        (wanted(3), 2, True, wanted(3)),
        (wanted(2), -1, True, wanted(2)),
        (wanted(5), -1, True, wanted(0, "file", None)),
        (wanted(3), 6, False, wanted(3, drawn=None)),
        (wanted(3), 2, False, wanted(0, "file", None)),
        (wanted(3, drawn=None), -1, True, wanted(0, "file", None)),
        (ROI, -1, True, ROI),
        (ROI, 6, True, replace(ROI, drawn=None)),
        (replace(ROI, drawn=None), 0, True, replace(ROI, drawn=None)),
        (choice(6), 6, True, choice(6, None)),
        (choice(6), 1, True, choice(6)),
        (choice(6), -1, True, choice(6)),
        (choice(6, None), 2, True, choice(2, None)),
        (choice(6, None), -1, True, wanted(0, "file", None)),
        (choice(6), -1, False, wanted(0, "file", None)),
        (wanted(0, "file", None), -1, True, wanted(0, "file", None)),
    ],
)
def test_how_an_agent_is_asked(one: Wanted, known: int, by_programs: bool, expected: Wanted) -> None:
    """By the program where that goes further than what the agent knows of the pipeline; the file is the last resort."""
    _, found = asked(machine(known, by_programs=by_programs).want(BATCH, [one], 0.0))
    assert found == expected


@pytest.mark.parametrize(("segment", "stage"), [(0, 0), (1, 1), (2, 2), (3, 3), (7, NO_STAGE)])
def test_an_answer_names_stages_to_the_loader(segment: int, stage: int) -> None:
    requests = machine()
    number, _ = asked(requests.want(BATCH, [choice(6)], 0.0))
    offers = [Offer(3, "webp", 10, 0.0, 0.0), Offer(9, "webp", 10, 0.0, 0.0)]
    requests.receive(replace(sample_message(number), cut=segment, offers=offers), b"", 0.1)
    reply = requests.ready(BATCH)
    assert reply is not None and reply.sample is not None
    assert reply.sample.cut == stage and [one.cut for one in reply.sample.offers] == [3]


def test_an_answer_by_the_pipeline_is_left_as_it_is() -> None:
    requests = machine(known=6, by_programs=False)
    number, _ = asked(requests.want(BATCH, [wanted(2, drawn=replace(DRAWN, stages=(0, 1, 5, 6)))], 0.0))
    requests.receive(replace(sample_message(number), cut=2), b"", 0.1)
    reply = requests.ready(BATCH)
    assert reply is not None and reply.sample is not None and reply.sample.cut == 2


def test_a_refused_program_is_asked_for_as_its_file_under_another_number() -> None:
    requests = machine()
    number, _ = asked(requests.want(BATCH, [wanted(3)], 0.0))
    again, one = asked(requests.receive(Failed(Failure.BAD_PROGRAM, "another file", [number]), b"", 0.1))
    assert again != number and one == replace(wanted(0, "file", None), program_refused=True)
    requests.receive(replace(sample_message(number), cut=3), b"late", 0.2)
    assert requests.ready(BATCH) is None, "what still comes for the program is not the file"
    requests.receive(replace(sample_message(again), cut=0, encoding="file"), b"file", 0.3)
    reply = requests.ready(BATCH)
    assert reply is not None and reply.payload == b"file" and reply.wanted.program_refused
    assert requests.missing(BATCH) == 0 == requests.unanswered


def test_a_refusal_of_what_was_no_program_is_the_loaders() -> None:
    requests = machine(known=6)
    number, _ = asked(requests.want(BATCH, [wanted(3, drawn=None)], 0.0))
    assert requests.receive(Failed(Failure.BAD_PROGRAM, "?", [number]), b"", 0.1) == []
    reply = requests.ready(BATCH)
    assert isinstance(reply, Reply) and reply.failed is not None


def test_an_agent_that_knows_no_programs_is_asked_otherwise() -> None:
    requests = machine(known=6)
    number, _ = asked(requests.want(BATCH, [wanted(3)], 0.0))
    assert asked(requests.leave_programs(0.1)) == (number, wanted(3, drawn=None))
    assert requests.leave_programs(0.2) == []


def test_the_messages_for_some_samples() -> None:
    terms = Terms(
        Address.parse("tcp://host:1/photos"),
        OffloadOptions(),
        "i",
        (b"",),
        (False,),
        Seed(1),
        ("file", "webp"),
        known=(6,),
        by_programs=True,
    )
    samples = [
        (1, choice(6)),
        (2, choice(6, None)),
        (3, choice(0)),
        (4, wanted(2)),
        (5, wanted(3)),
        (6, wanted(0, "webp")),
        (8, choice(2)),
        (9, choice(2, replace(DRAWN, stages=(0, 1, None, 3)))),
        (10, choice(1, replace(DRAWN, stages=(0, 1, 1, 1)))),
    ]
    programs, pipelines = messages_of(terms, "digest", Ask(BATCH, 0, samples), lambda one: one.key)
    assert isinstance(programs, FetchPrograms) and isinstance(pipelines, Fetch)
    assert [(one.id, one.cut, one.nbytes) for one in programs.items] == [
        (1, 3, 100),
        (3, 0, 100),
        (4, 2, 100),
        (5, 3, 100),
        (6, 0, 100),
        (8, 2, 100),
        (9, 1, 100),
        (10, 3, 100),
    ]
    assert [one.id for one in pipelines.items] == [2] and pipelines.digest == "digest"
    assert programs.prices == pipelines.prices == list(PRICES) and programs.allowed == pipelines.allowed
    (only,) = messages_of(terms, "digest", Ask(BATCH, 0, [(7, wanted(0, "file", None))]), lambda one: one.key)
    assert isinstance(only, Fetch), "a file needs no program"


@pytest.mark.parametrize(
    ("key", "program", "messages"),
    [("a.jpg", bytes(3000), 1), ("a.jpg", bytes(16_384), 5), ("a" * 4096, b"", 2), ("\u0100" * 2048, None, 3)],
    ids=["short", "long programs", "long keys", "long keys of pipelines"],
)
def test_a_window_of_samples_fits_its_messages(key: str, program: bytes | None, messages: int) -> None:
    terms = Terms(Address.parse("tcp://host:1/photos"), OffloadOptions(), "i", (b"",), (False,), Seed(1), ("file",))
    drawn = None if program is None else replace(DRAWN, program=program)
    items = [(number, wanted(3, drawn=drawn)) for number in range(511)]
    found = messages_of(terms, "digest", Ask(BATCH, 0, items), lambda one: key)
    assert [item.id for one in found for item in one.items] == [number for number, _ in items]
    assert len(found) == messages and all(len(pack(one)) for one in found), "none is too long"


@pytest.mark.parametrize(
    ("counts", "shrunk", "stages"),
    [
        ((0, 2, 3), 2, (0, 1, 2, 3)),
        ((0, 2, 2), 2, (0, 1, 2, 3)),
        ((0,), 0, (0, 1, 1, 1)),
        ((1, 3), 3, (0, 1, 2, 2)),
        ((0, 3), 2, (0, 1, None, 2)),
    ],
)
def test_stages_of_segments(counts: tuple[int, ...], shrunk: int, stages: tuple[int | None, ...]) -> None:
    assert stages_of(counts, shrunk) == stages
