"""Braces of a location, as bash expands them: `{000..099}`, `{10..0..2}`, `{a..c}`, `{x,y/{0..3}}`."""

from __future__ import annotations

import itertools
import math
import re

_NUMBERS = re.compile(r"([+-]?\d{1,18})\.\.([+-]?\d{1,18})(?:\.\.([+-]?\d{1,18}))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.([+-]?\d{1,18}))?")
_PADDED = re.compile(r"-?0\d+")


class TooMany(Exception):
    """Braces name more than the limit."""


def expanded(text: str, at_most: int) -> list[str]:
    """A text for each value of its braces, in bash's order; braces that name nothing stay as they are.

    Args:
        text: has braces, which may stand in braces.
        at_most: texts.

    Raises:
        TooMany: there are more.

    Example:
        >>> expanded("{08..10}-{a,b}.tar", 100)[:3]
        ['08-a.tar', '08-b.tar', '09-a.tar']
    """
    pieces: list[list[str]] = []
    done = at = 0
    while (at := text.find("{", at)) >= 0:
        end = _end(text, at)
        values = _values(text[at + 1 : end], at_most) if end else None
        if values is None:
            at += 1
            continue
        pieces += [[text[done:at]], values]
        done = at = end + 1
    if math.prod(map(len, pieces)) > at_most:
        raise TooMany
    return ["".join(one) for one in itertools.product(*pieces, [text[done:]])]


def _end(text: str, begin: int) -> int:
    """Where the brace that begins there is closed; 0 if it is not."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
    return 0


def _values(inside: str, at_most: int) -> list[str] | None:
    """The values of a pair of braces; None if it names none."""
    parts = _listed(inside)
    if len(parts) > 1:
        found: list[str] = []
        for part in parts:
            found += expanded(part, at_most)
            if len(found) > at_most:
                raise TooMany
        return found
    if match := _NUMBERS.fullmatch(inside):
        first, last, step = match.groups()
        numbers = _numbers(int(first), int(last), step, at_most)
        # bash pads where one end has a zero in front of other digits: {0..11} is 0 1 ... 11, {00..11} is 00 01 ... 11
        width = max(len(first), len(last)) if _PADDED.fullmatch(first) or _PADDED.fullmatch(last) else 0
        return [f"{number:0{width}}" for number in numbers]
    if match := _LETTERS.fullmatch(inside):
        first, last, step = match.groups()
        return [chr(number) for number in _numbers(ord(first), ord(last), step, at_most)]
    return None


def _numbers(first: int, last: int, step: str | None, at_most: int) -> range:
    """From the first to the last, up or down, whatever sign the step has."""
    stride = abs(int(step or 1)) or 1
    found = range(first, last + 1, stride) if first <= last else range(first, last - 1, -stride)
    if len(found) > at_most:
        raise TooMany
    return found


def _listed(inside: str) -> list[str]:
    """What commas separate, but for those in braces of their own."""
    parts, begin, depth = [], 0, 0
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append(inside[begin:at])
            begin = at + 1
    return [*parts, inside[begin:]]
