"""Changed copies of inputs, where there is no fuzzer that looks at coverage, and for tests that must not take long."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

ODD = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xc0",
    b"\x90",
    b"\xdd\xff\xff\xff\xff",
    b"\xcf" + b"\xff" * 8,
    b"..",
    b"/",
)
"""Bytes that mean something: nil, lengths that nothing can have, the largest numbers, a way out of a folder."""


def mutated(inputs: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Changed inputs without end.

    Args:
        inputs: to begin with, at least one.
        seed: of what is drawn.
    """
    draw = random.Random(seed)
    while True:
        data = bytearray(draw.choice(inputs))
        for _ in range(draw.randint(1, 4)):
            at, end = sorted(draw.randint(0, len(data)) for _ in range(2))
            other = draw.choice(inputs)
            start = draw.randint(0, len(other))
            match draw.randrange(6):
                case 0 if at < len(data):
                    data[at] ^= 1 << draw.randrange(8)
                case 1 if at < len(data):
                    data[at] = draw.randrange(256)
                case 2:
                    data[at:at] = draw.choice(ODD)
                case 3:
                    del data[at : min(end, at + 8)]
                case 4:
                    data[at:at] = data[at : min(end, at + 32)]
                case 5:
                    data[at:end] = other[start : start + 64]
        yield bytes(data)
