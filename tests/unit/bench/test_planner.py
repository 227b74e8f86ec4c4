"""bench/planner.py runs, and says when a bar is missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import planner
from sophon_loader.decide import POLICIES


def test_a_small_run_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, summary = tmp_path / "planner.json", tmp_path / "made" / "summary.json"
    argv = ["--samples", "2000", "--repeats", "1", "--json", str(out), "--summary", str(summary)]
    assert planner.main(argv) in (0, 1)
    written = json.loads(out.read_text())
    assert written["command"] == "python -m bench.planner --samples 2000 --repeats 1"
    found = written["rows"]
    assert {(one["job"], one["policy"]) for one in found["results"]} == {
        (job, policy) for job in planner.JOBS for policy in POLICIES
    }
    assert found["settings"]["samples"] == 2000
    assert len(json.loads(summary.read_text())["rows"]["results"]) == len(found["results"])
    assert "auto" in capsys.readouterr().out


def test_missed_bars_are_named() -> None:
    slow = planner.Measured("wire", "auto", 1.0, 2.5, 70.0, None, "")
    assert planner.misses(slow) == [
        "wire/auto took 2.50 s, bar 2.0 s",
        "wire/auto held 70 bytes/sample, bar 64",
    ]


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        planner.main(["--help"])
    assert ended.value.code == 0
    assert "python -m bench.planner --samples 1280000 --json planner.json" in capsys.readouterr().out
