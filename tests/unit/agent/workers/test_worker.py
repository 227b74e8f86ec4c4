"""What a worker answers to a job, whatever the op, the encoding and the file do."""

from __future__ import annotations

import io
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torchvision.transforms import v2

from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES, encoding_names
from sophon_loader.encodings.registry import decode
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.chain import decode as decoded
from sophon_loader.pipeline.op_catalogue import _BY_CLASS, _BY_NAME
from sophon_loader.pipeline.op_registry import register_op
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import content_hash, unpack
from sophon_loader.wire.limits import MAX_TEXT_LENGTH
from sophon_loader.wire.messages import CHEAPEST, Failed, Registered
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.host.channel import Channel
from storage_agent.reading.answers import answer_file
from storage_agent.stores import Exports
from storage_agent.workers.agent_choice import Chosen
from storage_agent.workers.body import main
from tests.support.encoding_examples import difference
from tests.unit.agent.samples import (
    CHAIN,
    PIPELINE,
    answer_job,
    file_of,
    job_at,
    learnt_of,
    register,
    registered_as,
    sample_of,
)

# --- samples --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(CHAIN) + 1))
@pytest.mark.parametrize("encoding", ["pixels", "array", "webp"])
def test_the_value_at_the_cut_is_the_chains_own(exports: Exports, cut: int, encoding: str) -> None:
    answer = answer_job(exports, job_at(cut, encoding), PIPELINE)
    sample = sample_of(answer)
    assert (sample.id, sample.cut, sample.note, sample.file_nbytes) == (7, cut, "", len(file_of(exports)))
    assert len(sample.op_s) == cut + 2 and all(s >= 0 for s in sample.op_s)
    assert answer.payload is not None
    with CHAIN.isolated():
        wanted = CHAIN.run(file_of(exports), 0, cut, Draw(11, 2, 3))
    assert difference(wanted, decode(sample.encoding, sample.meta, answer.payload)) == ""


def test_a_file_that_pillow_cannot_open_is_named(exports: Exports) -> None:
    note = sample_of(answer_job(exports, job_at(2, "pixels", key="a/broken.jpg"), PIPELINE)).note
    assert "cannot identify image file 'a/broken.jpg'" in note and "BytesIO" not in note


@pytest.mark.parametrize("occurrence", [0, 1, 5, (1 << 64) - 1])
def test_an_index_that_is_met_again_has_draws_of_its_own(exports: Exports, occurrence: int) -> None:
    answer = answer_job(exports, job_at(3, occurrence=occurrence), PIPELINE)
    with CHAIN.isolated():
        wanted, first = (CHAIN.run(file_of(exports), 0, 3, Draw(11, 2, 3, n)) for n in (occurrence, 0))
    assert answer.payload is not None
    found = decode(sample_of(answer).encoding, sample_of(answer).meta, answer.payload)
    assert difference(wanted, found) == ""
    assert (difference(first, found) == "") == (occurrence == 0)


@pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")
def test_the_part_of_a_file_is_that_of_the_occurrence(exports: Exports) -> None:
    parts = set()
    for occurrence in range(4):
        sample = sample_of(answer_job(exports, job_at(0, "roi-jpeg", occurrence=occurrence), PIPELINE))
        parts.add(tuple(sample.meta["part"]) if sample.encoding == "roi-jpeg" else ())
    assert len(parts) > 1


# --- what is allowed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "asked", "allowed", "sent"), [
    (1, "webp", ["webp"], "webp"), (1, "webp", ["pixels"], "pixels"), (1, "pixels", ["file", "array"], None),
    (4, "pixels", ["pixels", "array"], "array"), (4, "pixels", ["file", "pixels"], None), (4, "array", [], None),
    (1, "of-a-later-release", ["pixels"], "pixels"), (1, "file", [], None), (0, "webp", [], "file"),
    (0, "file", [], "file"),
])  # fmt: skip
def test_nothing_else_than_what_is_allowed_is_sent(
    exports: Exports, cut: int, asked: str, allowed: list[str], sent: str | None
) -> None:
    answer = answer_job(exports, job_at(cut, asked, allowed=allowed), PIPELINE)
    sample = sample_of(answer)
    if sent is not None:
        assert (sample.cut, sample.encoding, sample.note) == (cut, sent, "")
        return
    assert (sample.cut, sample.encoding, answer.payload) == (0, "file", file_of(exports))
    taking = "array" if cut == 4 else "pixels"
    assert f"{taking}, which would take this" in sample.note and "is not allowed" in sample.note
    assert "Traceback" not in sample.note and len(sample.note) < 400
    assert len(sample.op_s) == 1


@pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")
@pytest.mark.parametrize("allowed", [[], ["file"], ["file", "pixels", "array", "webp"], ["roi-jpeg"]])
def test_a_part_of_a_file_must_be_allowed(exports: Exports, allowed: list[str]) -> None:
    answer = answer_job(exports, job_at(0, "roi-jpeg", sample=1, allowed=[*allowed, ANY_PART]), PIPELINE)
    sample = sample_of(answer)
    assert sample_of(answer_job(exports, job_at(0, "roi-jpeg", sample=1), PIPELINE)).encoding == "roi-jpeg"
    if "roi-jpeg" in allowed:
        assert (sample.encoding, sample.note) == ("roi-jpeg", "")
    else:
        assert (sample.encoding, answer.payload) == ("file", file_of(exports))
        assert "roi-jpeg" in sample.note and "is not allowed" in sample.note


@pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")
@pytest.mark.parametrize("encoding", ["roi-jpeg", "roi-lepton"])
def test_a_loader_of_an_earlier_release_is_sent_no_part(exports: Exports, encoding: str) -> None:
    """It would look for the part that op 1 reads, and this agent may have cut out less."""
    answer = answer_job(exports, job_at(0, encoding, sample=1, allowed=list(encoding_names())), PIPELINE)
    sample = sample_of(answer)
    assert (sample.cut, sample.encoding, sample.note, answer.payload) == (0, "file", "", file_of(exports))


# --- files in other words -------------------------------------------------------------------------------------

needs_lepton = pytest.mark.skipif("lepton" not in encoding_names(), reason="lepton_jpeg_python is not installed")


@needs_lepton
@pytest.mark.parametrize("keep_info", [False, True])
def test_a_file_crosses_in_fewer_bytes(exports: Exports, keep_info: bool) -> None:
    """Also where somebody looks at its info, and where the pipeline has no op to run."""
    for registration in (PIPELINE, registered_as(CHAIN, torch="another")):
        answer = answer_job(exports, job_at(0, "lepton", keep_info=keep_info), registration)
        sample = sample_of(answer)
        assert (sample.cut, sample.encoding, sample.note, len(sample.op_s)) == (0, "lepton", "", 2)
        assert answer.payload is not None and len(answer.payload) < len(file_of(exports))
        assert decode("lepton", sample.meta, answer.payload) == file_of(exports)
        dry = answer_job(exports, job_at(0, "lepton", dry=True, keep_info=keep_info), registration)
        assert sample_of(dry).meta == {**sample.meta, "nbytes": len(answer.payload)} and dry.payload == b""


@needs_lepton
@pytest.mark.parametrize(("key", "note"), [
    ("a/x.png", ""), ("a/broken.jpg", ""), ("a/short.jpg", "lepton must"),
])  # fmt: skip
def test_a_file_that_lepton_does_not_take_goes_out_as_it_is(exports: Exports, key: str, note: str) -> None:
    answer = answer_job(exports, job_at(0, "lepton", key=key), PIPELINE)
    sample = sample_of(answer)
    assert (sample.cut, sample.encoding, answer.payload) == (0, "file", file_of(exports, key))
    assert note in sample.note and bool(note) == bool(sample.note)


