"""What bench.cost makes of its rows, and how it tells stages apart."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.cost import in_rounds, summarised, verdicts
from bench.cost_spdl import _with_ffmpeg
from bench.cost_stages import OF_FUSED, OF_TORCH, REST, TOGETHER, Stages, _ours, _torch, epoch_us
from bench.cost_ways import BATCH_SIZE, FUSED, SPDL, TORCH, WAYS, _loader, loading
from bench.page_tables import TABLES
from bench.peers.environments import Unavailable
from sophon_loader.native import fused
from sophon_loader.pipeline import chain
from sophon_loader.workers import finishing
from tests.support.encoding_examples import jpeg
from tests.support.results import written

PICTURES = 5


def row(number: int, way: str, images_per_s: float, cpu_ms: float, workers: int = 1) -> dict[str, Any]:
    return {"round": number, "workers": workers, "way": way, "images_per_s": images_per_s, "cpu_ms": cpu_ms}


ROWS = [row(0, TORCH, 100, 4.0), row(0, FUSED, 300, 1.0), row(1, TORCH, 50, 5.0), row(1, FUSED, 100, 2.0)]


def test_ratios_are_those_of_one_round() -> None:
    torchs, ours = summarised(ROWS)
    assert torchs["way"] == TORCH and torchs["ratio"] == {"min": 1, "median": 1, "max": 1}
    assert ours["images_per_s"] == {"min": 100, "median": 200, "max": 300}
    assert ours["ratio"] == {"min": 2.0, "median": 2.5, "max": 3.0}
    assert ours["cpu_ratio"] == {"min": 2.5, "median": 3.25, "max": 4.0}


def test_without_torch_there_are_figures_and_no_verdict() -> None:
    summary = summarised([one for one in ROWS if one["way"] != TORCH])
    assert [set(entry) for entry in summary] == [{"workers", "way", "images_per_s", "cpu_ms"}]
    assert verdicts(summary) == []


def test_each_number_of_workers_is_judged() -> None:
    rows = [*ROWS, row(0, TORCH, 100, 4.0, workers=2), row(0, FUSED, 240, 1.0, workers=2)]
    assert verdicts(summarised(rows)) == [
        "fused / torch in images/s, 1 worker: 2.500 (2.000 to 3.000) (bar >= 2.5: ok)",
        "fused / torch in images/s, 2 workers: 2.400 (2.400 to 2.400) (bar >= 2.5: below)",
    ]


def test_ways_take_turns_in_an_order_that_rotates() -> None:
    asked: list[str] = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name = name

        def order(self, what: str) -> dict[str, float]:
            asked.append(f"{self.name} {what}")
            return {"images_per_s": 1.0, "cpu_ms": 1.0}

    children: Any = {name: Told(name) for name in "ab"}
    rows = in_rounds(children, 2, "title", {"workers": 1})
    assert asked == ["a epoch", "b epoch", "b epoch", "a epoch"]
    assert [(one["round"], one["way"], one["workers"]) for one in rows] == [
        (0, "a", 1),
        (0, "b", 1),
        (1, "b", 1),
        (1, "a", 1),
    ]


def test_a_stage_within_another_one_is_no_part_of_it() -> None:
    def busy() -> None:
        until_ns = time.thread_time_ns() + 10_000_000
        while time.thread_time_ns() < until_ns:
            pass

    stages = Stages(("outer", "inner"))
    inner = stages.around("inner", busy)

    def outer() -> None:
        busy()
        inner()
        inner()

    stages.around("outer", outer)()
    assert stages.spent_ns["inner"] == pytest.approx(20e6, rel=0.5)
    assert stages.spent_ns["outer"] == pytest.approx(10e6, rel=0.5)


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    (tmp_path / "class").mkdir()
    for number in range(PICTURES):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(jpeg((400, 300)))
    return str(tmp_path)


def test_every_stage_of_torchs_loader_is_seen(pictures: str) -> None:
    found = epoch_us(_torch(stages := Stages(OF_TORCH), pictures, 1, 2), stages)
    assert set(found) == {*OF_TORCH, REST, TOGETHER}
    assert all(found.values()) and sum(found.values()) == pytest.approx(2 * found[TOGETHER])


@pytest.mark.skipif(fused.DECODE not in fused.checked(), reason="Pillow decodes here")
def test_every_stage_of_our_loader_is_seen(pictures: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in ((chain, "op_of"), (finishing, "read_here"), *((fused, one) for one in OF_FUSED[2:])):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back at the end
    found = epoch_us(_ours(stages := Stages(OF_FUSED), pictures, 1, 2), stages)
    assert set(found) == {*OF_FUSED, REST, TOGETHER}
    assert all(us > 0 for us in found.values())


def test_an_epoch_is_told_in_images_and_cpu(pictures: str) -> None:
    with loading(FUSED, pictures, repeat=2, batch_size=BATCH_SIZE, workers=1) as orders:
        told = orders["epoch"]("")
    assert set(told) == {"images_per_s", "cpu_ms"} and all(value > 0 for value in told.values())


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities:DeprecationWarning")
@pytest.mark.parametrize("way", sorted(set(WAYS) - {SPDL}))
def test_every_way_gives_the_same_kind_of_batch(pictures: str, way: str) -> None:
    batches = [(images, labels) for images, labels in _loader(way, pictures, 2, 4, workers=0)]
    assert [len(labels) for _, labels in batches] == [4, 4, 2]
    assert all(images.shape[1:] == (3, 224, 224) and images.dtype == torch.float32 for images, _ in batches)
    assert all(abs(images).max() < 3 for images, _ in batches)


def test_spdl_finds_the_libraries_of_pyav_under_their_usual_names(tmp_path: Path) -> None:
    library = tmp_path / "lib/python3.11/site-packages/av.libs/libavutil-5809ad29.so.60.26.102"
    python = tmp_path / "bin" / "python"
    for file, text in ((library, ""), (python, '#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    python.chmod(0o755)
    for _ in range(2):  # the second time in an environment that is there already
        said = subprocess.run([_with_ffmpeg(python), "-m", "x"], capture_output=True, text=True, check=True).stdout
        assert said == f"{tmp_path}/ffmpeg:{library.parent} -m x\n"
    assert (tmp_path / "ffmpeg" / "libavutil.so.60").resolve() == library


def test_spdl_is_unavailable_without_ffmpeg(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="`av` must bring FFmpeg's libraries"):
        _with_ffmpeg(tmp_path / "bin" / "python")


def test_the_tables_tell_what_was_left_out_and_which_stage_is_whose(tmp_path: Path) -> None:
    one = {"min": 1, "median": 2, "max": 3}
    entry = {"workers": 1, "way": FUSED, "images_per_s": one, "cpu_ms": one, "ratio": one, "cpu_ratio": one}
    stages = {TORCH: {"us": {"decode": one, "collate": one}}, FUSED: {"us": {"decode": one, "finish": one}}}
    rows = {"summary": [entry], "unavailable": {SPDL: "no package"}, "stages": stages}
    results = written(tmp_path, "cost-photos", rows)
    text = TABLES["cost"](results)
    assert "| photos | 1 | `fused` | 2 (1-3) | 2.00 (1.00-3.00) | 2.00 (1.00-3.00) | 2.00 (1.00-3.00) |" in text
    assert "`spdl` was left out: no package." in text
    text = TABLES["cost-stages"](results)
    assert "| stage, us | photos `torch` | photos `fused` |" in text
    assert (
        "| collate | 2 (1-3) |  |" in text and "| flip, ToTensor and Normalize, into the batch |  | 2 (1-3) |" in text
    )
