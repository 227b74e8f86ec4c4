"""bench/planner.py runs, and says when a bar is missed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import planner
from sophon_loader.decide import POLICIES


def test_a_small_run_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, summary = tmp_path / "planner.json", tmp_path / "made" / "summary.json"
    argv = ["--samples", "3000", "--repeats", "1", "--json", str(out), "--summary", str(summary)]
    assert planner.main(argv) in (0, 1)
    written = json.loads(out.read_text())
    assert written["command"] == "python -m bench.planner --samples 3000 --repeats 1"
    found = written["rows"]
    assert {(one["job"], one["policy"]) for one in found["results"]} == {
        *((job, policy) for job in planner.JOBS for policy in POLICIES),
        (planner.MAKING, "sophon"),
    }
    assert found["settings"]["samples"] == 3000
    assert {(one["policy"] == "auto", one["samples"]) for one in found["results"]} == {(False, 3000), (True, 2048)}
    assert len(json.loads(summary.read_text())["rows"]["results"]) == len(found["results"])
    assert "auto" in capsys.readouterr().out


def test_missed_bars_are_named() -> None:
    slow = planner.Measured("wire", "sophon", 1000, 1.0, 2.5, 70.0, None, "")
    assert planner.misses(slow) == [
        "wire/sophon took 2.500 s, bar 1.0 s",
        "wire/sophon held 70 bytes/sample, bar 64",
    ]
    assert planner.misses(replace(slow, policy="auto")) == ["wire/auto took 2.500 s, bar 0.05 s"]
    assert planner.misses(replace(slow, seconds_worst=0.9, bytes_per_sample=63.0)) == []
    assert planner.misses(replace(slow, job=planner.MAKING, bytes_per_sample=63.0)) == []


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        planner.main(["--help"])
    assert ended.value.code == 0
    assert "python -m bench.planner --samples 1280000 --json planner.json" in capsys.readouterr().out
