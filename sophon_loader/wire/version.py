"""Protocol versions, and the choice of one in the handshake."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from sophon_loader.errors import VersionMismatch

HANDSHAKE = 0
"""Version of Hello, Welcome and Refused. Their form never changes, so that any two releases can part with a clear
message."""

VERSIONS: tuple[int, ...] = (4, 5)
"""Versions that this release speaks, oldest first."""


def common_version(theirs: Iterable[int], loader: str = "the loader", agent: str = "the agent") -> int:
    """Return the newest version that both ends speak, computed by the agent.

    Args:
        theirs: versions of the loader.
        loader, agent: their releases, for the message.

    Raises:
        VersionMismatch: no version is shared; the message shows both sides.
    """
    offered = sorted(set(theirs))
    shared = set(VERSIONS).intersection(offered)
    if not shared:
        here, there = list(VERSIONS), reprlib.repr(offered)
        older = "loader" if max(offered, default=0) < max(VERSIONS) else "agent"
        raise VersionMismatch(
            f"both ends must speak one version of the protocol, got {there} from {reprlib.repr(loader)} "
            f"and {here} from {agent}; upgrade the {older}'s host first, so that both have the same release"
        )
    return max(shared)
