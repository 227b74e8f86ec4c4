"""Token that opens a connection to an agent that has keys, and the places where a loader looks for it.

The keys are those of ZeroMQ's CURVE: X25519, and every message sealed with XSalsa20-Poly1305.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from sophon_loader.errors import ConfigError
from sophon_loader.host.private import ALL_ACCESS, WRITING

PREFIX = "sophon1_"
ENVIRONMENT = "SOPHON_KEY"
KEY_NBYTES = 32
_CHECKSUM_NBYTES = 6
_MAX_FILE_NBYTES = 4096


@dataclass(frozen=True)
class Token:
    """A loader's token as one text: the agent's public key, and both halves of the loader's own.

    Args:
        server: the agent's public key, 32 bytes.
        public: the loader's public key, by which the agent knows it.
        secret: the loader's secret key; its holder is let in.
        origin: file or variable that it came from, for errors.

    Example:
        >>> Token.parse(token.text()) == token
        True
    """

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)
    origin: str = field(default="", compare=False)

    def text(self) -> str:
        """Return letters, digits, `-` and `_`: safe in any shell, file and quote."""
        keys = self.server + self.public + self.secret
        return PREFIX + base64.urlsafe_b64encode(_checksum(keys) + keys).decode()

    @staticmethod
    def parse(text: str, origin: str = "a text") -> Token:
        """Return the token that `text` wrote.

        Args:
            text: white space around it does not matter.
            origin: see `Token`; errors must not contain the text itself.

        Raises:
            ConfigError: the text is not a token, or mistyped.
        """
        text = text.strip()
        try:
            if not text.startswith(PREFIX) or not text.isascii():
                raise ValueError
            packed = base64.b64decode(text[len(PREFIX) :], altchars=b"-_", validate=True)
        except ValueError:
            packed = b""
        checksum, keys = packed[:_CHECKSUM_NBYTES], packed[_CHECKSUM_NBYTES:]
        if len(keys) != 3 * KEY_NBYTES or _checksum(keys) != checksum:
            raise ConfigError(
                f"key must begin with {PREFIX} and be copied whole, got {origin}, which is not such a key; "
                "copy it once more from the file that `sophon-agent key add` names"
            )
        server, public, secret = (keys[at : at + KEY_NBYTES] for at in range(0, len(keys), KEY_NBYTES))
        return Token(server, public, secret, origin)


def token_for(endpoint: str, given: str | None) -> Token | None:
    """Return the token for an agent; None if there is none.

    It is the given one, else that of the environment variable `SOPHON_KEY`, else that of the file named after the agent
    in the usual folder (`file_of`).

    Args:
        endpoint: of the agent, `tcp://host:port`.
        given: a token, or the path of a file that holds one.

    Raises:
        ConfigError: the text is not a token, the file cannot be read, or users other than its owner may read it.
    """
    if given is not None:
        return _read(given, "key")
    if text := os.environ.get(ENVIRONMENT):
        return _read(text, ENVIRONMENT)
    path = file_of(endpoint)
    # Not by `Path.exists`, which raises where a name is too long for any file.
    if path is None or not os.path.exists(path):
        return None
    return _read_file(path, _trusted_in(path.parent))


def file_of(endpoint: str) -> Path | None:
    """Return the path of the file for an agent's token; None for a user without a home.

    Args:
        endpoint: `tcp://host:port`.

    Example:
        >>> file_of("tcp://fileserver:5555")
        PosixPath('/home/me/.config/sophon/keys/fileserver:5555')
    """
    folder = config_folder()
    return None if folder is None else folder / "keys" / token_name(endpoint)


def token_name(endpoint: str) -> str:
    """Return the name of the file for an agent's token: `fileserver:5555` for that host and port."""
    return endpoint.partition("://")[2].replace("/", "_")


def config_folder() -> Path | None:
    """Return `$XDG_CONFIG_HOME/sophon`, or `~/.config/sophon`; None for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return Path(base) / "sophon" if os.path.isabs(base) else None


def read_private(path: Path, owners: Collection[int] | None = None) -> str:
    """Return the text of a file that only its owner can read.

    Args:
        path: of the file.
        owners: user ids that may own it; None for any. Only root can read other users' files, and in a container root
            may well use the keys of the user who has started it.

    Raises:
        ConfigError: it cannot be read, others can read it, or another user owns it.
    """
    try:
        with open(path, encoding="ascii") as file:
            status = os.fstat(file.fileno())
            text = file.read(_MAX_FILE_NBYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"a key file must be readable, got {path}: {error}") from error
    mode = status.st_mode & 0o777
    if mode & ALL_ACCESS:
        raise ConfigError(
            f"a key file must be readable by its owner alone, got {path} with mode {mode:o}; run `chmod 600 {path}`"
        )
    if owners is not None and status.st_uid not in owners:
        raise ConfigError(
            f"a key file must belong to this user, to root, or to the owner of the folder of keys, got {path} of "
            f"uid {status.st_uid}; see who may write to the folders above it"
        )
    return text


def _read(given: str, name: str) -> Token:
    if given.lstrip().startswith(PREFIX):
        return Token.parse(given, f"the text of {name}")
    path = Path(os.path.expanduser(given))
    if not path.is_file():
        # Only what looks like a path is shown: else it may be a secret that was mistyped.
        what = "which is not a file" if path.exists() else "which does not exist"
        got = f"{str(path)!r}, {what}" if given and ("/" in given or "." in given or path.exists()) else "neither"
        raise ConfigError(
            f"{name} must be a text that begins with {PREFIX}, or the path of a file with such a text, got {got}; run "
            "`sophon-agent key add NAME` at the agent, copy the file that it makes to this host, and give its path"
        )
    return _read_file(path)


def _read_file(path: Path, owners: Collection[int] | None = None) -> Token:
    return Token.parse(read_private(path, owners), f"the file {path}")


def _trusted_in(folder: Path) -> Collection[int] | None:
    """Return user ids whose tokens may lie in a folder; None for any, if no other user can have put one there.

    It matters to root alone, who can read all of them: a token names the agent that is connected to.
    """
    try:
        status = folder.stat()
    except OSError as error:
        raise ConfigError(f"a key file must lie in a folder that can be looked at, got {folder}: {error}") from error
    own = (os.geteuid(), 0)
    if status.st_mode & WRITING or status.st_uid not in own:
        return (*own, status.st_uid)
    return None


def _checksum(keys: bytes) -> bytes:
    return hashlib.sha256(keys).digest()[:_CHECKSUM_NBYTES]
