"""Packs messages into frames and reads them back.

A message has one header frame: msgpack `[version, kind, field, ...]` and a seal. The kinds in `WITH_PAYLOAD` add a
payload, which is read once for its checksum and copied only if it is so large that it arrives in several frames. The
seal is two checksums: of the payload, and of everything before it in the header. So a header can be trusted without its
payload, and identifies whose payload is damaged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from typing import Any, get_type_hints

import msgpack
from xxhash import xxh3_64_digest

from sophon_loader.errors import CorruptMessage, MalformedMessage, MessageTooLong, VersionMismatch, WireError
from sophon_loader.wire.counting import holds_more
from sophon_loader.wire.fields import Check, check_of, misfit, short
from sophon_loader.wire.limits import (
    MAX_FRAME_NBYTES,
    MAX_HEADER_NBYTES,
    MAX_HEADER_VALUES,
    MAX_PAYLOAD_NBYTES,
    MAX_REQUEST_NBYTES,
    MAX_REQUEST_VALUES,
)
from sophon_loader.wire.messages import (
    MESSAGES,
    REQUESTS,
    WITH_PAYLOAD,
    Fetch,
    FetchPrograms,
    Headers,
    Item,
    Message,
    Offer,
    ProgramItem,
    Sample,
)
from sophon_loader.wire.version import HANDSHAKE, VERSIONS

Frame = bytes | bytearray | memoryview
# File names are bytes to the operating system; names that are not UTF-8 must be sent, too.
_packer = partial(msgpack.packb, use_bin_type=True, unicode_errors="surrogateescape")
_SHORT_NBYTES = 1 << 10
"""Bytes up to which a header is read without counting its values first: it holds no more values than bytes."""
_BY_KIND: dict[int, type[Message]] = {cls.KIND: cls for cls in MESSAGES}
_CHECKSUM_NBYTES = 8
SEAL_NBYTES = 2 * _CHECKSUM_NBYTES


def pack(message: Message, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """Return the header frame of a message.

    Args:
        message: the message.
        payload: the frame after it; b"" for kinds without a payload.

    Raises:
        MessageTooLong: the header is over its limit.
    """
    row = [message.VERSION, message.KIND, *vars(message).values()]
    header: bytes = _packer(row)
    if message.VERSION != HANDSHAKE:
        header = seal(header, payload)
    _check_length(header, MAX_REQUEST_NBYTES if isinstance(message, REQUESTS) else MAX_HEADER_NBYTES)
    return header


def seal(row: bytes, payload: bytes | bytearray | memoryview = b"") -> bytes:
    """Return a header frame: the packed row and its seal.

    Args:
        row: the header's msgpack.
        payload: the frame after it; b"" for kinds without a payload.
    """
    row += xxh3_64_digest(payload)
    return row + xxh3_64_digest(row)


def unpack_request(header: bytes | memoryview) -> Message:
    """Return the message of a loader's header frame: `unpack` with the smaller limits of requests."""
    return _unpack(header, MAX_REQUEST_NBYTES, MAX_REQUEST_VALUES)


def unpack(header: bytes | memoryview) -> Message:
    """Return the message of a header frame. An error in an answer carries the request's id as `request`.

    Raises:
        MessageTooLong: the header exceeds MAX_HEADER_NBYTES or MAX_HEADER_VALUES.
        VersionMismatch: the message has a version that is not in VERSIONS.
        CorruptMessage: it is not what was sent.
        MalformedMessage: anything else that docs/wire.md does not allow.
    """
    return _unpack(header, MAX_HEADER_NBYTES, MAX_HEADER_VALUES)


def _unpack(header: bytes | memoryview, max_nbytes: int, max_values: int) -> Message:
    _check_length(header, max_nbytes)
    if len(header) > _SHORT_NBYTES and holds_more(header, max_values):
        raise MessageTooLong(f"message header must hold at most {max_values} values, got more; ask for fewer at once")
    row = _opened(header)
    try:
        return _message_of(row)
    except WireError as error:
        if row[1] == Sample.KIND and len(row) > 2 and type(row[2]) is int:
            error.request = row[2]
        raise


def _opened(header: bytes | memoryview) -> list[Any]:
    """Check the seal of a header frame and return its row. Handshakes and messages of old releases have no seal.

    Raises:
        CorruptMessage: the checksum is wrong.
        MalformedMessage: the checksum is right, but the content is not a row.
    """
    malformed = None
    if header[-_CHECKSUM_NBYTES:] == xxh3_64_digest(header[:-_CHECKSUM_NBYTES]):
        try:
            return _row(header[:-SEAL_NBYTES])
        except MalformedMessage as error:  # or a handshake that happens to end in its own checksum
            malformed = error
    try:
        row = _row(header)
    except MalformedMessage:
        row = []
    if not row or row[0] in VERSIONS:
        raise malformed or CorruptMessage(
            f"message header must end in its checksum, got {short(bytes(header[-40:]))}; it was damaged on its way, or "
            "is no message of this protocol"
        )
    return row


