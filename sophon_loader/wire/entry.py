"""An agent's entry in a roster's folder: a JSON file that the agent writes and loaders read. It holds no key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sophon_loader.errors import MalformedMessage

REWRITTEN_S = 5.0
"""Seconds between two writes of an agent's entry."""
GONE_S = 30.0
"""Seconds without a change after which a reader considers the entry's agent gone."""
MAX_ENTRY_NBYTES = 64 << 10
SUFFIX = ".json"
"""End of an entry's name. A name that begins with a dot belongs to a file that is being written."""
MAX_ADDRESSES, MAX_EXPORTS = 16, 4096
MAX_NAME_LENGTH = 255
_HOST = r"(?:[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,32})?\])"
_PLACE = re.compile(rf"({_HOST})(?::([0-9]{{1,5}}))?")
_ENDPOINT = re.compile(rf"tcp://{_HOST}:([0-9]{{1,5}})")
"""Only this form of all that ZeroMQ accepts: no `tcp://source;destination`, no Unix socket, no other transport."""


@dataclass(frozen=True)
class AgentEntry:
    """Addresses, instance and exports of one agent.

    Args:
        addresses: one or more `tcp://host:port` of the agent.
        instance: id from the agent's greeting; each start has another one.
        exports: names of all its exports.

    Example:
        >>> AgentEntry.parse(AgentEntry(["tcp://fileserver:5555"], "5f0c", ["imagenet"]).text()).exports
        ['imagenet']
    """

    addresses: Sequence[str]
    instance: str
    exports: Sequence[str]

    def text(self) -> str:
        """Return the file's content: one line of ASCII."""
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def parse(text: str | bytes) -> AgentEntry:
        """Read what `text` wrote. Fields added by a later release are ignored.

        Raises:
            MalformedMessage: the text, which may be anything, is not an entry.
        """
        if len(text) > MAX_ENTRY_NBYTES:
            raise MalformedMessage(f"an entry must have at most {MAX_ENTRY_NBYTES >> 10} KiB, got more")
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedMessage(f"an entry must be JSON: {type(error).__name__}") from error
        if not isinstance(values, dict):
            raise MalformedMessage(f"an entry must be a JSON object, got {type(values).__name__}")
        addresses = _names(values, "addresses", MAX_ADDRESSES)
        for address in addresses:
            if not is_endpoint(address):
                raise MalformedMessage(f"an agent's address must be tcp://HOST:PORT, got {address[:80]!r}")
        if not addresses:
            raise MalformedMessage("an entry must have an address, got none")
        instance = values.get("instance", "")
        if not isinstance(instance, str) or len(instance) > MAX_NAME_LENGTH:
            raise MalformedMessage("an entry's instance must be a short text, got something else")
        return AgentEntry(addresses, instance, _names(values, "exports", MAX_EXPORTS))


def is_endpoint(text: str) -> bool:
    """Return True if the text is `tcp://HOST:PORT`; an IPv6 address needs brackets."""
    match = _ENDPOINT.fullmatch(text)
    return match is not None and 0 < int(match[1]) < 1 << 16


def host_and_port(text: str) -> tuple[str, int | None] | None:
    """Return (host, port or None) of `HOST[:PORT]`; None if the text is something else."""
    match = _PLACE.fullmatch(text)
    if match is None:
        return None
    port = None if match[2] is None else int(match[2])
    return None if port is not None and not 0 < port < 1 << 16 else (match[1], port)


def _names(values: dict[str, object], name: str, most: int) -> list[str]:
    found = values.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise MalformedMessage(f"{name} of an entry must be a list of at most {most} texts, got something else")
    if not all(isinstance(one, str) and 0 < len(one) <= MAX_NAME_LENGTH + len("tcp://[]:65535") for one in found):
        raise MalformedMessage(f"{name} of an entry must be short texts, got something else")
    return found
