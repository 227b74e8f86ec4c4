"""The agent's own key, and the keys that are let in with their exports: files in a folder that only its user can read.

    server.key        the agent's own key
    clients/NAME      a public key that is let in, and the exports that it may see
    tokens/NAME       the token for the loader with that key; to be copied to it, and not used here

Users who may change these files decide who is let in. `sophon-agent key` does nothing else, so no agent needs to run or
restart.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.utils import z85

from sophon_loader.errors import ConfigError
from sophon_loader.host.private import WRITING, NotPrivate, open_private_folder
from sophon_loader.keys import KEY_NBYTES, Token, config_folder, read_private
from storage_agent.host.log import EventLog

FIRST = "first"
"""Name of the key that is made together with the agent's own."""
LOOK_S = 0.5
"""Seconds within which added and removed keys are noticed."""
MAX_CLIENTS = 4096
"""Maximum number of keys that are let in; a look at that many files takes some milliseconds."""
_REPLACE = "remove it, then add the key again"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True)
class Grant:
    """The permissions of a client.

    Args:
        name: of its key.
        exports: names of the exports that it may see; None for all.
    """

    name: str = ""
    exports: frozenset[str] | None = None

    def of(self, exports: Sequence[str]) -> Sequence[str]:
        """Return the exports that it may see, in their order."""
        return exports if self.exports is None else [name for name in exports if name in self.exports]


EVERYTHING = Grant()
"""Permissions of every client at an agent without keys."""


@dataclass(frozen=True)
class Pair:
    """Both halves of a key, 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> Pair:
        """Make a new random key.

        No ZeroMQ context may exist yet: libzmq may close the source of random numbers that the handshakes of a running
        one draw from (its issue 4241).
        """
        public, secret = zmq.curve_keypair()
        return Pair(z85.decode(public), z85.decode(secret))


class KeyFolder:
    """Reads and writes the files; keeps none of their content.

    Args:
        path: of the folder.

    Raises:
        ConfigError: other users may read it.

    Example:
        >>> keys = KeyFolder(Path("/etc/sophon"))
        >>> keys.add("gpu-7", ["imagenet"])
        PosixPath('/etc/sophon/tokens/gpu-7')
    """

    def __init__(self, path: Path) -> None:
        path = path.absolute()  # messages quote it in lines to copy, for other folders and hosts
        self.path = path
        self._own, self._clients, self._tokens = path / "server.key", path / "clients", path / "tokens"
        self._owners = [0, os.geteuid()]
        """Users whose files are trusted: also the folder's current owner, whose keys root's agent may use."""
        for folder in (path, self._clients, self._tokens):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if folder == path:
                    self._owners.append(path.stat().st_uid)
                os.close(open_private_folder(folder, follow=True, owners=self._owners))
            except NotPrivate as error:
                raise ConfigError(
                    f"keys must be a folder that its owner alone can look into: {error}; chmod 700 {folder}, or name "
                    "another"
                ) from error
            except OSError as error:
                raise ConfigError(f"keys must be a folder that can be made or used, got {folder}: {error}") from error

    @staticmethod
    def usual() -> Path:
        """Return the usual folder of an agent's keys.

        Raises:
            ConfigError: its user has no home.
        """
        folder = config_folder()
        if folder is None:
            raise ConfigError(
                "keys must have a folder, got none, because this user has no home folder; give one by --keys FOLDER, "
                "or set HOME or XDG_CONFIG_HOME"
            )
        return folder / "agent"

    # --- the agent's own --------------------------------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """True if no agent has a key here yet."""
        return not self._own.exists()

    def own(self) -> Pair:
        """Return the agent's own key; makes one if there is none."""
        if self.is_new:
            pair = Pair.new()
            _write_new(self._own, {"public": pair.public.hex(), "secret": pair.secret.hex()})  # or another was faster
        values = _read(self._own, self._owners)
        return Pair(_key(values, "public", self._own), _key(values, "secret", self._own))

    # --- those that are let in --------------------------------------------------------------------------------

    def add(self, name: str, exports: Collection[str] | None = None) -> Path:
        """Let one more key in.

        Args:
            name: for the log, and for its removal.
            exports: names of the exports that it may see; None for all.

        Returns:
            Path of the token.

        Raises:
            ConfigError: the name is taken or not allowed, or the files cannot be written; then the key is not let in.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"name must be a word of letters, digits, '.', '-', '_' and '@', got {name!r}")
        if len(self.names()) >= MAX_CLIENTS:
            raise ConfigError(
                f"at most {MAX_CLIENTS} keys may be let in, got as many; remove one by `sophon-agent key remove NAME`"
            )
        own, pair = self.own(), Pair.new()
        listed = None if exports is None else sorted(set(exports))
        if not _write_new(self._clients / name, {"public": pair.public.hex(), "exports": listed}):
            raise ConfigError(
                f"name must be a new one, got {name!r}; `sophon-agent key remove {name}` ends the old key"
            )
        token = self.token_file(name)
        token.unlink(missing_ok=True)
        try:
            _write_new(token, Token(own.public, pair.public, pair.secret).text())
        except ConfigError:
            (self._clients / name).unlink()
            raise
        return token

    def make_anew(self, name: str) -> Path:
        """Replace a key by a new one for the same exports. Tokens become void when the agent's own key changes.

        Args:
            name: of the key.

        Returns:
            Path of the token.

        Raises:
            ConfigError: the key cannot be read, or the files cannot be written.
        """
        _, grant = self.grant(name)
        self.remove(name)
        return self.add(name, grant.exports)

    def remove(self, name: str) -> None:
        """Stop letting a key in; a running agent notices within `LOOK_S`.

        Raises:
            ConfigError: there is no key of that name.
        """
        if name not in self.names():
            raise ConfigError(f"name must be one of {self.names()}, got {name!r}; `sophon-agent key list` shows them")
        (self._clients / name).unlink()
        self.token_file(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Return the names of all keys that are let in, sorted."""
        return sorted(name for name in os.listdir(self._clients) if _NAME.fullmatch(name))

    def token_file(self, name: str) -> Path:
        """Return the path of a key's token."""
        return self._tokens / name

    def grant(self, name: str) -> tuple[str, Grant]:
        """Return a public key in hexadecimal digits, and its permissions.

        Raises:
            ConfigError: the file was not written by `add`.
        """
        path = self._clients / name
        values = _read(path, self._owners)
        exports = values.get("exports")
        if exports is not None and not (isinstance(exports, list) and all(isinstance(one, str) for one in exports)):
            raise ConfigError(f"exports must be a list of names or null, got {exports!r} in {path}")
        return _key(values, "public", path).hex(), Grant(name, None if exports is None else frozenset(exports))

    def state(self) -> object:
        """Return a value that changes when the keys, or the access to their files, may have changed.

        Raises:
            OSError: their folder is missing, another user's, or writable by others.
        """
        os.close(open_private_folder(self._clients, kept_from_others=WRITING, follow=True, owners=self._owners))
        with os.scandir(self._clients) as entries:
            states = [(one.name, one.inode(), one.stat()) for one in entries]
        return frozenset((name, inode, of.st_mtime_ns, of.st_ctime_ns) for name, inode, of in states)


