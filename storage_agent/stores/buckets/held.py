"""Objects that the fetching process has read before anybody asks for their bytes."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

MAX_NBYTES = 512 << 20
"""Of objects that are held or being read ahead; whoever asks for more reads it when it is needed."""
EXPECTED_AT_ONCE = 64
"""Objects that are read at once for whoever expects many."""
OLD_S = 60.0
"""Age at which nobody will ask for an object: its loader is gone."""


class HeldObjects:
    """Objects by what they were asked for; safe under threads.

    Args:
        read: reads an object: (location, key, its size, its version, how many
            of its first bytes if not all) -> bytes; told by `patient` whether to wait for a
            store that is away.
        now_s: the time.

    Example:
        >>> held = HeldObjects(objects.read)
        >>> held.fetch("s3://photos", "cats/1.jpg", 109648, '"5f0c..."')
        >>> held.read("s3://photos", "cats/1.jpg", 109648, '"5f0c..."')
    """

    def __init__(self, read: Callable[..., Any], now_s: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._now_s = now_s
        self._changed = threading.Condition()
        """Held while what follows is looked at; told when an object has come."""
        self._threads = ThreadPoolExecutor(EXPECTED_AT_ONCE, "expected")
        self._held: OrderedDict[tuple[Any, ...], tuple[float, Any]] = OrderedDict()
        """What was asked for -> since when it is here, and the bytes or the error."""
        self._reading: set[tuple[Any, ...]] = set()
        self._reads: Counter[tuple[Any, ...]] = Counter()
        """Of what is held or on its way: by how many reads it is wanted."""
        self.nbytes = 0

    def fetch(self, *what: Any) -> bytes:
        """Hold an object for a `read` of it, or the error that it ended in; nothing if there is no room.

        One that is on its way is waited for here: whoever reads it next may be a worker, which others need.
        """
        if self._reserved(what):
            self._carry_out(what, patient=True)
        else:
            with self._changed:
                self._changed.wait_for(lambda: what not in self._reading)
        return b""

    def expect(self, location: str, objects: Sequence[Sequence[Any]]) -> bytes:
        """Begin to hold objects as `fetch` does, many at once.

        Args:
            location: of all of them.
            objects: key, size and version of each, and how many of its first bytes if not all.
        """
        for one in objects:
            what = (location, *one)
            if self._reserved(what):
                self._threads.submit(self._carry_out, what)
        return b""

    def _reserved(self, what: tuple[Any, ...]) -> bool:
        """Whether an object is to be read now: it is neither here nor on its way, and there is room."""
        nbytes: int = what[2]
        with self._changed:
            self._forget_old()
            if isinstance(self._held.get(what, (0.0, None))[1], BaseException):
                self._forget(what)  # of an earlier try
            is_known = what in self._held or what in self._reading
            if not is_known and self.nbytes + nbytes > MAX_NBYTES:
                return False
            self._reads[what] += 1
            if is_known:
                return False
            self._reading.add(what)
            self.nbytes += nbytes
        return True

    def _carry_out(self, what: tuple[Any, ...], *, patient: bool = False) -> None:
        found: Any
        try:
            found = self._read(*what, patient=patient)
        except BaseException as error:  # raised when somebody asks for the object; a panic of Rust's is no Exception
            found = error
        with self._changed:
            self._reading.discard(what)
            self._held[what] = self._now_s(), found
            self._changed.notify_all()

    def read(self, *what: Any) -> Any:
        """The object's bytes, held no longer than for as many reads as it was to be held for. One that is on its way is
        waited for.

        Raises:
            Failed: it cannot be read.
        """
        with self._changed:
            while what in self._reading:
                self._changed.wait()
            _, found = self._held.get(what, (0.0, None))
            if found is not None:
                self._reads[what] -= 1
                if self._reads[what] <= 0 or isinstance(found, BaseException):
                    self._forget(what)
        if found is None:
            return self._read(*what)
        if isinstance(found, BaseException):
            raise found
        return found

    def _forget_old(self) -> None:
        before_s = self._now_s() - OLD_S
        while self._held and next(iter(self._held.values()))[0] < before_s:
            self._forget(next(iter(self._held)))

    def _forget(self, what: tuple[Any, ...]) -> None:
        del self._held[what], self._reads[what]
        self.nbytes -= what[2]
