"""Counts the values in a piece of msgpack without building them: one byte can become an object of 56 bytes."""

from __future__ import annotations

_FIXED = {
    **dict.fromkeys(range(0x00, 0x80), 0),  # small integers
    **{0xA0 + nbytes: nbytes for nbytes in range(32)},  # short texts
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), 0),  # nil, the unassigned byte, false, true
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},  # numbers
    **{0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17},  # extensions of a fixed size
    **dict.fromkeys(range(0xE0, 0x100), 0),  # small negative integers
}
"""Bytes that follow, by first byte, for values whose first byte gives their length."""
_LONG = {
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)},  # bytes
    **{0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},  # extensions, with their type
    **{0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},  # texts
}
"""(Bytes of the length that follows, bytes between it and the contents), by first byte."""
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""(Bytes of the count that follows, values per entry) of long arrays and maps, by first byte."""


_STEPS = tuple(_FIXED.get(first, -2) + 1 for first in range(256))
"""Distance in bytes to the next value, by first byte; -1 if more bytes decide."""


def holds_more(packed: bytes | memoryview, most: int) -> bool:
    """Return True if a piece of msgpack holds, or claims to hold, more than `most` values; keys of maps count.

    Takes about 0.1 us per value, and stops at the first value too many. Truncated or invalid msgpack is left to the
    reader.

    Args:
        packed: one value with everything inside it.
        most: allowed number of values, the outermost included.

    Example:
        >>> holds_more(msgpack.packb([1, {"a": [2]}]), 5)
        True
    """
    place, open_values, known = 0, 1, 1
    try:
        while open_values:
            first = packed[place]
            step = _STEPS[first]
            open_values -= 1
            if step > 0:
                place += step
                continue
            if first in _LONG:
                width, between = _LONG[first]
                place += 1 + width + between + int.from_bytes(packed[place + 1 : place + 1 + width], "big")
                continue
            if first in _MANY:
                width, each = _MANY[first]
                inner = each * int.from_bytes(packed[place + 1 : place + 1 + width], "big")
            else:
                width, inner = 0, (first & 0x0F) * (2 if first < 0x90 else 1)
            place += 1 + width
            open_values += inner
            known += inner
            if known > most:
                return True
    except IndexError:
        pass
    return False
