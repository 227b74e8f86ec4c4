"""Protocol versions, and the handshake's choice of one."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from sophon_loader.errors import VersionMismatch

HANDSHAKE = 0
"""Stamped on Hello, Welcome and Refused: their form never changes, so that any two versions can part politely."""

VERSIONS: tuple[int, ...] = (4, 5)
"""Versions spoken here, oldest first."""


def common_version(theirs: Iterable[int], loader: str = "the loader", agent: str = "the agent") -> int:
    """The newest version that both ends speak, as an agent finds it.

    Args:
        theirs: what the loader speaks.
        loader, agent: the releases of the two, for the text.

    Raises:
        VersionMismatch: there is none; the text shows both sides.
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
