"""What is agreed on with an agent that starts beside the workers, in memory that the main process writes."""

from __future__ import annotations

from dataclasses import replace

import msgpack

from sophon_loader.client.session import Terms
from sophon_loader.shared import SharedNotes

_NOTE_NBYTES = 1 << 14
"""An address takes some 30 bytes as msgpack, the name of an encoding a dozen; the agent's reach comes on top."""


class SharedTerms:
    """Terms that workers begin without: until the agent has answered, they read files themselves.

    Args:
        proposed: what is known before; its address says only which export.

    Attributes:
        proposed: the same.

    Example:
        >>> shared = SharedTerms(proposed)
        >>> shared.agreed() is None
        True
        >>> shared.set(terms, reach=(3,))
        >>> shared.agreed()
        (Terms(...), (3,))
    """

    def __init__(self, proposed: Terms) -> None:
        self.proposed = proposed
        # A stage is a byte as msgpack.
        self._note = SharedNotes(1, _NOTE_NBYTES + len(proposed.registrations))

    def set(self, terms: Terms, reach: tuple[int, ...]) -> None:
        """Tell the workers.

        Args:
            terms: the proposed ones with what only the agent could say.
            reach: per source, the last stage that the agent reaches.
        """
        endpoint = terms.address.endpoint
        written = self._note.write(0, msgpack.packb([endpoint, terms.instance, terms.allowed, reach]))
        assert written, "an address, a few names and a byte per source must fit"

    def agreed(self) -> tuple[Terms, tuple[int, ...]] | None:
        """The terms, and per source the last stage that the agent reaches; None before they are agreed on."""
        packed = self._note.read(0)
        if not packed:  # nothing yet, or half written
            return None
        endpoint, instance, allowed, reach = msgpack.unpackb(packed)
        known = self.proposed
        address = replace(known.address, endpoint=endpoint)
        return replace(known, address=address, instance=instance, allowed=tuple(allowed)), tuple(reach)
