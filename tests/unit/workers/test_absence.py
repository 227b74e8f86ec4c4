"""What workers find out about the agent, and the time that may be lost to it."""

from __future__ import annotations

import pytest

from sophon_loader.client.options import OffloadOptions
from sophon_loader.workers import absence as module
from sophon_loader.workers.absence import LOST_SHARE, LOST_TIMES, Absence
from tests.support.clocks import FakeClock

OPTIONS = OffloadOptions(resend_after_s=10.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(module, "now_s", made)
    return made


def test_who_gave_the_agent_up_before_it_was_asked_uses_it_again_and_nobody_else(clock: FakeClock) -> None:
    absence = Absence(workers=3)
    assert not absence.gone_s and not any(map(absence.gone, range(3)))
    absence.note(0, gave_up_s=5.0, lost_s=1.0)
    absence.note(1, gave_up_s=7.0, lost_s=1.0)
    absence.note(2, gave_up_s=0.0, lost_s=0.0)
    assert absence.gone_s == 7.0
    clock.now_s = 8.0
    for worker in (0, 2):
        absence.hear(worker)
    absence.back(asked_s=6.0)  # answered at 8, say
    assert [absence.gone(worker) for worker in range(3)] == [False, True, False]
    absence.back(asked_s=9.0)
    assert not absence.gone_s
    absence.note(0, gave_up_s=5.0, lost_s=0.0)
    assert not absence.gone(0), "it says the same as before"


def test_one_worker_waits_in_vain_for_all(clock: FakeClock) -> None:
    absence = Absence(workers=3)
    clock.now_s = 4.0
    absence.hear(1)
    absence.note(0, gave_up_s=5.0, lost_s=5.0)
    clock.now_s = 6.0
    absence.hear(2)
    assert [absence.gone(worker) for worker in range(3)] == [True, True, False], "one has heard it since"
    absence.back(asked_s=7.0)
    assert not any(map(absence.gone, range(3)))


def test_what_may_be_lost_is_counted_over_all_epochs(clock: FakeClock) -> None:
    absence = Absence(workers=2)
    first_s = LOST_TIMES * OPTIONS.resend_after_s
    assert absence.left_s(0, OPTIONS) == first_s
    for _ in range(3):  # each by another process
        absence.note(0, gave_up_s=0.0, lost_s=first_s / 3)
    assert absence.left_s(0, OPTIONS) == pytest.approx(0)
    assert absence.left_s(1, OPTIONS) == first_s
    clock.now_s += 100.0
    assert absence.left_s(0, OPTIONS) == pytest.approx(100.0 * LOST_SHARE)


def test_workers_of_another_number_know_what_those_before_them_knew() -> None:
    before, options = Absence(2), OffloadOptions()
    before.note(1, gave_up_s=5.0, lost_s=7.0)
    after = before.handed_on(3)
    assert [after.gone(worker) for worker in range(3)] == [True] * 3 and after.gone_s == 5.0
    assert after.left_s(0, options) == pytest.approx(before.left_s(1, options), abs=1.0)
    after.back(6.0)
    assert not after.gone(2) and after.handed_on(1).back_s == 6.0
