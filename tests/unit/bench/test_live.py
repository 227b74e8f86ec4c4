"""What bench.live makes of logs and counters; its runs need linked hosts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bench import live, live_alone, live_runs, verdicts
from bench.scene import UNDISTURBED, Conditions, elsewhere_cores, shares
from bench.streams import LAST_BATCH_S, Stream, deviation, rate, step_share, windows

LOG = [(10.0, 0, 0.0), (11.0, 100, 0.5), (12.0, 200, 1.0), (14.0, 240, 1.0), (16.0, 280, 1.0)]
"""100 images/s with a step of half the time, then 20 images/s without one."""


# --- logs -------------------------------------------------------------------------------------------------------------


def test_a_rate_counts_batches_evenly_over_the_time_since_the_one_before() -> None:
    assert rate(LOG, 10.0, 12.0) == 100
    assert rate(LOG, 10.5, 11.25) == 100
    assert rate(LOG, 11.5, 12.5) == pytest.approx(50 + 10)
    assert rate(LOG, 12.5, 15.5) == 20


def test_time_without_batches_counts() -> None:
    assert rate(LOG, 14.0, 18.0) == 10


def test_windows_are_whole_and_leave_the_rest() -> None:
    assert windows(LOG, 10.0, 15.9, 2.0) == [100, 20]
    assert windows(LOG, 10.0, 16.0, 2.0) == [100, 20, 20]
    assert len(windows(LOG, 0.0, 0.3, 0.1)) == 3  # whatever floats make of it


def test_the_deviation_is_by_the_mean() -> None:
    assert deviation([90.0, 110.0]) == pytest.approx(0.1)
    assert deviation([5.0, 5.0]) == 0


def test_the_share_of_steps() -> None:
    assert step_share(LOG, 10.0, 12.0) == 0.5
    assert step_share(LOG, 12.0, 16.0) == 0


class Loader:
    """Gives batches of two labels for ever.

    Args:
        fails_after: batches after which it fails.
    """

    def __init__(self, fails_after: int | None = None) -> None:
        self.fails_after = fails_after
        self.epochs: list[int] = []

    def set_epoch(self, number: int) -> None:
        self.epochs.append(number)

    def __iter__(self) -> Iterator[tuple[None, list[int]]]:
        for number in range(3):
            if number == self.fails_after:
                raise OSError("the agent went away")
            time.sleep(0.001)
            yield None, [0, 0]


def test_a_stream_goes_on_epoch_after_epoch_until_it_is_ended() -> None:
    stream = Stream(loader := Loader())
    stream.begin()
    assert stream.log[0][1:] == (2, 0.0)
    stream.wait_until(time.monotonic() + 0.05, LAST_BATCH_S)
    stream.end()
    assert [row[1] for row in stream.log] == [2 * (i + 1) for i in range(len(stream.log))]
    assert len(stream.log) > 6 and loader.epochs == list(range(len(loader.epochs)))
    seen = len(stream.log)
    time.sleep(0.02)
    assert len(stream.log) == seen


def test_a_stream_notes_its_steps() -> None:
    stream = Stream(Loader())
    stream.step_s = 0.02
    stream.begin()
    stream.wait_until(time.monotonic() + 0.1, LAST_BATCH_S)
    stream.end()
    (came_s, _, _), (last_s, _, stepped_s) = stream.log[0], stream.log[-1]
    assert 0.5 < stepped_s / (last_s - came_s) <= 1.0


@pytest.mark.parametrize("batches", [0, 2])
def test_a_stream_whose_loader_fails_says_so(batches: int) -> None:
    stream = Stream(Loader(fails_after=batches))
    with pytest.raises(OSError, match="went away"):
        stream.begin()
        stream.wait_until(time.monotonic() + 60, LAST_BATCH_S)
    stream.end()


def test_a_log_is_not_waited_for_for_ever() -> None:
    stream = Stream(Loader())
    stream.step_s = 60.0
    stream.begin()
    stream.wait_until(time.monotonic() + 60, 0.01)
    stream.end()


# --- conditions and shares --------------------------------------------------------------------------------------------


def test_conditions_say_what_is_not_as_usual() -> None:
    assert str(UNDISTURBED) == "undisturbed"
    assert str(Conditions(link_mbit=20.0, busy="agent")) == "link_mbit 20, busy agent"


def counters(**used: float) -> dict[str, float]:
    names = ("clock_s", "link_bytes", "interface_bytes", "agent_cpu_s", "loader_cpu_s", "machine_cpu_s", "disk_bytes")
    return {name: used.get(name, 0.0) for name in names}


def test_shares_are_of_what_the_conditions_leave() -> None:
    conditions = Conditions(link_mbit=80.0, agent_cores=0.5, loader_cores=0.25, disk_mb_s=4.0)
    used = counters(clock_s=2.0, link_bytes=10e6, agent_cpu_s=0.25, loader_cpu_s=0.375, disk_bytes=0.8e6)
    found = shares(conditions, counters(), used, 0.2)
    expected = {"loader-cpu": 0.75, "wire": 0.5, "agent-cpu": 0.25, "gpu": 0.2, "agent-disk": 0.1}
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_a_host_has_one_core_and_a_disk_without_limit_is_not_in_use() -> None:
    used = counters(clock_s=1.0, agent_cpu_s=0.5, loader_cpu_s=0.5, disk_bytes=1e9)
    found = shares(Conditions(agent_cores=4.0), counters(), used, 0.0)
    assert (found["agent-cpu"], found["loader-cpu"], found["agent-disk"]) == (0.5, 0.5, 0.0)


# --- changes ----------------------------------------------------------------------------------------------------------


def run(*rates: float, least: float = 0.0, busy: float = 0.0) -> dict[str, Any]:
    """A loader's run through phases of these images/s."""
    report = {"bottleneck": "wire", "fallbacks": 0}
    return {
        "first_batch_s": 1.0,
        "phases": [
            {
                "images_per_s": one,
                "at_once_images_per_s": one / 2,
                "windows": [one, least or one],
                "bytes_per_image": 1e5,
                "shares": {"wire": 1.0},
                "elsewhere_cores": busy,
                "report": report,
            }
            for one in rates
        ],
    }


