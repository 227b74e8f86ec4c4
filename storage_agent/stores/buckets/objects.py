"""Objects of S3, GCS and Azure by obstore: listed into an index, and read as they were listed.

Runs in the fetching process alone. No text of obstore's leaves it, since addresses may have signatures in them.
"""

from __future__ import annotations

import functools
import json
import os
import random
import struct
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError, InvalidPathError
from obstore.store import AzureStore, GCSStore, S3Store
from tqdm import tqdm

from sophon_loader.wire.limits import MAX_KEY_NBYTES
from storage_agent.stores.archives.index import FOLDER, MAX_LENGTH, OBJECT, IndexEntry, write_index
from storage_agent.stores.archives.members import ArchiveRefused, LeftOut
from storage_agent.stores.archives.notes import Found, Notes
from storage_agent.stores.buckets.client import NoBundle, client_options
from storage_agent.stores.buckets.failing import AWAY, NO_PROFILE, StoreFailed, failed, shown, slows_down
from storage_agent.stores.buckets.outages import AWAY_S, Outages
from storage_agent.stores.buckets.profiles import NoBoto3, NoProfile, Profile, profile

AGAIN_WITHIN_S = 8.0
"""A read that a worker or reader thread waits for is begun again within so many seconds: others need the thread. A
fetch, for which no worker waits, has `AWAY_S`."""
_AGAIN = {**dict.fromkeys(AWAY, sys.maxsize), "cut": 12, "unreadable": 1}
"""What has gone wrong -> how often it is tried again, within the seconds; what is not here is not tried again."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 1.0
_RETRIES = {
    "max_retries": 12,
    "retry_timeout": timedelta(seconds=12),
    "backoff": {
        "init_backoff": timedelta(seconds=_FIRST_PAUSE_S),
        "max_backoff": timedelta(seconds=_MAX_PAUSE_S),
        "base": 2,
    },
}
"""Of lists and looks. Reads are begun again here: obstore does not tell how often it has been asked to slow down, and
goes on with a body that was cut, instead of reading it whole."""
_RENEWED_PAUSE_S = 0.2
"""Obstore does not ask for credentials again within 0.1 s."""
_NO_RETRIES = {**_RETRIES, "max_retries": 0}
NEXT_WITHIN_S = 120.0
"""A list gives its next objects within so many seconds, or is refused: a store may give pages without objects for ever,
which obstore reads on and does not count."""
MAX_OBJECTS = 1 << 24
"""Of one location; 120 bytes each while they are listed."""
_NBYTES = struct.Struct(">I")
_AT = "at "
"""How a version begins that is a time of change; no ETag has a space."""
_MD5_OF_NOTHING = "d41d8cd98f00b204e9800998ecf8427e"
"""The ETag, with or without a number of parts, of objects that SeaweedFS has copied in chunks."""


class Counts:
    """What has been counted since this process started; safe under threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.slow_downs = 0

    def slowed_down(self) -> None:
        """A store has asked for fewer requests."""
        with self._lock:
            self.slow_downs += 1


def _tell(location: str, why: str, seconds: float) -> None:
    """Tell the agent's main process of a store that is away, or back: a line on standard output."""
    print(json.dumps([location, why, seconds]), flush=True)


COUNTS = Counts()
OUTAGES = Outages(_tell)


@functools.cache
def _profile() -> Profile | None:
    """The profile of this process's environment, for all locations; see `profiles.py`."""
    return profile(os.environ)


@functools.cache
def _store(location: str, *, again: bool = True) -> Any:
    """The store of a location, made once, in this process: its connections are threads' of its own.

    Args:
        location: see `stores/buckets/far.py`.
        again: whether it tries again by itself what has failed.
    """
    scheme, _, path = location.partition("://")
    bucket, _, prefix = path.partition("/")
    made: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[scheme]
    more: dict[str, Any] = {"retry_config": _RETRIES if again else _NO_RETRIES}
    try:
        ca_bundle = ""
        if scheme == "s3" and (found := _profile()) is not None:
            more |= {"credential_provider": found, **found.settings}
            ca_bundle = found.ca_bundle
        client = client_options(location, os.environ, ca_bundle)
        return made(bucket, prefix=prefix.strip("/") or None, client_options=client, **more)
    except NoBundle as error:
        raise StoreFailed("bundle", str(error)) from None
    except NoProfile as error:
        raise StoreFailed("profile", f"{NO_PROFILE} ({error})") from None
    except NoBoto3:
        raise StoreFailed("boto3", "profiles of ~/.aws need the package boto3") from None
    except BaseError as error:
        raise StoreFailed("unset", shown(error)) from None


