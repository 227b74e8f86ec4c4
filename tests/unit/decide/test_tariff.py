"""decide/tariff.py: shares of the requests, and what a tariff is as plain data."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.decide.tariff import FILES, Part, Prices, Tariff
from sophon_loader.errors import PlanError

SOME = Prices(wire=1.0, loader=2.0, agent=0.5)


@pytest.mark.parametrize("shares", [[1.0], [0.25, 0.75], [1 / 3] * 3, [1e-9, 1 - 1e-9], [0.1] * 10])
def test_shares_make_one(shares: list[float]) -> None:
    tariff = Tariff(tuple(Part(share, SOME) for share in shares), "because")
    assert math.isclose(sum(part.share for part in tariff.parts), 1.0)


@pytest.mark.parametrize(
    "shares", [[], [0.5], [0.5, 0.49], [1.1], [0.0, 1.0], [-0.5, 1.5], [math.nan], [math.nan, 1.0], [math.inf]]
)
def test_shares_that_do_not(shares: list[float]) -> None:
    with pytest.raises(PlanError, match=r"shares must be above 0 and make 1, got \["):
        Tariff(tuple(Part(share, SOME) for share in shares), "because")


@pytest.mark.parametrize(
    ("parts", "offloads"),
    [((FILES,), False), ((Part(0.5, None), Part(0.5, SOME)), True), ((Part(1.0, SOME),), True)],
)
def test_whether_the_agent_is_asked_for_more_than_files(parts: tuple[Part, ...], offloads: bool) -> None:
    assert Tariff(parts, "").offloads is offloads


price = st.floats(0, 1e300)
prices = st.none() | st.builds(Prices, price, price, price)


@given(st.lists(st.tuples(st.floats(1e-3, 1), prices), min_size=1, max_size=8))
def test_the_parts_cross_to_the_workers_as_they_are(rows: list[tuple[float, Prices | None]]) -> None:
    total = sum(share for share, _ in rows)
    tariff = Tariff(tuple(Part(share / total, prices) for share, prices in rows), "because")
    again = Tariff.from_plain(msgpack.unpackb(msgpack.packb(tariff.to_plain())))
    assert again.parts == tariff.parts and again.offloads == tariff.offloads
