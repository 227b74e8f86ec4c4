"""Rules that size a fleet, against numbers made by hand; and the simulation of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import fleet, replica_tables
from bench.fleet_rules import RULES, Cachew, Ours, Pecan, Rule, Seen, TfDataService, score
from bench.fleet_simulated import Load, simulated
from bench.markdown import Results
from sophon_loader.wire.wanted_cores import WantedCores
from storage_agent.fleet.fleet_size import FoundWantedFile


def told(
    rule: Rule, agents: int, batch_s: float, queue: float = 1.0, trainings: int = 1, ready: int | None = None
) -> int:
    """What a rule asks for once it has seen a settled period."""
    seen = Seen(0.0, agents, agents if ready is None else ready, batch_s, queue, trainings)
    for _ in range(Cachew.UNSETTLED):
        rule.after(seen)
    return rule.after(seen)


def test_cachew_goes_up_by_more_than_seven_percent_and_back_by_less() -> None:
    rule = Cachew(1, 8)
    assert told(rule, 1, 1.0) == 2, "it begins with a trial"
    assert told(rule, 2, 0.92) == 3
    assert told(rule, 3, 0.86) == 2, "6.5 % are too few"
    assert told(rule, 2, 0.92) == 2


def test_cachew_looks_after_twenty_stable_metrics_and_climbs_when_batches_take_half_as_long_again() -> None:
    rule = Cachew(1, 8)
    told(rule, 1, 1.0), told(rule, 2, 1.0), told(rule, 1, 1.6)
    numbers = [rule.after(Seen(0.0, 1, 1, 1.6, 1.0)) for _ in range(20)]
    assert numbers == [1] * 19 + [2]
    assert told(rule, 2, 0.8) == 3, "the climb goes on"


def test_cachew_goes_down_when_the_queue_has_grown_by_half_while_that_costs_less_than_three_percent() -> None:
    rule = Cachew(1, 8, scale=0.05)
    told(rule, 3, 1.0, queue=2.0), told(rule, 4, 1.0, queue=2.0), told(rule, 3, 1.0, queue=2.0)
    assert [rule.after(Seen(0.0, 3, 3, 1.0, 3.1)) for _ in range(2)][-1] == 2
    assert told(rule, 2, 1.02) == 1
    assert told(rule, 1, 1.02) == 2, "from the only one it goes back, as published"


def test_cachew_stays_where_neither_has_grown_and_where_the_queue_was_empty() -> None:
    for queue in (1.0, 0.0):
        rule = Cachew(1, 8, scale=0.05)
        told(rule, 2, 1.0, queue=queue), told(rule, 3, 1.0, queue=queue)
        assert {told(rule, 2, 1.0 if queue else 9.0, queue=queue) for _ in range(9)} == {2}


@pytest.mark.parametrize("kind", [Cachew, Pecan])
def test_climbers_wait_for_the_agents_that_they_have_asked_for(kind: type[Cachew] | type[Pecan]) -> None:
    rule = kind(1, 8)
    assert told(rule, 1, 1.0) == 2
    assert told(rule, 2, 9.0, ready=1) == 2
    assert rule.after(Seen(0.0, 2, 2, 0.1)) == 2, "the first period with them does not count"


@pytest.mark.parametrize(("agents", "worth"), [(1, 0.073), (2, 0.068), (4, 0.060)])
def test_pecan_keeps_an_agent_that_saves_more_than_it_costs(agents: int, worth: float) -> None:
    for better, kept in ((worth + 0.002, True), (worth - 0.002, False)):
        rule = Pecan(1, 20)
        told(rule, agents, 1.0)
        assert told(rule, agents + 1, 1.0 - better) == (agents + 2 if kept else agents)


def test_pecan_goes_down_while_that_costs_less_than_an_agent_and_is_then_stable_for_good() -> None:
    rule = Pecan(1, 20)
    assert told(rule, 4, 1.0) == 5
    assert told(rule, 5, 1.0) == 4
    assert told(rule, 4, 1.0) == 3
    assert told(rule, 3, 1.05) == 2, "0.05 (4.96 + 3 x 0.427) = 0.31 is less than 0.427"
    assert told(rule, 2, 1.20) == 3, "0.14 (4.96 + 2 x 0.427) = 0.83 is more"
    assert {told(rule, 3, batch_s) for batch_s in (1.05, 9.0, 0.1)} == {3}
    assert told(rule, 3, 1.0, trainings=2) == 4, "another training is another decision"


def test_pecan_stops_at_its_bounds() -> None:
    rule = Pecan(1, 2)
    assert told(rule, 2, 1.0) == 1, "there is no agent more to try"
    assert told(rule, 1, 1.0) == 1


@pytest.mark.parametrize(
    ("present", "demanded", "agents", "number"),
    [
        (1, [18.0] * 4, [20.0], 4),
        (4, [18.0], [20.0] * 4, 1),
        (1, [18.0] * 8, [20.0], 4),  # 8 are more than 4 times as many as now
        (4, [10.0, 10.0, 10.0, 100.0], [10.0] * 4, 4),  # the outlier counts as the median
        (4, [20.0], [10.0, 10.0, 10.0, 1.0], 2),
        (3, [], [20.0], 3),
        (3, [18.0], [], 3),
    ],
)
def test_tf_data_divides_what_is_taken_by_what_is_made(
    present: int, demanded: list[float], agents: list[float], number: int
) -> None:
    seen = Seen(0.0, present, present, demanded=demanded, agents=agents)
    assert TfDataService(1, 8).after(seen) == number


def test_ours_follows_files_and_holds_for_a_minute_by_the_scale() -> None:
    rule = Ours(1, 8, scale=0.1)

    def after(now_s: float, number: int, present: int) -> int:
        files = {
            f"wanted-{index}.json": FoundWantedFile((int(now_s), 0, b""), WantedCores(0.9, 1.0))
            for index in range(number)
        }
        return rule.after(Seen(now_s, present, present, wanted=files))

    assert [after(0.0, 0, 1), after(2.0, 4, 1), after(4.0, 1, 4)] == [1, 4, 4]
    assert [after(6.0, 1, 4), after(8.0, 1, 4), after(11.0, 1, 4)] == [4, 4, 1]


LOAD = Load((1, 4, 1), (60.0, 120.0, 120.0), demand=18.0, capacity=20.0, start_s=4.0)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_has_enough_for_four_at_last(name: str) -> None:
    outcome = simulated(name, LOAD, 1.0, seed=1)
    assert outcome.agents[0] in (1, 2) and outcome.agents[1] in (4, 5)
    assert 300 < outcome.agent_s < 8 * 300 and 0 < outcome.stall_s < 200


def test_a_fleet_that_never_grows_stalls_by_what_lacks() -> None:
    one = simulated("ours", Load((2,), (100.0,), demand=20.0, capacity=20.0, start_s=4.0, most=1), 1.0, seed=1)
    assert one.stall_s == pytest.approx(100.0, rel=0.05) and one.agent_s == pytest.approx(100.0)
    assert one.changes == 0


def test_the_score_is_in_dollars() -> None:
    assert score(3600.0, 7200.0) == pytest.approx(4.96 + 2 * 0.427)


def test_what_loaders_make_themselves_needs_no_agent() -> None:
    outcome = simulated("ours", replace(LOAD, alone=9.0, capacity=11.0), 1.0, seed=1)
    assert outcome.agents == [1, 3, 1]
    without = simulated("ours", replace(LOAD, alone=18.0), 1.0, seed=1)
    assert without.agents == [1, 1, 1] and without.stall_s < 1.0


def test_results_become_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pictures" / "class").mkdir(parents=True)
    (tmp_path / "pictures" / "class" / "one.jpg").touch()
    command = ["--data", str(tmp_path / "pictures"), "--parts", "predicted", "--rules", "ours"]
    command += ["--summary", str(tmp_path / "fleet.json")]
    assert fleet.main(command) == 0
    assert "1 -> 4 -> 1 agents" in capsys.readouterr().out
    table = replica_tables.fleet(Results(tmp_path))
    assert "| predicted, 300 s | ours |" in table and "| predicted, 120 s | ours |" in table
