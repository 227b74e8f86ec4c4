"""Messages to bytes and back. Whatever comes in, only the documented exceptions come out."""

from __future__ import annotations

import math
import struct
from dataclasses import fields
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from sophon_loader.errors import CorruptMessage, MalformedMessage, MessageTooLong, VersionMismatch, WireError
from sophon_loader.wire import frames
from sophon_loader.wire.fields import check_of
from sophon_loader.wire.frames import (
    SEAL_NBYTES,
    check_frames,
    content_hash,
    frames_of,
    has_payload,
    pack,
    payload_of,
    seal,
    unpack,
)
from sophon_loader.wire.limits import MAX_HEADER_NBYTES, MAX_TEXT_LENGTH
from sophon_loader.wire.messages import (
    MESSAGES,
    WITH_PAYLOAD,
    Fetch,
    Headers,
    Hello,
    Item,
    Message,
    Offer,
    Pong,
    Refused,
    Sample,
    Status,
    Welcome,
)
from sophon_loader.wire.version import VERSIONS
from tests.support.drawn import examples
from tests.unit.wire.strategies import MESSAGES_ANY, PLAIN, example, header_of, messages_of

HANDSHAKES = (Hello, Welcome, Refused)
EXAMPLES: dict[type[Message], Message] = {cls: example(cls) for cls in MESSAGES}
every_kind = pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)


def _row(message: Message) -> list[Any]:
    return [message.VERSION, message.KIND, *vars(message).values()]


def _unpack_anything(header: bytes) -> Message | None:
    """The message, or None after a documented exception; any other exception fails the test."""
    try:
        return unpack(header)
    except WireError as error:
        assert len(str(error)) < 2000, "an error text must stay readable, whatever was received"
        return None


# --- round trips ----------------------------------------------------------------------------------------------


@every_kind
@given(data=st.data())
@examples(30)
def test_a_message_comes_back_equal(cls: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages_of(cls))
    again = unpack(pack(message))
    assert type(again) is cls and again == message
    assert unpack(memoryview(bytearray(pack(message)))) == message


def test_the_fields_of_items_and_offers_have_names_again() -> None:
    fetch, sample = unpack(pack(EXAMPLES[Fetch])), unpack(pack(EXAMPLES[Sample]))
    assert isinstance(fetch, Fetch) and type(fetch.items[0]) is Item
    assert isinstance(sample, Sample) and type(sample.offers[0]) is Offer


def test_a_request_without_prices_and_an_answer_without_offers() -> None:
    fetch, sample = unpack(pack(example(Fetch, prices=[]))), unpack(pack(example(Sample, offers=[])))
    assert isinstance(fetch, Fetch) and fetch.prices == []
    assert isinstance(sample, Sample) and sample.offers == []


def test_a_file_name_that_is_not_utf8_survives() -> None:
    key = b"caf\xe9.jpg".decode("utf-8", "surrogateescape")
    fetch = unpack(pack(example(Fetch, items=[Item(1, 0, 0, 0, "file", key)])))
    assert isinstance(fetch, Fetch) and fetch.items[0].key == key


@pytest.mark.parametrize(("nbytes", "headers", "rule"), [
    ([1, 2], [b""], "Headers.headers must have one entry for each of 2 sizes, got 1"),
    ([1], [b"", b""], "Headers.headers must have one entry for each of 1 sizes, got 2"),
    ([1], [bytes(11)], r"Headers.headers\[0\] must be no bytes or 12, got"),
    ([1, 2], [b"", bytes(13)], r"Headers.headers\[1\] must be no bytes or 12, got"),
])  # fmt: skip
def test_headers_that_fit_no_files(nbytes: list[int], headers: list[bytes], rule: str) -> None:
    with pytest.raises(MalformedMessage, match=rule):
        unpack(pack(Headers(1, nbytes, headers)))


