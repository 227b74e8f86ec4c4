"""What goes to a worker and comes back, and what reader threads answer."""

from __future__ import annotations

import contextlib
import io
import math
import os
import socket
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from PIL import Image

from sophon_loader.encodings.estimate import MIN_PROBES
from sophon_loader.kinds.image.header import header_of, pack
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.programs.program import Limits, Program
from sophon_loader.wire.frames import content_hash, unpack
from sophon_loader.wire.messages import (
    CHEAPEST,
    AskHeaders,
    AskListing,
    AskSizes,
    ExportQuestion,
    Failed,
    Headers,
    Item,
    Listing,
    ProgramItem,
    Registered,
    Sample,
    Sizes,
)
from storage_agent.host.channel import Channel
from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer, answer_question
from storage_agent.stores import Exports
from storage_agent.workers import agent_choice, answering, body, message_types
from storage_agent.workers.agent_choice import Tried
from storage_agent.workers.answering import BuiltPipelines, look_at, stages_of
from storage_agent.workers.appraiser import Appraiser
from storage_agent.workers.body import Service
from storage_agent.workers.memory import Memory
from storage_agent.workers.prepared_job import Prepared
from storage_agent.workers.program_choice import look_at_program, segments_of, signature_of
from storage_agent.workers.trials import SampleTrial, tried
from tests.unit.agent.samples import (
    CHAIN,
    ODD,
    PIPELINE,
    answer_job,
    exports_of,
    file_of,
    job_at,
    learnt_of,
)


def _answer_of(exports: Exports, question: ExportQuestion) -> Answer:
    """What all the steps lead to."""
    *steps, answer = answer_question(exports, question)
    assert answer is not None and set(steps) <= {None}
    return answer


def test_a_job_goes_to_a_worker_and_stays_the_same() -> None:
    for key in ("a/é.jpg", os.fsdecode(b"caf\xe9.jpg")):
        job = job_at(3, key=key, seed=-5, received_s=12.5, keep_info=True, prices=[1.0, 0.5, 0.0], cores=0.25)
        again = Job.from_frames(*job.frames())
        assert again == job and isinstance(again.item, Item)
        assert Job.from_frames(*job.frames(), 0.5) == replace(job, own_upkeep_s=0.5)