@needs_lepton
def test_a_part_of_a_file_crosses_in_fewer_bytes(exports: Exports) -> None:
    parts = {}
    for encoding in ("roi-jpeg", "roi-lepton"):
        answer = answer_job(exports, job_at(0, encoding, sample=1), PIPELINE)
        sample = sample_of(answer)
        assert (sample.cut, sample.encoding, sample.note) == (0, encoding, "")
        parts[encoding] = decode(encoding, sample.meta, answer.payload or b"")
    assert parts["roi-lepton"] == parts["roi-jpeg"]
    answer = answer_job(exports, job_at(0, "roi-lepton", sample=1, keep_info=True), PIPELINE)
    kept = decode("roi-lepton", sample_of(answer).meta, answer.payload or b"")
    with Image.open(io.BytesIO(kept.data)) as part, Image.open(io.BytesIO(file_of(exports, "a/x.jpg"))) as whole:
        assert part.info == whole.info and part.info["comment"] == b"from a camera"


def test_info_goes_along_when_asked_for(exports: Exports) -> None:
    assert "info" not in sample_of(answer_job(exports, job_at(1, "pixels"), PIPELINE)).meta
    answer = answer_job(exports, job_at(1, "pixels", keep_info=True), PIPELINE)
    assert decode("pixels", sample_of(answer).meta, answer.payload or b"").info["comment"] == b"from a camera"


def test_a_dry_run_leaves_the_payload_behind(exports: Exports) -> None:
    for cut in (0, 1, 3):
        jobs = [job_at(cut, dry=dry) for dry in (False, True)]
        if cut == 0:
            wet, dry = (answer_file(exports, job) for job in jobs)
        else:
            wet, dry = (answer_job(exports, job, PIPELINE) for job in jobs)
        assert sample_of(dry).meta == sample_of(wet).meta | {"nbytes": len(wet.payload or b"")} and dry.payload == b""
        assert (sample_of(dry).cut, sample_of(dry).encoding) == (cut, sample_of(wet).encoding)


def test_a_file_as_it_is(exports: Exports) -> None:
    answer = answer_file(exports, job_at(0, id=1 << 60), "why so early")
    sample = sample_of(answer)
    assert (sample.id, sample.cut, sample.encoding, sample.meta) == (1 << 60, 0, "file", {})
    assert sample.note == "why so early" and len(sample.op_s) == 1 and answer.payload == file_of(exports)


# --- a shorter chain ------------------------------------------------------------------------------------------


class Unheard:
    """An op that only a loader knows."""

    def __init__(self, strength: int = 3) -> None:
        self.strength = strength

    def __call__(self, value: Any) -> Any:
        return value


def _described(op: type, name: str, *more: Any) -> bytes:
    """The registration of a pipeline with an op registered while it is made, and not any more afterwards."""
    register_op(name, op)
    try:
        return registered_as(chain_of(v2.Compose([v2.CenterCrop(8), op(), *more])))
    finally:
        del _BY_NAME[name], _BY_CLASS[op]


def test_an_unknown_op_ends_the_chain(exports: Exports) -> None:
    description = _described(Unheard, "tests.Unheard", v2.ToImage())
    assert register(description).message == Registered(content_hash(description), 2)
    sample = sample_of(answer_job(exports, job_at(4), description))
    assert (sample.cut, sample.encoding, sample.note) == (2, "pixels", "this agent knows only the first 2 ops")
    assert sample_of(answer_job(exports, job_at(2), description)).note == ""


@pytest.mark.parametrize(
    ("name", "cuts"), [("pillow", True), ("libjpeg", True), ("torch", False), ("default dtype", False)]
)
def test_no_op_runs_for_a_loader_of_other_software(exports: Exports, name: str, cuts: bool) -> None:
    registration = registered_as(chain_of(v2.Compose([v2.RandomResizedCrop(8), v2.ToImage()])), **{name: "another"})
    assert register(registration).message == Registered(content_hash(registration), 0)
    for cut in (1, 2, 3):
        sample = sample_of(answer_job(exports, job_at(cut), registration))
        assert (sample.cut, sample.encoding) == (0, "file")
        assert sample.note.endswith(f"other software: {name} differ")
    if "roi-jpeg" in encoding_names():
        sample = sample_of(answer_job(exports, job_at(0, "roi-jpeg"), registration))
        assert (sample.encoding == "roi-jpeg", sample.note == "") == (cuts, cuts)


