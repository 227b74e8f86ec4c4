"""Which agents are of which group, and which keys stay in a rank's own."""

from __future__ import annotations

import pytest

from sophon_loader.fleet.groups import Preference, group_of

KEYS = [f"{number % 50}/{number}.jpg" for number in range(2000)]
GROUPS = {"rack-1": ["fileserver-a", "10.1.0.0/16", "fd00::/8"], "rack-2": ["tcp://fileserver-b:5555", "10.2.0.1:7"]}


@pytest.mark.parametrize(
    ("endpoint", "group"),
    [
        ("tcp://fileserver-a:5555", "rack-1"),
        ("tcp://10.1.3.4:5555", "rack-1"),
        ("tcp://[fd00::1]:5555", "rack-1"),
        ("tcp://fileserver-b:5555", "rack-2"),
        ("tcp://fileserver-b:5556", ""),
        ("tcp://10.2.0.1:7", "rack-2"),
        ("tcp://10.2.0.1:77", ""),
        ("tcp://elsewhere:5555", ""),
    ],
)
def test_the_group_of_an_agent(endpoint: str, group: str) -> None:
    assert group_of(endpoint, GROUPS) == group


def kept(preference: Preference) -> set[str]:
    return {key for key in KEYS if preference.keeps(key)}


def test_keys_leave_the_group_while_the_worker_waits_and_come_back_afterwards() -> None:
    preference = Preference([False, True])
    preference.see(100.0, 0.0, 0.0)
    assert len(kept(preference)) == len(KEYS)
    before, waited_s = set(KEYS), 0.0
    for step in range(1, 6):
        waited_s += 0.2
        preference.see(100.0 + 0.25 * step, waited_s, waited_s)
        now = kept(preference)
        assert now < before, "those that have left stay away"
        before = now
    assert not before and preference.share == 1
    for step in range(1, 40):
        preference.see(102.0 + 0.25 * step, waited_s + step, waited_s)
    assert preference.share == 0 and len(kept(preference)) == len(KEYS)


def test_a_little_waiting_changes_nothing() -> None:
    preference = Preference([True, False])
    preference.see(100.0, 0.0, 0.0)
    for step in range(1, 20):
        preference.see(100.0 + step, 0.9 * step, 0.1 * step)
        assert preference.share == 0


def test_without_an_agent_of_the_group_all_keys_go_anywhere() -> None:
    preference = Preference([False, False])
    preference.see(100.0, 0.0, 0.0)
    preference.see(200.0, 0.0, 0.0)
    assert preference.share == 1 and not kept(preference)


def test_where_the_training_does_not_wait_workers_may() -> None:
    """A worker waits for the replies to each batch, however far ahead of the training it is."""
    preference = Preference([True, False])
    preference.see(100.0, 0.0, 0.0)
    for step in range(1, 20):
        preference.see(100.0 + step, 0.9 * step, 0.01 * step)
        assert preference.share == 0
    for step in range(20, 40):
        preference.see(100.0 + step, 0.9 * 19, 0.9 * step)
        assert preference.share == 0, "nor do the agents hold up a loader that its own CPU limits"