def _said_by_a_worker(exports: Exports, *messages: list[Any]) -> list[list[bytes]]:
    """What a worker answers to messages, until the channel is closed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in messages:
            Channel(ours).send(message)
        ours.shutdown(socket.SHUT_WR)
        Service(Channel(theirs), exports, BuiltPipelines(), Memory(1 << 50), Limits()).run()
        theirs.shutdown(socket.SHUT_WR)
        said, channel = [], Channel(ours)
        with contextlib.suppress(EOFError):
            while (frames := channel.receive()) is not None:
                said.append([bytes(frame) for frame in frames])
    return said


def test_a_worker_learns_a_pipeline_once_and_runs_jobs_by_its_digest(exports: Exports) -> None:
    digest = content_hash(PIPELINE)
    job = job_at(2, "pixels", digest=digest)
    said = _said_by_a_worker(
        exports,
        [message_types.LEARN, digest.encode(), PIPELINE], [message_types.REGISTER, digest.encode()],
        [message_types.JOB, *job.frames()], [message_types.JOB, *job_at(0, "webp", digest=digest).frames()],
        [message_types.FORGET, digest.encode()], [message_types.JOB, *job.frames()],
    )  # fmt: skip
    assert [word for word, *_ in said] == [
        message_types.REGISTERED,
        message_types.ANSWER,
        message_types.ANSWER,
        message_types.ANSWER,
    ]
    assert msgpack.unpackb(said[0][1])[:2] == ["Registered", 0.0] and len(said[0]) == 3
    assert unpack(said[0][2]) == Registered(digest, len(CHAIN))
    _, counted, header, payload = said[1]
    kind, cpu_s, took_s = msgpack.unpackb(counted)
    sample = unpack(header)
    assert isinstance(sample, Sample) and (sample.cut, sample.note) == (2, "")
    assert kind == "pixels" and cpu_s == pytest.approx(sum(sample.op_s)) and 0 < took_s < 60
    assert payload == answer_job(exports, job, PIPELINE).payload
    forgotten = unpack(said[3][2])
    assert (
        isinstance(forgotten, Sample) and forgotten.cut == 0 and "must have been sent to this worker" in forgotten.note
    )


def _trial(exports: Exports) -> SampleTrial:
    data, draw = file_of(exports), Draw(11, 2, 3)
    return tried(data, look_at(data, CHAIN, draw), stages_of(CHAIN, draw), ["webp"], cuts=False)


def test_what_other_workers_have_tried_a_worker_need_not(exports: Exports) -> None:
    digest = content_hash(PIPELINE)
    learn, others = (
        [message_types.LEARN, digest.encode(), PIPELINE],
        [message_types.TRIED, b"forgotten", _trial(exports).to_bytes()],
    )
    told = [message_types.TRIED, digest.encode(), _trial(exports).to_bytes()]
    job = [message_types.JOB, *job_at(2, CHEAPEST, digest=digest, id=0, prices=[1.0, 1.0, 1.0]).frames()]
    for heard, knows in (([told] * (MIN_PROBES - 1), False), ([told] * MIN_PROBES, True)):
        ((word, _, header, *_),) = _said_by_a_worker(exports, learn, others, *heard, job)
        sample = unpack(header)
        assert word == message_types.ANSWER and isinstance(sample, Sample) and bool(sample.offers) == knows


def test_what_a_worker_has_tried_it_tells(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    digest, found = content_hash(PIPELINE), [None, _trial(exports), None]
    trials = iter(found)
    monkeypatch.setattr(BuiltPipelines, "try_out", lambda *_: Tried(0.0, next(trials)))
    job = [message_types.JOB, *job_at(2, "pixels", digest=digest).frames()]
    said = _said_by_a_worker(exports, [message_types.LEARN, digest.encode(), PIPELINE], *[job] * len(found))
    assert sorted(word for word, *_ in said) == [*[message_types.ANSWER] * len(found), message_types.TRIED]
    ((_, name, trial),) = (message for message in said if message[0] == message_types.TRIED)
    assert name == digest.encode() and SampleTrial.from_bytes(trial) == found[1]


def test_trials_of_programs_are_told_and_heard_by_their_signature(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pipeline is sent for them, neither to who tells nor to who hears."""
    steps = (("crop", 4, 3, 30, 28), ("transpose", 0))
    program = Program("image", "", (60, 40, "RGB"), steps)
    data = file_of(exports)
    picture = look_at_program(data, program)
    assert picture.begun is not None
    trial = tried(data, picture, segments_of(program), ["webp"], cuts=False)
    item = ProgramItem(0, 3, CHEAPEST, "a/x.jpg", len(data), program.pack())
    job = Job(replace(job_at(3, prices=[1.0, 1.0, 1.0, 0.0]).fetch, has_programs=True), item)
    asked = [message_types.JOB, *job.frames()]
    about = signature_of(picture.begun).encode()
    told = [message_types.TRIED_PROGRAM, about, trial.to_bytes()]
    for heard, knows in ((MIN_PROBES - 1, False), (MIN_PROBES, True)):
        ((_, _, header, *_),) = _said_by_a_worker(exports, *[told] * heard, asked)
        sample = unpack(header)
        assert isinstance(sample, Sample) and bool(sample.offers) == knows
    monkeypatch.setattr(agent_choice, "tried", lambda *_, **__: trial)
    monkeypatch.setattr(Appraiser, "due", lambda *_: True)
    said = _said_by_a_worker(exports, asked, asked)
    assert next(one for one in said if one[0] == message_types.TRIED_PROGRAM)[1] == about, "but for a worker's first"


