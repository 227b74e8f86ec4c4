"""Counters: a row per worker, sums per iteration."""

from __future__ import annotations

from dataclasses import replace

from sophon_loader.measures.counters import Statistics
from sophon_loader.wire.limits import MAX_OPS
from sophon_loader.wire.messages import Sample
from tests.support.loaders import sample_message


def answer(encoding: str, cut: int) -> Sample:
    return replace(sample_message(1), encoding=encoding, cut=cut, file_nbytes=100, op_s=[0.25, 0.125, 0.125])


def filled(statistics: Statistics, worker: int, iteration: int, samples: int = 1) -> None:
    row = statistics.row(worker)
    row.begin(iteration)
    for _ in range(samples):
        row.count(answer("webp", 2), wanted_cut=3, turnaround_s=0.1)
    row.add(wire_bytes=40, retries=3, fallbacks=1, loader_cpu_s=0.25)


def test_rows_are_added_up() -> None:
    statistics = Statistics(3, ["file", "webp"])
    filled(statistics, 0, 1)
    filled(statistics, 2, 1, samples=4)
    totals = statistics.totals(1)
    assert (totals.samples, totals.file_bytes, totals.wire_bytes, totals.degraded) == (5, 500, 80, 5)
    assert (totals.retries, totals.fallbacks) == (6, 2)
    assert (totals.loader_cpu_s, totals.agent_cpu_s) == (0.5, 2.5)
    assert totals.cuts == {2: 5}
    assert totals.encodings == {"webp": 5}


def test_what_the_agent_told_of_its_work_is_added_up() -> None:
    statistics = Statistics(1, ["file", "webp"])
    row = statistics.row(0)
    row.begin(1)
    told = {"read_s": 0.5, "work_s": 1.5, "queued_s": 0.25, "upkeep_s": 0.125}
    for _ in range(2):
        row.count(replace(answer("webp", 1), **told), 1, turnaround_s=3.0)  # type: ignore[arg-type]
    row.count(replace(answer("file", 0), op_s=[0.25], **told), 0, turnaround_s=9.0)  # type: ignore[arg-type]
    row.add(fresh=2, net_s=0.5, weighed=1, weighed_rest_s=0.25, compared_loader_s=0.125, busy_s=2.0)
    totals = statistics.totals(1)
    assert (totals.read_bytes, totals.read_s) == (300, 1.5), "of files, too"
    assert (totals.work_cpu_s, totals.work_s, totals.offloaded) == (0.5, 3.0, 2), "of ops and encoding alone"
    assert (totals.queued_s, totals.turnaround_s) == (0.5, 6.0)
    assert (totals.upkeep_s, totals.offloaded_upkeep_s, totals.agent_cpu_s) == (0.375, 0.25, 1.625)
    assert (totals.fresh, totals.net_s, totals.busy_s) == (2, 0.5, 2.0)
    assert (totals.weighed, totals.weighed_rest_s, totals.compared_loader_s) == (1, 0.25, 0.125)
    before = replace(totals, samples=1, read_s=0.5, cuts={1: 1}, encodings={"webp": 1})
    since = totals.since(before)
    assert (since.samples, since.read_s, since.cuts, since.encodings) == (2, 1.0, {0: 1, 1: 1}, {"file": 1, "webp": 1})


def test_counters_are_integers_and_seconds_are_not() -> None:
    totals = Statistics(1, ["file"]).totals(1)
    assert type(totals.samples) is int and type(totals.wire_bytes) is int and type(totals.loader_cpu_s) is float
    assert totals.cuts == {} and totals.encodings == {}


def test_a_new_iteration_starts_at_nothing() -> None:
    statistics = Statistics(2, ["webp"])
    filled(statistics, 0, 1, samples=7)
    filled(statistics, 1, 1, samples=7)
    filled(statistics, 0, 2, samples=2)
    assert statistics.totals(2).samples == 2


def test_a_worker_left_over_from_an_abandoned_iteration_counts_for_nothing() -> None:
    statistics = Statistics(1, ["file", "webp"])
    old, new = statistics.row(0), statistics.row(0)
    old.begin(1)
    new.begin(2)
    new.count(answer("webp", 1), 1, 0.0)
    old.begin(1)
    old.count(answer("webp", 1), 1, 0.0)
    old.count_file(10)
    assert statistics.totals(2).samples == 1


def test_a_worker_that_is_left_over_in_the_middle_of_a_batch_counts_no_more() -> None:
    statistics = Statistics(1, ["webp", "file"])
    left = statistics.row(0)
    left.begin(1)
    left.count_file(10)
    statistics.row(0).begin(2)
    left.count_file(10)
    left.count(answer("webp", 2), wanted_cut=3, turnaround_s=0.1)
    left.add(retries=3)
    assert statistics.totals(2) == statistics.totals(1) == Statistics(1, ["webp", "file"]).totals(1)


def test_every_cut_up_to_the_limit_has_a_counter() -> None:
    statistics = Statistics(1, ["file"])
    row = statistics.row(0)
    row.begin(1)
    row.count(answer("file", MAX_OPS), MAX_OPS, 0.0)
    row.count_file(7)
    totals = statistics.totals(1)
    assert totals.cuts == {0: 1, MAX_OPS: 1} and totals.encodings == {"file": 2}
    assert (totals.samples, totals.file_bytes, totals.degraded) == (2, 107, 0)
