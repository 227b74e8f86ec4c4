"""Facts of the agent's own host: commands that copy a key to a loader's host, and a key for questions from here."""

from __future__ import annotations

import getpass
import shlex
import socket
from pathlib import Path

from sophon_loader.errors import ConfigError
from sophon_loader.host.endpoints import host_of
from sophon_loader.keys import Token, read_private, token_name
from storage_agent.clients.key_files import FIRST, KeyFolder

_ANY = ("0.0.0.0", "[::]", "*")
"""Hosts that mean all interfaces: other hosts know this one by its name."""


def how_to_copy(token: Path, endpoint: str, *, port_known: bool = True) -> str:
    """Return the two shell lines that put a key where loaders look for it.

    Args:
        token: the file with it, on this host.
        endpoint: `tcp://host:port` at which the agent listens.
        port_known: True if that is the agent's port, and not only the usual one.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    name = socket.gethostname() if host in _ANY else host
    if is_this_host(endpoint) and host not in _ANY:
        copy = f"cp -p {shlex.quote(str(token))}"
    else:
        copy = f"scp -p {_user_at()}{name}:{shlex.quote(str(token))}"
    address = f"tcp://{name}:{port}" if endpoint.startswith("tcp://") else endpoint
    guessed = "" if port_known else f" {port} is the agent's port unless its --bind says another: then write that one."
    return (
        "sophon-agent: a loader is let in once its user has run these two lines on its host:\n"
        "  mkdir -p -m 700 ~/.config/sophon/keys\n"
        f"  {copy} ~/.config/sophon/keys/{token_name(address)}\n"
        f"sophon-agent: loaders then write {address}/EXPORT.{guessed} A loader that knows this host by another name "
        "writes that one, and the second line must have the same host and port"
    )


def _user_at() -> str:
    """Return this user's name for `scp`; "" for a number without a name, which containers may have."""
    try:
        return f"{getpass.getuser()}@"
    except (KeyError, OSError):  # the second from Python 3.13 on
        return ""


def token_here(endpoint: str) -> Token | None:
    """Return a token from the usual folder of this user's agents; None without one, or for another host's endpoint.

    Args:
        endpoint: `tcp://host:port`.
    """
    try:
        usual = KeyFolder.usual()
        if not is_this_host(endpoint) or not (usual / "server.key").exists():
            return None
        return _token_of(KeyFolder(usual))
    except (ConfigError, OSError):  # for instance another user's
        return None


def token_in(folder: Path) -> Token:
    """Return a token out of a folder of keys that an agent serves with.

    Args:
        folder: as given to `serve --keys`.

    Raises:
        ConfigError: the folder cannot be used, or holds no token.
    """
    if (folder / "server.key").exists() and (token := _token_of(KeyFolder(folder))) is not None:
        return token
    raise ConfigError(
        f"--keys must be the folder that the agent serves with, with its key and a token, got {folder}; see `serve "
        "--keys`, or show another key with --key FILE"
    )


def _token_of(keys: KeyFolder) -> Token | None:
    """Return the token that shows most, the first loader's before others; None if there is none."""
    names = sorted(keys.names(), key=lambda name: (keys.grant(name)[1].exports is not None, name != FIRST, name))
    tokens = [keys.token_file(name) for name in names if keys.token_file(name).exists()]
    return Token.parse(read_private(tokens[0]), f"the file {tokens[0]}") if tokens else None


def is_this_host(endpoint: str) -> bool:
    """Return True if only a process of this host can listen there: its address is one that can be bound here."""
    if not endpoint.startswith("tcp://"):
        return endpoint.startswith("ipc://")
    try:
        found = socket.getaddrinfo(host_of(endpoint), 0, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: object) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)  # type: ignore[arg-type]
        except OSError:
            return False
    return True
