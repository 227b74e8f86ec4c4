"""What the processes of a loader tell each other of the agent, and the time that may be lost to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.fleet import shared_route as module
from sophon_loader.fleet.shared_route import LOST_SHARE, LOST_TIMES, Agreed, SharedRoute
from sophon_loader.measures.counters import MAX_ENCODINGS
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.limits import MAX_OPS
from tests.support.clocks import FakeClock

OPTIONS = OffloadOptions(resend_after_s=10.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(module, "now_s", made)
    return made


def proposed(sources: int = 1) -> Terms:
    """What is known before the agent has answered."""
    address = Address("", "photos")
    return Terms(address, OPTIONS, "", (b"",) * sources, (False,) * sources, Seed(9), (), files_here=True)


def route_for(workers: int) -> SharedRoute:
    return SharedRoute(workers, proposed())


def test_what_is_agreed_on_is_what_others_read() -> None:
    early = proposed()
    route = SharedRoute(1, early)
    assert route.agreed() is None
    agreed = replace(early, address=Address("tcp://127.0.0.1:7", "photos"), instance="i", allowed=("file", "webp"))
    found = Agreed(replace(agreed, options=replace(early.options, window=7)), (3,), ("train", "inner/"))
    route.agree(found)
    assert route.agreed() == found
    assert route.for_workers(3).agreed() == found
    assert route.for_workers(3, early).agreed() is None, "of a new agreement nothing is known"


def test_the_longest_that_can_be_agreed_on_fits() -> None:
    sources = 32_767
    route = SharedRoute(1, proposed(sources))
    terms = replace(
        proposed(sources),
        address=Address("tcp://[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535", "photos"),
        instance="i" * 32,
        allowed=tuple(f"{number:0200}" for number in range(MAX_ENCODINGS)),
    )
    found = Agreed(terms, (MAX_OPS,) * sources, ("f" * 4096, "i" * 4096))
    route.agree(found)
    assert route.agreed() == found


def test_what_is_half_written_is_not_read() -> None:
    route = SharedRoute(1, proposed())
    route.agree(Agreed(replace(proposed(), instance="i"), (3,)))
    memory = route._memory.notes._places.array[0]
    whole = memory.copy()
    for place in range(8, 8 + int(whole[:4].view("<u4")[0])):
        memory[place] ^= 0xFF
        assert route.agreed() is None, f"byte {place} is yet to be written"
        memory[:] = whole
    assert route.agreed() is not None


def test_who_gave_the_agent_up_before_it_was_asked_uses_it_again_and_nobody_else(clock: FakeClock) -> None:
    route = route_for(3)
    assert not route.gone_s and not any(map(route.gone, range(3)))
    route.note(0, gave_up_s=5.0, lost_s=1.0)
    route.note(1, gave_up_s=7.0, lost_s=1.0)
    route.note(2, gave_up_s=0.0, lost_s=0.0)
    assert route.gone_s == 7.0
    clock.now_s = 8.0
    for worker in (0, 2):
        route.hear(worker)
    route.back(asked_s=6.0)  # answered at 8, say
    assert [route.gone(worker) for worker in range(3)] == [False, True, False]
    route.back(asked_s=9.0)
    assert not route.gone_s
    route.note(0, gave_up_s=5.0, lost_s=0.0)
    assert not route.gone(0), "it says the same as before"


def test_each_loss_counts_once_however_many_workers_see_it(clock: FakeClock) -> None:
    route = route_for(2)
    route.note(0, gave_up_s=5.0, lost_s=0.0)
    route.note(1, gave_up_s=7.0, lost_s=0.0)
    route.back(asked_s=6.0)
    assert route.losses == 1 and route.gone_s, "a worker has given it up since it was asked"
    route.back(asked_s=8.0)
    route.back(asked_s=9.0)
    assert route.losses == 1
    route.note(0, gave_up_s=10.0, lost_s=0.0)
    assert route.losses == 2 and route.for_workers(3).losses == 2
    route.back(asked_s=11.0)
    assert route.losses == 2


def test_one_worker_waits_in_vain_for_all(clock: FakeClock) -> None:
    route = route_for(3)
    clock.now_s = 4.0
    route.hear(1)
    route.note(0, gave_up_s=5.0, lost_s=5.0)
    clock.now_s = 6.0
    route.hear(2)
    assert [route.gone(worker) for worker in range(3)] == [True, True, False], "one has heard it since"
    route.back(asked_s=7.0)
    assert not any(map(route.gone, range(3)))


def test_what_may_be_lost_is_counted_over_all_epochs(clock: FakeClock) -> None:
    route = route_for(2)
    first_s = LOST_TIMES * OPTIONS.resend_after_s
    assert route.left_s(0) == first_s
    for _ in range(3):  # each by another process
        route.note(0, gave_up_s=0.0, lost_s=first_s / 3)
    assert route.left_s(0) == pytest.approx(0)
    assert route.left_s(1) == first_s
    clock.now_s += 100.0
    assert route.left_s(0) == pytest.approx(100.0 * LOST_SHARE)


def test_workers_of_another_number_know_what_those_before_them_knew() -> None:
    before = route_for(2)
    before.note(1, gave_up_s=5.0, lost_s=7.0)
    after = before.for_workers(3)
    assert [after.gone(worker) for worker in range(3)] == [True] * 3 and after.gone_s == 5.0
    assert after.left_s(0) == pytest.approx(before.left_s(1), abs=1.0)
    after.back(6.0)
    assert not after.gone(2) and after.for_workers(1).back_s == 6.0


def test_places_beside_each_other_are_of_one_agent_after_another(clock: FakeClock) -> None:
    early = proposed()
    one, other = SharedRoute.several(2, 2, early)
    assert (one.is_first, other.is_first) == (True, False)
    agreed = [
        Agreed(replace(early, address=Address(f"tcp://127.0.0.1:{n}", "photos", "train"), instance=f"{n}"), (3,))
        for n in (7, 8)
    ]
    seen = other.version
    one.agree(agreed[0])
    assert one.agreed() == agreed[0] and other.agreed() is None and other.version != seen
    one.count(1, 100)
    one.note(1, gave_up_s=clock.now_s, lost_s=1e6)
    assert one.gone(0) and one.left_s(1) < 0 < other.left_s(1) and not other.gone(0)
    clock.now_s += 1.0
    seen = other.version
    one.free()
    assert one.agreed() is None and other.version != seen
    one.agree(agreed[1])
    assert one.agreed() == agreed[1] and one.sent() == (0, 0), "nothing is known of whoever comes"
    assert not one.gone(0) and not one.gone(1) and one.left_s(1) > 0
    assert (one.losses, one.lost_s, one.for_workers(1).lost_s) == (0, 0.0, 0.0)
    one.count(0, 5)
    moved = SharedRoute.all_for_workers([one, other], 3)
    assert [each.agreed() for each in moved] == [agreed[1], None] and moved[0].sent() == (1, 5)
    assert moved[0].left_s(2) > 0 and not moved[0].gone(2)
    assert [each.agreed() for each in SharedRoute.all_for_workers(moved, 1, early)] == [None, None]