def write_listing(location: str, index: str) -> bytes:
    """List all objects of a location into an index, which also says what is left out and has no usable ETag; nothing.

    Raises:
        StoreFailed: they cannot be listed.
    """
    left_out = LeftOut()
    try:
        rows = sorted(_listed(location, left_out))
        by_time = [row for row in rows if _is_time(row.partition(b"\0")[2][_NBYTES.size :])]
        first = by_time[0].partition(b"\0")[0].decode() if by_time else ""
        notes = Notes(left_out.reasons, by_time=Found(len(by_time), first))
        write_index(Path(index), [], _entries(rows), lambda: notes)
    except ArchiveRefused as error:
        raise StoreFailed("names", str(error)) from None
    except (ValueError, InvalidPathError):
        raise StoreFailed(
            "names", "an object's name has '//', '.' or '..' for a folder, or control characters"
        ) from None
    except (BaseError, OSError) as error:
        raise _counted(error) from None
    return b""


def look(location: str, key: str) -> bytes:
    """See that an object is there and may be read: the right to list is not the right to read.

    Raises:
        StoreFailed: it is not.
    """
    try:
        obstore.head(_store(location), key)
    except (ValueError, InvalidPathError):
        raise StoreFailed("missing", "no object has such a name") from None
    except (BaseError, OSError) as error:
        raise _counted(error) from None
    return b""


def _listed(location: str, left_out: LeftOut) -> Iterator[bytes]:
    """A row for each object, in the order in which the store lists; rows sort as names do.

    One object instead of a tuple of three: it halves the memory that a listing takes while it is sorted.
    """
    begin: str | None = None
    with tqdm(desc=f"list {location}", unit=" objects", unit_scale=True, disable=None, file=sys.stderr) as bar:
        for some in _in_time(iter(obstore.list(_store(location)))):
            if some and some[0]["path"] == begin:
                raise StoreFailed("endless", "its list comes back to its first object")
            if some and begin is None:
                begin = some[0]["path"]
            if bar.n > MAX_OBJECTS:
                raise StoreFailed("many", f"it has more than {MAX_OBJECTS} objects")
            for one in some:
                name = one["path"].encode()
                if len(name) > MAX_KEY_NBYTES:
                    left_out.add(name, f"names of more than {MAX_KEY_NBYTES} bytes", "shorten them")
                elif one["size"] > MAX_LENGTH:
                    left_out.add(name, "larger than 4 GiB", "serve it from a folder")
                else:
                    yield b"".join([name, b"\0", _NBYTES.pack(one["size"]), _version(one).encode()])
            bar.update(len(some))


def _in_time(pages: Iterator[Any]) -> Iterator[Any]:
    """The pages of a list, as long as each comes in time; one that does not is left to a thread of its own."""
    thread = ThreadPoolExecutor(1, "list")
    try:
        while (some := thread.submit(next, pages, None).result(NEXT_WITHIN_S)) is not None:
            yield some
    except FutureTimeout:
        raise StoreFailed("endless", f"its list has given no object for {NEXT_WITHIN_S:.0f} s") from None
    finally:
        thread.shutdown(wait=False)


def _entries(rows: list[bytes]) -> Iterator[IndexEntry]:
    """Entries of an index. An empty object above others stands for their folder, as consoles make such."""
    for row in rows:
        name, _, rest = row.partition(b"\0")
        (nbytes,), version = _NBYTES.unpack_from(rest), rest[_NBYTES.size :]
        below = bisect_left(rows, name + b"/") if not nbytes else len(rows)
        if below < len(rows) and rows[below].startswith(name + b"/"):
            yield IndexEntry(name, FOLDER)
        else:
            yield IndexEntry(name, OBJECT, length=nbytes, target=version)


