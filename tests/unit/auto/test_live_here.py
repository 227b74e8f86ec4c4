"""A plan that lives beside an agent on this host: files are read by the loader, and the agent is tried with some."""

from __future__ import annotations

import math
from dataclasses import replace

import msgpack
import pytest

from sophon_loader.auto.conditions import Conditions
from sophon_loader.auto.live_plan import FIRST_TRIED_SHARE, MIN_OFFERS, TRIED_SHARE, LivePlan
from sophon_loader.decide.policies.auto import Auto
from sophon_loader.decide.tariff import Tariff, Traffic
from sophon_loader.measures.counters import Statistics, Totals
from sophon_loader.measures.moment import NOTHING_PASSED, Moment
from sophon_loader.wire.messages import Offer

ENCODINGS = ("file", "pixels")
WORKED = Totals(samples=100, loader_cpu_s=1.0, busy_s=1.0)
FILE_S = 0.005


@pytest.fixture
def live() -> LivePlan:
    at_first = replace(Conditions.at_first(loader_cores=1.0, agent_cores=1.0), files_here=True)
    plan = LivePlan(Auto(), 1000, Statistics(1, ENCODINGS), 1, ENCODINGS, at_first, Traffic(0.0))
    plan.begin()
    plan.progressed(NOTHING_PASSED, math.inf)
    return plan


def share_for_the_agent(live: LivePlan) -> float:
    """Of the requests."""
    packed = live.shared.tariff.packed()
    assert packed
    return sum(part.share for part in Tariff.from_plain(msgpack.unpackb(packed)).parts if part.prices is not None)


def weigh(live: LivePlan, rest_s: float, samples: int = MIN_OFFERS) -> None:
    """A window in which the agent has told of samples that would leave so many CPU seconds to the loader."""
    for _ in range(samples):
        live.shared.offers.write(0, [Offer(0, "file", 10_000, 0.0, FILE_S), Offer(2, "pixels", 9_000, FILE_S, rest_s)])
    live.progressed(Moment(2.0, WORKED, 2.0, WORKED.samples), math.inf)  # the step takes no time


def test_an_agent_of_which_nothing_is_known_is_tried_with_more(live: LivePlan) -> None:
    """One sample in eight tells what it was chosen from: at the later share that would take an epoch or six."""
    assert share_for_the_agent(live) == FIRST_TRIED_SHARE
    weigh(live, FILE_S, MIN_OFFERS - 1)
    assert share_for_the_agent(live) == FIRST_TRIED_SHARE


def test_one_that_gains_nothing_stays_known(live: LivePlan) -> None:
    weigh(live, rest_s=FILE_S)
    assert share_for_the_agent(live) == TRIED_SHARE


def test_one_that_gains_something_is_used(live: LivePlan) -> None:
    weigh(live, rest_s=FILE_S / 10)
    assert share_for_the_agent(live) > 0.4
