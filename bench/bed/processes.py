"""Set-up commands, stop signals that wait, and the ladder that ends the processes of a bed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from bench.bed.cgroups import POLL_S, ControlGroup
from bench.bed.unavailable import TestBedUnavailable

STOP_S, ORPHAN_S, KILL_S = 5.0, 2.0, 5.0
"""The stop ladder: children are asked to end, then killed; what they left behind is asked, then killed."""
COMMAND_TIMEOUT_S = 10.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def command(*argv: str) -> str:
    """Run a set-up command and return its output.

    Raises:
        TestBedUnavailable: it failed; the reason is the command and what it said.
    """
    # A session of its own: Ctrl-C in a terminal must not stop `ip` half-way.
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        raise TestBedUnavailable(
            f"`{shlex.join(argv)}` failed: {(done.stderr or done.stdout).strip()}",
            "run with CAP_NET_ADMIN and CAP_SYS_ADMIN on a kernel with veth and tbf",
        )
    return done.stdout


@contextmanager
def signals_held() -> Iterator[None]:
    """Put the stop signals off until the block has ended, then deliver them.

    Handlers, not a signal mask: a mask would be inherited by the children, and the signal would
    reach another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread runs Python's signal handlers
        return
    arrived: list[int] = []
    previous = {number: signal.signal(number, lambda n, _: arrived.append(n)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for arrived_number in dict.fromkeys(arrived):
            signal.raise_signal(arrived_number)


def end_children(children: Iterable[subprocess.Popen[Any]]) -> None:
    """Terminate children and wait STOP_S seconds for them together, then kill the rest."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    deadline = time.monotonic() + STOP_S
    for child in running:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
    for child in running:
        child.kill()
    deadline = time.monotonic() + KILL_S
    for child in running:
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: remove() will say so
            child.wait(max(0.0, deadline - time.monotonic()))


def _empty_groups(groups: Sequence[ControlGroup], number: signal.Signals, timeout_s: float) -> None:
    """Signal every process in the groups, new ones too, until none is left or the time is up."""
    deadline = time.monotonic() + timeout_s
    signalled: set[int] = set()
    while time.monotonic() < deadline:
        left = {pid for group in groups for pid in group.pids()}
        if not left:
            return
        for pid in left - signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        signalled |= left
        time.sleep(POLL_S)


def end_processes(children: Sequence[subprocess.Popen[Any]], groups: Sequence[ControlGroup]) -> None:
    """End children and what they left in the groups, in STOP_S + ORPHAN_S + 2 KILL_S at most.

    The children go first and alone: an agent stops its own workers, and multiprocessing's resource
    tracker must outlive both to free their shared memory.
    """
    end_children(children)
    _empty_groups(groups, signal.SIGTERM, ORPHAN_S)
    _empty_groups(groups, signal.SIGKILL, KILL_S)