def test_a_change_is_compared_with_loaders_that_started_after_it() -> None:
    slow = Conditions(link_mbit=20.0)
    found = {
        "disturbed": [run(100, 38, least=30), run(100, 42)],
        f"auto {slow}": [run(40), run(40)],
        f"no-off {slow}": [run(20, least=19), run(20)],
    }
    one = live.change(found, 1, slow, 4)
    assert one["to"] == "link_mbit 20" and one["bottleneck"] == "wire"
    assert one["ratio"] == pytest.approx((0.95 + 1.05) / 2)
    assert one["least_by_no_off"] == pytest.approx((1.5 + 2.1) / 2)
    assert one["no_off_least"] == pytest.approx((0.95 + 1.0) / 2)
    assert one["at_once"] == pytest.approx(0.5)
    assert live.keeps_bars(one)
    assert not live.keeps_bars({**one, "ratio": 0.94}) and not live.keeps_bars({**one, "least_by_no_off": 0.96})


@pytest.mark.parametrize(("batches_per_s", "least"), [(7.0, 16), (4.0, 17), (2.5, 17), (1.0, 19), (0.1, 19)])
def test_windows_that_are_compared_hold_enough_batches(batches_per_s: float, least: float) -> None:
    assert live.least_window([24, 16, 18, 18], batches_per_s) == least


def test_a_run_that_failed_is_told_and_keeps_no_bar() -> None:
    found = {"disturbed": [run(100, 40)], "auto undisturbed": [{"failed": "no answer"}], "no-off undisturbed": [run(2)]}
    one = live.change(found, 1, UNDISTURBED, 16)
    assert one["failed"] == "no answer" and not live.keeps_bars(one)


def test_a_run_is_done_again_while_the_machine_is_busy() -> None:
    runs = [run(1.0, busy=0.9), run(2.0, busy=0.4), run(3.0, busy=0.05), run(4.0)]
    first = [one["phases"][0]["images_per_s"] for one in (live_runs.calm(iter(runs).__next__, n) for n in (0, 1, 5))]
    assert first == [1.0, 2.0, 3.0]


def test_what_is_busy_elsewhere_is_what_the_bed_has_not_used() -> None:
    used = counters(clock_s=2.0, machine_cpu_s=3.0, agent_cpu_s=1.5, loader_cpu_s=0.5)
    assert elsewhere_cores(counters(), used) == 0.5


