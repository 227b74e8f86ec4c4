"""Counting values without making them, against counting what msgpack has made."""

from __future__ import annotations

import time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.errors import MessageTooLong
from sophon_loader.wire.counting import holds_more
from sophon_loader.wire.frames import unpack, unpack_request
from sophon_loader.wire.limits import MAX_HEADER_NBYTES, MAX_HEADER_VALUES, MAX_REQUEST_NBYTES, MAX_REQUEST_VALUES

_SCALARS = (
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary()
) | st.sampled_from(["x" * 31, "x" * 32, "x" * 300, "x" * 70_000, b"y" * 300, b"y" * 70_000])
_TREES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text() | st.integers(0, 99), inner, max_size=20),
)


def _values(tree: Any) -> int:
    if isinstance(tree, list):
        return 1 + sum(map(_values, tree))
    if isinstance(tree, dict):
        return 1 + sum(_values(key) + _values(value) for key, value in tree.items())
    return 1


def _holds(packed: bytes, values: int) -> None:
    assert not holds_more(packed, values)
    assert values == 1 or holds_more(packed, values - 1)
    assert not holds_more(memoryview(packed), values)


@given(_TREES)
def test_what_is_counted_is_what_is_made(tree: Any) -> None:
    _holds(msgpack.packb(tree), _values(tree))


@pytest.mark.parametrize("count", [0, 15, 16, 0xFFFF, 0x10000])
def test_containers_of_every_length(count: int) -> None:
    _holds(msgpack.packb([[0] * count, 1]), count + 3)
    _holds(msgpack.packb([dict.fromkeys(range(count), 0), 1]), 2 * count + 3)


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 8, 16, 17, 256, 0x10000])
def test_extensions_of_every_length(nbytes: int) -> None:
    _holds(msgpack.packb([msgpack.ExtType(5, bytes(nbytes)), 1, 2]), 4)


@given(st.binary(max_size=60), st.integers(1, 50))
def test_any_bytes_at_all(data: bytes, most: int) -> None:
    """Nothing is raised, and nothing that msgpack can read is found to hold fewer values than it does."""
    more = holds_more(data, most)
    try:
        tree = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, TypeError):
        return
    assert more or _values(tree) <= most or isinstance(tree, dict), "equal keys of a map count apart"


def _empty_lists(nbytes: int) -> bytes:
    return b"\xdd" + (nbytes - 5).to_bytes(4, "big") + b"\x90" * (nbytes - 5)


def test_a_header_of_empty_lists_is_refused_before_it_is_made() -> None:
    since_s = time.process_time()
    for read, nbytes in ((unpack, MAX_HEADER_NBYTES), (unpack_request, MAX_REQUEST_NBYTES)):
        with pytest.raises(MessageTooLong, match="values, got more"):
            read(_empty_lists(nbytes))
    assert time.process_time() - since_s < 1.0, "it took 3.6 s each"


@pytest.mark.parametrize(("read", "most"), [(unpack, MAX_HEADER_VALUES), (unpack_request, MAX_REQUEST_VALUES)])
def test_nested_headers_count_as_a_whole(read: Any, most: int) -> None:
    inner = [[]] * 1000
    header = msgpack.packb([inner] * (most // 1000 + 1))
    with pytest.raises(MessageTooLong, match=f"at most {most} values"):
        read(header)