def test_every_op_is_known() -> None:
    assert register(PIPELINE).message == Registered(content_hash(PIPELINE), len(CHAIN))


@pytest.mark.parametrize("description", [
    b"", b"\xc1", b"not msgpack", msgpack.packb([]), msgpack.packb([["decode"]]), msgpack.packb([["v2.ToImage", {}]]),
    msgpack.packb([["decode", {}], ["v2.CenterCrop", {"size": "large"}]]),
    msgpack.packb([["decode", {}], ["v2.CenterCrop", {"nonsense": 1}]]),
    msgpack.packb([["decode", {}], ["v2.CenterCrop", {"size": "x" * 100_000}]]),
    b"\x92" + msgpack.packb(["decode", {}]) + b"\x92\xa1a" + b"\x81\xa1a" * 1000 + b"\x80",
    b"\x91" * 1000 + b"\x01", b"\x91\x81\x90\x01", b"\x91\x92\x01\xd4\xff\x00",
])  # fmt: skip
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_bad_pipeline(description: bytes, wrapped: bool) -> None:
    registration = msgpack.packb([software(), description]) if wrapped else description
    answer = register(registration)
    assert isinstance(answer.message, Failed), answer
    assert answer.message.failure == "bad-pipeline" and answer.message.digest == content_hash(registration)
    assert 10 < len(answer.message.text) < 4000 and answer.message.ids == []


# --- what fails -----------------------------------------------------------------------------------------------


class Fails:
    """An op that raises."""

    error: BaseException

    def __call__(self, value: Any) -> Any:
        raise self.error


class Gives:
    """An op that gives anything at all."""

    value: Any
    calls = 0

    def __call__(self, value: Any) -> Any:
        Gives.calls += 1
        return self.value


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Any:
    register_op("tests.Fails", Fails, draws=())
    register_op("tests.Gives", Gives, draws=())
    yield
    for op, name in ((Fails, "tests.Fails"), (Gives, "tests.Gives")):
        del _BY_NAME[name], _BY_CLASS[op]