class Guests:
    """The clients that are let in, by the current files; none while these cannot be read.

    Args:
        folder: the files.
        log: for files that cannot be read.
        clock: monotonic seconds.
    """

    def __init__(self, folder: KeyFolder, log: EventLog, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._log = log
        self._clock = clock
        self._look_at_s = -math.inf
        self._state: object = None
        self._grants: dict[str, Grant] = {}

    def grant(self, public: str, *, newcomer: bool = False) -> Grant | None:
        """Return a client's permissions; None if it is not let in.

        Args:
            public: its key in hexadecimal digits.
            newcomer: True for a client that has just connected, possibly with a key that has just been added.
        """
        if self._clock() >= self._look_at_s or (newcomer and public not in self._grants):
            self._look()
        return self._grants.get(public)

    def _look(self) -> None:
        self._look_at_s = self._clock() + LOOK_S
        try:
            if (state := self._folder.state()) == self._state:
                return
            self._state, names = state, self._folder.names()[:MAX_CLIENTS]
        except OSError as error:
            self._state, names = None, []
            self._log.warning("keys cannot be read", reason=str(error))
        self._grants = {}
        for name in names:
            try:
                public, grant = self._folder.grant(name)
            except ConfigError as error:
                self._log.warning("keys cannot be read", reason=str(error))
            else:
                self._grants[public] = grant


def _write_new(path: Path, what: dict[str, Any] | str) -> bool:
    """Write a file whole or not at all, for its owner alone; False if there is one of that name.

    Raises:
        ConfigError: it cannot be written there.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write((what if isinstance(what, str) else json.dumps(what)) + "\n")
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"keys must be in a folder that can be written to, got {path.parent}: {error}") from error
    return True


def _read(path: Path, owners: Collection[int]) -> dict[str, Any]:
    try:
        values = json.loads(read_private(path, owners))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        values = None
    if not isinstance(values, dict):
        raise ConfigError(f"a file of keys must be one that `sophon-agent key` has written, got {path}; {_REPLACE}")
    return values


def _key(values: dict[str, Any], name: str, path: Path) -> bytes:
    try:
        key = bytes.fromhex(values[name])
        if len(key) == KEY_NBYTES:
            return key
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError(
        f"{name} must be a key of {KEY_NBYTES} bytes in hexadecimal digits, got none in {path}; {_REPLACE}"
    )
