"""Detection's study: who gains, by which form, and in what."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bench import detection
from bench.detection import FILES, PART, Form, RawStage, Sample, chosen, conclusions, measured, ssd_crop
from bench.page_tables import TABLES
from sophon_loader.encodings.registry import encode
from tests.support.picture_files import file_of
from tests.support.results import written

FILE = Form("file", 100_000, 0.0, 0.010)
PIXELS = Form("pixels at shrunk", 300_000, 0.008, 0.002, is_end=True)
"""Cheaper for the loader, and larger."""
WEBP = Form("webp at shrunk", 80_000, 0.020, 0.012, is_end=True)
"""Smaller, and dearer."""
CUT = Form(PART, 50_000, 0.002, 0.0095)
"""Half the file, and as dear as that: what is less than a tenth is no gain."""


def test_bytes_and_cpu_are_gained_by_other_forms() -> None:
    """A sample of which no form is smaller, one of which all others than pixels are, and one without a program."""
    large = Sample((FILE, PIXELS), RawStage(300_000, 0.008))
    small = Sample((FILE, PIXELS, WEBP, CUT), RawStage(60_000, 0.004))
    found = conclusions([large, small, small, Sample((FILE,), None)])
    assert found["samples"] == 4 and found["file_kb"] == 100 and found["loader_ms"] == 10
    assert found["sophon"] == {
        "share": 0.5,
        "times_fewer_bytes": pytest.approx(400 / 320),
        "agent_ms": 4,
        "bytes_per_cpu_s": 40_000 / 0.004,
    }
    smallest, cheapest = found["smallest"], found["cheapest"]
    assert (smallest["share"], smallest["forms"]) == (0.5, {PART: 2})
    assert (smallest["times_fewer_bytes"], smallest["agent_ms"]) == (pytest.approx(400 / 300), 2)
    assert smallest["loader_ms_saved"] == pytest.approx(0.5)
    assert (cheapest["share"], cheapest["forms"]) == (0.75, {"pixels at shrunk": 3})
    assert (cheapest["times_fewer_bytes"], cheapest["agent_ms"]) == (pytest.approx(400 / 1000), 8)
    assert cheapest["loader_ms_saved"] == pytest.approx(8)
    assert found["smaller_and_cheaper_share"] == 0 and found["end_to_file"] == 0.8
    both = Form("jxl at shrunk", 80_000, 0.03, 0.005, is_end=True)
    assert conclusions([Sample((FILE, both), None), large])["smaller_and_cheaper_share"] == 0.5


def test_where_nothing_gains_there_are_no_times() -> None:
    found = conclusions([Sample((FILE,), None)])
    for rule in ("sophon", "smallest", "cheapest"):
        assert (found[rule]["share"], found[rule]["times_fewer_bytes"], found[rule]["agent_ms"]) == (0, 1, None)
    assert found["end_to_file"] is None


def test_a_sample_is_measured_in_every_form_that_auto_has_for_it() -> None:
    data = file_of("jpeg 4:2:0", 640, 480)
    sample = measured(data, ssd_crop, 0)
    assert (
        sample is not None and sample.file.nbytes == len(data) and sample.raw == RawStage(270_000, sample.raw.agent_s)
    )
    names = {form.name for form in sample.forms}
    assert {PART, "pixels at shrunk", "webp at shrunk", "pixels at decoded"} <= names and "webp at decoded" not in names
    assert {form.name for form in sample.forms if form.is_end} == {name for name in names if name.endswith("shrunk")}


def test_a_form_that_gives_other_pixels_ends_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    black = encode(Image.new("RGB", (300, 300)), "pixels")
    monkeypatch.setattr(detection, "_encoded", lambda *_: [("pixels at 8-bit", 3, True, black, 0.0)])
    with pytest.raises(RuntimeError, match="must give the pixels of the file, pixels at 8-bit gives others"):
        measured(file_of("jpeg 4:2:0", 96, 64), ssd_crop, 0)


def test_files_are_spread_evenly() -> None:
    few, many = [Path("a"), Path("b")], [Path(str(number)) for number in range(2 * FILES + 1)]
    assert chosen(few) == few
    assert len(chosen(many)) == FILES and chosen(many)[:2] == many[:4:2]


def test_both_gains_are_told_by_workload_and_pictures(tmp_path: Path) -> None:
    samples = [Sample((FILE, PIXELS, CUT), RawStage(60_000, 0.004)), Sample((FILE,), None)]
    rows = {"data": "photos", "files": 2, "workloads": {"crop": conclusions(samples)}}
    text = TABLES["study-detection"](written(tmp_path, "study-detection-photos", rows))
    assert "| crop | photos | 50% | 1.25 | 10.0 | 50% | part 1 | 1.33 | 2.0 | 0.5 |" in text
    assert "| crop | photos | 10.0 | 50% | pixels at shrunk 1 | 0.50 | 8.0 | 8.0 | 3.00 | 0% |" in text
