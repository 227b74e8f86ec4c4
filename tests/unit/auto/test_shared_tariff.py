"""What a worker asks for at a tariff: the shares are kept, a change is followed, half a note is not."""

from __future__ import annotations

from collections import Counter

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.auto.shared_tariff import Dealer, SharedTariff
from sophon_loader.decide.tariff import Part, Prices, Tariff
from tests.support.drawn import examples

CHEAP, DEAR = Prices(1.0, 0.0, 0.0), Prices(0.0, 1.0, 0.0)
THIRD = Prices(0.0, 0.0, 1.0)


def shared_of(*parts: tuple[float, Prices | None]) -> SharedTariff:
    shared = SharedTariff()
    shared.set(Tariff(tuple(Part(share, prices) for share, prices in parts), "because"))
    return shared


def test_before_a_tariff_is_set_files_are_asked_for() -> None:
    assert Dealer(SharedTariff()).batch(3) == [None] * 3


def test_all_for_files_and_all_at_a_price() -> None:
    assert Dealer(shared_of((1.0, None))).batch(5) == [None] * 5
    assert Dealer(shared_of((1.0, CHEAP))).batch(5) == [CHEAP] * 5
    assert Dealer(shared_of((1.0, CHEAP))).batch(0) == []


@examples(100)
@given(st.floats(0, 1), st.lists(st.integers(1, 64), min_size=1, max_size=60), st.integers(1, 3))
def test_files_are_dealt_out_within_a_few_samples(files: float, sizes: list[int], several: int) -> None:
    """After any number of batches of any size; also where the rest goes at several prices."""
    rest = (1 - files) / several
    parts = [(files, None), *((rest, Prices(float(n), 1.0, 1.0)) for n in range(1, several + 1))]
    dealer = Dealer(shared_of(*[(share, prices) for share, prices in parts if share > 0]))
    dealt = asked = 0
    for size in sizes:
        batch = dealer.batch(size)
        assert len(batch) == size
        dealt += batch.count(None)
        asked += size
        assert abs(dealt - files * asked) <= 4


@examples(100)
@given(st.floats(0.01, 0.99), st.integers(1, 400))
def test_prices_are_dealt_out_by_batches(share: float, batches: int) -> None:
    dealer = Dealer(shared_of((share, CHEAP), (1 - share, DEAR)))
    counts: Counter[Prices | None] = Counter()
    for _ in range(batches):
        (prices,) = set(dealer.batch(8))
        counts[prices] += 1
    assert abs(counts[CHEAP] - share * batches) <= 4


def test_a_batch_goes_at_one_set_of_prices_beside_its_files() -> None:
    """So that it stays few messages."""
    dealer = Dealer(shared_of((0.4, None), (0.3, CHEAP), (0.2, DEAR), (0.1, THIRD)))
    counts: Counter[Prices | None] = Counter()
    for _ in range(200):
        batch = dealer.batch(16)
        assert len(set(batch) - {None}) <= 1 and 5 <= batch.count(None) <= 8
        counts.update(batch)
    for prices, share in ((None, 0.4), (CHEAP, 0.3), (DEAR, 0.2), (THIRD, 0.1)):
        assert counts[prices] / 3200 == pytest.approx(share, abs=0.01)


def test_a_changed_tariff_is_followed_from_the_next_batch_on() -> None:
    shared = shared_of((1.0, CHEAP))
    dealer = Dealer(shared)
    assert set(dealer.batch(4)) == {CHEAP}
    shared.set(Tariff((Part(1.0, DEAR),), ""))
    assert set(dealer.batch(4)) == {DEAR}
    shared.set(Tariff((Part(1.0, None),), ""))
    assert set(dealer.batch(4)) == {None}
    shared.set(Tariff((Part(0.5, None), Part(0.5, CHEAP)), ""))
    assert set(dealer.batch(8)) == {None, CHEAP}


def test_a_tariff_that_changes_all_the_time_still_keeps_its_shares() -> None:
    """Places go on where they were, so a quarter stays a quarter though the rest has new prices each time."""
    shared = SharedTariff()
    dealer = Dealer(shared)
    files = 0
    for number in range(1, 401):
        shared.set(Tariff((Part(0.25, None), Part(0.75, Prices(float(number), 1.0, 1.0))), ""))
        files += dealer.batch(4).count(None)
    assert abs(files - 400) <= 4


def test_half_a_note_keeps_the_tariff_of_before() -> None:
    shared = shared_of((1.0, CHEAP))
    dealer = Dealer(shared)
    dealer.batch(1)
    place = shared._note._places.array[0]
    kept = place.copy()
    shared.set(Tariff((Part(0.5, None), Part(0.5, DEAR)), ""))
    whole = place.copy()
    place[: len(place) // 64] = kept[: len(place) // 64]  # the head is still the old one, say
    assert shared.packed() is None
    assert dealer.batch(4) == [CHEAP] * 4
    place[:] = whole
    assert set(dealer.batch(8)) == {None, DEAR}


def test_the_largest_tariff_has_room() -> None:
    parts = tuple(Part(1 / 16, Prices(1 / 3, 1 / 7, 1 / 9)) for _ in range(16))
    shared = shared_of((1.0, None))
    shared.set(Tariff(parts, "x" * 10_000))
    packed = shared.packed()
    assert packed and len(Tariff.from_plain(msgpack.unpackb(packed)).parts) == 16
