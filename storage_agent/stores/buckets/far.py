"""Objects of S3, GCS and Azure as files of one folder: found in an index, read by the fetching process."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack

from sophon_loader.errors import AgentBusy, ConfigError, SampleError, SampleMissing, SampleUnreadable
from sophon_loader.figures import duration
from storage_agent.host.agent_settings import Indexed
from storage_agent.host.channel import Channel
from storage_agent.host.descriptors import NONE_LEFT
from storage_agent.host.log import EventLog
from storage_agent.stores import refusals
from storage_agent.stores.archives.archive import Archive
from storage_agent.stores.archives.index import OBJECT, BadIndex, Index, IndexEntry
from storage_agent.stores.buckets.fetcher import Fetcher
from storage_agent.stores.buckets.listings import Listings
from storage_agent.stores.buckets.outages import AWAY_S

SCHEMES = ("s3", "gs", "az")
ANSWER_S = 29.0
"""Within so many seconds the fetching process answers, by the time-outs of `objects.py`."""
FETCHED_S = AWAY_S + ANSWER_S
"""Likewise where it waits for a store that is away."""
_LOCATION = re.compile(r"[a-z0-9]+://[A-Za-z0-9][A-Za-z0-9._-]*(/[^?#@]*)?")
_SETTINGS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the agent's environment, or AWS_SKIP_SIGNATURE=true for "
    "a public bucket",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS in the agent's environment to the path of a key's file",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the agent's environment",
}
_ADDRESSES = {
    "s3": "; set AWS_ENDPOINT_URL if it is not Amazon's, and AWS_REGION",
    "gs": "",
    "az": "; set AZURE_STORAGE_ACCOUNT_NAME",
}

_TRUSTED = {
    "s3": "AWS_CA_BUNDLE or SSL_CERT_FILE in the agent's environment, or ca_bundle of the profile that gives the keys,",
    "gs": "SSL_CERT_FILE in the agent's environment",
    "az": "SSL_CERT_FILE in the agent's environment",
}
_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}


class Far(Archive):
    """Reads objects below a prefix of a bucket; see `Store`. Its index has their sizes and versions.

    What is read is the object that was listed: one of another size or version is an error.

    Args:
        export: the export's name, for the texts of errors.
        location: `s3://bucket/prefix`, `gs://` or `az://container/prefix`.
        max_file_nbytes: larger files are refused.
        index_folder: where indexes are kept; None for the usual one.
        found: the index and the fetching process that the agent found at its start; None before that.
        fetcher: the fetching process, for `check` to start; None elsewhere than in the agent's main process.

    Example:
        >>> fetcher = Fetcher()
        >>> store = Far("photos", "s3://photos/train", max_file_nbytes=1 << 28, fetcher=fetcher)
        >>> store.check()
        >>> store.size("cats/1.jpg")
        109648
    """

    def __init__(
        self,
        export: str,
        location: str,
        max_file_nbytes: int,
        *,
        index_folder: Path | None = None,
        found: Indexed | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        super().__init__(export, location, max_file_nbytes, index_folder=index_folder, found=found)
        self._fetcher = fetcher
        self._free: list[_Line] = []
        """Connections to the fetching process that no thread uses at the moment."""

    def check(self) -> None:
        """Take the listing that is kept, or have the objects listed.

        Raises:
            ConfigError: they cannot be served.
        """
        self._check_location()
        listings = self._kept()
        if kept := listings.take():
            path, index = kept
            seconds = time.time() - path.stat().st_mtime
            self._use(path, kept=True)
            EventLog().info("listing taken", export=self._export, age=duration(seconds), objects=len(index))
        else:
            self._list(made := listings.of_this_start())
            path, index = self._named(listings, made)
            self._use(path, kept=False)
        self._hold(index)
        self._index.notes.tell(self._export)
        if not len(self._index):
            raise ConfigError(
                f"export {self._export!r} must be objects that are there, got none at {self._location}; correct the "
                f"prefix{'' if kept is None else ', or list it anew (sophon-agent index)'}"
            )
        if first := next((entry for entry in self._index if entry.container == OBJECT), None):
            self._at_start("look", self._location, first.name.decode(), but="missing")

    def keep_listing(self) -> Path:
        """List the objects for this start and later ones, in place of what was kept; the listing.

        Raises:
            ConfigError: they cannot be listed.
        """
        self._check_location()
        listings = self._kept()
        self._list(new := listings.new())
        Index(new).notes.tell(self._export)
        listings.remove_older(new)
        return new

    def _named(self, listings: Listings, made: Path) -> tuple[Path, Index]:
        try:
            return listings.named(made)
        except (OSError, BadIndex) as error:
            raise ConfigError(
                f"the listing of export {self._export!r} must stay in its folder once it is written, got {error}; see "
                "that nothing else empties the folder, or give the agent another --index-folder"
            ) from error

    def _kept(self) -> Listings:
        assert self._fetcher is not None, "the agent's main process has one"
        return Listings(self._location, self._index_folder, self._fetcher.environment)

    def _check_location(self) -> None:
        scheme = self._location.partition("://")[0]
        if not _LOCATION.fullmatch(self._location):
            raise ConfigError(
                f"export {self._export!r} must be {scheme}://BUCKET or {scheme}://BUCKET/PREFIX, without a user, a "
                "password or options; give credentials in the agent's environment"
            )
        if importlib.util.find_spec("obstore") is None:
            raise ConfigError(
                f"export {self._export!r} must be in a store that the agent can read, but {scheme}:// needs the "
                "package obstore; install it: pip install 'sophon_loader[stores]'"
            )

    def _use(self, index: Path, *, kept: bool) -> None:
        assert self._fetcher is not None, "the agent's main process has one"
        self.found = Indexed(str(index), fetcher=self._fetcher.start(), kept=kept)

    def _list(self, index: Path) -> None:
        self._use(index, kept=False)
        self._at_start("list", self._location, str(index))

    def _at_start(self, *question: object, but: str = "") -> list[Any]:
        """What the fetching process answers; it may fail in one way, of which nothing is said.

        Raises:
            ConfigError: it fails in another.
        """
        try:
            (what, why), *answer = self._asked(None, *question)
        except (EOFError, OSError):
            what, why, answer = "unreadable", "the process that lists it has ended", []
        if what and what != but:
            raise ConfigError(
                f"export {self._export!r} must be a bucket that the agent may list and read, got {self._location}: "
                f"{why}; {self._remedy(self._location.partition('://')[0], what)}"
            )
        return answer

    def expect(self, keys: Sequence[str], nbytes: int | None = None) -> None:
        """Have the fetching process read objects that are read next, as far as it has room, many at once."""
        objects = []
        for key in keys:
            with contextlib.suppress(SampleError):
                if (entry := self._entry(key)) is not None and self._may_come(entry):
                    objects.append(_object(entry, nbytes))
        with contextlib.suppress(EOFError, OSError):
            self._asked(ANSWER_S, "expect", self._location, objects)

    def fetch(self, key: str) -> None:
        """Have the fetching process hold an object for the next `read` of it, or what has gone wrong."""
        with contextlib.suppress(SampleError, EOFError, OSError, AgentBusy):
            entry = self._entry(key)
            if entry is not None and self._may_come(entry):
                name, version = entry.name.decode(), entry.target.decode()
                self._asked(FETCHED_S, "fetch", self._location, name, entry.length, version)

    def _may_come(self, entry: IndexEntry) -> bool:
        return entry.container == OBJECT and entry.length <= self._max_file_nbytes

    def _remedy(self, scheme: str, what: str) -> str:
        remedies = {
            "denied": f"{_SETTINGS[scheme]}; they need the rights to list and to read",
            "unset": _SETTINGS[scheme],
            "none": f"correct its name{_ADDRESSES[scheme]}",
            "away": f"see that this host reaches it{_ADDRESSES[scheme]}",
            "certificate": f"set {_TRUSTED[scheme]} to a file with the certificate (PEM) of the CA that signed it",
            "bundle": "name a file with certificates of CAs (PEM) there",
            "redirect": f"set {_ENDPOINT[scheme]} to the host that answers without a redirect",
            "library": "see that settings in the agent's environment have no line break in them, and that "
            f"{_ENDPOINT[scheme]}, if there is one, is http:// or https:// and a host",
            "region": "set AWS_REGION to the bucket's region",
            "profile": "correct AWS_PROFILE, or log in again (aws sso login)",
            "boto3": "install it: pip install boto3",
            "many": "export a longer prefix",
            "endless": "see that the store's list of this prefix ends (aws s3 ls), or export another prefix",
            "names": "rename it, or export a prefix without it",
        }
        return remedies.get(what, "start the agent again")

    def _missing(self, key: str) -> SampleMissing:
        """The error for a key that was not listed; the store is asked whether the object has come since."""
        if {"", ".", ".."} & set(key.split("/")):  # of which another name is made on the way to the store
            return super()._missing(key)
        with contextlib.suppress(UnicodeError, EOFError, OSError):
            (what, _), *_ = self._asked(ANSWER_S, "look", self._location, key)
            if not what:
                return SampleMissing(
                    f"file must have been listed for export {self._export!r}, got {key!r}, which is in "
                    f"{self._location} now; {self._relist}"
                )
        return super()._missing(key)

    @property
    def _relist(self) -> str:
        """What is to be done where the listing is no longer right."""
        assert self.found is not None
        kept = f"list it anew (sophon-agent index {self._location}) and " if self.found.kept else ""
        return f"{kept}restart the agent"

    def _read(self, entry: IndexEntry, key: str, nbytes: int) -> bytes:
        question = "read", self._location, *_object(entry, nbytes)
        try:
            try:
                (what, why), *data = self._asked(ANSWER_S, *question)
            except EOFError:  # that process has ended, and is started again
                (what, why), *data = self._asked(ANSWER_S, *question)
        except (EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NONE_LEFT:
                raise refusals.no_descriptor() from error
            what, why = "unreadable", "the process that reads it does not answer"
        if not what:
            return bytes(data[0])
        if what == "missing":
            raise SampleMissing(
                f"file must exist in export {self._export!r}, got {key!r}, which {self._location} no longer has; "
                f"{self._relist}"
            )
        if what == "changed":
            raise SampleUnreadable(
                f"objects must stay as they were when they were listed, got {key!r} of export {self._export!r}, which "
                f"has changed in {self._location}; {self._relist}"
            )
        if what in ("denied", "unset", "profile", "region", "certificate", "redirect", "library"):
            why += f"; {self._remedy(self._location.partition('://')[0], what)}, and restart the agent"
        raise refusals.unreadable(self._export, key, f"{self._location}: {why}")

    def _asked(self, within_s: float | None, *question: object) -> list[Any]:
        """What the fetching process answers: (what failed, why), the bytes.

        Raises:
            EOFError: it has ended.
            OSError: it does not answer in time.
        """
        try:
            line = self._free.pop()
        except IndexError:
            assert self.found is not None
            line = _Line(self.found.fetcher)
        try:
            answer = line.asked(within_s, msgpack.packb(question))
        except (EOFError, ConnectionError) as error:
            self._free.clear()  # the others have ended, too
            raise EOFError from error
        self._free.append(line)
        head, *data = answer
        what, why, counted = msgpack.unpackb(head)
        if self._fetcher is not None:
            self._fetcher.told(*counted)
        return [(what, why), *data]


def _object(entry: IndexEntry, nbytes: int | None) -> tuple[object, ...]:
    """What the fetching process knows an object by: its name, size and version, and how much of it is wanted where that
    is not all."""
    what = entry.name.decode(), entry.length, entry.target.decode()
    return what if nbytes is None or nbytes >= entry.length else (*what, nbytes)


class _Line:
    """A connection to the fetching process, for one thread at a time."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._channel = Channel(self._socket)
        self._socket.connect("\0" + address[1:])

    def asked(self, within_s: float | None, question: bytes) -> list[memoryview]:
        """The answer to a question; after an error, the connection is of no use.

        Raises:
            EOFError, ConnectionError: that process has ended.
            OSError: it does not answer in time.
        """
        self._socket.settimeout(within_s)
        self._channel.send([question])
        answer = self._channel.receive()
        assert answer is not None, "a socket that waits has all of it"
        return answer

    def __del__(self) -> None:
        self._socket.close()
