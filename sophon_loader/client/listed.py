"""The files that an agent has listed, as they have come."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import msgpack

from sophon_loader.client.address import Address
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import MalformedMessage
from sophon_loader.wire.fields import check_of, short
from sophon_loader.wire.limits import MAX_LISTING_NBYTES

_LISTED = check_of(list[list[str]])


@dataclass(frozen=True)
class Listed:
    """Not looked into, so that what two agents list can be compared at no cost.

    Args:
        folders: their names, in order.
        payload: their files' names, see `wire.messages.Listing`.
        address: of the agent.
    """

    folders: list[str]
    payload: Payload
    address: Address

    def same(self, other: Listed) -> bool:
        """Whether another agent lists the same files."""
        return self.folders == other.folders and self.payload == other.payload

    def tree(self) -> list[tuple[str, list[str]]]:
        """(folder, names in it), in order.

        Raises:
            MalformedMessage: it cannot be read.
        """
        try:
            packed = zlib.decompressobj().decompress(self.payload, MAX_LISTING_NBYTES)
            files = msgpack.unpackb(packed, unicode_errors="surrogateescape")
        except (zlib.error, ValueError, TypeError, msgpack.UnpackException) as error:
            raise MalformedMessage(f"listing must be readable, got {error} from {self.address}") from error
        if not (_LISTED(files) and len(files) == len(self.folders)):
            raise MalformedMessage(
                f"listing must have a list of names for each of its {len(self.folders)} classes, got "
                f"{short(files)} from {self.address}"
            )
        return list(zip(self.folders, files, strict=True))
