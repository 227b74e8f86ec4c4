"""What an actor of a Ray cluster that keeps an agent says of it: one text, which Ray's head lists. No key in it."""

from __future__ import annotations

from collections.abc import Iterable

from sophon_loader.wire.entry import is_endpoint

ACTOR_CLASS = "SophonAgent"
"""The name of the actor's class, by which loaders find it."""


def actor_text(endpoint: str, exports: Iterable[str]) -> str:
    """The actor's `repr`: where its agent listens, and the names of what that serves.

    Example:
        >>> actor_text("tcp://10.0.0.7:40123", ["imagenet"])
        'tcp://10.0.0.7:40123 imagenet'
    """
    return " ".join([endpoint, *exports])


def parse_actor(text: str) -> tuple[str, tuple[str, ...]] | None:
    """The inverse of `actor_text`; None for any other text."""
    endpoint, *exports = text.split(" ")
    return (endpoint, tuple(exports)) if is_endpoint(endpoint) and all(exports) else None
