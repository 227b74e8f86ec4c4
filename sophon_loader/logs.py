"""Lines of the logs of loader and agent: an event, then facts as key=value."""

from __future__ import annotations

import json
import re

_UNQUOTED = re.compile(r"[\w.,:/@%+~*?-]+")
"""Text that can only be read as one value; it excludes `[`, so that a list is always JSON."""


def log_line(event: str, /, **facts: object) -> str:
    """Return a line of the log.

    Args:
        event: what has happened, in a few words.
        facts: by name. Text of plain characters is written as it is, and a number with at most three digits after the
            point. All else is JSON: other text is in quotes, with escapes for what cannot be printed; None is null.

    Example:
        >>> log_line("agent given up", agent="tcp://fileserver:5555/imagenet", reason="got silence for 10 s")
        'agent given up agent=tcp://fileserver:5555/imagenet reason="got silence for 10 s"'
    """
    return " ".join([event, *(f"{name}={_written(value)}" for name, value in facts.items())])


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if value is None or isinstance(value, int | list | dict):
        return _json(value)
    text = str(value)
    return text if _UNQUOTED.fullmatch(text) else _json(text)


def _json(value: object) -> str:
    """Return JSON on one line, with escapes for characters that a terminal would obey or cannot show."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value, separators=(",", ":"))
