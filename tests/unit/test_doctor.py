"""What `sophon-doctor` says of libraries and settings that are unlike: each name has a next step."""

from __future__ import annotations

import pytest

from sophon_loader.doctor.examination import _libraries
from sophon_loader.pipeline.software import software, unlike
from sophon_loader.pipeline.told import OPENERS

NAMES = sorted(software())


@pytest.mark.parametrize("name", NAMES)
def test_each_name_that_may_be_unlike_has_a_next_step(name: str) -> None:
    """Also where both are, which `unlike` does not tell, and where the other end does not state it."""
    theirs = {**software(), name: "another"}
    assert unlike(theirs) == ([] if name == OPENERS else [name])
    for there in (theirs, {one: value for one, value in theirs.items() if one != name}):
        found = _libraries([name], there)
        assert f"{name} {software()[name] or 'none'} here" in found.said and found.next


def test_all_at_once() -> None:
    found = _libraries(NAMES, {})
    assert all(name in found.said for name in NAMES)
    assert found.next.startswith("install the same pillow and torch and torchvision at both ends; ")
    assert "; ; " not in found.next


@pytest.mark.parametrize(("there", "todo"), [("none", "pip install"), ("unused", "--op-workers")])
def test_an_agent_without_op_workers_is_no_fault(there: str, todo: str) -> None:
    found = _libraries(["torch", "torchvision"], {**software(), "torch": there, "torchvision": there})
    assert "it sends parts of files, crops and resized pictures" in found.said and todo in found.next
    assert found.next.startswith("none, unless ops behind these shall run there") and not found.stops


def test_another_torch_takes_some_ops_and_another_pillow_all() -> None:
    assert _libraries(["torch"], {**software(), "torch": "2.0.0"}).said.startswith("not all ops run at the agent: ")
    assert _libraries(["pillow", "torch"], {**software(), "torch": "none", "pillow": "1"}).said.startswith("no op runs")


def test_what_is_alike_needs_none() -> None:
    assert _libraries([], software()).next == ""
