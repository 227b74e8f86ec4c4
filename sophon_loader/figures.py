"""Numbers as text for people: few digits, and the unit that fits."""

from __future__ import annotations

_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


def percent(share: float) -> str:
    """Return a share of 1 in whole percent."""
    return f"{100 * share:.0f} %"


def size(nbytes: float) -> str:
    """Return a number of bytes, in the largest unit that gives at least 1."""
    for unit, scale in _SIZES:
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes:.0f} bytes"


def number(value: float) -> str:
    """Return three digits, or all that are before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def per_second(samples_s: float) -> str:
    """Return a rate of samples as text."""
    return f"{number(samples_s)} samples/s"


def duration(seconds: float) -> str:
    """Return seconds as milliseconds, seconds, minutes, hours or days, to two or three digits."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.3g} ms" if seconds else "0 s"
    if seconds < 99.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def counted(count: float, singular: str, plural: str = "") -> str:
    """Return a number of things: "1 sample", "2 samples", "0.25 cores".

    Args:
        count: number of things.
        singular: of the noun.
        plural: of the noun, if it is not `singular` and an s.
    """
    written = number(count)
    return f"{written} {singular if written == '1' else plural or singular + 's'}"
