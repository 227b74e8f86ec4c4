"""Commands whose output goes to a pipe that is no longer read, such as `sophon-agent status | head -1`."""

from __future__ import annotations

import functools
import os
import select
import sys
from collections.abc import Callable
from typing import ParamSpec

UNREAD = 141
"""Exit status of such a command: the one that a shell reports for a program killed by SIGPIPE."""
_Arguments = ParamSpec("_Arguments")


def quiet_when_unread(main: Callable[_Arguments, int]) -> Callable[_Arguments, int]:
    """Let a command end without a traceback when the reader of its standard output has gone.

    SIGPIPE itself stays ignored: an agent must outlive the sockets of its loaders.

    Args:
        main: the entry point, which returns the exit status.
    """

    @functools.wraps(main)
    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> int:
        try:
            try:
                return main(*args, **kwargs)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # else Python does so at its end, and says there what failed
        except BrokenPipeError:
            if not stdout_is_unread():  # another pipe, or a socket
                raise
            with open(os.devnull, "w") as nothing:  # what is still in the buffer goes there
                os.dup2(nothing.fileno(), sys.stdout.fileno())
            return UNREAD

    return run


def stdout_is_unread() -> bool:
    """True if standard output is a pipe or a socket whose other end is closed."""
    try:
        look = select.poll()
        look.register(sys.stdout.fileno(), 0)
        return bool(look.poll(0))
    except (AttributeError, OSError, ValueError):  # no file
        return False
