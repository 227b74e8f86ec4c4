"""Compare our C code with the installed Pillow, and log what differs.

Each process compares once, when it first needs the result; forked processes inherit it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import PIL

from sophon_loader.errors import must_leave
from sophon_loader.logs import log_line

log = logging.getLogger(__name__)

Name = TypeVar("Name", bound=int | str)


def trusted(names: Iterable[Name], is_equal: Callable[[Name], bool], called: Callable[[Name], str]) -> frozenset[Name]:
    """Return the names whose results equal the installed Pillow's, and log the others.

    Args:
        names: candidates to compare.
        is_equal: compares one candidate; an exception counts as different.
        called: gives a candidate's name for the log.
    """
    every = list(names)
    wrong = differing(every, is_equal)
    if wrong:
        event = "Pillow does what C of our own would do faster, since the results differ on this Pillow"
        log.warning(log_line(event, pillow=PIL.__version__, differing=[called(one) for one in wrong]))
    return frozenset(every) - set(wrong)


def differing(names: Iterable[Name], is_equal: Callable[[Name], bool]) -> list[Name]:
    """Return the names whose results differ from the installed Pillow's, or for which either side raises."""

    def is_wrong(name: Name) -> bool:
        try:
            return not is_equal(name)
        except Exception as error:  # of any kind: Pillow does the work
            if must_leave(error):
                raise
            return True

    return [name for name in names if is_wrong(name)]
