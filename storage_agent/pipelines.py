"""The pipelines that the agent remembers."""

from __future__ import annotations

from collections import OrderedDict

from sophon_loader.wire.limits import MAX_PIPELINES

MAX_TOTAL_NBYTES = 256 << 20
"""Of all registrations together: 64 of the largest; an ordinary one has 300 bytes."""


class Pipelines:
    """Registrations by digest. Beyond the limits the one used longest ago is forgotten; its loader registers it again.

    Example:
        >>> pipelines = Pipelines()
        >>> pipelines.keep("digest", b"registration")
        >>> pipelines.get("digest")
        b'registration'
    """

    def __init__(self) -> None:
        self._registrations: OrderedDict[str, bytes] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._registrations)

    def __contains__(self, digest: str) -> bool:
        return digest in self._registrations

    def get(self, digest: str) -> bytes | None:
        """The registration, which is used by that, or None when it is not known, or not any more."""
        if digest in self._registrations:
            self._registrations.move_to_end(digest)
        return self._registrations.get(digest)

    def keep(self, digest: str, registration: bytes) -> None:
        """Remember a registration as the newest.

        Args:
            digest: its content hash.
            registration: see `pipeline/registration.py`.
        """
        self._nbytes += len(registration) - len(self._registrations.pop(digest, b""))
        self._registrations[digest] = registration
        while len(self._registrations) > MAX_PIPELINES or self._nbytes > MAX_TOTAL_NBYTES:
            self._nbytes -= len(self._registrations.popitem(last=False)[1])
