"""The plan that workers read while the main process may be writing it: a hint, so never an error."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from sophon_loader.decide.facts import FILE, Choice, Facts, Rates
from sophon_loader.decide.plan import Plan, Prices, uniform_plan
from sophon_loader.decide.policies import Auto
from sophon_loader.profiling.costs import Calibration, CostModel, calibrated
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.workers.plan import SharedPlan
from tests.support.profiles import photo_probes, photo_profile

NAMES = ("file", "pixels", "array", "webp", "roi-jpeg")
COUNT = 24
ROWS = list(range(COUNT))
RATES = Rates(gpu_samples_s=1e6, wire_bytes_s=1e5, loader_cores=1, agent_cores=1)


def ones() -> Any:
    return np.ones(COUNT)


@pytest.fixture
def profile() -> SampleProfile:
    return photo_profile(COUNT)


def model_of(profile: SampleProfile) -> CostModel:
    shares = {index: 0.1 + 0.03 * index for index in ROWS}
    calibration = calibrated(profile, photo_probes(profile, shares), shares, 0.001, crops_first=True)
    return CostModel(profile, calibration, 4, NAMES)


def planned(profile: SampleProfile) -> tuple[Plan, CostModel]:
    """An auto plan for a slow wire, made for whole pictures."""
    model = model_of(profile)
    return Auto().plan(Facts(COUNT, RATES, model.table(ones()), 4, 2, 1.0)), model


def test_a_plan_is_read_as_it_was_set(profile: SampleProfile) -> None:
    shared = SharedPlan(COUNT, NAMES)
    assert shared.choose(ROWS, ones, profile) == [FILE] * COUNT
    for choice in (Choice(3, "array"), Choice(2, "webp"), FILE):
        shared.set(uniform_plan("x", COUNT, choice, ""), None)
        assert shared.choose(ROWS, ones, profile) == [choice] * COUNT


def test_an_encoding_that_is_not_known_is_pixels(profile: SampleProfile) -> None:
    shared = SharedPlan(COUNT, NAMES)
    shared.set(uniform_plan("x", COUNT, Choice(2, "bmp"), ""), None)
    assert shared.choose([0], ones, profile) == [Choice(2, "pixels")]


def test_an_encoding_that_the_agent_does_not_offer_is_a_plain_one(profile: SampleProfile) -> None:
    shared = SharedPlan(COUNT, NAMES)
    for asked, followed in ((Choice(0, "roi-jpeg"), FILE), (Choice(2, "webp"), Choice(2, "pixels"))):
        shared.set(uniform_plan("x", COUNT, asked, ""), None, ["file", "pixels"])
        assert shared.choose([0], ones, profile) == [followed]


def test_at_prices_the_choice_follows_the_crop(profile: SampleProfile) -> None:
    plan, model = planned(profile)
    shared = SharedPlan(COUNT, NAMES)
    shared.set(plan, model)
    copy = pickle.loads(bytes(ForkingPickler.dumps(shared)))
    small = [choice.encoding for choice in copy.choose(ROWS, lambda: np.full(COUNT, 0.02), profile)]
    assert set(small) == {"roi-jpeg"}
    whole = [choice.encoding for choice in copy.choose(ROWS, ones, profile)]
    assert set(whole) == {"webp"}


def test_a_sample_without_a_profile_keeps_what_was_planned(profile: SampleProfile) -> None:
    plan, model = planned(profile)
    shared = SharedPlan(COUNT, NAMES)
    profile.nbytes[3] = 0
    shared.set(plan, model)
    assert shared.choose([3, 4], lambda: np.full(2, 0.02), profile)[0] == plan.choices[plan.chosen[3]]


def test_a_plan_read_while_it_is_written(profile: SampleProfile) -> None:
    """Any mixture of an old and a new note is left aside, and the planned choices hold."""
    plan, model = planned(profile)
    shared = SharedPlan(COUNT, NAMES)
    shared.set(plan, model)
    note, head = shared._note._places.array[0], shared._note._HEAD
    whole, size = note.copy(), head.unpack(note[: head.size].tobytes())[0]
    fallback = [plan.choices[plan.chosen[row]] for row in ROWS]
    end = head.size + size
    for cut in range(head.size, end, 7):
        note[:] = whole
        note[cut:end] = 0xC1 if cut % 2 else 0  # 0xC1 is no msgpack
        if np.array_equal(note, whole):
            continue
        assert shared.choose(ROWS, lambda: np.full(COUNT, 0.02), profile) == fallback
    for wrong in (1, size - 1, size + 1, 1 << 31):
        note[:] = whole
        note[:4] = np.frombuffer(wrong.to_bytes(4, "little"), np.uint8)
        assert shared.choose(ROWS, lambda: np.full(COUNT, 0.02), profile) == fallback
    note[:] = whole
    assert shared.choose(ROWS, lambda: np.full(COUNT, 0.02), profile) != fallback


def test_a_choice_of_an_old_plan_with_the_prices_of_a_new_one(profile: SampleProfile) -> None:
    """The old plan had more choices than the new prices know."""
    shared = SharedPlan(COUNT, NAMES)
    model = CostModel(profile, Calibration((1.0,) * 4), 1, NAMES)
    chosen = np.zeros(COUNT, np.uint8)
    shared.set(Plan("x", model.choices, chosen, "", prices=Prices(1.0, 0.0, 0.0)), model)
    shared._chosen.array[:] = 6
    found = shared.choose(ROWS, ones, profile)
    assert set(found) <= {FILE, Choice(1, "pixels")}