@pytest.mark.parametrize("error", [
    ValueError("the image is too dark"), MemoryError(), RuntimeError("x" * 10_000_000), _Unprintable(),
    KeyError("\udcff"), RecursionError("deep"),
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_an_op_that_fails_gives_the_file_and_the_traceback(exports: Exports, error: BaseException) -> None:
    Fails.error = error
    answer = answer_job(exports, job_at(2), registered_as(chain_of(Fails())))
    sample = sample_of(answer)
    assert (sample.cut, sample.encoding, sample.meta, answer.payload) == (0, "file", {}, file_of(exports))
    assert type(error).__name__ in sample.note
    if sys.version_info >= (3, 11) or not isinstance(error, _Unprintable):  # a note is part of its text before that
        assert "tests.Fails" in sample.note
    assert len(sample.op_s) == 1 and len(sample.note) < MAX_TEXT_LENGTH
    assert unpack(answer.header) == sample


def test_a_corrupt_image_gives_the_file(exports: Exports) -> None:
    answer = answer_job(exports, job_at(1, key="a/broken.jpg"), PIPELINE)
    assert "op 0 (decode)" in sample_of(answer).note and answer.payload == file_of(exports, "a/broken.jpg")


@pytest.mark.parametrize("value", [
    None, {"image": 1}, "text", Image.new("P", (2, 2)), torch.ones(2, requires_grad=True), np.array([None]),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_value_that_does_not_travel_gives_the_file(exports: Exports, value: Any) -> None:
    Gives.value = value
    answer = answer_job(exports, job_at(2), registered_as(chain_of(Gives())))
    assert (
        sample_of(answer).cut == 0 and "EncodingError" in sample_of(answer).note and answer.payload == file_of(exports)
    )


def test_info_that_does_not_travel_gives_the_file(exports: Exports) -> None:
    Gives.value = Image.new("RGB", (2, 2))
    Gives.value.info = {"big": 1 << 70}
    answer = answer_job(exports, job_at(2, keep_info=True), registered_as(chain_of(Gives())))
    assert sample_of(answer).cut == 0 and "info" in sample_of(answer).note
    assert unpack(answer.header) == answer.message


@pytest.mark.parametrize("knows", [False, True], ids=["a loader from before", "a loader of now"])
@pytest.mark.parametrize("encoding", ["pixels", CHEAPEST])
def test_no_op_runs_for_info_that_does_not_travel(
    exports: Exports, monkeypatch: pytest.MonkeyPatch, knows: bool, encoding: str
) -> None:
    """Who left the choice to the agent is told why, too: metadata can be changed."""
    texts = PngInfo()
    texts.add_itxt("Title", "Ä")
    Image.new("RGB", (9, 9)).save(Path(exports["d"].describe()) / "titled.png", pnginfo=texts)
    Gives.value = decoded(exports["d"].read("titled.png"))
    allowed = [*encoding_names(), *([INFO_CLASSES] if knows else [])]
    job = job_at(2, encoding, key="titled.png", keep_info=True, allowed=allowed, prices=[1.0, 0.0, 1.0, 0.0])
    monkeypatch.setattr("storage_agent.workers.answering.choose", lambda *_: Chosen(2, "pixels"))
    registration = registered_as(chain_of(Gives()))
    job, learnt = replace(job, fetch=replace(job.fetch, digest=content_hash(registration))), learnt_of(registration)
    notes, calls = [], []
    for _ in range(3):
        Gives.calls = 0
        notes.append(sample_of(learnt.answer(learnt.prepare(exports, job)).answer).note)
        calls.append(Gives.calls)
    assert calls == ([1, 1, 1] if knows else [1, 0, 0]), "the first one shows it"
    assert all(("image info must be plain data" in note) == (not knows) for note in notes)


def test_a_header_over_the_limit_gives_the_file(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sophon_loader.wire.frames.MAX_HEADER_NBYTES", 1000)
    Gives.value = Image.new("RGB", (2, 2))
    Gives.value.info = {"icc_profile": bytes(1100)}
    monkeypatch.setattr("storage_agent.workers.job_outcomes.NOTE_LIMIT", 300)
    answer = answer_job(exports, job_at(2, keep_info=True), registered_as(chain_of(Gives())))
    assert sample_of(answer).cut == 0 and "MessageTooLong" in sample_of(answer).note
    assert unpack(answer.header) == answer.message


def test_a_pipeline_that_cannot_be_built_gives_the_file(exports: Exports) -> None:
    large = msgpack.packb([["decode", {}], ["v2.CenterCrop", {"size": "large"}]])
    for registration in (b"", msgpack.packb([software(), large]), msgpack.packb([[], large]), msgpack.packb([{}, "x"])):
        answer = answer_job(exports, job_at(1), registration)
        assert sample_of(answer).cut == 0 and "PipelineError" in sample_of(answer).note


@pytest.mark.parametrize(("changed", "failure"), [
    ({"key": "a/none.jpg"}, "missing"), ({"key": "../x"}, "outside-export"), ({"key": "a"}, "unreadable"),
    ({"export": "e"}, "unknown-export"),
])  # fmt: skip
def test_a_file_that_cannot_be_had(exports: Exports, changed: dict[str, Any], failure: str) -> None:
    for answer in (answer_file(exports, job_at(0, **changed)), answer_job(exports, job_at(1, **changed), PIPELINE)):
        assert isinstance(answer.message, Failed) and answer.payload is None
        assert (answer.message.failure, answer.message.ids) == (failure, [7])


@pytest.mark.parametrize("ops", [(), ("tests.no_such_module",)], ids=["ready", "broken"])
def test_a_worker_whose_broker_has_gone_ends_quietly(
    tmp_path: Path, ops: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker has said that the ops are broken before, say."""
    (tmp_path / "x.jpg").touch()
    for name in ("body.signal.signal", "answering.torch.set_num_threads", "body.Memory"):  # of this process
        monkeypatch.setattr(f"storage_agent.workers.{name}", lambda *_: None)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        main(AgentSettings({"d": str(tmp_path)}, "tcp://127.0.0.1:0", 1, ops=ops), Channel(ours), with_ops=True)