def test_cases_are_run_in_their_usual_order() -> None:
    assert live.cases_of(["rank", "first-epoch"]) == ["first-epoch", "rank"]
    assert live.cases_of([live.CHANGES, "link", "local"]) == [*live.DISTURBANCES, "local"]


def test_each_epoch_of_a_rank_is_the_median_of_its_rounds() -> None:
    def round_of(*ratios: float) -> dict[str, Any]:
        return {
            name: [{"images_per_s": 100 * one} for one in rates]
            for name, rates in (("rank", ratios), ("single", [1.0] * 2))
        }

    found = live.ranked([round_of(1.0, 0.7), round_of(0.9, 0.96), round_of(0.98, 1.0)])
    assert [ratio["median"] for ratio in found["ratios"]] == pytest.approx([0.98, 0.96])
    assert found["images_per_s"] == {"rank": pytest.approx([98, 96]), "single": [100, 100]}
    assert found["holds"]
    assert not live.ranked([round_of(1.0, 0.9)])["holds"]


# --- the verdict ------------------------------------------------------------------------------------------------------


def test_one_resource_limits_where_the_next_is_well_behind() -> None:
    assert verdicts.limiting({"wire": 0.97, "agent-cpu": 0.74}) == "wire"
    assert verdicts.limiting({"wire": 0.97, "agent-cpu": 0.76}) is None
    assert verdicts.limiting({"wire": 0.7, "agent-cpu": 0.1}) is None


def test_situations_are_the_same_for_a_seed_and_give_each_resource_its_turn() -> None:
    one, other = (list(itertools.islice(verdicts.situations(3, disk=True), 10)) for _ in range(2))
    assert one == other != list(itertools.islice(verdicts.situations(4, disk=True), 10))
    assert [meant for meant, _ in one] == 2 * list(verdicts.SCARCE)
    for meant, conditions in one:
        name, (low, high) = verdicts.SCARCE[meant]
        assert low <= getattr(conditions, name) <= high
    without = [meant for meant, _ in itertools.islice(verdicts.situations(3, disk=False), 8)]
    assert "agent-disk" not in without


def test_verdicts_are_judged_where_the_truth_is_clear() -> None:
    rows: list[dict[str, Any]] = [
        {"conditions": "a", "truth": "wire", "said": "wire", "shares": {}},
        {"conditions": "b", "truth": "wire", "said": "agent-cpu", "shares": {}},
        {"conditions": "c", "truth": None, "said": "gpu", "shares": {}},
    ]
    found = verdicts.judged(rows)
    assert (found["situations"], found["decided"], found["right"]) == (3, 2, 1)
    assert found["by_resource"] == {"wire": "1 of 2"}
    assert [one["conditions"] for one in found["wrong"]] == ["b"]


# --- memory -----------------------------------------------------------------------------------------------------------


def test_bytes_per_sample_are_beyond_the_index_and_without_what_every_process_has() -> None:
    samples = live_alone.SIZES["ImageFolder"] - live_alone.FEW
    rows = [
        {"dataset": "ImageFolder", "kind": kind, "few": 300.0, "many": 300.0 + nbytes * samples / 1e6}
        for kind, nbytes in (("index", 40), ("no-off", 45), ("auto", 40))
    ]
    found = live_alone.bytes_per_sample(rows, "ImageFolder")
    assert found == pytest.approx({"no-off": 5.0, "auto": 0.0})
    rows[1] = {**rows[1], "failed": "killed"}
    assert live_alone.bytes_per_sample(rows, "ImageFolder")["no-off"] is None
    assert live_alone.bytes_per_sample(rows, "made-up index") == {"no-off": None, "auto": None}


def test_a_made_up_index_is_offloadable_and_has_the_pictures_of_its_folder(tmp_path: Any) -> None:
    from PIL import Image

    from sophon_loader.datasets.taking_apart import offloadable

    (tmp_path / "cat").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (300, 300)).save(tmp_path / "cat" / name)
    data = live_alone.MadeUp(str(tmp_path), 1001)
    assert data.key(1000) == "cat/a.png" and data.key(1) == "cat/b.png"
    assert len(offloadable(data)) == 1001
    assert data[1000][1] == 0
