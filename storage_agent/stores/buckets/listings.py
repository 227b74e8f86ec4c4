"""Listings of far stores that `sophon-agent index` keeps in the folder of indexes, for the starts of agents."""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from storage_agent.stores.archives.index import UNFINISHED, Index, keep_as, open_whole, remove_unused
from storage_agent.stores.archives.indexing import private_index_folder, remove_unfinished

_SUFFIX = ".listing"
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME",)
"""Names of containers are those of an account; names of buckets are everybody's at Amazon and Google."""


def endpoint_of(location: str, environment: Mapping[str, str]) -> str:
    """The URL of the server that the environment names for a location; "" for the provider's own."""
    names = _ENDPOINTS[location.partition("://")[0]]
    return next((environment[name] for name in names if environment.get(name)), "").rstrip("/")


def _server_of(location: str, environment: Mapping[str, str]) -> str:
    """What tells the servers and accounts apart where a location is another one's; "" for the provider's own."""
    accounts = [environment.get(name, "") for name in _ACCOUNTS] if location.startswith("az:") else []
    return "\0".join(filter(None, [endpoint_of(location, environment), *accounts]))


class Listings:
    """The listings of one location, the newest last; owned by the agent's main process, or by `sophon-agent index`.

    A listing that an agent serves stays locked (see `Index`), and so is not removed: the agent's workers may be started
    again.

    Args:
        location: `s3://bucket/prefix`, `gs://` or `az://container/prefix`.
        folder: where indexes are kept; None for the usual one.
        environment: names the server, unless it is the provider's own.

    Raises:
        ConfigError: there is no such folder.

    Example:
        >>> listings = Listings("s3://photos/train", None, os.environ)
        >>> path, index = listings.take()
        >>> path
        PosixPath('/home/ann/.cache/sophon/indexes/5f0c...-01795776000000000000.listing')
    """

    def __init__(self, location: str, folder: Path | None, environment: Mapping[str, str]) -> None:
        self._folder = private_index_folder(folder)
        server = _server_of(location, environment)
        named = f"{location.rstrip('/')}\0{server}" if server else location.rstrip("/")
        self._which = hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    def of_this_start(self) -> Path:
        """Where an agent's start lists to, if it takes no listing that is kept; for `named` then."""
        return self._folder / f"{UNFINISHED}{self._which}-{os.getpid()}-{secrets.token_hex(8)}"

    def named(self, made: Path) -> tuple[Path, Index]:
        """The listing of this start by a name that says what is in it, and it, opened; unlike ones stay side by side.

        Raises:
            BadIndex: it is none.
            OSError: it cannot be named.
        """
        path = self._folder / f"{self._which}-{Index(made).digest.hex()}.index"
        index = keep_as(made, path)
        remove_unused(one for one in self._folder.glob(f"{self._which}-*.index") if one != path)
        remove_unfinished(self._folder)
        return path, index

    def new(self) -> Path:
        """Where the next listing is to be written."""
        return self._folder / f"{self._which}-{time.time_ns():020}{_SUFFIX}"

    def take(self) -> tuple[Path, Index] | None:
        """The newest that is whole, and it, opened; None if there is none."""
        for path in reversed(self._all()):
            if (index := open_whole(path)) is not None:
                return path, index
        return None

    def remove_older(self, than: Path) -> None:
        """Remove the others, unless an agent serves them, and what processes that were killed have left."""
        remove_unused((path for path in self._all() if path < than), older_than_s=0)
        remove_unfinished(self._folder)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._which}-*{_SUFFIX}"))
