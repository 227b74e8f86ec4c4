"""What may be planned for an agent on this host, which shares the loader's cores."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from sophon_loader import LocalAgent, OffloadOptions
from sophon_loader.auto.conditions import Conditions, MeasuredWindow
from sophon_loader.client.address import Address
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.fleet import agent as module
from sophon_loader.fleet.agent import MIN_LOCAL_AGENT_CORES, Agent
from tests.support.pictures import folder, make_tree

ELSEWHERE = Address("tcp://fileserver:5555", "photos")
About = Callable[..., Agent]


@pytest.fixture
def about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> About:
    """An agent on a host of four cores."""
    root = make_tree(tmp_path / "tree", 4)
    monkeypatch.setattr(module, "cores_available", lambda: 4.0)
    return lambda where: Agent(where, offloadable(folder(root)), OffloadOptions())


def test_the_cores_to_spare_are_what_it_may_have(about: About) -> None:
    assert about(LocalAgent()).cores(1) == 3.0
    assert about(LocalAgent(workers=2)).cores(1) == 2.0
    assert about(LocalAgent()).cores(4) == about(LocalAgent()).cores(9) == MIN_LOCAL_AGENT_CORES
    assert about(ELSEWHERE).cores(9) == math.inf


def test_behind_a_paced_link_it_has_its_share_of_the_cores(about: About) -> None:
    """The loader's processes wait for the link, whatever their number, and the agent works meanwhile."""
    assert about(LocalAgent(limit_mbit=100)).cores(4) == 2.0
    assert about(LocalAgent(limit_mbit=100)).cores(12) == 1.0
    assert about(LocalAgent(workers=1, limit_mbit=100)).cores(3) == 1.0
    assert about(LocalAgent(workers=1, limit_mbit=100)).cores(7) == 0.5


@pytest.mark.parametrize(
    ("where", "processes", "useless"),
    [
        (LocalAgent(), 3, False),
        (LocalAgent(), 4, True),
        (LocalAgent(), 9, True),
        (LocalAgent(limit_mbit=100), 9, False),  # it shall be seen at work
        (ELSEWHERE, 9, False),
    ],
)
def test_where_no_core_is_to_spare_it_is_useless(
    about: About, where: Address | LocalAgent, processes: int, useless: bool
) -> None:
    why = about(where).why_useless(processes)
    assert bool(why) == useless
    assert not useless or f"the loader's {processes} processes may use all 4 cores" in why


def test_it_is_not_believed_to_have_more_than_it_may_have() -> None:
    """It promises its loader all cores of the host, of which the loader itself uses some."""
    window = MeasuredWindow(
        seconds=1.0,
        processes=1,
        samples=100,
        wire_bytes=0.0,
        waited_s=0.0,
        busy_s=1.0,
        loader_cpu_s=1.0,
        work_cpu_s=0.0,
        work_s=0.0,
        upkeep_s=0.0,
        agent_cpu_s=0.0,
        read_bytes=0.0,
        read_s=0.0,
        fresh=0,
        net_s=0.0,
        queued_s=0.0,
        gpu_samples_s=math.inf,
        agent_cores=2.0,
    )
    free = Conditions.at_first(loader_cores=1.0, agent_cores=1.0)
    assert free.after(window).rates.agent_cores == 2.0
    assert Conditions(free.rates, 1.0, max_agent_cores=1.0).after(window).rates.agent_cores == 1.0