def _message_of(row: list[Any]) -> Message:
    version, kind, *values = row
    cls = _BY_KIND.get(kind) if type(kind) is int else None
    spoken = VERSIONS if cls is None else (cls.VERSION,)
    if type(version) is not int or version not in spoken:
        raise VersionMismatch(
            f"message version must be one of {list(spoken)}, got {short(version)}; "
            "install the same release of sophon_loader on both hosts"
        )
    if cls is None:
        raise MalformedMessage(f"message kind must be one of {sorted(_BY_KIND)}, got {short(kind)}")
    checks = _CHECKS[cls]
    if len(values) != len(checks):
        raise MalformedMessage(f"{cls.__name__} must have {len(checks)} fields, got {len(values)}")
    for (name, hint, check), value in zip(checks, values, strict=True):
        if not check(value):
            raise MalformedMessage(misfit(hint, value, f"{cls.__name__}.{name}"))
    if cls in _ROWS:
        place, row_type = _ROWS[cls]
        values[place] = [row_type(*row) for row in values[place]]
    message = cls(*values)
    if isinstance(message, Headers) and len(message.nbytes) != len(message.headers):
        raise MalformedMessage(
            f"Headers.headers must have one entry for each of {len(message.nbytes)} sizes, got {len(message.headers)}"
        )
    return message


def has_payload(message: Message) -> bool:
    """Return True if a payload frame follows the header."""
    return isinstance(message, WITH_PAYLOAD)


def frames_of(header: Frame, payload: Frame) -> list[Frame]:
    """Return a message's frames as they are sent.

    Args:
        header: packed header.
        payload: sent after it in frames of `MAX_FRAME_NBYTES`, the last one shorter.
    """
    if len(payload) <= MAX_FRAME_NBYTES:
        return [header, payload]
    view = memoryview(payload)
    return [header, *(view[at : at + MAX_FRAME_NBYTES] for at in range(0, len(view), MAX_FRAME_NBYTES))]


def payload_of(frames: Sequence[Frame]) -> Frame | None:
    """Return the payload of a received message; None if it has none.

    Args:
        frames: frames after the header.

    Raises:
        MessageTooLong: it is over `MAX_PAYLOAD_NBYTES`.
    """
    if (nbytes := sum(map(len, frames))) > MAX_PAYLOAD_NBYTES:
        raise MessageTooLong(f"payload must be at most {MAX_PAYLOAD_NBYTES} bytes, got {nbytes}")
    if len(frames) > 1:
        return b"".join(frames)
    return frames[0] if frames else None


def check_frames(message: Message, header: bytes | memoryview, payload: Frame | None) -> None:
    """Check that a message has the frames of its kind, and that its payload arrived undamaged.

    Args:
        message: the header, unpacked.
        header: as received.
        payload: as received; None if there is none.

    Raises:
        MalformedMessage: a payload is missing, or the kind has none.
        MessageTooLong: it is over MAX_PAYLOAD_NBYTES.
        CorruptMessage: it is not what was sent.
    """
    if has_payload(message) != (payload is not None):
        raise MalformedMessage(f"{type(message).__name__} must come with the frames of its kind")
    if payload is None:
        return
    if len(payload) > MAX_PAYLOAD_NBYTES:
        raise MessageTooLong(f"payload must be at most {MAX_PAYLOAD_NBYTES} bytes, got {len(payload)}")
    if header[-SEAL_NBYTES:-_CHECKSUM_NBYTES] != xxh3_64_digest(payload):
        error = CorruptMessage(
            f"payload of {type(message).__name__} must have the checksum that its header says, got other bytes; they "
            "were damaged on their way"
        )
        error.request = message.id if isinstance(message, Sample) else None
        raise error


def _check_length(header: bytes | memoryview, max_nbytes: int) -> None:
    if len(header) > max_nbytes:
        raise MessageTooLong(
            f"message header must be at most {max_nbytes} bytes, got {len(header)}; ask for fewer at once"
        )


def _row(header: bytes | memoryview) -> list[Any]:
    try:
        row = msgpack.unpackb(header, raw=False, strict_map_key=False, unicode_errors="surrogateescape")
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"message header must be msgpack, got {short(bytes(header[:40]))}: {error}") from None
    except TypeError as error:  # an unhashable map key
        raise MalformedMessage(f"message header must have plain map keys: {error}") from None
    if not isinstance(row, list) or len(row) < 2:
        raise MalformedMessage(f"message header must be [version, kind, ...], got {short(row)}")
    return row


def _checks_of(cls: type[Message]) -> list[tuple[str, Any, Check]]:
    """Return (name, type, check) of each field."""
    hints = get_type_hints(cls, include_extras=True)
    return [(f.name, hints[f.name], check_of(hints[f.name])) for f in fields(cls)]


_CHECKS = {cls: _checks_of(cls) for cls in MESSAGES}


def _place_of(cls: type[Message], name: str) -> int:
    return [field.name for field in fields(cls)].index(name)


_ROWS: dict[type[Message], tuple[int, type[Item | Offer | ProgramItem]]] = {
    Fetch: (_place_of(Fetch, "items"), Item),
    FetchPrograms: (_place_of(FetchPrograms, "items"), ProgramItem),
    Sample: (_place_of(Sample, "offers"), Offer),
}
"""(Index of the field with rows, the rows' type) of messages that have one; msgpack itself only knows arrays."""


def content_hash(registration: bytes) -> str:
    """Return the name under which a pipeline is registered: the first 32 hex digits of its SHA-256."""
    return hashlib.sha256(registration).hexdigest()[:32]
