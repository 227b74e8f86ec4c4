"""Lines of the loader's log: an event, then facts as key=value."""

from __future__ import annotations

import json
import re

_UNQUOTED = re.compile(r"[^\s\"'=]+")
"""Text that nobody can take for more than one value."""


def log_line(event: str, **facts: object) -> str:
    """A line of the log.

    Args:
        event: what has happened, in a few words.
        facts: by name; text in quotes where it has spaces, a number to three digits after the point at most.

    Example:
        >>> log_line("agent given up", agent="tcp://fileserver:5555/imagenet", reason="got silence for 10 s")
        'agent given up agent=tcp://fileserver:5555/imagenet reason="got silence for 10 s"'
    """
    return " ".join([event, *(f"{name}={_written(value)}" for name, value in facts.items())])


def _written(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    text = str(value)
    return text if _UNQUOTED.fullmatch(text) else json.dumps(text, ensure_ascii=False)
