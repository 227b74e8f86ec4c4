"""What drives a loader without an agent, and under a user's own policy that sets prices."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader
from sophon_loader.auto.conditions import Conditions
from sophon_loader.auto.live_plan import MIN_OFFERS, LivePlan
from sophon_loader.decide import Facts, Part, Policy, Prices, PricingPolicy, Tariff, Traffic
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.tariff import NO_TRAFFIC
from sophon_loader.device.step_clock import VERDICT_STEPS
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.measures.counters import Statistics
from sophon_loader.report.rows import rows_of
from sophon_loader.wire.messages import Offer
from tests.support.pictures import make_tree
from tests.support.profiles import crop_transform

COUNT = 6


class WireOnly:
    """Prices of a user's own, which predict nothing."""

    name = "wire-only"

    def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        return Tariff((Part(1.0, Prices(wire=1.0, loader=0.0, agent=0.0)),), "asked to save bytes")


@pytest.mark.parametrize(
    "policy",
    ["auto", WireOnly(), "no-off", "sophon", FastFlow(trial_steps=1)],
    ids=lambda one: getattr(one, "name", one),
)
def test_without_an_agent_nothing_is_planned_and_nothing_kept_per_sample(
    tmp_path: Path, policy: str | Policy | PricingPolicy
) -> None:
    root, profile = make_tree(tmp_path / "tree", COUNT, classes=2, sides=(24, 32), plain=True), tmp_path / "p.npz"
    loader = OffloadingDataLoader(ImageFolder(str(root), crop_transform()), 2, policy=policy, seed=1, profile=profile)
    for _ in range(2):
        assert len(list(loader)) == COUNT // 2
    loader.measure()
    report, engine = loader.report().as_dict(), loader._engine
    assert report["policy"] == getattr(policy, "name", policy) and report["samples"] == COUNT
    assert (report["plan_reason"], report["predicted_seconds"], report["limits"]) == ("", None, {})
    assert report["rates"]["loader_cores"] > 0
    assert not report["offloading"] and report["summary"] == "nothing offloaded: no agent was given"
    assert engine is not None and engine._steering is None and len(engine.run.profiler.samples.nbytes) == 0
    assert not profile.exists() and report["notes"] == list(engine.run.notes(""))
    assert not any("profile" in note for note in report["notes"]), "nothing is measured that could be kept"


def test_before_an_epoch_nothing_is_offloaded(tmp_path: Path) -> None:
    root = make_tree(tmp_path / "tree", 2, plain=True)
    for dataset, why in ((ImageFolder(str(root)), "no epoch has begun"), ([1, 2], "no agent was given")):
        report = OffloadingDataLoader(dataset).report()  # type: ignore[arg-type]
        assert not report.offloading and report.summary == f"nothing offloaded: {why}"


def test_too_few_steps_are_named_as_the_reason_only_while_they_are_it(tmp_path: Path) -> None:
    steps = VERDICT_STEPS + 5
    root = make_tree(tmp_path / "tree", steps, classes=2, sides=(24, 32), plain=True)
    loader = OffloadingDataLoader(ImageFolder(str(root), crop_transform()), 1)
    said = [dict(rows_of(loader.report())).get("what limits") for _ in loader]
    assert said[5] == f"not known yet: it takes {VERDICT_STEPS} training steps"
    assert said[-1] is None, "before the epoch's end it is not known for another reason"


@pytest.mark.parametrize(("steps", "judged"), [(19, False), (20, True)])
def test_of_few_steps_nothing_is_said_of_what_limits(tmp_path: Path, steps: int, judged: bool) -> None:
    root = make_tree(tmp_path / "tree", steps, classes=2, sides=(24, 32), plain=True)
    loader = OffloadingDataLoader(ImageFolder(str(root), crop_transform()), 1)
    assert len(list(loader)) == steps
    assert (loader.report().bottleneck is not None) == judged
    assert len(list(loader)) == steps and loader.report().bottleneck is not None, "steps of all epochs count"


def test_prices_without_a_prediction_are_followed_and_say_nothing_of_limits() -> None:
    names = encoding_names()
    live = LivePlan(WireOnly(), COUNT, Statistics(1, names), 1, names, Conditions.at_first(1.0, 1.0), Traffic())
    for _ in range(MIN_OFFERS):
        live.shared.offers.write(0, [Offer(0, "file", 9000, 0.0, 0.002), Offer(2, "pixels", 3000, 0.001, 0.001)])
    assert live._revise() and live.tariff.reason == "asked to save bytes"
    assert (live.limits(), live.findings().would_bring(), live.predicted_s) == ({}, {}, None)
