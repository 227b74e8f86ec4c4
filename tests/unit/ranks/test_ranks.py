"""What ranks tell each other: sums of reports, profiles put together, and that nobody is waited for without end."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.utils.data import TensorDataset

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError, OffloadWarning
from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.plans import gathering
from sophon_loader.plans.gathering import KEPT_EPOCHS, Gathering
from sophon_loader.ranks import ranks
from sophon_loader.ranks.ranks import Ranks, ToldReports, summed
from sophon_loader.report.agents import AgentShare
from sophon_loader.report.report import Report
from tests.support.profiles import photo_profile

SAMPLES = 24
AsRanks = Callable[[int], list[Ranks]]


@pytest.fixture
def as_ranks(monkeypatch: pytest.MonkeyPatch) -> AsRanks:
    """So many ranks of one loader, all in this process, with one store."""
    store = distributed.HashStore()
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(ranks, "REPORTS_WAIT_S", 0.1)
    monkeypatch.setattr(gathering, "WAIT_S", 0.1)

    def made(count: int) -> list[Ranks]:
        found = []
        for rank in range(count):
            monkeypatch.setattr(ranks, "rank_of_all", lambda rank=rank: (rank, count))
            ranks._met.clear()
            found.append(Ranks("pictures"))
        return found

    return made


# --- reports --------------------------------------------------------------------------------------------------


def report(rank: int, **changes: Any) -> Report:
    totals = replace(NO_TOTALS, samples=10, wire_bytes=1000, loader_cpu_s=0.5, cuts={0: 4, 2: rank}, encodings={})
    return replace(
        Report("auto", epoch=1, seconds=2.0 + rank, rates={"wire_bytes_s": 100.0, "loader_cores": 1.0}, totals=totals),
        **changes,
    )


def test_counters_are_sums_and_times_those_of_the_slowest() -> None:
    whole = summed([report(0, predicted_seconds=2.0), report(1, predicted_seconds=2.5)])
    assert (whole.ranks, whole.seconds, whole.predicted_seconds) == (2, 3.0, 2.5)
    assert (whole.totals.samples, whole.totals.wire_bytes, whole.totals.loader_cpu_s) == (20, 2000, 1.0)
    assert whole.totals.cuts == {0: 8, 2: 1}
    assert whole.rates == {"wire_bytes_s": 200.0, "loader_cores": 2.0}
    assert whole.as_dict()["ranks"] == 2 and "ranks" in str(whole) and "ranks" not in str(report(0))


def test_what_not_all_ranks_know_is_no_sum_and_shares_are_means() -> None:
    first = report(0, rates={"wire_bytes_s": 100.0, "gpu_busy_share": 0.5}, limits={"wire": 0.9, "gpu": 0.2})
    second = report(
        1, rates={"gpu_busy_share": 1.0}, limits={"gpu": 1.0, "wire": 0.5}, predicted_seconds=1.0, notes=("one",)
    )
    whole = summed([first, second, replace(second, notes=("one", "other"))])
    assert whole.rates == {"gpu_busy_share": pytest.approx(2.5 / 3)}
    assert list(whole.limits) == ["gpu", "wire"]
    assert list(whole.limits.values()) == pytest.approx([2.2 / 3, 1.9 / 3])
    assert (whole.bottleneck, whole.predicted_seconds, whole.notes) == ("gpu", None, ("one", "other"))


def test_what_ranks_want_of_agents_adds_up() -> None:
    first, second = report(0, wanted_agent_cores=3.0, wanted_agents=1.5), report(1, wanted_agent_cores=0.0)
    whole = summed([first, second, report(2)])
    assert (whole.wanted_agent_cores, whole.wanted_agents) == (3.0, 1.5)
    assert summed([report(0), report(1)]).wanted_agent_cores is None
    assert "agents of use" in str(whole) and "No agent would be of use" in str(
        report(0, wanted_agent_cores=0.0, wanted_agents=0.0)
    )


def test_an_agent_of_several_ranks_is_told_once() -> None:
    first = AgentShare("tcp://a:1/x", 10, 1000, group="rail-0", lacks=3, of_samples=20)
    second = replace(first, state="does not answer", lacks=5)
    other = AgentShare("tcp://b:1/x", state="not used", why="it has other files")
    whole = summed([report(0, agents=(first,)), report(1, agents=(second, other))])
    assert whole.agents == (replace(second, samples=20, wire_bytes=2000), other)
    assert ranks._report(asdict(whole)) == whole


def test_what_was_offloaded_on_some_ranks() -> None:
    with_agent = report(0, totals=replace(NO_TOTALS, samples=10, encodings={"pixels": 10}))
    gone, alone = report(1, why_not="the agent did not answer"), report(2, why_not="no agent was given")
    whole = summed([alone, with_agent, gone, gone])
    assert whole.offloading and whole.prepared == 10
    assert whole.why_not == "nothing on 3 of 4 ranks: no agent was given; the agent did not answer"
    assert summed([with_agent, with_agent]).why_not == ""
    assert summed([gone, gone]).summary == "nothing offloaded: the agent did not answer"


def test_the_bottleneck_of_most_ranks() -> None:
    bottlenecks = ("wire", "loader-cpu", "loader-cpu", None)
    assert summed([report(0, bottleneck=name) for name in bottlenecks]).bottleneck == "loader-cpu"
    assert summed([report(0)]).bottleneck is None


def test_reports_of_ended_epochs_are_found_by_whoever_asks(as_ranks: AsRanks) -> None:
    told = [ToldReports(rank) for rank in as_ranks(3)]
    for n, one in enumerate(told):
        one.tell(1, report(n))
    whole = told[1].summed(1, report(1), ended=True)
    assert (whole.ranks, whole.totals.samples, whole.totals.cuts, whole.notes) == (3, 30, {0: 12, 2: 3}, ())
    told[0].tell(2, report(0, epoch=2))
    assert told[1].summed(1, report(1), ended=True).notes == ("rank 0 reports epoch 2",)


def test_a_rank_that_tells_nothing_is_left_out_and_named(as_ranks: AsRanks) -> None:
    told = [ToldReports(rank) for rank in as_ranks(3)]
    told[2].tell(1, report(2))
    told[1].tell(1, report(1))
    whole = told[0].summed(2, report(0, epoch=2), ended=True)
    assert (whole.ranks, whole.totals.samples) == (1, 10)
    assert whole.notes[0].startswith("the sum is without ranks 1, 2, which told nothing of this epoch within 0.1 s;")


def test_in_the_middle_of_an_epoch_all_must_ask_each_time(as_ranks: AsRanks) -> None:
    told = [ToldReports(rank) for rank in as_ranks(2)]
    assert told[0].summed(1, report(0), ended=False).ranks == 1
    assert told[1].summed(1, report(1), ended=False).ranks == 2
    assert told[0].summed(1, report(0), ended=False).ranks == 1, "what rank 1 told was of an earlier step"
    assert told[1].summed(1, report(1), ended=True).ranks == 1, "and rank 0 has not told of the end"
    told[1].tell(1, report(1))
    assert told[0].summed(1, report(0), ended=False).ranks == 2


def test_a_store_that_is_gone_is_a_rank_that_tells_nothing(as_ranks: AsRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> Any:
        raise RuntimeError("Connection reset by peer")

    told = ToldReports(as_ranks(2)[0])
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", gone)
    assert told.summed(1, report(0), ended=True).ranks == 1


def test_without_a_group_there_are_no_ranks_to_ask() -> None:
    with pytest.raises(ConfigError, match=r"all_ranks must be False while torch.distributed is not initialised"):
        OffloadingDataLoader(TensorDataset(torch.arange(3))).report(all_ranks=True)


# --- profiles -------------------------------------------------------------------------------------------------


def halves() -> list[SampleProfile]:
    """What two ranks have measured of `photo_profile`, the last sample apart, which none has met."""
    whole, parts = photo_profile(SAMPLES), []
    for rank in range(2):
        parts.append(photo_profile(SAMPLES))
        for name, array in parts[-1].arrays().items():
            array[:] = 0
            array[rank:-1:2] = whole.arrays()[name][rank:-1:2]
    return parts


def same(one: SampleProfile, other: SampleProfile, samples: slice) -> bool:
    return all(np.array_equal(one.arrays()[n][samples], other.arrays()[n][samples]) for n in one.arrays())


@pytest.mark.parametrize("rows", [5, gathering.ROWS])
def test_each_rank_comes_to_know_all_samples(as_ranks: AsRanks, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(gathering, "ROWS", rows)
    profiles = halves()
    both = [Gathering(rank, profile) for rank, profile in zip(as_ranks(2), profiles, strict=True)]
    assert not both[0].take(), "nothing has been measured yet, and nobody is waited for"
    for one in both:
        one.tell()
    assert all(one.take() for one in both)
    for profile in profiles:
        assert same(profile, photo_profile(SAMPLES), slice(0, SAMPLES - 1)) and not profile.known[-1]
    assert not any(one.take() for one in both)


def test_what_is_known_here_stays(as_ranks: AsRanks) -> None:
    first, second = as_ranks(2)
    profiles = halves()
    profiles[1].op_ms[0], profiles[1].nbytes[0] = 77, profiles[0].nbytes[0]
    for rank, profile in ((second, profiles[1]), (first, profiles[0])):
        Gathering(rank, profile).tell()
    mine = Gathering(first, profiles[0])
    mine.tell()
    assert mine.take() and same(profiles[0], photo_profile(SAMPLES), slice(0, 1))


def test_a_rank_that_tells_nothing_is_waited_for_once(as_ranks: AsRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = halves()
    both = [Gathering(rank, profile) for rank, profile in zip(as_ranks(2), profiles, strict=True)]
    both[0].tell()
    with pytest.warns(OffloadWarning, match=r"Ranks \[1\] have not told what they measured within 0.1 s"):
        assert not both[0].take()
    monkeypatch.setattr(gathering, "WAIT_S", 1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not both[0].take()
        both[1].tell()
        assert both[0].take() and profiles[0].coverage == (SAMPLES - 1) / SAMPLES


def test_a_rank_that_goes_by_itself_waits_for_none(as_ranks: AsRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "WAIT_S", 1e9)
    profiles = halves()
    both = [Gathering(rank, profile, alone=True) for rank, profile in zip(as_ranks(2), profiles, strict=True)]
    both[0].tell()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not both[0].take()
    both[1].tell()
    assert both[0].take() and profiles[0].coverage == (SAMPLES - 1) / SAMPLES


def test_profiles_leave_the_store_again(as_ranks: AsRanks) -> None:
    first, second = as_ranks(2)
    profiles = halves()
    both = [Gathering(first, profiles[0]), Gathering(second, profiles[1])]
    for one in both:
        one.tell()
    assert second.take(0, "profile") and second.take(0, "profile 0")
    for _ in range(KEPT_EPOCHS):
        both[0].take()
    assert second.take(0, "profile") is None and second.take(0, "profile 0") is None
    both[0].tell()
    assert second.take(0, "profile") is None, "it is told once"


def test_a_dataset_that_is_too_large_is_kept_apart(as_ranks: AsRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MAX_SAMPLES", SAMPLES - 1)
    one = Gathering(as_ranks(2)[0], halves()[0])
    one.tell()
    assert not one.take()
