"""Pictures that cross as files, because only the loader's own Pillow can do what its program has told it."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest

from sophon_loader.pipeline.told import OPENERS
from sophon_loader.wire.messages import CHEAPEST
from storage_agent.workers.body import refuse_what_pillow_warns_of
from tests.support.picture_files import file_of
from tests.support.pictures import picture
from tests.unit.agent.samples import CHAIN, PIPELINE, answer_job, exports_of, job_at, registered_as, sample_of


def _half_transparent() -> bytes:
    file = io.BytesIO()
    picture(300, 200, 0).convert("P").save(file, "PNG", transparency=bytes([0, 128, 255]))
    return file.getvalue()


WARNED = {
    "exif": file_of("jpeg exif cut short", 300, 200),
    "index of pictures": file_of("jpeg several", 300, 200).replace(b"MPF\0", b"MPF\0no", 1),
    "palette": _half_transparent(),
}


@pytest.mark.parametrize("kind", WARNED)
@pytest.mark.parametrize(("cut", "encoding"), [(2, "pixels"), (0, "roi-jpeg"), (4, CHEAPEST)])
def test_what_pillow_warns_of(tmp_path: Path, kind: str, cut: int, encoding: str) -> None:
    data = WARNED[kind]
    (tmp_path / "x.jpg").write_bytes(data)
    with warnings.catch_warnings():
        refuse_what_pillow_warns_of()
        answer = answer_job(exports_of(tmp_path), job_at(cut, encoding, key="x.jpg", sample=1), PIPELINE)
    sample = sample_of(answer)
    assert (sample.cut, sample.encoding, answer.payload) == (0, "file", data)
    assert cut != 2 or "UserWarning at the agent" in sample.note


@pytest.mark.parametrize(("cut", "encoding"), [(2, "pixels"), (4, CHEAPEST)])
def test_a_format_that_the_loader_opens_by_other_code(tmp_path: Path, cut: int, encoding: str) -> None:
    image, registration = picture(300, 200, 0), registered_as(CHAIN, **{OPENERS: "TGA=mylab 1.0"})
    notes = {}
    for kind in ("TGA", "PNG"):
        image.save(tmp_path / f"x.{kind}", kind)
        answer = answer_job(exports_of(tmp_path), job_at(cut, encoding, key=f"x.{kind}"), registration)
        notes[kind] = sample_of(answer).note
        if kind == "TGA":
            assert sample_of(answer).cut == 0 and answer.payload == (tmp_path / "x.TGA").read_bytes()
    assert "TGA files must be opened by equal code" in notes["TGA"] and not notes["PNG"]
