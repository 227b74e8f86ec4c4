"""`roi-jpeg` on the wire: parts come back, and what cannot be one is an error of the encoding."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader import native
from sophon_loader.encodings.registry import decode, encode
from sophon_loader.errors import EncodingError
from sophon_loader.kinds.image.part import PartOfFile, Region, Window, part_of
from tests.support.drawn import examples
from tests.support.picture_files import file_of

pytestmark = pytest.mark.skipif(not native.available, reason="the C extension is not built")
PART = PartOfFile(file_of("jpeg 4:2:0", 120, 80), Window(Region(10, 20, 120, 80), 300, 200))


def test_a_part_comes_back() -> None:
    part = part_of(file_of("jpeg 4:2:0", 300, 200), Region(100, 50, 60, 40), 300, 200)
    encoded = encode(part, "roi-jpeg")
    assert encoded.encoding == "roi-jpeg"
    assert decode("roi-jpeg", encoded.meta, memoryview(encoded.payload)) == part


@given(data=st.data())
@examples(150)
def test_wrong_bytes_are_an_error_of_the_encoding_or_a_part(data: st.DataObject) -> None:
    encoded = encode(PART, "roi-jpeg")
    payload, meta = bytearray(encoded.payload), {name: list(value) for name, value in encoded.meta.items()}
    for _ in range(data.draw(st.integers(0, 4))):
        payload[data.draw(st.integers(0, 700))] = data.draw(st.integers(0, 255))
    odd = st.integers(-3, 400) | st.sampled_from([1 << 40, -1, 2.5, None, "x", True])
    name = data.draw(st.sampled_from(["size", "part"]))
    if data.draw(st.booleans()):
        meta[name][data.draw(st.integers(0, len(meta[name]) - 1))] = data.draw(odd)
    try:
        value = decode("roi-jpeg", meta, bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    except EncodingError:
        return
    kept, window = value.window.kept, value.window
    assert Region(0, 0, window.full_width, window.full_height).contains(kept)
    assert native.image_size(value.data) == (kept.width, kept.height)


@pytest.mark.parametrize(
    "meta",
    [
        {"size": [300, 200], "part": [200, 20, 120, 80]},  # past the right border
        {"size": [300, 200], "part": [10, 130, 120, 80]},
        {"size": [300, 200], "part": [-1, 20, 120, 80]},
        {"size": [300, 200], "part": [10, 20, 119, 80]},  # not the payload's size
        {"size": [300, 200], "part": [10, 20, 0, 80]},
        {"size": [300, 200], "part": [10, 20, 120]},
        {"size": [300, 200]},
        {"part": [10, 20, 120, 80]},
        {"size": [300], "part": [10, 20, 120, 80]},
    ],
    ids=str,
)
def test_a_part_that_cannot_be(meta: dict[str, Any]) -> None:
    assert decode("roi-jpeg", {"size": [300, 200], "part": [10, 20, 120, 80]}, PART.data) == PART
    with pytest.raises(EncodingError, match=r"roi-jpeg|size"):
        decode("roi-jpeg", meta, PART.data)
