"""Holding C of our own to the installed Pillow, and telling what differs. Each process compares once, when it first
needs to know; forked ones know it already."""

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
    """Those whose results are the installed Pillow's. The log has a line about the others.

    Args:
        names: of what is compared.
        is_equal: compares one.
        called: its name in the log.
    """
    every = list(names)
    wrong = differing(every, is_equal)
    if wrong:
        event = "Pillow does what C of our own would do faster, since the results differ on this Pillow"
        log.warning(log_line(event, pillow=PIL.__version__, differing=[called(one) for one in wrong]))
    return frozenset(every) - set(wrong)


def differing(names: Iterable[Name], is_equal: Callable[[Name], bool]) -> list[Name]:
    """Those whose results are not the installed Pillow's, or for which either raises."""

    def is_wrong(name: Name) -> bool:
        try:
            return not is_equal(name)
        except Exception as error:  # whatever it is: Pillow does it
            if must_leave(error):
                raise
            return True

    return [name for name in names if is_wrong(name)]
