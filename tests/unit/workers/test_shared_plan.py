"""The plan that workers read while the main process may be writing it: a hint, so never an error."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

from sophon_loader.decide.facts import FILE, Choice
from sophon_loader.decide.plan import Plan, uniform_plan
from sophon_loader.wire.limits import MAX_OPS
from sophon_loader.workers.shared_plan import SharedPlan, possible_choice

NAMES = ("file", "pixels", "array", "webp", "roi-jpeg")
COUNT = 24
ROWS = list(range(COUNT))
REACH = 4


def chosen(plan: SharedPlan, rows: Sequence[int] = ROWS) -> list[Choice]:
    """What a worker asks for."""
    return plan.choose(rows, [REACH] * len(rows))


def test_a_plan_is_read_as_it_was_set() -> None:
    shared = SharedPlan(COUNT, NAMES)
    assert chosen(shared) == [FILE] * COUNT
    for choice in (Choice(3, "array"), Choice(2, "webp"), FILE):
        shared.set(uniform_plan("x", COUNT, choice, ""))
        copy = pickle.loads(bytes(ForkingPickler.dumps(shared)))
        assert chosen(shared) == chosen(copy) == [choice] * COUNT


def test_an_encoding_that_is_not_known_is_pixels() -> None:
    shared = SharedPlan(COUNT, NAMES)
    shared.set(uniform_plan("x", COUNT, Choice(2, "bmp"), ""))
    assert chosen(shared, [0]) == [Choice(2, "pixels")]


def test_an_encoding_that_the_agent_does_not_offer_is_a_plain_one() -> None:
    shared = SharedPlan(COUNT, NAMES)
    for asked, followed in ((Choice(0, "roi-jpeg"), FILE), (Choice(2, "webp"), Choice(2, "pixels"))):
        shared.set(uniform_plan("x", COUNT, asked, ""), ["file", "pixels"])
        assert chosen(shared, [0]) == [followed]


def test_a_choice_of_an_old_plan_with_the_choices_of_a_new_one() -> None:
    """As a worker may read them while a plan is written: any choice is a right one."""
    shared = SharedPlan(COUNT, NAMES)
    shared.set(Plan("x", (FILE, Choice(1, "pixels")), np.ones(COUNT, np.uint8), ""))
    shared._chosen.array[:] = 6
    assert chosen(shared) == [FILE] * COUNT


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
    plan.set(Plan("x", choices, np.arange(4, dtype=np.uint8), ""), ["file", "pixels", "webp"])
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
    plan.set(uniform_plan("x", 1, Choice(5, "pixels"), ""))
    plan.set(uniform_plan("x", 1, Choice(2, "webp"), ""))
    found = [plan.choose([0], [reach])[0] for reach in range(8)]
    assert found == [FILE, Choice(1, "pixels"), *[Choice(2, "webp")] * 6]
