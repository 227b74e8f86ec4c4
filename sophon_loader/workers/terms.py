"""What is agreed on with an agent that comes when the workers run, in memory that the main process writes."""

from __future__ import annotations

from dataclasses import replace

import msgpack

from sophon_loader.client.session import Terms
from sophon_loader.host.shared import SharedNotes

_NOTE_NBYTES = 1 << 15
"""An address takes some 30 bytes as msgpack, the name of an encoding a dozen, a folder at most 4096; the agent's reach
comes on top."""


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
        >>> shared.set(terms, reach=(3,), place=("train", ""))
        >>> shared.agreed()
        (Terms(...), (3,), ("train", ""))
    """

    def __init__(self, proposed: Terms) -> None:
        self.proposed = proposed
        # A stage is a byte as msgpack.
        self._note = SharedNotes(1, _NOTE_NBYTES + len(proposed.registrations))

    def set(self, terms: Terms, reach: tuple[int, ...], place: tuple[str, str] = ("", "")) -> None:
        """Tell the workers.

        Args:
            terms: the proposed ones with what only the agent could say.
            reach: per source, the last stage that the agent reaches.
            place: where the files are, see `Locations`.
        """
        found = [terms.address.endpoint, terms.instance, terms.allowed, terms.options.window, reach, place]
        written = self._note.write(0, msgpack.packb(found, unicode_errors="surrogateescape"))
        assert written, "an address, a few names, two folders and a byte per source must fit"

    def agreed(self) -> tuple[Terms, tuple[int, ...], tuple[str, str]] | None:
        """The terms, per source the last stage that the agent reaches, and where the files are; None before that."""
        packed = self._note.read(0)
        if not packed:  # nothing yet, or half written
            return None
        endpoint, instance, allowed, window, reach, place = msgpack.unpackb(packed, unicode_errors="surrogateescape")
        known = self.proposed
        address, options = replace(known.address, endpoint=endpoint), replace(known.options, window=window)
        terms = replace(known, address=address, instance=instance, allowed=tuple(allowed), options=options)
        return terms, tuple(reach), (place[0], place[1])
