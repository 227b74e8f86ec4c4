"""Counts of the pictures that samples open, and of the places that need all of one; shared by processes."""

from __future__ import annotations

import json
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.host.shared import SharedArray, SharedNotes

OURS, PILLOW, WHOLE, FAR = "ours", "pillow", "whole", "far"
"""Sorts of counts: pictures decoded by our C; by Pillow, of each kind of file; needed whole, at each place; decoded
at an agent."""
MOST = 48
"""Maximum number of kinds and places per worker; later ones are counted under the name "" of their sort."""
DAMAGED = "of samples with a damaged file"
"""Kind of the pictures of samples that were made again without us."""
_NOTE_NBYTES = 512
_FIRST = [(OURS,), (PILLOW, ""), (WHOLE,), (FAR,)]
Counted = tuple[str, ...]
"""`(OURS,)`; `(FAR,)`; `(PILLOW, kind)`; `(WHOLE, file, line, function, library's function)`, or `(WHOLE,)` for any
place."""


class PictureCounts:
    """Counts of each worker, in memory that it writes and the main process reads.

    Args:
        workers: number of workers that write, at least 1.

    Example:
        >>> counts = PictureCounts(workers=1)
        >>> counts.of(0).add(PILLOW, "PNG")
        >>> counts.found()
        {('pillow', 'PNG'): 1}
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._numbers = SharedArray(np.zeros((workers, MOST), np.int64))
        self._names = SharedNotes(workers * MOST, _NOTE_NBYTES)

    def of(self, worker: int) -> WorkerCounts:
        """Return the counts that one worker adds to.

        Args:
            worker: its number; no two processes may have the same at once.
        """
        return WorkerCounts(self._numbers.array[worker], self._names, worker * MOST)

    def found(self) -> dict[Counted, int]:
        """Return all workers' counts so far; zeros are left out."""
        found: dict[Counted, int] = {}
        for worker, slot in np.argwhere(self._numbers.array).tolist():
            name = self._names.read(worker * MOST + slot)
            if name:
                counted = tuple(json.loads(name))
                found[counted] = found.get(counted, 0) + int(self._numbers.array[worker, slot])
        return found


class WorkerCounts:
    """The counts of one worker, for any of its threads; adding to a known one takes under a microsecond.

    Args:
        numbers: int64 [MOST], to be added to.
        names: where the name of each number is written when it is first used.
        first: position of this worker's first name.
    """

    def __init__(self, numbers: Any, names: SharedNotes, first: int) -> None:
        self._numbers = numbers
        self._names = names
        self._first = first
        self._slots: dict[Counted, int] = {}
        self._lock = Lock()  # threads of the dataset's own look at pictures, too
        for counted in _FIRST:
            self._slot(counted)

    def add(self, *counted: str, by: int = 1) -> None:
        """Count one more picture of this kind, or place; see `Counted`. `by=-1` takes one back."""
        with self._lock:
            slot = self._slots.get(counted)
            if slot is None:
                slot = self._slot(counted)
            self._numbers[slot] += by

    def _slot(self, counted: Counted) -> int:
        slot = len(self._slots)
        name = json.dumps(counted).encode()
        if slot < MOST and self._names.write(self._first + slot, name):
            self._slots[counted] = slot
            return slot
        return _FIRST.index((PILLOW, "") if counted[0] == PILLOW else (WHOLE,))


def kind_of(image: Any) -> str:
    """Return the kind of file that Pillow has opened, such as "PNG", "palette PNG" or "progressive JPEG".

    Args:
        image: result of `PIL.Image.open`; for anything else, which a user's function may return, the kind is "".
    """
    format_ = image.format if isinstance(image, Image.Image) else None
    if not format_:
        return ""
    known = image.info
    if format_ in ("JPEG", "MPO"):
        if known.get("progressive"):
            return f"progressive {format_}"
        if image.mode not in ("L", "RGB"):
            return f"{image.mode} {format_}"
        return f"{format_} read smaller (draft)" if getattr(image, "decoderconfig", ()) else f"other {format_}"
    if image.mode == "P":
        return f"palette {format_}"
    if image.mode.startswith(("I", "F")):
        return f"{'32' if image.mode in ('I', 'F') else '16'}-bit {format_}"
    return f"transparent {format_}" if "transparency" in known else format_
