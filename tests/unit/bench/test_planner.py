"""bench/planner.py runs, and says when a bar is missed."""

import json

import pytest

from bench import planner


def test_a_small_run_writes_what_it_measured(tmp_path, capsys):
    out = tmp_path / "planner.json"
    assert planner.main(["--samples", "2000", "--repeats", "1", "--json", str(out)]) in (0, 1)
    found = json.loads(out.read_text())["rows"]
    assert {(one["job"], one["policy"]) for one in found["results"]} == {
        (job, policy) for job in planner.JOBS for policy in planner.POLICIES
    }
    assert found["settings"]["samples"] == 2000
    assert "auto" in capsys.readouterr().out


def test_missed_bars_are_named():
    slow = planner.Measured("wire", "auto", 1.0, 2.5, 70.0, None, "")
    assert planner.misses(slow) == [
        "wire/auto took 2.50 s, bar 2.0 s",
        "wire/auto held 70 bytes/sample, bar 64",
    ]


def test_help_shows_an_example(capsys):
    with pytest.raises(SystemExit) as ended:
        planner.main(["--help"])
    assert ended.value.code == 0
    assert "example: python -m bench.planner --samples 1280000 --json planner.json" in capsys.readouterr().out
