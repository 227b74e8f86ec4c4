"""What a worker answers to programs: what their steps make of the file, or why they are to be drawn anew."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.encodings.registry import decode
from sophon_loader.kinds.image.execute import execute
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.kinds.image.source import PictureFile
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Limits, Program, Step
from sophon_loader.wire.messages import Failed, ProgramItem, Sample
from storage_agent.jobs.jobs import FetchHeader, Job
from storage_agent.reading.answers import Answer
from storage_agent.stores import Exports
from storage_agent.workers.program_answers import answer_program, check_program
from storage_agent.workers.program_choice import ProgramAppraisers
from tests.unit.agent.samples import file_of

STEPS: tuple[Step, ...] = (
    ("crop", 4, 3, 30, 28),
    ("resize", 16, 16, 2, None, None),
    ("transpose", 0),
    ("filter", "box", 1, 1),
)
OF_A_JPEG = (60, 40, "RGB")
PARTS = ["roi-jpeg", "roi-lepton"]


def _job(
    exports: Exports,
    cut: int,
    encoding: str,
    key: str = "a/x.jpg",
    made_for: tuple[Any, ...] = OF_A_JPEG,
    steps: tuple[Step, ...] = STEPS,
    nbytes: int | None = None,
    program: bytes | None = None,
    **changed: Any,
) -> Job:
    header: dict[str, Any] = {
        "client": b"c", "export": "d", "digest": "", "seed": 0, "epoch": 0, "keep_info": False, "dry": False,
        "allowed": [*encoding_names(), ANY_PART], "received_s": 0.0, "upkeep_s": 0.0, "has_programs": True,
        "pixels_by": pixels_by(),
    }  # fmt: skip
    packed = Program("image", "", made_for, steps).pack() if program is None else program
    size = len(file_of(exports, key)) if nbytes is None else nbytes
    return Job(FetchHeader(**(header | changed)), ProgramItem(7, cut, encoding, key, size, packed))


def _answer(exports: Exports, job: Job) -> Answer:
    return answer_program(check_program(exports, Job.from_frames(*job.frames()), Limits(), ProgramAppraisers())).answer


def _sample(answer: Answer) -> tuple[Sample, Any]:
    assert isinstance(answer.message, Sample) and answer.payload is not None
    return answer.message, decode(answer.message.encoding, answer.message.meta, answer.payload)


def _refused(answer: Answer, why: str) -> None:
    assert isinstance(answer.message, Failed) and answer.message.ids == [7]
    assert answer.message.failure == "bad-program" and why in answer.message.text


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_values_come_from_software_that_makes_pixels_as_the_loaders_does(exports: Exports, cut: int) -> None:
    """Else an agent that was started anew after an upgrade would send pixels that differ in the last bit."""
    _refused(_answer(exports, _job(exports, cut, "pixels", pixels_by="pillow 1.0")), "pillow 1.0, as at the loader")
    sample, part = _sample(_answer(exports, _job(exports, 0, "roi-jpeg", pixels_by="pillow 1.0")))
    assert sample.encoding in ("roi-jpeg", "file") and part is not None


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("key", ["a/x.jpg", "a/x.png"])
def test_the_rest_of_a_program_makes_of_an_answer_what_all_of_it_makes_of_the_file(
    exports: Exports, key: str, cut: int
) -> None:
    sample, value = _sample(_answer(exports, _job(exports, cut, "pixels", key)))
    program = Program("image", "", OF_A_JPEG, STEPS)
    assert (sample.cut, sample.encoding, sample.note, len(sample.op_s)) == (cut, "pixels", "", 3)
    wanted = execute(program, file_of(exports, key))
    assert execute(program, value, start=SEGMENTS[cut]).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("encoding", PARTS)
def test_a_part_of_a_file_holds_what_the_steps_read(exports: Exports, encoding: str) -> None:
    sample, part = _sample(_answer(exports, _job(exports, 0, encoding)))
    assert sample.encoding == encoding and isinstance(part, PartOfFile) and len(part.data) < sample.file_nbytes
    source = PictureFile(part.data, Shape(*OF_A_JPEG), part=part)
    wanted = execute(Program("image", "", OF_A_JPEG, STEPS), file_of(exports))
    assert source.held(STEPS).run(STEPS).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("key", "steps", "changed"),
    [
        ("a/x.png", STEPS, {}),
        ("a/x.jpg", (), {}),
        ("a/x.jpg", STEPS, {"allowed": ["file", *PARTS]}),
    ],
    ids=["no JPEG", "all of it is read", "a loader that takes only some parts"],
)
def test_a_file_goes_as_it_is_where_no_part_is_to_be_had(
    exports: Exports, key: str, steps: tuple[Step, ...], changed: dict[str, Any]
) -> None:
    answer = _answer(exports, _job(exports, 0, "roi-jpeg", key, steps=steps, **changed))
    sample, _ = _sample(answer)
    assert (sample.encoding, sample.note, len(sample.op_s)) == ("file", "", 1)
    assert answer.payload == file_of(exports, key)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"program": b""}, "a program must be"),
        ({"program": b"\xc1"}, "a program must be"),
        ({"program": Program("sound", "", OF_A_JPEG, STEPS).pack()}, "must be of kind 'image'"),
        ({"steps": (("melt", 1),)}, "step 0 must be one of"),
        ({"steps": (("crop", 0, 0, 0, 9),)}, "crop"),
        ({"steps": (("resize", 1 << 20, 1 << 20, 0, None, None),)}, "must stay within"),
        ({"cut": 4}, "from 0 to 3"),
        ({"cut": 64}, "from 0 to 3"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_program_is_refused_before_its_file_is_read(exports: Exports, changed: dict[str, Any], why: str) -> None:
    missing = {"cut": 2, "encoding": "pixels", "key": "a/none.jpg", "nbytes": 1, **changed}
    _refused(_answer(exports, _job(exports, **missing)), why)


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_another_file_than_the_one_it_was_drawn_for_gets_no_box(exports: Exports, cut: int) -> None:
    encoding = "pixels" if cut else "roi-jpeg"
    other_size = _job(exports, cut, encoding, nbytes=len(file_of(exports)) + 1)
    _refused(_answer(exports, other_size), "draw it anew")
    same_size = _job(exports, cut, encoding, made_for=(61, 40, "RGB"))
    _refused(_answer(exports, same_size), "made for")
    no_picture = _job(exports, cut, encoding, "a/broken.jpg")
    _refused(_answer(exports, no_picture), "made for")


def test_of_a_damaged_file_the_loader_gets_the_file_and_the_reason(exports: Exports) -> None:
    answer = _answer(exports, _job(exports, 2, "pixels", "a/short.jpg", steps=(("convert", "L"),)))
    sample, _ = _sample(answer)
    assert (sample.cut, sample.encoding) == (0, "file") and "truncated" in sample.note
    assert answer.payload == file_of(exports, "a/short.jpg")


def test_a_missing_file_fails_as_such(exports: Exports) -> None:
    failed = _answer(exports, _job(exports, 2, "pixels", "a/none.jpg", nbytes=1)).message
    assert isinstance(failed, Failed) and failed.failure == "missing"


def test_a_dry_one_leaves_the_payload_behind(exports: Exports) -> None:
    answer = _answer(exports, _job(exports, 2, "pixels", dry=True))
    assert isinstance(answer.message, Sample) and answer.payload == b""
    assert answer.message.meta["nbytes"] == 16 * 16 * 3


def test_info_goes_along_where_it_is_wanted(exports: Exports) -> None:
    _, value = _sample(_answer(exports, _job(exports, 1, "pixels", keep_info=True)))
    assert isinstance(value, Image.Image) and value.info["comment"] == b"from a camera"
