"""Lepton: what comes back is the file, byte for byte; what is no such file is found out before the library sees it."""

from __future__ import annotations

import multiprocessing
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.lepton import compressed, restored
from sophon_loader.encodings.registry import decode, encode
from sophon_loader.errors import EncodingError
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.described import begin_on_file
from sophon_loader.pipeline.randomness import Draw
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg
from tests.support.drawn import examples
from tests.support.encoding_examples import jpeg, part_of_file
from tests.support.pictures import train_transform

pytestmark = pytest.mark.skipif("lepton" not in encoding_names(), reason="lepton_jpeg_python is not installed")


def there_and_back(data: Any, name: str = "lepton") -> Any:
    encoded = encode(data, name)
    assert encoded.encoding == name
    return decode(name, encoded.meta, memoryview(encoded.payload))


@examples(300, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    mode=st.sampled_from(["RGB", "L"]),
    options=st.fixed_dictionaries(
        {"quality": st.integers(1, 100)},
        optional={
            "subsampling": st.sampled_from([0, 1, 2]),
            "progressive": st.just(True),
            "optimize": st.just(True),
            "restart_marker_blocks": st.integers(1, 9),
            "comment": st.binary(max_size=20),
        },
    ),
    behind=st.binary(max_size=9),
)
def test_files_come_back_byte_for_byte(
    size: tuple[int, int], mode: str, options: dict[str, Any], behind: bytes
) -> None:
    data = jpeg(size, mode, **options) + behind
    try:
        encoded = encode(data, "lepton")
    except EncodingError:  # it goes out as it is
        return
    assert decode("lepton", encoded.meta, encoded.payload) == data


def test_parts_of_files_come_back_byte_for_byte() -> None:
    chain = chain_of(train_transform())
    data = jpeg((300, 200), quality=90)
    for index in range(30):
        with chain.isolated():
            begun = begin_on_file(chain, data, Draw(1, 0, index))
        assert begun is not None
        part = begun.part()
        assert isinstance(part, PartOfFile)
        assert there_and_back(part, "roi-lepton") == part


@pytest.mark.parametrize("data", [
    jpeg(mode="CMYK"), jpeg()[:-200], jpeg()[:-2], jpeg().replace(b"\xff\xc0", b"\xff\xc9"), jpeg()[:700],
], ids=["four components", "cut short", "without an end", "arithmetic", "hardly more than a header"])  # fmt: skip
def test_files_that_lepton_does_not_take(data: bytes) -> None:
    with pytest.raises(EncodingError, match="lepton"):
        encode(data, "lepton")


def test_a_file_that_would_not_come_back_is_not_sent() -> None:
    """The library takes this sound one, and gives back another."""
    data = make_jpeg(Spec(60, 90, LAYOUTS["grey 2x2"], restart_interval=1))
    assert restored({"crc": zlib.crc32(jpeg())}, compressed(jpeg())) == jpeg()
    with pytest.raises(EncodingError, match="must give back the file"):
        restored({"crc": zlib.crc32(data)}, compressed(data))
    with pytest.raises(EncodingError, match="must give back the file"):
        encode(data, "lepton")


def test_a_part_that_does_not_come_back_is_noticed() -> None:
    encoded = encode(part_of_file(data=jpeg((32, 16))), "roi-lepton")
    assert encoded.meta["crc"] == zlib.crc32(jpeg((32, 16)))
    for crc in (encoded.meta["crc"] ^ 1, None):
        with pytest.raises(EncodingError, match="must give back the file"):
            decode("roi-lepton", {**encoded.meta, "crc": crc}, encoded.payload)


# --- what comes off the wire may be anything ------------------------------------------------------------------


def changed(payload: bytes, change: Callable[[bytearray], None]) -> bytes:
    """With another inner header."""
    size = int.from_bytes(payload[24:28], "little")
    header = bytearray(zlib.decompress(payload[28 : 28 + size]))
    change(header)
    packed = zlib.compress(bytes(header))
    whole = payload[:24] + struct.pack("<I", len(packed)) + packed + payload[28 + size : -4]
    return whole + struct.pack("<I", len(whole) + 4)


def at_frame(offset: int, value: bytes) -> Callable[[bytearray], None]:
    """Puts bytes into the JPEG's frame header."""

    def change(header: bytearray) -> None:
        frame = header.index(b"\xff\xc0")
        header[frame + offset : frame + offset + len(value)] = value

    return change


def at_segment(offset: int, value: bytes) -> Callable[[bytearray], None]:
    """Puts bytes behind the mark of the segments."""

    def change(header: bytearray) -> None:
        mark = header.index(b"P0D") + 4
        header[mark + offset : mark + offset + len(value)] = value

    return change