# --- versions -------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("version", [-1, 0, 1, 2, 3, 4, 5, 1 << 40, 1.0, True, False, None, "1", [1], {}])
def test_only_the_right_stamp_is_taken(cls: type[Message], version: Any) -> None:
    row = _row(EXAMPLES[cls])
    right = type(version) is int and version == row[0]
    row[0] = version
    if right:
        assert unpack(header_of(row)) == EXAMPLES[cls]
    else:
        packed = msgpack.packb(row)
        for header in (seal(packed), *([packed] if version not in VERSIONS else [])):  # older releases send no seal
            with pytest.raises(VersionMismatch, match="message version must be"):
                unpack(header)


def test_a_kind_of_a_later_version_is_a_version_mismatch() -> None:
    with pytest.raises(VersionMismatch):
        unpack(msgpack.packb([VERSIONS[-1] + 1, 200, "new"]))


def test_the_handshake_never_changes() -> None:
    """These bytes are what every release has sent and must go on reading."""
    assert pack(Hello([1], "sophon_loader 0.1.0")) == b"\x94\x00\x01\x91\x01\xb3sophon_loader 0.1.0"
    assert unpack(b"\x94\x00\x03\xa7version\xa2no") == Refused("version", "no")


# --- malformed ------------------------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "nil": None, "bool": True, "int": 7, "float": 0.5, "text": "x", "bytes": b"x", "list": [[]], "map": {"x": [None]},
    "int keys": {1: 1}, "ext": msgpack.ExtType(5, b"x"), "time": msgpack.Timestamp(1, 2),
}  # fmt: skip
FITS = {
    "int": {"int"}, "str": {"text"}, "bool": {"bool"}, "Natural": {"int"}, "Positive": {"int"}, "Stage": {"int"},
    "FileSize": {"int"}, "Seconds": {"int", "float"}, "Cores": {"int", "float"},
    "list[int]": set(), "list[str]": set(), "list[Natural]": set(), "list[KeySize]": set(), "list[Item]": set(),
    "list[ProgramItem]": set(), "list[PackedHeader]": set(),
    "list[Offer]": set(), "Times": set(), "Prices": set(),
    "dict[str, str]": set(), "dict[str, Any]": {"map"},
}  # fmt: skip


@every_kind
def test_every_field_is_held_against_its_type(cls: type[Message]) -> None:
    for position, field in enumerate(fields(cls), 2):
        for name, value in WRONG.items():
            row = _row(EXAMPLES[cls])
            row[position] = value
            if name in FITS[str(field.type)]:
                assert vars(unpack(header_of(row)))[field.name] == value
            else:
                with pytest.raises(
                    MalformedMessage, match=rf"^{cls.__name__}\.{field.name}(\[0\]|, (key|value) 0)? must be "
                ):
                    unpack(header_of(row))


@pytest.mark.parametrize("item", [
    [], [1, 2, 0, 3, "e"], [1, 2, 3, "e", "k"], [1, 2, 0, 3, "e", "k", 0], ["1", 2, 0, 3, "e", "k"],
    [1, 2.0, 0, 3, "e", "k"], [1, 2, 0, -1, "e", "k"], [1, 2, -1, 3, "e", "k"], [1, 2, None, 3, "e", "k"],
    [1, 2, 0, True, "e", "k"], [1, 2, 0, 3, b"e", "k"], [1, 2, 0, 3, "e", None], [1, 2, 0, 3, "e", b"k"], {"id": 1},
    "123456", 5,
])  # fmt: skip
def test_every_field_of_an_item_is_held_against_its_type(item: Any) -> None:
    header = pack(example(Fetch, items=[Item(1, 2, 0, 3, "file", "k"), item]))
    with pytest.raises(MalformedMessage, match=r"^Fetch\.items\[1\](\.[a-z]+)? must be "):
        unpack(header)


