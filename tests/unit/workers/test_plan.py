"""The plan that workers read while the main process may be writing it: a hint, so never an error."""

from __future__ import annotations

import itertools
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from sophon_loader.decide.facts import FILE, Choice, Facts, Rates
from sophon_loader.decide.plan import Plan, Prices, uniform_plan
from sophon_loader.decide.policies import Auto
from sophon_loader.profiling.calibration import Calibration, calibrated
from sophon_loader.profiling.costs import CostModel
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.wire.limits import MAX_OPS
from sophon_loader.workers.plan import SharedPlan, possible_choice
from tests.support.profiles import photo_probes, photo_profile

NAMES = ("file", "pixels", "array", "webp", "roi-jpeg")
COUNT = 24
ROWS = list(range(COUNT))
RATES = Rates(gpu_samples_s=1e6, wire_bytes_s=1e5, loader_cores=1, agent_cores=1)


ONES = np.ones(COUNT)
SMALL = np.full(COUNT, 0.02)
REACH = 4


def chosen(plan: SharedPlan, profile: SampleProfile, shares: Any = ONES, rows: Any = ROWS) -> list[Choice]:
    """What a worker asks for, at prices if there are any."""
    return plan.choose(rows, [REACH] * len(rows), plan.pricing(profile), shares[: len(rows)])


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
    return Auto().plan(Facts(COUNT, RATES, model.table(ONES), 4, 2, 1.0)), model


def test_a_plan_is_read_as_it_was_set(profile: SampleProfile) -> None:
    shared = SharedPlan(COUNT, NAMES)
    assert chosen(shared, profile) == [FILE] * COUNT
    for choice in (Choice(3, "array"), Choice(2, "webp"), FILE):
        shared.set(uniform_plan("x", COUNT, choice, ""), None)
        assert chosen(shared, profile) == [choice] * COUNT


def test_an_encoding_that_is_not_known_is_pixels(profile: SampleProfile) -> None:
    shared = SharedPlan(COUNT, NAMES)
    shared.set(uniform_plan("x", COUNT, Choice(2, "bmp"), ""), None)
    assert chosen(shared, profile, rows=[0]) == [Choice(2, "pixels")]


def test_an_encoding_that_the_agent_does_not_offer_is_a_plain_one(profile: SampleProfile) -> None:
    shared = SharedPlan(COUNT, NAMES)
    for asked, followed in ((Choice(0, "roi-jpeg"), FILE), (Choice(2, "webp"), Choice(2, "pixels"))):
        shared.set(uniform_plan("x", COUNT, asked, ""), None, ["file", "pixels"])
        assert chosen(shared, profile, rows=[0]) == [followed]


def test_at_prices_the_choice_follows_the_crop(profile: SampleProfile) -> None:
    plan, model = planned(profile)
    shared = SharedPlan(COUNT, NAMES)
    shared.set(plan, model)
    copy = pickle.loads(bytes(ForkingPickler.dumps(shared)))
    small = [choice.encoding for choice in chosen(copy, profile, SMALL)]
    assert set(small) == {"roi-jpeg"}
    whole = [choice.encoding for choice in chosen(copy, profile)]
    assert set(whole) == {"webp"}


def test_a_sample_without_a_profile_keeps_what_was_planned(profile: SampleProfile) -> None:
    plan, model = planned(profile)
    shared = SharedPlan(COUNT, NAMES)
    profile.nbytes[3] = 0
    shared.set(plan, model)
    assert chosen(shared, profile, SMALL, [3, 4])[0] == plan.choices[plan.chosen[3]]


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
        assert chosen(shared, profile, SMALL) == fallback
    for wrong in (1, size - 1, size + 1, 1 << 31):
        note[:] = whole
        note[:4] = np.frombuffer(wrong.to_bytes(4, "little"), np.uint8)
        assert chosen(shared, profile, SMALL) == fallback
    note[:] = whole
    assert chosen(shared, profile, SMALL) != fallback