def jpeg_header_of(nbytes: int) -> Callable[[bytearray], None]:
    """Says that the JPEG's own header has so many bytes."""

    def change(header: bytearray) -> None:
        header[3:7] = struct.pack("<I", nbytes)

    return change


def behind(more: bytes) -> Callable[[bytearray], None]:
    """Puts bytes behind the last part."""
    return lambda header: header.extend(more)


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "another magic": lambda payload: b"x" + payload[1:],
    "another version": lambda payload: payload[:2] + b"\x02" + payload[3:],
    "another kind": lambda payload: payload[:3] + b"Y" + payload[4:],
    "two segments": lambda payload: payload[:4] + b"\x02" + payload[5:],
    "a huge file": lambda payload: payload[:20] + b"\xff\xff\xff\x7f" + payload[24:],
    "a file below its header": lambda payload: payload[:20] + b"\x09\0\0\0" + payload[24:],
    "half of the header": lambda payload: payload[:24] + b"\x20\0\0\0" + payload[28:],
    "no header": lambda payload: payload[:24] + b"\0\0\0\0" + payload[28:],
    "a header that is none": lambda payload: payload[:28] + b"xxxx" + payload[32:],
    "the fixed part alone": lambda payload: payload[:28],
    "half of the fixed part": lambda payload: payload[:14],
    "nothing": lambda payload: b"",
    "two segments inside": lambda payload: changed(payload, at_segment(2, b"\x02")),
    "a segment that begins below": lambda payload: changed(payload, at_segment(3, b"\x01\0")),
    "a huge segment": lambda payload: changed(payload, at_segment(5, b"\xff\xff\xff\xff")),
    "a JPEG header of 4 GiB": lambda payload: changed(payload, jpeg_header_of(0xFFFF_FFFF)),
    "no JPEG header": lambda payload: changed(payload, jpeg_header_of(0)),
    "60 000 px a side": lambda payload: changed(payload, at_frame(5, 2 * (60_000).to_bytes(2, "big"))),
    "no width": lambda payload: changed(payload, at_frame(7, b"\0\0")),
    "a part more": lambda payload: changed(payload, behind(b"EEE" + bytes(28))),
    "restarts of 4 Gi": lambda payload: changed(payload, behind(b"CRS\xff\xff\xff\xff")),
    "a bomb": lambda payload: changed(payload, behind(bytes(1 << 26))),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_header_says_is_looked_at_first(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder makes room for whatever a header says, and ends the process when there is none."""
    encoded = encode(jpeg(), "lepton")
    payload = bytes(encoded.payload)
    assert decode("lepton", encoded.meta, changed(payload, lambda _: None)) == jpeg()
    monkeypatch.setattr("lepton_jpeg_python.decompress_bytes", pytest.fail)
    with pytest.raises(EncodingError, match="lepton"):
        decode("lepton", encoded.meta, WRONG[case](payload))


def test_a_file_of_another_size_than_said() -> None:
    encoded = encode(jpeg() + bytes(10), "lepton")
    payload = bytearray(encoded.payload)
    payload[20:24] = struct.pack("<I", len(jpeg()) + 20)
    with pytest.raises(EncodingError, match="must give back the file of"):
        decode("lepton", encoded.meta, bytes(payload))


class PanicException(BaseException):
    """As the library's, which has no place to be imported from."""


@pytest.mark.parametrize(("raised", "seen"), [
    (PanicException("index out of bounds"), EncodingError), (RuntimeError("bad"), EncodingError),
    (KeyboardInterrupt(), KeyboardInterrupt), (SystemExit(), SystemExit),
], ids=lambda one: getattr(one, "__name__", type(one).__name__))  # fmt: skip
def test_a_panic_of_the_library_is_an_error_like_others(
    raised: BaseException, seen: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = encode(jpeg(), "lepton")

    def fails(*_: object) -> bytes:
        raise raised

    monkeypatch.setattr("lepton_jpeg_python.decompress_bytes", fails)
    with pytest.raises(seen):
        decode("lepton", encoded.meta, encoded.payload)


# --- one thread -----------------------------------------------------------------------------------------------


def test_a_forked_process_needs_no_thread_of_its_parents() -> None:
    data = jpeg((600, 500))
    encoded = encode(data, "lepton")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for call, arguments in ((decode, ("lepton", encoded.meta, encoded.payload)), (encode, (data, "lepton"))):
            assert pool.apply_async(call, arguments).get(timeout=20)


def test_its_seconds_are_those_of_the_thread_that_calls() -> None:
    """Which is whose CPU time the agent measures."""
    data = jpeg((1200, 900))
    process_s, thread_s = time.process_time(), time.thread_time()
    there_and_back(data)
    process_s, thread_s = time.process_time() - process_s, time.thread_time() - thread_s
    assert thread_s > 0.8 * process_s > 0.02
