"""What a worker chooses for programs, before and after it has tried some, and for what it learns costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.encodings.estimate import MIN_PROBES, UsedAt
from sophon_loader.encodings.registry import decode, encodings, used_at
from sophon_loader.kinds.image.execute import execute
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.kinds.image.source import PictureFile, StepsOnPicture
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Limits, Program, Step
from sophon_loader.wire.messages import CHEAPEST, Failed, Offer, ProgramItem, Sample
from storage_agent.jobs.jobs import FetchHeader, Job
from storage_agent.stores import Exports
from storage_agent.workers.agent_choice import Done
from storage_agent.workers.appraiser import FIRST_JOBS_BETWEEN, Appraiser
from storage_agent.workers.program_answers import answer_program, check_program
from storage_agent.workers.program_choice import (
    MAX_SIGNATURES,
    ProgramAppraisers,
    _told_apart,
    signature_of,
    try_out_program,
)
from storage_agent.workers.trials import SampleTrial
from tests.unit.agent.samples import file_of, sample_of

CROP: tuple[Step, ...] = (("crop", 4, 3, 30, 28), ("resize", 16, 16, 2, None, None))
FLIP: tuple[Step, ...] = (*CROP, ("transpose", 0))
OF_A_JPEG = (60, 40, "RGB")
WIRE, AGENT, REST = [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]
ALLOWED = ["file", "roi-jpeg", "pixels", "webp", ANY_PART]
needs_crop = pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")


def program_of(steps: tuple[Step, ...]) -> Program:
    return Program("image", "", OF_A_JPEG, steps)


def job_of(exports: Exports, prices: list[float], steps: tuple[Step, ...] = FLIP, **changed: Any) -> Job:
    key, cut = changed.pop("key", "a/x.jpg"), changed.pop("cut", 3)
    header: dict[str, Any] = {
        "client": b"c", "export": "d", "digest": "", "seed": 0, "epoch": 0, "keep_info": False, "dry": False,
        "allowed": ALLOWED, "received_s": 0.0, "upkeep_s": 0.0, "has_programs": True, "prices": prices,
        "pixels_by": pixels_by(),
    }  # fmt: skip
    item = ProgramItem(7, cut, CHEAPEST, key, len(file_of(exports, key)), program_of(steps).pack())
    return Job(FetchHeader(**(header | changed)), item)


def done_of(exports: Exports, job: Job, appraisers: ProgramAppraisers) -> Done:
    return answer_program(check_program(exports, job, Limits(), appraisers))


def answered(exports: Exports, job: Job, appraisers: ProgramAppraisers) -> tuple[Sample, Any]:
    """The answer, and its value."""
    answer = done_of(exports, job, appraisers).answer
    assert answer.payload is not None
    sample = sample_of(answer)
    return sample, decode(sample.encoding, sample.meta, answer.payload)


def trained(
    exports: Exports, steps: tuple[Step, ...] = FLIP
) -> tuple[ProgramAppraisers, list[tuple[str, SampleTrial]]]:
    """A worker that has tried a program often enough, and what it told others."""
    appraisers, told, job = ProgramAppraisers(), [], job_of(exports, WIRE, steps)
    for _ in range(MIN_PROBES * FIRST_JOBS_BETWEEN):
        tried, signature = try_out_program(job, done_of(exports, job, appraisers), appraisers)
        told += [] if tried.to_tell is None else [(signature, tried.to_tell)]
    return appraisers, told


def signature(steps: tuple[Step, ...], mode: str = "RGB") -> str:
    return signature_of(StepsOnPicture(PictureFile(b"", Shape(60, 40, mode)), steps))


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Jobs are counted here, and take no time: no trial is waited for."""
    took = Appraiser.took
    monkeypatch.setattr(Appraiser, "took", lambda self, began_s, ended_s: took(self, began_s, began_s))
    yield


@needs_crop
@pytest.mark.parametrize(
    ("key", "allowed", "encoding"),
    [("a/x.jpg", ALLOWED, "roi-jpeg"), ("a/x.jpg", ["pixels"], "file"), ("a/x.png", ALLOWED, "file")],
)
def test_before_anything_is_known_the_part_goes_out_or_the_file(
    exports: Exports, key: str, allowed: list[str], encoding: str
) -> None:
    sample, _ = answered(exports, job_of(exports, WIRE, key=key, allowed=allowed), ProgramAppraisers())
    assert (sample.cut, sample.encoding, sample.note, sample.offers) == (0, encoding, "", [])


@needs_crop
def test_no_value_is_chosen_where_the_loader_makes_other_pixels(exports: Exports) -> None:
    appraisers, _ = trained(exports)
    assert answered(exports, job_of(exports, REST), appraisers)[0].cut == 3
    other = job_of(exports, REST, pixels_by="pillow 1.0")
    assert answered(exports, other, appraisers)[0].cut == 0


@needs_crop
@pytest.mark.parametrize("steps", [(), CROP, FLIP, (("filter", "box", 1, 1),), (("convert", "L"), *CROP)])
@pytest.mark.parametrize("prices", [WIRE, AGENT, REST])
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_whatever_is_chosen_the_program_gives_the_same(
    exports: Exports, steps: tuple[Step, ...], prices: list[float], cut: int
) -> None:
    appraisers, _ = trained(exports, steps)
    sample, value = answered(exports, job_of(exports, prices, steps, cut=cut), appraisers)
    assert sample.cut <= cut and sample.offers[0][:2] == (0, "file"), "of all choices it tells"
    assert all(one.cut <= cut for one in sample.offers)
    assert len({one[:2] for one in sample.offers}) == len(sample.offers), "each choice once"
    if sample.cut:
        rest = execute(program_of(steps), value, start=SEGMENTS[sample.cut])
        assert rest.tobytes() == execute(program_of(steps), file_of(exports)).tobytes()
    assert (sample.cut, sample.encoding) == (0, "file") or prices != AGENT
    assert len(sample.op_s) == (3 if sample.cut else 1 if sample.encoding == "file" else 2), "reading alone for a file"
    assert sample.cut == cut or prices != REST or cut < 3 or not steps, "nothing is left behind all steps"