def test_a_choice_of_an_old_plan_with_the_prices_of_a_new_one(profile: SampleProfile) -> None:
    """The old plan had more choices than the new prices know."""
    shared = SharedPlan(COUNT, NAMES)
    model = CostModel(profile, Calibration((1.0,) * 4), 1, NAMES)
    shared.set(Plan("x", model.choices, np.zeros(COUNT, np.uint8), "", prices=Prices(1.0, 0.0, 0.0)), model)
    shared._chosen.array[:] = 6
    found = chosen(shared, profile)
    assert set(found) <= {FILE, Choice(1, "pixels")}


# --- what a choice comes to ---------------------------------------------------------------------------------------

ALL = ("file", "pixels", "array", "webp", "roi-jpeg")


@pytest.mark.parametrize(
    ("choice", "reach", "allowed", "possible"),
    [
        (Choice(2, "webp"), 2, ALL, Choice(2, "webp")),
        (Choice(2, "webp"), 4, ALL, Choice(2, "webp")),
        (Choice(2, "webp"), 1, ALL, Choice(1, "pixels")),
        (Choice(2, "webp"), 0, ALL, FILE),
        (Choice(2, "webp"), 2, ("file", "pixels"), Choice(2, "pixels")),
        (Choice(2, "webp"), 2, ("file", "array"), Choice(2, "pixels")),  # the agent sends what it can
        (Choice(2, "webp"), 2, ("file", "jxl"), FILE),
        (Choice(2, "webp"), 1, ("file", "webp"), FILE),  # pixels would be plain, and are not allowed
        (Choice(3, "array"), 2, ("file", "array"), Choice(2, "pixels")),
        (Choice(0, "roi-jpeg"), 0, ALL, Choice(0, "roi-jpeg")),
        (Choice(0, "roi-jpeg"), 4, ("file", "pixels"), FILE),
        (Choice(3, "pixels"), 0, ALL, FILE),
        (FILE, 0, (), FILE),
        (FILE, 4, ("file",), FILE),
        (Choice(9, "pixels"), 4, (), FILE),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_followed_is_repaired(
    choice: Choice, reach: int, allowed: tuple[str, ...], possible: Choice
) -> None:
    assert possible_choice(choice, reach, allowed) == possible


def test_what_is_possible_stays_as_it_is() -> None:
    """So that nothing changes if it is repaired twice."""
    for cut, encoding, reach in itertools.product(range(4), ALL, range(4)):
        for allowed in (ALL, ("file",), ("file", "pixels"), ("file", "array"), ("file", "webp")):
            possible = possible_choice(Choice(cut, encoding), reach, allowed)
            assert possible_choice(possible, reach, {*allowed, "pixels"} if possible.cut else allowed) == possible
            assert possible.cut <= reach


def test_a_plan_gives_each_sample_what_its_own_source_can_reach() -> None:
    choices = (FILE, Choice(3, "webp"), Choice(70, "pixels"), Choice(0, "roi-jpeg"))
    plan = SharedPlan(4, NAMES)
    plan.set(Plan("x", choices, np.arange(4, dtype=np.uint8), ""), None, ["file", "pixels", "webp"])
    for reach in range(MAX_OPS + 1):
        expected = [possible_choice(one, reach, ["file", "pixels", "webp"]) for one in choices]
        assert plan.choose(range(4), [reach] * 4) == expected
    assert plan.choose([1, 1, 1, 2], [0, 2, 64, 1]) == [
        FILE,
        Choice(2, "pixels"),
        Choice(3, "webp"),
        Choice(1, "pixels"),
    ]
    assert plan.choose([], []) == []


def test_a_newer_plan_leaves_nothing_of_the_older_one() -> None:
    plan = SharedPlan(1, NAMES)
    plan.set(uniform_plan("x", 1, Choice(5, "pixels"), ""), None)
    plan.set(uniform_plan("x", 1, Choice(2, "webp"), ""), None)
    found = [plan.choose([0], [reach])[0] for reach in range(8)]
    assert found == [FILE, Choice(1, "pixels"), *[Choice(2, "webp")] * 6]
