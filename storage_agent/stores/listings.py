"""Listings of far stores that `sophon-agent index` keeps in the folder of indexes, for the starts of agents."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from pathlib import Path

from storage_agent.stores.indexing import is_whole, private_index_folder, remove_unfinished

_SUFFIX = ".listing"


class Listings:
    """The listings of one location, the newest last; owned by the agent's main process, or by `sophon-agent index`.

    A listing that an agent serves stays locked, and so is not removed: the agent's workers may be started again.

    Args:
        location: `s3://bucket/prefix`, `gs://` or `az://container/prefix`.
        folder: where indexes are kept; None for the usual one.

    Raises:
        ConfigError: there is no such folder.

    Example:
        >>> listings = Listings("s3://photos/train", None)
        >>> listings.take()
        PosixPath('/home/ann/.cache/sophon/indexes/5f0c...-01795776000000000000.listing')
    """

    def __init__(self, location: str, folder: Path | None) -> None:
        self._lock = -1
        """Descriptor of the listing that is served."""
        self._folder = private_index_folder(folder)
        self._which = hashlib.sha256(location.rstrip("/").encode()).hexdigest()[:24]

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
