"""Listings of far stores that `sophon-agent index` keeps in the folder of indexes, for the starts of agents."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from storage_agent.stores.indexing import is_whole, private_index_folder, remove_unfinished

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

    A listing that an agent serves stays locked, and so is not removed: the agent's workers may be started again.

    Args:
        location: `s3://bucket/prefix`, `gs://` or `az://container/prefix`.
        folder: where indexes are kept; None for the usual one.
        environment: names the server, unless it is the provider's own.

    Raises:
        ConfigError: there is no such folder.

    Example:
        >>> listings = Listings("s3://photos/train", None, os.environ)
        >>> listings.take()
        PosixPath('/home/ann/.cache/sophon/indexes/5f0c...-01795776000000000000.listing')
    """

    def __init__(self, location: str, folder: Path | None, environment: Mapping[str, str]) -> None:
        self._lock = -1
        """Descriptor of the listing that is served."""
        self._folder = private_index_folder(folder)
        server = _server_of(location, environment)
        named = f"{location.rstrip('/')}\0{server}" if server else location.rstrip("/")
        self._which = hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:24]

    def of_this_start(self) -> Path:
        """Where an agent's start lists to, if it takes no listing that is kept."""
        return self._folder / f"{self._which}-far.index"

    def new(self) -> Path:
        """Where the next listing is to be written."""
        return self._folder / f"{self._which}-{time.time_ns():020}{_SUFFIX}"

    def take(self) -> Path | None:
        """The newest that is whole, locked; None if there is none."""
        for path in reversed(self._all()):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if is_whole(path):
                    self._lock = descriptor
                    return path
                os.close(descriptor)
        return None

    def remove_older(self, than: Path) -> None:
        """Remove the others, unless an agent serves them, and what processes that were killed have left."""
        for path in self._all():
            if path < than:
                with contextlib.suppress(OSError), path.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
        remove_unfinished(self._folder)

    def __del__(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._which}-*{_SUFFIX}"))
