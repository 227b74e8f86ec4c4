"""Hypothesis strategies: every message of the protocol, and anything that msgpack can write."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgpack
from hypothesis import strategies as st

from sophon_loader.wire.fields import AtMost, NoneOr
from sophon_loader.wire.frames import seal
from sophon_loader.wire.messages import MESSAGES, Headers, Item, Message, Offer, ProgramItem
from sophon_loader.wire.version import HANDSHAKE

ROWS = {
    Item: Item(1, 2, 0, 3, "file", "k"),
    ProgramItem: ProgramItem(1, 2, "file", "k", 9, b"p"),
    Offer: Offer(1, "file", 2, 0.5, 0.25),
}
"""An example of each type that stands in a list of a message."""
INTEGERS = st.integers(-(1 << 63), (1 << 64) - 1)
NAMES = st.text(max_size=20) | st.binary(max_size=12).map(os.fsdecode)  # a file name need not be UTF-8
_EXTENSIONS = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=5)) | st.builds(
    msgpack.Timestamp, st.integers(0, 1 << 40), st.integers(0, 999_999_999)
)
_LEAVES = (
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | NAMES | st.binary(max_size=9) | _EXTENSIONS
)
PLAIN = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def header_of(row: list[Any]) -> bytes:
    """The header frame of a row that may be none, as whoever speaks this version would send it."""
    packed = msgpack.packb(row, unicode_errors="surrogateescape")
    return packed if row[0] == HANDSHAKE else seal(packed)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values for a field annotated with `hint`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return PLAIN
    if hint in ROWS:
        return st.builds(hint, *map(values_of, get_type_hints(hint, include_extras=True).values()))
    if origin is Annotated:
        base, limit = arguments
        if isinstance(limit, AtMost):
            return st.lists(values_of(get_args(base)[0]), max_size=limit.entries)
        if isinstance(limit, NoneOr):
            return st.just(b"") | st.binary(min_size=limit.nbytes, max_size=limit.nbytes)
        if base is int:
            return st.integers(limit.least, limit.most)
        return st.floats(limit.least, limit.most) | st.integers(1, int(limit.most))
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=5)
    if origin is dict:
        return st.dictionaries(*map(values_of, arguments), max_size=4)
    return {int: INTEGERS, str: NAMES, bytes: st.binary(max_size=9), bool: st.booleans()}[hint]


def messages_of(cls: type[Message]) -> st.SearchStrategy[Message]:
    """Messages of one kind."""
    hints = get_type_hints(cls, include_extras=True)
    values = {field.name: values_of(hints[field.name]) for field in fields(cls)}
    if cls is Headers:
        return st.builds(Headers, **values).map(_with_lists_of_one_length)
    return st.builds(cls, **values)


def _with_lists_of_one_length(message: Headers) -> Headers:
    pairs = [*zip(message.nbytes, message.headers, strict=False)]
    return replace(message, nbytes=[nbytes for nbytes, _ in pairs], headers=[header for _, header in pairs])


MESSAGES_ANY = st.one_of(*map(messages_of, MESSAGES))


def example(cls: type[Message], **given: Any) -> Message:
    """The plainest message of a kind, some fields given."""
    plain = {int: 1, str: "x", bool: False, float: 0.5, bytes: bytes(12)}
    hints = get_type_hints(cls)
    made: dict[str, Any] = {field.name: plain.get(hints[field.name]) for field in fields(cls)}
    for name, hint in hints.items():
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is list:
            made[name] = [plain.get(arguments[0]) or ROWS[arguments[0]]]
        elif origin is dict:
            made[name] = {"x": "y"}
    return cls(**(made | given))