@pytest.mark.parametrize("offer", [
    [], [1, "e", 2, 0.5], [1, "e", 2, 0.5, 0.5, 0], ["1", "e", 2, 0.5, 0.5], [True, "e", 2, 0.5, 0.5],
    [65, "e", 2, 0.5, 0.5], [1, b"e", 2, 0.5, 0.5], [1, None, 2, 0.5, 0.5], [1, "e", 2.0, 0.5, 0.5],
    [1, "e", -1, 0.5, 0.5], [1, "e", 2, "0.5", 0.5], [1, "e", 2, -0.5, 0.5], [1, "e", 2, 0.5, math.nan],
    [1, "e", 2, 0.5, math.inf], {"cut": 1}, "12345", 5, None,
])  # fmt: skip
def test_every_field_of_an_offer_is_held_against_its_type(offer: Any) -> None:
    header = pack(example(Sample, offers=[Offer(1, "e", 2, 0.5, 0.5), offer]))
    with pytest.raises(MalformedMessage, match=r"^Sample\.offers\[1\](\.[a-z_]+)? must be "):
        unpack(header)


@pytest.mark.parametrize("prices", [
    [0.0] * 5, [-1.0, 0.0, 0.0], [0.0, math.nan, 0.0], [0.0, 0.0, math.inf], [1e9 + 1, 0.0, 0.0], [None, 0.0, 0.0],
    ["1", "1", "1"], [True, True, True], 0.5, None,
])  # fmt: skip
def test_prices_that_are_none(prices: Any) -> None:
    with pytest.raises(MalformedMessage, match=r"^Fetch\.prices(\[\d\])? must be "):
        unpack(pack(example(Fetch, prices=prices)))


@pytest.mark.parametrize("prices", [[], [0.0], [0.0, 0.0, 0.0, 0.0], [1, 0, 1_000_000_000], [1e-300, 1e9, 0.5]])
def test_prices_that_are_some(prices: list[float]) -> None:
    fetch = unpack(pack(example(Fetch, prices=prices)))
    assert isinstance(fetch, Fetch) and fetch.prices == prices


@every_kind
def test_a_field_too_many_or_too_few(cls: type[Message]) -> None:
    row = _row(EXAMPLES[cls])
    for wrong in (row[:-1] if len(row) > 2 else row[:1], [*row, 0], [*row, *row]):
        with pytest.raises(MalformedMessage):
            unpack(header_of(wrong))


@every_kind
def test_a_header_cut_short_anywhere_or_with_bytes_behind_it(cls: type[Message]) -> None:
    header = pack(EXAMPLES[cls])
    packed = header if cls in HANDSHAKES else header[:-SEAL_NBYTES]
    for wrong in (*(packed[:nbytes] for nbytes in range(len(packed))), packed + b"\x00"):
        with pytest.raises(MalformedMessage):
            unpack(seal(wrong))
    for wrong in (*(header[:nbytes] for nbytes in range(len(header))), header + b"\x00"):
        with pytest.raises(CorruptMessage):
            unpack(wrong)


@pytest.mark.parametrize("kind", [0, -1, 20, 1 << 63, True, 1.0, "1", None, [], {}])
def test_an_unknown_kind(kind: Any) -> None:
    with pytest.raises(MalformedMessage, match="message kind must be one of"):
        unpack(seal(msgpack.packb([VERSIONS[-1], kind])))


