"""Encodings of another package, at both ends, by an entry point as an installation leaves it.

One that states its estimate is tried, fitted and chosen by `auto`; one that does not is used where a policy names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from sophon_loader.decide.facts import Choice, Facts
from sophon_loader.decide.plan import Plan, uniform_plan
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import QUICK, samples_of
from tests.support.outside import outside_installed
from tests.support.pictures import folder

FILES = 32
ENCODINGS = ["file", "pixels", "array", "packed", "bare"]


class Bare:
    """Has every crop sent in the encoding that states nothing of itself."""

    name = "bare"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        return uniform_plan(self.name, facts.samples, Choice(2, "bare"), "because I say so")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one colour, in files of 20 KB: a crop is twice as large, a packed one 200 times smaller."""
    found = tmp_path_factory.mktemp("outside") / "tree"
    (found / "a").mkdir(parents=True)
    for number in range(FILES):
        picture = Image.new("RGB", (120 + number, 100), (7 * number, 90, 200 - number))
        picture.save(found / "a" / f"{number:02}.jpg", comment=b"x" * 20_000)
    return found


@pytest.fixture(scope="module")
def agent(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent behind a narrow wire that has the package; so has this process."""
    with (
        outside_installed(tmp_path_factory.mktemp("site")) as site,
        agent_for({EXPORT: root}, "--limit-mbit", "5", modules=site) as running,
    ):
        yield running


def epochs(root: Path, agent: Agent | None, policy: Any, count: int, workers: int = 0) -> list[tuple[Any, Any]]:
    """(samples, report) of each epoch."""
    transform = v1.Compose([v1.RandomResizedCrop(112), v1.RandomHorizontalFlip(), v1.ToTensor()])
    loader = OffloadingDataLoader(
        folder(root, transform),
        batch_size=8,
        num_workers=workers,
        agent=agent.address() if agent else None,
        policy=policy,
        encodings=ENCODINGS,
        seed=3,
        options=QUICK,
    )
    try:
        return [(samples_of(loader), loader.report().as_dict()) for _ in range(count)]
    finally:
        loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_auto_chooses_the_one_that_states_its_estimate(root: Path, agent: Agent, workers: int) -> None:
    assert {"packed", "bare"} <= set(agent.status()["encodings"])
    expected = [samples for samples, _ in epochs(root, None, "no-off", 3)]
    found = epochs(root, agent, "auto", 3, workers)
    assert [samples for samples, _ in found] == expected
    assert all(set(report["choices"]) <= set(ENCODINGS) - {"bare"} for _, report in found)
    # Not in a given epoch: on a busy machine a wire that was not in use is tried with pixels in one of them.
    packed = [report for _, report in found if report["choices"].get("packed", 0) > FILES / 2]
    assert packed, [(report["choices"], report["plan_reason"]) for _, report in found]
    assert all(report["wire_bytes"] < report["file_bytes"] / 2 for report in packed)


def test_one_that_states_none_crosses_where_a_policy_names_it(root: Path, agent: Agent) -> None:
    expected, _ = epochs(root, None, "no-off", 1)[0]
    samples, report = epochs(root, agent, Bare(), 1)[0]
    assert samples == expected
    assert report["choices"] == {"bare": FILES}
