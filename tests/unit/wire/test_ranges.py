"""Numbers out of range never get through `unpack`, whichever field of whichever message they stand in."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.errors import MalformedMessage, WireError
from sophon_loader.wire.frames import SEAL_NBYTES, pack, unpack
from sophon_loader.wire.messages import (
    MESSAGES,
    AskHeaders,
    Failed,
    Fetch,
    FetchPrograms,
    Headers,
    Item,
    Message,
    Offer,
    ProgramItem,
    Registered,
    Sample,
    Sizes,
    Welcome,
)
from tests.support.drawn import examples
from tests.unit.wire.strategies import example, header_of

MOST = (1 << 64) - 1
Place = tuple[type[Message], str]
LIMITS: dict[Place, tuple[type, float, float]] = {
    (Welcome, "version"): (int, 1, MOST),
    (Welcome, "cores"): (float, 1e-6, 1e6),
    (Welcome, "max_outstanding"): (int, 1, MOST),
    (Registered, "ops"): (int, 0, 64),
    (Fetch, "items[0].id"): (int, 0, MOST),
    (Fetch, "items[0].sample"): (int, 0, MOST),
    (Fetch, "items[0].occurrence"): (int, 0, MOST),
    (Fetch, "items[0].cut"): (int, 0, 64),
    (Fetch, "prices[0]"): (float, 0, 1e9),
    (FetchPrograms, "items[0].id"): (int, 0, MOST),
    (FetchPrograms, "items[0].cut"): (int, 0, 64),
    (FetchPrograms, "items[0].nbytes"): (int, 0, 1 << 30),
    (FetchPrograms, "prices[0]"): (float, 0, 1e9),
    (Sample, "id"): (int, 0, MOST),
    (Sample, "cut"): (int, 0, 64),
    (Sample, "file_nbytes"): (int, 0, 1 << 30),
    (Sample, "op_s[0]"): (float, 0, 1e9),
    (Sample, "upkeep_s"): (float, 0, 1e9),
    (Sample, "queued_s"): (float, 0, 1e9),
    (Sample, "read_s"): (float, 0, 1e9),
    (Sample, "work_s"): (float, 0, 1e9),
    (Sample, "cores"): (float, 1e-6, 1e6),
    (Sample, "per_worker"): (float, 1e-6, 1e6),
    (Sample, "offers[0].cut"): (int, 0, 64),
    (Sample, "offers[0].nbytes"): (int, 0, MOST),
    (Sample, "offers[0].agent_s"): (float, 0, 1e9),
    (Sample, "offers[0].rest_s"): (float, 0, 1e9),
    (Failed, "ids[0]"): (int, 0, MOST),
    (Sizes, "nbytes[0]"): (int, -2, (1 << 63) - 1),
    (AskHeaders, "id"): (int, 0, MOST),
    (Headers, "id"): (int, 0, MOST),
    (Headers, "nbytes[0]"): (int, -2, (1 << 63) - 1),
}
ROWS_OF: dict[type[Message], type[Item | Offer | ProgramItem]] = {
    Fetch: Item,
    FetchPrograms: ProgramItem,
    Sample: Offer,
}
ANY_SIZE = {(Fetch, "seed"), (Fetch, "epoch")}
"""What only selects random numbers: any that msgpack can write."""
OFFERS = {"Hello.versions[0]"}

every_place = pytest.mark.parametrize("place", LIMITS, ids=lambda place: f"{place[0].__name__}.{place[1]}")
_INTEGERS = st.integers(-(1 << 63), MOST) | st.integers(-4, 70) | st.sampled_from([1 << 30, (1 << 30) + 1, 1 << 63])
_FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -0.0])


def _row(cls: type[Message], changes: dict[str, Any]) -> list[Any]:
    """What `cls` looks like before msgpack, some numbers changed; `changes` by the names that error texts use."""
    names = [field.name for field in fields(cls)]
    message = example(cls)
    version, kind, *values = msgpack.unpackb(pack(message)[: None if cls is Welcome else -SEAL_NBYTES])
    for name, value in changes.items():
        outer, listed, inner = name.partition("[0]")
        position = names.index(outer)
        if inner:
            values[position][0][ROWS_OF[cls]._fields.index(inner[1:])] = value
        elif listed:
            values[position][0] = value
        else:
            values[position] = value
    return [version, kind, *values]


def _fits(place: Place, value: Any) -> bool:
    kind, least, most = LIMITS[place]
    return (type(value) is int or (kind is float and type(value) is float)) and least <= value <= most


def _edges(place: Place) -> tuple[list[Any], list[Any]]:
    """(numbers that just fit, numbers that do not)."""
    kind, least, most = LIMITS[place]
    if kind is float:
        outside = [math.nextafter(least, -math.inf), math.nextafter(most, math.inf), math.nan, math.inf, -math.inf, -1]
        return [least, most, 1], outside
    outside = [least - 1, most + 1, -(1 << 63), MOST, float(least), math.nan]
    return [least, most], [n for n in outside if not _fits(place, n) and n < 1 << 64]


@every_place
def test_the_edges_of_every_range(place: Place) -> None:
    cls, name = place
    inside, outside = _edges(place)
    for value in inside:
        assert isinstance(unpack(header_of(_row(cls, {name: value}))), cls)
    assert outside
    for value in outside:
        with pytest.raises(MalformedMessage) as caught:
            unpack(header_of(_row(cls, {name: value})))
        text = str(caught.value)
        assert text.startswith(f"{cls.__name__}.{name} must be ") and text.endswith(f"got {value!r}")


def test_times_have_a_number() -> None:
    assert unpack(pack(example(Sample, op_s=[0.0] * 66)))
    with pytest.raises(MalformedMessage, match=r"Sample\.op_s must be a list of at most 66 entries, got \[0\.0, "):
        unpack(pack(example(Sample, op_s=[0.0] * 67)))


def test_the_one_of_many_that_is_wrong_is_named() -> None:
    with pytest.raises(MalformedMessage, match=r"^Sample\.op_s\[40\] must be a number from 0 to 1e\+09, got inf$"):
        unpack(pack(example(Sample, op_s=[0.0] * 40 + [math.inf])))
    items = [Item(n, n, 0, 0, "file", "k") for n in range(3)]
    with pytest.raises(MalformedMessage, match=r"^Fetch\.items\[3\]\.cut must be an integer from 0 to 64, got 65$"):
        unpack(pack(example(Fetch, items=[*items, Item(3, 3, 0, 65, "file", "k")])))


@given(st.data())
@examples(500)
def test_absurd_numbers_never_get_through(data: st.DataObject) -> None:
    """Whatever numbers stand in a message: it is what the table above allows, or a WireError and nothing else."""
    cls = data.draw(st.sampled_from(sorted({cls for cls, _ in LIMITS}, key=lambda cls: cls.__name__)))
    names = [name for one, name in LIMITS if one is cls]
    numbers = st.dictionaries(st.sampled_from(names), _INTEGERS | _FLOATS, min_size=1, max_size=4)
    changes = data.draw(numbers)
    header = header_of(_row(cls, changes))
    wrong = [name for name, value in changes.items() if not _fits((cls, name), value)]
    try:
        message = unpack(header)
    except WireError as error:
        assert type(error) is MalformedMessage and len(str(error)) < 500
        assert any(f"{cls.__name__}.{name} " in str(error) for name in wrong)
    else:
        assert wrong == []
        assert unpack(pack(message)) == message


@given(st.integers(-(1 << 63), MOST), st.integers(-(1 << 63), MOST))
def test_a_seed_and_an_epoch_may_be_any(seed: int, epoch: int) -> None:
    fetch = example(Fetch, seed=seed, epoch=epoch)
    assert unpack(pack(fetch)) == fetch


def _numbers(hint: Any, name: str) -> set[str]:
    """The names of the numbers in a field of the type `hint`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _numbers(arguments[0], name)
    if origin is list:
        return _numbers(arguments[0], f"{name}[0]")
    if hint in (Item, Offer, ProgramItem):
        hints = get_type_hints(hint, include_extras=True)
        return set().union(*(_numbers(inner, f"{name}.{part}") for part, inner in hints.items()))
    return {name} if hint in (int, float) else set()


def test_the_table_above_has_every_number() -> None:
    found = set()
    for cls in MESSAGES:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            if name != "KIND":
                found |= {f"{cls.__name__}.{number}" for number in _numbers(hint, name)}
    assert found == {f"{cls.__name__}.{name}" for cls, name in {*LIMITS, *ANY_SIZE}} | OFFERS
