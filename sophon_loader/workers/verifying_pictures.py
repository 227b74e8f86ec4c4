"""Comparison of pictures that an agent has made with those that this host makes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import xxhash

from sophon_loader.errors import ProgramRefused, SampleDiffers, SophonError
from sophon_loader.host.regular import ROUNDS, read_regular, seen
from sophon_loader.kinds.image.execute import begin_program, image_at, part_of_begun
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.measures.counters import Row
from sophon_loader.programs.program import Program
from sophon_loader.workers.this_worker import worker_count
from sophon_loader.workers.verifying import FIRST_FILES, FIRST_NBYTES, SIZES_SHARE

Answer = tuple[int, Any]
"""A segment, and the value there: the file's bytes, a `PartOfFile` or an image."""


class PictureVerifier:
    """Makes a share of the pictures here, too, and compares them bit for bit.

    The program and the file decide which ones. The first ones of a run are compared besides. Files that are not on
    this host are left out.

    Args:
        share: of the pictures, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        workers = worker_count()
        self._files_left, self._nbytes_left = max(1, FIRST_FILES // workers), FIRST_NBYTES // workers
        self._began_s, self._spent_s = time.perf_counter(), 0.0

    def due(self, path: str, program: Program, nbytes: int, row: Row) -> bool:
        """Return True if a picture is one of those to be compared.

        Args:
            path: of its file.
            program: that was run; one without steps is the file.
            nbytes: size of the file.
            row: says which iteration over the loader this is.
        """
        if self._share <= 0:
            return False
        if xxhash.xxh3_64_intdigest(path.encode(errors="surrogateescape") + program.pack()) < self._share * 2**64:
            return True
        if row.iteration != 1 or not self._files_left or nbytes > self._nbytes_left:
            return False
        self._files_left, self._nbytes_left = self._files_left - 1, self._nbytes_left - nbytes
        return True

    def verify(
        self, path: str, program: Program, answer: Answer, again: Callable[[], Answer], *, keeps_info: bool
    ) -> bool:
        """Compare an agent's answer with what the file on this host gives.

        Args:
            path: of the file.
            program: that was run; one without steps is the file.
            answer: of the agent.
            again: asks the agent once more.
            keeps_info: True if the answer has all that Pillow makes an image's `info` of.

        Returns:
            False if it could not be compared.

        Raises:
            SampleDiffers: they are not the same, and not because the file is being replaced.
        """
        found = ""
        try:
            if not (found := _difference(read_regular(path), program, answer, keeps_info=keeps_info)):
                return True
            for _ in range(ROUNDS):
                before, data = seen(path), read_regular(path)
                answer = again()
                if read_regular(path) == data and seen(path) == before:
                    found = _difference(data, program, answer, keeps_info=keeps_info)
                    break
            else:
                return False
        except (OSError, SophonError):  # the file is not here, or the agent has gone
            return False
        if not found:
            return True
        raise SampleDiffers(
            f"a picture of {path} must be the same at both ends, got another one from the agent: {found}; see that "
            "both hosts hold the same files and have the same Pillow. Do not train with this agent until you know the "
            "cause: earlier samples may be wrong too"
        )

    def has_size(self, path: str, nbytes: int) -> bool:
        """Return False if a file on this host has another size than at the agent; looks as often as that is cheap.

        Args:
            path: of the file.
            nbytes: its size at the agent.
        """
        since_s = time.perf_counter()
        if self._spent_s > SIZES_SHARE * (since_s - self._began_s):
            return True
        found = may_have(path, nbytes)
        self._spent_s += time.perf_counter() - since_s
        return found


def may_have(path: str, nbytes: int) -> bool:
    """Return False if a file on this host has another size than at the agent: there it is another file.

    Args:
        path: of the file.
        nbytes: its size at the agent.
    """
    try:
        return os.stat(path).st_size in (nbytes, 0)  # mounts of object stores report 0 bytes
    except (OSError, ValueError):
        return True  # the agent may have it


def _difference(data: bytes, program: Program, answer: Answer, *, keeps_info: bool) -> str:
    """Return what differs; "" for nothing."""
    segment, value = answer
    if isinstance(value, bytes):
        sizes = f"{len(value)} bytes there, {len(data)} here"
        return "" if value == data else f"its file ({sizes})"
    try:
        begun = begin_program(program, data)
    except ProgramRefused as refused:
        return f"the program suits its file there, and not here: {refused}"
    if isinstance(value, PartOfFile):
        return "" if part_of_begun(begun, keep_metadata=keeps_info) == value else "the part of its file"
    made = image_at(begun, SEGMENTS[segment])
    same = (made.mode, made.size, made.tobytes()) == (value.mode, value.size, value.tobytes())
    return "" if same else f"its pixels behind {program.steps}"