def test_values_behind_all_steps_are_offered_once() -> None:
    offers = [Offer(cut, name, 1, 0.0, 0.0) for cut, name in [(0, "file"), (1, "p"), (2, "p"), (2, "webp"), (3, "p")]]

    def named(steps: tuple[Step, ...], furthest: int) -> list[tuple[int, str]]:
        return [(one.cut, one.encoding) for one in _told_apart(offers, steps, furthest)]

    assert named(FLIP, 3) == [one[:2] for one in offers], "a flip is behind the crop"
    assert named(CROP, 3) == [(0, "file"), (1, "p"), (3, "p"), (3, "webp")]
    assert named((("filter", "box", 1, 1),), 3) == [(0, "file"), (1, "p"), (3, "p")]
    assert (2, "webp") in named(CROP, 2), "the loader accepts no more"


def test_costs_are_of_what_samples_have_in_common() -> None:
    elsewhere: Step = ("crop", 0, 0, 9, 9)
    wider: Step = ("resize", 17, 16, 2, None, None)
    of_crop = signature(CROP)
    assert of_crop == signature(FLIP) == signature((("transpose", 0), elsewhere, CROP[1]))
    others = [(), CROP[:1], (CROP[0], wider), (("convert", "L"), *CROP)]
    assert len({of_crop, signature(CROP, "L"), *map(signature, others)}) == 6


def test_the_signature_that_was_used_longest_ago_is_forgotten() -> None:
    appraisers, names = ProgramAppraisers(), [f"RGB shrinks {number}" for number in range(MAX_SIGNATURES + 1)]
    first, second, *_ = [appraisers.of(name) for name in names[:-1]]
    assert appraisers.of(names[0]) is first
    appraisers.of(names[-1])
    assert len(appraisers) == MAX_SIGNATURES
    assert appraisers.of(names[0]) is first and appraisers.of(names[1]) is not second


def test_a_worker_that_has_seen_no_such_program_learns_from_what_others_tell(exports: Exports) -> None:
    appraisers, told = trained(exports)
    assert len(told) == MIN_PROBES - 1, "but for its first, which loads libraries"
    newcomer = ProgramAppraisers()
    for about, trial in [*told, told[0]]:
        newcomer.hear(about, SampleTrial.from_bytes(trial.to_bytes()))
    job = job_of(exports, WIRE)
    both = [{one[:2] for one in answered(exports, job, one)[0].offers} for one in (appraisers, newcomer)]
    assert both[0] == both[1] and (2, "webp") in both[0]


def test_what_an_encoding_takes_behind_all_steps_is_learnt(exports: Exports, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the stage where the appraiser knows it, whatever the segment is called in the answer."""
    appraisers, _ = trained(exports, CROP)
    seen: list[Any] = []
    monkeypatch.setattr(Appraiser, "saw", lambda self, *told: seen.append(told[1:3]))
    job = job_of(exports, [0.0, 0.0, 1.0, 0.0], CROP, allowed=["webp"])
    done = done_of(exports, job, appraisers)
    try_out_program(job, done, appraisers)
    sample = sample_of(done.answer)
    assert (sample.cut, sample.encoding) == (3, "webp") and seen == [(2, "webp")]


def test_a_trial_that_fails_makes_the_next_ones_no_rarer_and_hurts_nobody(exports: Exports) -> None:
    steps: tuple[Step, ...] = (("convert", "L"),)
    appraisers, job = ProgramAppraisers(), job_of(exports, WIRE, steps, key="a/short.jpg", cut=0)
    made = []
    for _ in range(4 * FIRST_JOBS_BETWEEN):
        tried, _ = try_out_program(job, done_of(exports, job, appraisers), appraisers)
        made.append((tried.cpu_s > 0, tried.to_tell))
    assert [one for one, _ in made].count(True) == 4 and {told for _, told in made} == {None}


def test_a_step_that_fails_gives_the_file_and_the_reason(exports: Exports) -> None:
    appraisers, _ = trained(exports)
    sample, _ = answered(exports, job_of(exports, REST, key="a/short.jpg"), appraisers)
    assert (sample.cut, sample.encoding) == (0, "file") and "truncated" in sample.note


def test_a_choice_that_no_encoding_takes_gives_the_file_without_a_note(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    appraisers, _ = trained(exports)
    job = job_of(exports, REST, allowed=["webp"])
    assert answered(exports, job, appraisers)[0].encoding == "webp" and used_at("webp") is UsedAt.RESIZED
    monkeypatch.setattr(encodings()["webp"], "accepts", lambda value: False)
    sample, _ = answered(exports, job, appraisers)
    assert (sample.cut, sample.encoding, sample.note) == (0, "file", "")


def test_another_picture_than_it_was_made_for_is_told(exports: Exports) -> None:
    job = job_of(exports, WIRE, key="a/broken.jpg")
    failed = done_of(exports, job, ProgramAppraisers()).answer.message
    assert isinstance(failed, Failed) and failed.failure == "bad-program" and "made for" in failed.text