def _version(listed: Any) -> str:
    """What tells an object from one that takes its place: its ETag, or its time of change where it has none, or where
    that is the MD5 of nothing and the object is not empty."""
    etag = listed["e_tag"] or ""
    of = _bare(etag).partition("-")[0]
    if of and not (listed["size"] and of == _MD5_OF_NOTHING):
        return str(etag)
    return f"{_AT}{listed['last_modified'].timestamp():.6f}"


def _is_time(version: bytes) -> bool:
    return version.startswith(_AT.encode())


def read(
    location: str, key: str, nbytes: int, version: str, wanted: int | None = None, *, patient: bool = False
) -> Any:
    """The bytes of an object as it was listed.

    Args:
        location, key, nbytes, version: of the object.
        wanted: how many of its first bytes, fewer than it has; None for all.
        patient: whether to wait for a store that is away as long as samples do.

    Raises:
        StoreFailed: it is another one, or cannot be read.
    """
    begun_s, pause_s, tries = time.monotonic(), _FIRST_PAUSE_S, Counter[str]()
    while True:
        try:
            data = _read(location, key, nbytes, version, wanted)
        except StoreFailed as error:
            is_away, away_s = error.what in AWAY, 0.0
            if is_away:
                away_s = OUTAGES.failed(location, error.why)
            elif error.what != "cut":
                OUTAGES.worked(location)
            tries[error.what] += 1
            if error.what == "denied" and tries["denied"] == 1 and location.startswith("s3:") and (one := _profile()):
                one.renew()
                time.sleep(_RENEWED_PAUSE_S)
                continue
            so_far_s = max(away_s, time.monotonic() - begun_s)
            if tries[error.what] > _AGAIN.get(error.what, 0):
                raise
            if so_far_s + pause_s > (AWAY_S if patient else AGAIN_WITHIN_S):
                raise StoreFailed(error.what, f"{error.why}, for {so_far_s:.0f} s" if is_away else error.why) from None
        else:
            OUTAGES.worked(location)
            return data
        time.sleep(random.uniform(0.5, 1.0) * pause_s)  # readers do not come back all at once
        pause_s = min(_MAX_PAUSE_S, 2 * pause_s)


def _read(location: str, key: str, nbytes: int, version: str, wanted: int | None) -> Any:
    by_time = version.startswith(_AT)
    tag = "" if by_time else _bare(version)
    is_strong = bool(tag) and not version.startswith("W/")  # a weak one never matches
    options: Any = {"if_match": f'"{tag}"'} if is_strong else {}
    if wanted is not None:
        options["range"] = (0, wanted)
    try:
        got = obstore.get(_store(location, again=False), key, options=options)
        found = got.meta
        is_same = _is_of_time(found, nbytes, version) if by_time else _bare(found["e_tag"] or "") == tag
        if not is_same:
            raise StoreFailed("changed", "it has another object")
        if found["size"] != nbytes:
            raise StoreFailed("unreadable", f"it gives {found['size']} bytes of {nbytes}")
    except (BaseError, OSError) as error:
        raise _counted(error) from None
    try:
        data = got.bytes()
    except (BaseError, OSError) as error:
        raise StoreFailed("cut", shown(error)) from None
    if len(data) != (nbytes if wanted is None else wanted):
        raise StoreFailed("unreadable", f"it gives {len(data)} bytes of {nbytes if wanted is None else wanted}")
    return data


def _is_of_time(found: Any, nbytes: int, version: str) -> bool:
    """Whether an object has the listed size and time of change, as far as the store tells it."""
    seconds = int(found["last_modified"].timestamp())  # 0 where it does not; whole seconds, unlike in lists
    return found["size"] == nbytes and seconds in (0, int(float(version.removeprefix(_AT))))


def _bare(etag: str) -> str:
    """An ETag without quotes: some servers leave them out in lists (rclone's)."""
    return etag.removeprefix("W/").strip('"')


def _counted(error: Exception) -> StoreFailed:
    """What an error means; counted if the store has asked for fewer requests."""
    if slows_down(error):
        COUNTS.slowed_down()
    return failed(error)
