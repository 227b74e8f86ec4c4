"""`tcp://host:port/export[/folder]`: where an agent listens and which part of which export is meant."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from sophon_loader.errors import ConfigError
from sophon_loader.keys import Token, token_for

_FORM = re.compile(r"(tcp://[^/\s]+:\d{1,5})/([^/\s]+)(?:/(.*?))?/*")


@dataclass(frozen=True)
class Address:
    """An agent's endpoint, the export's name, a folder in it ("" for the export itself), and what opens connections
    (None for an agent without keys).

    Example:
        >>> Address.parse("tcp://fileserver:5555/photos/train")
        Address(endpoint='tcp://fileserver:5555', export='photos', folder='train')
    """

    endpoint: str
    export: str
    folder: str = ""
    token: Token | None = field(default=None, repr=False, compare=False)
    keyed_as: str = field(default="", repr=False, compare=False)
    """What its key is filed under, where that is not the endpoint: what the user wrote of an agent that was found."""

    def __str__(self) -> str:
        return "/".join(part for part in (self.endpoint, self.export, self.folder) if part)

    def key(self, key: str) -> str:
        """The path in the export of what lies at the path `key` in the address's folder."""
        return f"{self.folder}/{key}" if self.folder else key

    def with_key(self, key: str | None) -> Address:
        """This address with what opens connections to it, if there is anything.

        Args:
            key: a token or the path of its file; None to look where `keys.token_for` does.

        Raises:
            ConfigError: there is something, but no token.
        """
        return replace(self, token=token_for(self.endpoint, key))

    @staticmethod
    def parse(text: str) -> Address:
        """Read an address.

        Raises:
            ConfigError: it is not of the form `tcp://host:port/export[/folder]`.
        """
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None or not 0 < int(match[1].rsplit(":", 1)[1]) < 1 << 16:
            raise ConfigError(
                f"agent must be 'local', None or an address like tcp://fileserver:5555/imagenet, got {text!r}"
                f"{_lacking(text)}"
            )
        endpoint, export, folder = match.groups()
        return Address(endpoint, export, folder or "")


def _lacking(text: object) -> str:
    """What an address that is none lacks, and the remedy, for the end of a sentence."""
    if not isinstance(text, str):
        return "; write it as a text"
    if text.strip() != text or any(character.isspace() for character in text):
        return ", which has white space in it; remove that"
    if not text.startswith("tcp://"):
        scheme, separator, rest = text.rpartition("://")
        rest = rest or "fileserver:5555/imagenet"
        if scheme in ("file", "ray", "rays"):
            what = "a folder" if scheme == "file" else "a Ray cluster"
            return f", which names {what} of agents; give it by itself, to a loader or a RemoteImageFolder"
        if separator:
            return f", but agents do not speak {scheme}://; write tcp://{rest}"
        return f": it lacks tcp://; write tcp://{re.sub('^tcp:?/+', '', rest)}"
    host, _, export = text.removeprefix("tcp://").partition("/")
    name, _, port = host.rpartition(":")
    if not name or not port.isdecimal():
        return ": it lacks the host or the port; write tcp://HOST:PORT/EXPORT, as `sophon-agent serve` has it at --bind"
    if not 0 < int(port) < 1 << 16:
        return f", whose port is {port}; a port is from 1 to 65535, by default 5555"
    if not export.strip("/"):
        return ": it lacks the export; add the NAME of --export NAME=FOLDER: " + text.rstrip("/") + "/NAME"
    return ", which has an empty part; what follows the port is the name of an export"
