"""What `bench/results` holds of the policies has the shapes that the papers publish; docs/papers.md says which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.paper_tables import CORES, best_share
from bench.record import RESULTS

PUBLISHED = ("no-off", "all-off", "resize-off", "fastflow", "sophon")
AS_FAST = 1.03
"""What counts as equal of two medians of seconds."""
TRAFFIC = {"imagenet": (1.3, 1.5), "photos": (1 / 2.2, 1 / 1.8)}
"""Bytes of resize-off by those of no-off: SOPHON's 1.3 times more, and half."""


def entries(cores: str, data: str) -> dict[str, Any]:
    """Of a stored run, the summary of each policy."""
    path = RESULTS / f"{CORES[cores]}-{data}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} has not been measured")
    return {entry["policy"]: entry for entry in json.loads(path.read_text())["rows"]["summary"]}


def middle(entry: dict[str, Any], name: str) -> float:
    return float(entry[name]["median"])


@pytest.mark.parametrize("data", TRAFFIC)
@pytest.mark.parametrize("cores", CORES)
class TestPolicies:
    def test_all_off_is_worst_in_traffic(self, cores: str, data: str) -> None:
        found = entries(cores, data)
        most = max(PUBLISHED, key=lambda name: middle(found[name], "interface_bytes"))
        assert most == "all-off"

    def test_resize_off_by_the_size_of_the_files(self, cores: str, data: str) -> None:
        found = entries(cores, data)
        least, most = TRAFFIC[data]
        assert (
            least < middle(found["resize-off"], "interface_bytes") / middle(found["no-off"], "interface_bytes") < most
        )

    def test_fastflow_offloads_nothing_on_a_slow_wire(self, cores: str, data: str) -> None:
        assert entries(cores, data)["fastflow"]["offloaded_share"] == 0

    def test_sophon_is_the_best_of_the_five(self, cores: str, data: str) -> None:
        """And so as fast as no-off where there are next to no cores."""
        found = entries(cores, data)
        best = min(middle(found[name], "seconds") for name in PUBLISHED)
        assert middle(found["sophon"], "seconds") <= AS_FAST * best

    def test_every_batch_is_the_same(self, cores: str, data: str) -> None:
        assert all(entry["same_batches"] for entry in entries(cores, data).values())


def rows(name: str) -> Any:
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} has not been measured")
    return json.loads(path.read_text())["rows"]


def test_fastflow_takes_the_share_that_a_sweep_finds_best() -> None:
    found = rows("fastflow")
    (job,) = [job for job in found["jobs"] if (job["form"], job["store"]) == ("fastflow", "empty")]
    assert abs(job["share"] - best_share(found["shares"])) <= 0.05


def test_a_metric_store_spares_trials() -> None:
    """At most a tenth of the steps; the slides have 2.80 % of a job's time fall to 0.11 %."""
    jobs = {(job["form"], job["store"]): job["tried_batches"] for job in rows("fastflow")["jobs"]}
    for form in {form for form, _ in jobs}:
        assert jobs[form, "kept"] <= jobs[form, "empty"] / 10


def test_the_gpu_waits_longest_under_all_off_and_shortest_under_auto() -> None:
    for case in rows("utilisation")["cases"]:
        idle = {name: middle(figures, "gpu_idle_share") for name, figures in case["policies"].items()}
        assert max(idle, key=lambda name: idle[name]) == "all-off" and min(idle, key=lambda name: idle[name]) == "auto"
        assert idle["sophon"] <= idle["no-off"] + 0.01


def test_a_step_that_shares_its_link_is_shorter_where_less_crosses() -> None:
    cases = rows("overlap")["cases"]
    steps = {(case["policy"], case["prefetch"], case["checkpoints"]): case["step_s"] for case in cases}
    for _, prefetch, checkpoints in steps:
        assert steps["auto", prefetch, checkpoints] < steps["no-off", prefetch, checkpoints]