@pytest.mark.parametrize("header", [
    b"", b"\x00", b"\x80", b"\xc0", b"\xc1", b"\x90", b"\x91\x01", b"hello", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 9,
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",  # huge lengths
    b"\xc9\xff\xff\xff\xff\x05", b"\x93\x04\x0a\xdb\x7f\xff\xff\xffx", b"\x93\x04\x0c\xdf\x10\x00\x00\x00\xa1a\x01",
    b"\x93\x04\x0c\x81\x90\x01", b"\x93\x04\x0c\x81\x80\x01", b"\x93\x04\x0c\x81\x91\x01\x01",  # unhashable map keys
    b"\x93\x04\x0a\xd4\xff\x00", b"\x93\x04\x0a\xc7\x0c\xff" + b"\xff" * 12,  # timestamps that are none
    b"\x93\x04\x0a\xd6\x05abcd",
])  # fmt: skip
def test_what_is_not_a_message(header: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack(seal(header))
    with pytest.raises(CorruptMessage):
        unpack(header)


@pytest.mark.parametrize("depth", [400, 900, 1010, 1023, 1500, 100_000])
@pytest.mark.parametrize("around", [b"\x93\x04\x0a%s", b"\x93\x04\x0c\x81\xa1a%s", b"%s", b"\x92\x04%s", b"\x92%s\x01"])
@pytest.mark.parametrize("level", [b"\x91", b"\x81\xa1a", b"\x81"])
def test_deep_nesting(depth: int, around: bytes, level: bytes) -> None:
    _unpack_anything(seal(around.replace(b"%s", level * depth + b"\x01")))


@given(st.binary(max_size=200))
@examples(300)
def test_random_bytes(header: bytes) -> None:
    _unpack_anything(header)
    _unpack_anything(seal(header))


@given(st.lists(PLAIN, max_size=9), st.sampled_from([0, *VERSIONS]), st.integers(0, 18))
@examples(300)
def test_random_rows(values: list[Any], version: int, kind: int) -> None:
    _unpack_anything(header_of([version, kind, *values]))


@given(MESSAGES_ANY, st.data())
@examples(300)
def test_mutated_messages(message: Message, data: st.DataObject) -> None:
    header = bytearray(pack(message))
    if not isinstance(message, HANDSHAKES):
        del header[-SEAL_NBYTES:]
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(header) - 1))
        if data.draw(st.booleans()):
            header[where] = data.draw(st.integers(0, 255))
        else:
            header[where:where] = data.draw(st.binary(max_size=6))
    again = _unpack_anything(bytes(header)) or _unpack_anything(seal(bytes(header)))
    if again is not None:
        pack(again)  # what is taken can be sent on


# --- limits ---------------------------------------------------------------------------------------------------


def test_a_header_over_the_limit_is_neither_read_nor_written() -> None:
    with pytest.raises(MessageTooLong, match="message header must be at most"):
        unpack(bytes(MAX_HEADER_NBYTES + 1))
    with pytest.raises(MessageTooLong, match="ask for fewer at once"):
        pack(Status({"x": bytes(MAX_HEADER_NBYTES)}))
    full = pack(Status({"x": bytes(MAX_HEADER_NBYTES - 11 - SEAL_NBYTES)}))
    assert len(full) == MAX_HEADER_NBYTES and isinstance(unpack(full), Status)


def test_a_text_over_the_limit_is_not_read() -> None:
    assert unpack(pack(Pong("x" * MAX_TEXT_LENGTH)))
    for message in (Pong("x" * (MAX_TEXT_LENGTH + 1)), Hello([], "é" * (MAX_TEXT_LENGTH + 1))):
        with pytest.raises(MalformedMessage, match=f"must be a text of at most {MAX_TEXT_LENGTH} characters"):
            unpack(pack(message))
    for item in (
        Item(1, 1, 0, 1, "x" * (MAX_TEXT_LENGTH + 1), "k"),
        Item(1, 1, 0, 1, "e", "x" * (MAX_TEXT_LENGTH + 1)),
    ):
        with pytest.raises(MalformedMessage, match=r"Fetch\.items\[0\]\.(encoding|key) must be a text"):
            unpack(pack(example(Fetch, items=[item])))


@every_kind
def test_the_payload_frame_is_there_when_it_should_be(cls: type[Message], monkeypatch: pytest.MonkeyPatch) -> None:
    message = EXAMPLES[cls]
    wanted = cls in WITH_PAYLOAD
    assert has_payload(message) == wanted
    for payload in (None, b"", b"x"):
        header = pack(message, payload or b"")
        if wanted == (payload is not None):
            check_frames(message, header, payload)
        else:
            with pytest.raises(MalformedMessage, match="frames of its kind"):
                check_frames(message, header, payload)
    if wanted:
        monkeypatch.setattr("sophon_loader.wire.frames.MAX_PAYLOAD_NBYTES", 2)
        check_frames(message, pack(message, b"xy"), b"xy")
        with pytest.raises(MessageTooLong, match="payload must be at most"):
            check_frames(message, pack(message, b"xyz"), b"xyz")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17])