class _Calls:
    """A worker's end of a channel, and how many answers went out by each call."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.answers: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name)

    def sendmsg(self, views: list[memoryview]) -> int:
        self.answers.append(sum(view == message_types.ANSWER for view in views))
        return self._end.sendmsg(views)


PREPARE = BuiltPipelines.prepare


def _calls(exports: Exports, jobs: int, monkeypatch: pytest.MonkeyPatch, expected_s: dict[int, float]) -> list[int]:
    """How many answers a worker sends by each call, of so many jobs that came together.

    Args:
        expected_s: what each job will probably take, by id; others take no time.
    """

    def expecting(learnt: BuiltPipelines, exports: Exports, job: Job) -> Prepared:
        one = PREPARE(learnt, exports, job)
        return replace(one, choice=one.choice._replace(expected_s=expected_s.get(job.item.id, 0.0)))

    monkeypatch.setattr(BuiltPipelines, "prepare", expecting)
    digest, (ours, theirs) = content_hash(PIPELINE), socket.socketpair()
    with ours, theirs:
        broker, calls = Channel(ours), _Calls(theirs)
        broker.put([message_types.LEARN, digest.encode(), PIPELINE])
        for n in range(jobs):
            broker.put([message_types.JOB, *job_at(2, "pixels", id=n, digest=digest).frames()])
        broker.flush()
        ours.shutdown(socket.SHUT_WR)
        Service(Channel(calls), exports, BuiltPipelines(), Memory(1 << 50), Limits()).run()  # type: ignore[arg-type]
        theirs.shutdown(socket.SHUT_WR)
        answers = [broker.receive() for _ in range(jobs)]
        ids = [
            message.id for message in (unpack(frames[2]) for frames in answers if frames) if isinstance(message, Sample)
        ]
        assert ids == list(range(jobs)), "in the order of the jobs"
    return calls.answers


def test_answers_go_out_together_as_long_as_the_first_need_not_wait(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "HOLD_S", 60.0)
    most = body.MAX_TOGETHER
    assert _calls(exports, 2 * most + 1, monkeypatch, {}) == [most, most, 1]
    assert _calls(exports, most, monkeypatch, {2: 61.0}) == [2, most - 2], "nobody waits for what takes long"
    assert _calls(exports, most, monkeypatch, dict.fromkeys(range(most), math.inf)) == [1] * most, "nor for who knows"
    monkeypatch.setattr(body, "MAX_HELD_NBYTES", 1000)
    assert _calls(exports, most, monkeypatch, {}) == [2] * (most // 2), "two pictures of 768 bytes"
    monkeypatch.setattr(body, "HOLD_S", 0.0)
    assert _calls(exports, most, monkeypatch, {}) == [1] * most


def test_files_that_are_read_ahead_are_bounded(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "HOLD_S", 60.0)
    monkeypatch.setattr(body, "MAX_READ_NBYTES", len(file_of(exports)) + 1)
    assert _calls(exports, 5, monkeypatch, {}) == [2, 2, 1]


@pytest.mark.parametrize("cut", [0, 2])
def test_an_answer_tells_the_upkeep_of_broker_and_worker(exports: Exports, cut: int) -> None:
    job = replace(job_at(cut, "file" if cut == 0 else "pixels", upkeep_s=0.25), own_upkeep_s=0.5)
    sample = answer_job(exports, job, PIPELINE).message
    assert isinstance(sample, Sample) and sample.upkeep_s == 0.75


def test_a_pipeline_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt = learnt_of(PIPELINE)
    built = learnt.built(content_hash(PIPELINE))
    monkeypatch.setattr(answering, "Registration", None)
    assert learnt.built(content_hash(PIPELINE)) is built


def test_sizes(exports: Exports) -> None:
    answer = _answer_of(exports, AskSizes("d", ["a/x.jpg", "a/none.jpg", "../x", "a"]))
    assert answer.message == Sizes(exports["d"].describe(), [len(file_of(exports)), -1, -2, -1])
    refused = _answer_of(exports, AskSizes("e", ["x"])).message
    assert isinstance(refused, Failed) and refused.failure == "unknown-export"


def test_headers_come_in_the_order_asked_a_file_at_a_step(exports: Exports) -> None:
    keys = ["a/x.png", "a/none.jpg", "../x", "a/x.jpg", "a/broken.jpg", "a"]
    *steps, answer = answer_question(exports, AskHeaders(5, "d", keys))
    assert steps == [None] * len(keys) and answer is not None
    files = [file_of(exports, key) for key in ("a/x.png", "a/x.jpg", "a/broken.jpg")]
    png, jpeg = (pack(header) for header in map(header_of, files) if header is not None)
    nbytes = [len(files[0]), -1, -2, len(files[1]), len(files[2]), -1]
    assert unpack(answer.header) == answer.message == Headers(5, nbytes, [png, b"", b"", jpeg, b"", b""])


@pytest.mark.parametrize("question", [
    AskListing("d", ODD), AskListing(ODD, ""), AskSizes(ODD, []), AskHeaders(3, ODD, []), AskListing("d", ".."),
    AskListing("d", "none"),
], ids=["prefix", "export", "export of sizes", "export of headers", "outside", "missing"])  # fmt: skip
def test_a_question_that_cannot_be_answered(exports: Exports, question: ExportQuestion) -> None:
    answer = _answer_of(exports, question)
    ids = [question.id] if isinstance(question, AskHeaders) else []
    assert isinstance(answer.message, Failed) and answer.message.ids == ids
    assert len(answer.message.text) < 2000 and unpack(answer.header) == answer.message


def test_a_listing_with_any_file_name(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / name).touch()
    (tmp_path / os.fsdecode(b"\xff")).mkdir()
    answer = _answer_of(exports_of(tmp_path), AskListing("d", ""))
    assert unpack(answer.header) == answer.message == Listing(["b", os.fsdecode(b"\xff")])
    files = msgpack.unpackb(zlib.decompress(answer.payload or b""), unicode_errors="surrogateescape")
    assert files == [[name], []]
    refused = _answer_of(exports_of(tmp_path), AskListing("d", "none")).message
    assert isinstance(refused, Failed) and refused.failure == "missing" and refused.ids == []


def test_the_images_are_what_they_seem(exports: Exports) -> None:
    assert Image.open(io.BytesIO(file_of(exports))).size == (60, 40)
