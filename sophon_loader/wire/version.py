"""Protocol versions, and the handshake's choice of one."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

from sophon_loader.errors import VersionMismatch

HANDSHAKE = 0
"""Stamped on Hello, Welcome and Refused: their form never changes, so that any two versions can part politely."""

VERSIONS: tuple[int, ...] = (4,)
"""Versions spoken here, oldest first."""


def common_version(theirs: Iterable[int]) -> int:
    """The newest version that both ends speak.

    Raises:
        VersionMismatch: there is none; the text shows both sides.
    """
    offered = sorted(set(theirs))
    shared = set(VERSIONS).intersection(offered)
    if not shared:
        raise VersionMismatch(
            f"protocol version must be one of {list(VERSIONS)} here, got an offer of {reprlib.repr(offered)}; "
            "install the same release of sophon_loader on both hosts"
        )
    return max(shared)
