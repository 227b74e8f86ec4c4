"""When a loader knows how many cores of agents it could use, and under which name it says so."""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.auto import wanted_agents
from sophon_loader.auto.wanted_agents import EVERY_S, AgentCores, WantedFile
from sophon_loader.decide.agent_cores import wanted_agent_cores
from sophon_loader.epoch.account import Account
from sophon_loader.pipeline.randomness import threads_beside
from sophon_loader.wire.wanted_cores import WantedCores
from tests.support.agents import until
from tests.unit.auto.test_live_plan import KNOWN, Driven, totals_of


def driven(**arguments: Any) -> Driven:
    made = Driven(**arguments)
    made.statistics.agent_cores.array[:] = 1.0
    made.statistics.shortest_net_s.array[:] = 0.0005
    return made


def test_it_is_known_once_ways_have_been_weighed_and_worked_out_anew_every_few_seconds() -> None:
    made = driven()
    live = made.live
    made.progress(1.0, totals_of())
    assert live.findings(of_one=2.0).wanted is None, "nothing has been weighed"
    made.weigh()
    made.progress(2.0, totals_of(200))
    verdict = live._verdict
    assert verdict is not None
    account = Account("auto", 0)
    told = live.findings(of_one=2.0).wanted
    assert told == WantedCores(wanted_agent_cores(verdict.facts), 2.0) and told.cores > 0
    made.progress(3.0, totals_of(300, wire_bytes=5_000_000))
    assert live.findings(of_one=2.0).wanted == told, "not again within a second"
    account.findings = live.findings(of_one=2.0)
    report, now = account.report(), live._verdict
    assert now is not None and now is not verdict, "the report is of one moment, and not of when the fleet was told"
    assert report.wanted_agent_cores == now.wanted_cores != told.cores
    assert (report.would_bring, report.limits) == (now.would_bring, now.limits())
    made.progress(3.0 + EVERY_S, totals_of(400, wire_bytes=5_000_000))
    assert live.findings(of_one=2.0).wanted not in (None, told)


@pytest.mark.parametrize(("got", "times"), [(1.0, 1.0), (0.8, 1 / 0.8), (0.1, 2.0)])
def test_cores_that_agents_promise_and_do_not_have(got: float, times: float) -> None:
    """What is told is what agents must promise; twice as many at most, or agents on one host would never be enough."""
    made = driven()
    made.weigh()
    made.progress(1.0, totals_of())
    verdict = made.live._verdict
    assert verdict is not None
    cores = AgentCores()
    cores.after(1.0, replace(verdict, agent_speed=got))
    assert cores.wanted == pytest.approx(times * wanted_agent_cores(verdict.facts))


def test_it_is_not_told_before_steps_are_known_nor_of_a_local_agent() -> None:
    made = driven()
    made.weigh()
    made.progress(1.0, totals_of())
    assert made.live.findings(judging=False, of_one=2.0).wanted is None
    assert made.live.findings(of_one=None).wanted is None


def test_an_agent_that_weighs_nothing_changes_nothing() -> None:
    """One with next to no CPU sends files, of which no more is known than what they take."""
    made = driven(conditions=KNOWN)
    made.statistics.agent_cores.array[:] = made.statistics.per_worker.array[:] = 0.01
    for second in range(1, 20):
        made.progress(float(second), totals_of(100 * second, offloaded=0))
    assert made.live.tariff.predicted is not None and made.live.findings(of_one=2.0).wanted is None


@pytest.mark.parametrize(
    ("variables", "begins"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "4711"}, "4711-"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
        ({"TORCHELASTIC_RUN_ID": "my run/3"}, "my_run_3-"),
        ({"TORCHELASTIC_RUN_ID": "x" * 300}, f"{'x' * 60}-"),
    ],
)
def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], begins: str) -> None:
    for name in wanted_agents._NAMES_OF_JOBS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    files = [WantedFile() for _ in range(2)]
    for one in files:
        one.say("", WantedCores(1.0, 1.0))
        one.say(str(tmp_path), None)
        one.say(str(tmp_path), WantedCores(1.0, 1.0))
    until(lambda: len(list(tmp_path.glob("wanted-*.json"))) == 2, "both are there, by two names")
    for path in tmp_path.glob("wanted-*.json"):
        assert path.name.startswith(f"wanted-{begins}") and f"-{os.getpid()}-" in path.name
        assert path.name.endswith("-0.json") and len(path.name) < 200
    for one in files:
        one.close()
        one.close()
    assert not list(tmp_path.iterdir())


def test_another_folder_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    file = WantedFile()
    file.say(str(first), WantedCores(1.0, 1.0))
    until(lambda: bool(list(first.glob("wanted-*"))), "it is there")
    file.say(str(second), WantedCores(1.0, 1.0))
    until(lambda: bool(list(second.glob("wanted-*"))), "it is in the second")
    assert not list(first.iterdir())
    file.close()
    assert not list(second.iterdir())


def test_its_thread_draws_no_random_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a loader with `num_workers=0` would begin an epoch with a worker, and others would get other numbers."""
    monkeypatch.setattr(wanted_agents, "REWRITTEN_S", 0.001)
    before, file = random.getstate(), WantedFile()
    file.say(str(tmp_path), WantedCores(1.0, 1.0))
    end_s = time.monotonic() + 0.2
    while time.monotonic() < end_s:
        assert threads_beside() == []
    assert list(tmp_path.iterdir()) and random.getstate() == before
    file.close()
