"""Types of message fields, with their limits and checks.

messages.py annotates its fields with `Any`, `bool`, `int`, `float`, `str`, `bytes`, `list[T]`, `dict[K, V]`, a
NamedTuple of these, or one of the named types below. Each number with a meaning has a range; a value outside is refused
here, before any code calculates with it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from sophon_loader.wire.limits import MAX_OPS, MAX_PAYLOAD_NBYTES, MAX_TEXT_LENGTH, MAX_UINT

Check = Callable[[Any], bool]


@dataclass(frozen=True)
class Range:
    """Marks a number as limited, both limits included. They are finite, so NaN and infinity never pass."""

    least: float
    most: float


@dataclass(frozen=True)
class AtMost:
    """Marks a list as having at most this many `entries`."""

    entries: int


@dataclass(frozen=True)
class NoneOr:
    """Marks bytes as either empty or `nbytes` long."""

    nbytes: int


Natural = Annotated[int, Range(0, MAX_UINT)]
Positive = Annotated[int, Range(1, MAX_UINT)]
Stage = Annotated[int, Range(0, MAX_OPS)]
"""Stage of a pipeline: the number of leading ops that have run."""
FileSize = Annotated[int, Range(0, MAX_PAYLOAD_NBYTES)]
KeySize = Annotated[int, Range(-2, (1 << 63) - 1)]
"""Size in bytes of a key's file; if negative, the reason why it has none."""
PackedHeader = Annotated[bytes, NoneOr(12)]
"""Header of a file, packed by its kind; empty if unknown."""
Seconds = Annotated[float, Range(0, 1e9)]
Times = Annotated[list[Seconds], AtMost(MAX_OPS + 2)]
"""CPU seconds of reading, of each op, and of encoding."""
Cores = Annotated[float, Range(1e-6, 1e6)]
Price = Annotated[float, Range(0, 1e9)]
Prices = Annotated[list[Price], AtMost(4)]
"""Empty, or up to four: price of a byte on the wire, of a CPU second at the agent, of one at the loader; then cores per
worker."""


def check_of(hint: Any) -> Check:
    """Return a predicate for values of type `hint` as msgpack reads them.

    Raises:
        TypeError: a field may not have the type `hint`.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Annotated:
        return _check_within(*arguments)
    if origin is list:
        inner = check_of(arguments[0])
        return lambda value: isinstance(value, list) and all(map(inner, value))
    if origin is dict:
        key, item = map(check_of, arguments)
        return lambda value: isinstance(value, dict) and all(map(key, value)) and all(map(item, value.values()))
    if not _is_row(hint):
        raise TypeError(f"a field must be of a type that docs/wire.md lists, got {hint}")
    return _check_row([check_of(part) for part in _row_of(hint).values()])


def misfit(hint: Any, value: Any, where: str) -> str:
    """Describe why the check of `hint` refuses a value: the name of its innermost wrong part, the rule, the part's
    value.

    Args:
        hint: type of the field.
        value: the value that msgpack read.
        where: name of the value for the text, e.g. `Fetch.items`.
    """
    for name, inner, parts in _parts(hint, value):
        check = check_of(inner)
        for number, part in enumerate(parts):
            if not check(part):
                return misfit(inner, part, where + name.format(number))
    return f"{where} must be {_rule(hint)}, got {short(value)}"


def short(value: Any) -> str:
    """Return a repr of bounded length and depth, because the value may be anything."""
    text = reprlib.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_row(checks: list[Check]) -> Check:
    def fits(value: Any) -> bool:
        if not isinstance(value, list) or len(value) != len(checks):
            return False
        for check, part in zip(checks, value, strict=True):  # noqa: SIM110 - all() takes half as long again
            if not check(part):
                return False
        return True

    return fits


def _check_within(base: Any, limit: Range | AtMost | NoneOr) -> Check:
    if isinstance(limit, AtMost):
        inner, entries = check_of(base), limit.entries
        return lambda value: inner(value) and len(value) <= entries
    if isinstance(limit, NoneOr):
        nbytes = limit.nbytes
        return lambda value: type(value) is bytes and len(value) in (0, nbytes)
    least, most = limit.least, limit.most
    if base is int:
        return lambda value: type(value) is int and least <= value <= most
    return lambda value: type(value) in (int, float) and least <= value <= most


def _parts(hint: Any, value: Any) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield the parts of a value that has the outer type `hint`: (name of a part, type of the parts, parts).

    `name.format(n)` is the name of part n.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _parts(arguments[0], value)
    elif origin is list and isinstance(value, list):
        yield "[{}]", arguments[0], value
    elif origin is dict and isinstance(value, dict):
        yield ", key {}", arguments[0], list(value)
        yield ", value {}", arguments[1], list(value.values())
    elif _is_row(hint) and isinstance(value, list) and len(value) == len(_row_of(hint)):
        for (name, inner), part in zip(_row_of(hint).items(), value, strict=True):
            yield f".{name}", inner, [part]


def _rule(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        base, limit = arguments
        if isinstance(limit, AtMost):
            return f"{_rule(base)} of at most {limit.entries} entries"
        if isinstance(limit, NoneOr):
            return f"no bytes or {limit.nbytes}"
        if base is int:
            return f"{_rule(base)} from {limit.least} to {limit.most}"
        return f"{_rule(base)} from {limit.least:g} to {limit.most:g}"
    if _is_row(hint):
        return f"an array of {len(_row_of(hint))} fields"
    return _RULES[origin or hint]


def _is_row(hint: Any) -> bool:
    """True if this is a NamedTuple, which is sent as an array of its fields."""
    return get_origin(hint) is None and isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _row_of(hint: Any) -> dict[str, Any]:
    return get_type_hints(hint, include_extras=True)


_PLAIN: dict[Any, Check] = {
    Any: lambda value: True,
    bool: lambda value: type(value) is bool,
    int: lambda value: type(value) is int,
    float: lambda value: type(value) in (int, float),
    str: lambda value: type(value) is str and len(value) <= MAX_TEXT_LENGTH,
    bytes: lambda value: type(value) is bytes and len(value) <= MAX_TEXT_LENGTH,
}
_RULES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: f"a text of at most {MAX_TEXT_LENGTH} characters",
    bytes: f"at most {MAX_TEXT_LENGTH} bytes",
    list: "a list",
    dict: "a map",
}