def test_a_large_payload_comes_in_frames(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sophon_loader.wire.frames.MAX_FRAME_NBYTES", 8)
    header, *rest = frames_of(b"header", bytes(range(size)))
    assert header == b"header" and payload_of(rest) == bytes(range(size))
    assert [len(frame) for frame in rest] == ([8] * (size // 8) + ([size % 8] if size % 8 else []) if size else [0])
    assert payload_of([]) is None
    monkeypatch.setattr("sophon_loader.wire.frames.MAX_PAYLOAD_NBYTES", 16)
    if size > 16:
        with pytest.raises(MessageTooLong, match="payload must be at most 16 bytes, got 17"):
            payload_of(rest)


# --- what is damaged on its way -------------------------------------------------------------------------------


@every_kind
def test_no_flipped_bit_of_a_header_gets_through(cls: type[Message]) -> None:
    """But for the handshake's, whose form never changes."""
    header = pack(EXAMPLES[cls])
    for bit in range(8 * len(header)):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        if cls in HANDSHAKES:
            _unpack_anything(bytes(flipped))
        else:
            with pytest.raises((CorruptMessage, VersionMismatch) if bit < 16 else CorruptMessage) as caught:
                unpack(bytes(flipped))
            assert caught.value.request is None, "nothing of it can be believed"


@pytest.mark.parametrize("cls", WITH_PAYLOAD, ids=lambda cls: cls.__name__)
def test_no_other_payload_gets_through(cls: type[Message]) -> None:
    message, payload = EXAMPLES[cls], bytes(range(200))
    header = pack(message, payload)
    check_frames(message, header, memoryview(payload))
    flipped = [bytearray(payload) for _ in range(8 * len(payload))]
    for bit, one in enumerate(flipped):
        one[bit // 8] ^= 1 << bit % 8
    for wrong in (*map(bytes, flipped), payload[:-1], payload + b"\0", b""):
        with pytest.raises(CorruptMessage, match="checksum that its header says") as caught:
            check_frames(message, header, wrong)
        assert caught.value.request == (message.id if isinstance(message, Sample) else None)


def test_a_sample_that_breaks_the_rules_says_whose_it_is() -> None:
    """The number of its request stands in a header that arrived whole, so that one can be had another way."""
    for wrong in (pack(example(Sample, id=7, cut=65)), seal(msgpack.packb([Sample.VERSION, Sample.KIND, 7, "x"]))):
        with pytest.raises(MalformedMessage) as caught:
            unpack(wrong)
        assert caught.value.request == 7
    for other in ([Sample.KIND], [Sample.KIND, "7"], [6, 7], [200, 7]):
        with pytest.raises(MalformedMessage) as caught:
            unpack(seal(msgpack.packb([VERSIONS[0], *other])))
        assert caught.value.request is None


def test_the_seal_is_what_the_specification_says() -> None:
    """XXH3-64, big-endian: of the payload, then of all before it. Known answers of the algorithm's own."""
    assert pack(example(Fetch))[-SEAL_NBYTES:-8].hex() == "2d06800538d394c2", "of nothing"
    header = pack(example(Sample), b"abc")
    assert header[-SEAL_NBYTES:-8].hex() == "78af5f94892f3950"
    assert header[-8:] == xxh3_64_digest(header[:-8]) == xxh3_64_intdigest(header[:-8]).to_bytes(8, "big")


def test_a_float_is_written_in_eight_bytes() -> None:
    assert struct.pack(">d", 0.1) in pack(example(Sample, op_s=[0.1]))


def test_the_content_hash_is_a_stable_name() -> None:
    assert content_hash(b"abc") == "ba7816bf8f01cfea414140de5dae2223"


def test_every_field_type_has_a_check_of_its_own() -> None:
    """A new annotation in messages.py must be known to fields.py, and tried above."""
    assert {str(field.type) for cls in MESSAGES for field in fields(cls)} == set(FITS)
    assert set(frames._CHECKS) == set(MESSAGES)
    for unknown in (bytearray, tuple, tuple[int, str], set[int], int | None, Message):
        with pytest.raises(TypeError, match=r"a type that docs/wire\.md lists"):
            check_of(unknown)
