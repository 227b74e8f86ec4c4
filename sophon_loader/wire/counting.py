"""How many values a piece of msgpack holds, found without making any: a byte can stand for an object of 56."""

from __future__ import annotations

_FIXED = {
    **dict.fromkeys(range(0x00, 0x80), 0),  # small integers
    **{0xA0 + nbytes: nbytes for nbytes in range(32)},  # short texts
    **dict.fromkeys((0xC0, 0xC1, 0xC2, 0xC3), 0),  # nil, true, false, and the byte that is none
    **{0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8},  # numbers
    **{0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17},  # extensions of a fixed size
    **dict.fromkeys(range(0xE0, 0x100), 0),  # small negative integers
}
"""First byte -> bytes behind it, of values whose first byte says how long they are."""
_LONG = {
    **{0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0)},  # bytes
    **{0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)},  # extensions, with their type
    **{0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)},  # texts
}
"""First byte -> bytes of the length behind it, and bytes between that and the contents."""
_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte -> bytes of the count behind it, and values for each: long arrays and maps."""


_STEPS = tuple(_FIXED.get(first, -2) + 1 for first in range(256))
"""For each first byte, how far the next value is; -1 where there is more to look at."""


def holds_more(packed: bytes | memoryview, most: int) -> bool:
    """Whether a piece of msgpack holds, or says that it holds, more than `most` values; keys of maps count.

    Takes about 0.1 us a value, and stops at the one too many. What is cut short or no msgpack is left to the reader.

    Args:
        packed: one value, with whatever is in it.
        most: how many there may be, itself included.

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
