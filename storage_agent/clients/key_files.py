"""The agent's own key, and who is let in with which exports: files in a folder that only its user can read.

    server.key        the agent's own
    clients/NAME      a public key that is let in, and the exports that it may see
    tokens/NAME       what the loader with that key must hold; to be copied there, and of no use here

Who may change these files decides who is let in: `sophon-agent key` does nothing else; no agent need run, or restart.
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
"""The name of the key that is made with the agent's own."""
LOOK_S = 0.5
"""Keys that were added or removed are noticed within so many seconds."""
MAX_CLIENTS = 4096
"""Keys that are let in; a look at so many files takes some milliseconds."""
_REPLACE = "remove it, then add the key again"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


@dataclass(frozen=True)
class Grant:
    """What a client is let in for.

    Args:
        name: of its key.
        exports: that it may see; None for all.
    """

    name: str = ""
    exports: frozenset[str] | None = None

    def of(self, exports: Sequence[str]) -> Sequence[str]:
        """Those exports that it may see, in their order."""
        return exports if self.exports is None else [name for name in exports if name in self.exports]


EVERYTHING = Grant()
"""What everybody may see at an agent without keys."""


@dataclass(frozen=True)
class Pair:
    """Both halves of a key, 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)

    @staticmethod
    def new() -> Pair:
        """One that nobody else has. No ZeroMQ context may exist yet: libzmq may close the source of random numbers that
        the handshakes of a running one draw from (its issue 4241)."""
        public, secret = zmq.curve_keypair()
        return Pair(z85.decode(public), z85.decode(secret))


class KeyFolder:
    """The files; holds nothing of what is in them.

    Args:
        path: of the folder.

    Raises:
        ConfigError: others may look into it.

    Example:
        >>> keys = KeyFolder(Path("/etc/sophon"))
        >>> keys.add("gpu-7", ["imagenet"])
        PosixPath('/etc/sophon/tokens/gpu-7')
    """

    def __init__(self, path: Path) -> None:
        path = path.absolute()  # it is told for other folders and hosts, in lines to copy
        self.path = path
        self._own, self._clients, self._tokens = path / "server.key", path / "clients", path / "tokens"
        self._owners = [0, os.geteuid()]
        """Users whose files say who is let in: also the folder's owner now, whose keys an agent of root's may use."""
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
        """Where an agent has its keys if it is not told otherwise.

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
        """Whether no agent has a key here yet."""
        return not self._own.exists()

    def own(self) -> Pair:
        """The agent's own key; made if there is none."""
        if self.is_new:
            pair = Pair.new()
            _write_new(self._own, {"public": pair.public.hex(), "secret": pair.secret.hex()})  # or another was faster
        values = _read(self._own, self._owners)
        return Pair(_key(values, "public", self._own), _key(values, "secret", self._own))

    # --- those that are let in --------------------------------------------------------------------------------

    def add(self, name: str, exports: Collection[str] | None = None) -> Path:
        """Let one more in.

        Args:
            name: for the log, and to remove it by.
            exports: that it may see; None for all.

        Returns:
            The file with its token.

        Raises:
            ConfigError: the name is taken, or cannot be one, or nothing can be written; then nobody is let in.
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
        """Give one that is let in another key, for the same exports: its token is void when the agent's own changes.

        Args:
            name: of the key.

        Returns:
            The file with its token.

        Raises:
            ConfigError: it cannot be read, or nothing can be written.
        """
        _, grant = self.grant(name)
        self.remove(name)
        return self.add(name, grant.exports)

    def remove(self, name: str) -> None:
        """Let one in no longer; an agent that runs notices within `LOOK_S`.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.names():
            raise ConfigError(f"name must be one of {self.names()}, got {name!r}; `sophon-agent key list` shows them")
        (self._clients / name).unlink()
        self.token_file(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Of all keys that are let in."""
        return sorted(name for name in os.listdir(self._clients) if _NAME.fullmatch(name))

    def token_file(self, name: str) -> Path:
        """Where the token of a key was written."""
        return self._tokens / name

    def grant(self, name: str) -> tuple[str, Grant]:
        """A public key in hexadecimal digits, and what it is let in for.

        Raises:
            ConfigError: the file is none of `add`.
        """
        path = self._clients / name
        values = _read(path, self._owners)
        exports = values.get("exports")
        if exports is not None and not (isinstance(exports, list) and all(isinstance(one, str) for one in exports)):
            raise ConfigError(f"exports must be a list of names or null, got {exports!r} in {path}")
        return _key(values, "public", path).hex(), Grant(name, None if exports is None else frozenset(exports))

    def state(self) -> object:
        """Is another one when the keys that are let in may have changed, or who can read or write their files.

        Raises:
            OSError: their folder is away, another user's, or one that others may write to by now.
        """
        os.close(open_private_folder(self._clients, kept_from_others=WRITING, follow=True, owners=self._owners))
        with os.scandir(self._clients) as entries:
            states = [(one.name, one.inode(), one.stat()) for one in entries]
        return frozenset((name, inode, of.st_mtime_ns, of.st_ctime_ns) for name, inode, of in states)


class Guests:
    """Who is let in, as the files say now; nobody while they cannot be read.

    Args:
        folder: of the files.
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
        """What a client is let in for; None if it is not.

        Args:
            public: its key in hexadecimal digits.
            newcomer: whether it has only just come, maybe with a key that has only just been added.
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
