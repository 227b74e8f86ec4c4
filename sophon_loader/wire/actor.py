"""Text by which an actor of a Ray cluster describes its agent, as Ray's head lists it. It holds no key."""

from __future__ import annotations

from collections.abc import Iterable

from sophon_loader.wire.entry import is_endpoint

ACTOR_CLASS = "SophonAgent"
"""Name of the actor's class, by which loaders find it."""


def actor_text(endpoint: str, exports: Iterable[str]) -> str:
    """Return the actor's `repr`: the agent's address, then the names of its exports.

    Args:
        endpoint: `tcp://host:port`.
        exports: names without spaces.

    Example:
        >>> actor_text("tcp://10.0.0.7:40123", ["imagenet"])
        'tcp://10.0.0.7:40123 imagenet'
    """
    return " ".join([endpoint, *exports])


def parse_actor(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Return (endpoint, exports' names) of what `actor_text` wrote; None for any other text."""
    endpoint, *exports = text.split(" ")
    return (endpoint, tuple(exports)) if is_endpoint(endpoint) and all(exports) else None
