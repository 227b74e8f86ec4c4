"""What limits, in sentences."""

from __future__ import annotations

from typing import get_args

import pytest

from sophon_loader.decide.cost import Bottleneck
from sophon_loader.decide.words import capitalised, resource, what_limits, what_more_brings


def test_every_resource_has_a_name_in_words() -> None:
    names = [resource(name) for name in get_args(Bottleneck)]
    assert all(name.startswith("the ") for name in names) and len(set(names)) == len(names)
    assert resource("tape") == "tape"


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({}, ""),
        ({"gpu": 1.0}, "The training step limits."),
        ({"gpu": 1.0, "wire": 0.0}, "The training step limits."),
        (
            {"agent-cpu": 1.0, "agent-disk": 0.996},
            "The agent's CPU limits; the agent's disk is busy 100 % of the time.",
        ),
    ],
)
def test_what_limits(limits: dict[str, float], says: str) -> None:
    assert what_limits(limits) == says


@pytest.mark.parametrize(
    ("would_bring", "says"),
    [
        ({}, ""),
        ({"gpu": 1.0, "wire": 1.004}, "Twice of any single resource would bring nothing."),
        ({"gpu": 2.0}, "A training step twice as fast would bring 100 % more samples per second."),
        (
            {"wire": 1.3, "gpu": 1.0, "loader-cpu": 1.1},
            "Twice the network would bring 30 % more samples per second; twice the loader's CPU 10 %.",
        ),
    ],
)
def test_what_more_brings_without_what_brings_nothing(would_bring: dict[str, float], says: str) -> None:
    assert what_more_brings(would_bring) == says


def test_a_capital_changes_the_first_letter_alone() -> None:
    assert (capitalised("the GPU"), capitalised("")) == ("The GPU", "")
