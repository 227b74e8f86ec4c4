"""Runs the user's code in a copy of this process, to look at its results without leaving a trace here.

Calling a dataset or a transform may change it: counters, generators, caches, positions in open files; in the object or
in a module, a closure, a class, a library's memory. Copies of objects share most of these, cannot be made of others
(locks, files), and take seconds for a list of a million names. A forked process shares none, and takes a few
milliseconds for any size; torch starts workers so, too. Descriptors and memory that processes share on purpose are
taken from it. Only effects by name remain: a file written, a request sent over a connection made there.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import resource
import select
import signal
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch

_MOST_NBYTES = 4000
"""Maximum size of the process's answer, in bytes: this much is written to a pipe at once, or not at all."""
_FOUND, _NOTHING, _RAISED = b"f", b"n", b"r"
_COPIED_NBYTES = 1 << 20
"""Maximum size of shared memory that is copied, in bytes; writing to larger memory ends the process."""
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 0x02, 0x10, 0x20


class NotTried(Exception):
    """Reason why nothing was found out; for reports, never raised at the user."""


def tried_apart(look: Callable[[], str | None], wait_s: float = 60.0) -> str | None:
    """Return the result of `look`, called in a copy of this process; nothing changes here.

    Args:
        look: may call any code of the user's. It may not use other threads, connections, or a GPU.
        wait_s: seconds after which the process is ended.

    Returns:
        The text, cut after some 4000 bytes.

    Raises:
        NotTried: the process cannot be started, ended early or took too long, or `look` raised.

    Example:
        >>> tried_apart(lambda: None if dataset[0] == remade(0) else "it is another value")
    """
    ours, theirs = os.pipe()
    try:
        with warnings.catch_warnings():  # about threads, which are not copied; torch also forks its workers
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError as error:
        os.close(ours)
        os.close(theirs)
        raise NotTried(f"no process for that could be started: {error}") from error
    if pid == 0:
        _be_the_copy(look, theirs, wait_s)
    os.close(theirs)
    said = None
    try:
        said = _heard(ours, wait_s)
    finally:  # also when Ctrl-C ends the wait
        os.close(ours)
        ended = _end(pid, kill=said is None)
    if not said:
        raise NotTried(f"the process that compares {f'took longer than {wait_s:g} s' if said is None else ended}")
    text = said[1:].decode(errors="replace")
    if said[:1] == _RAISED:
        raise NotTried(f"the process that compares raised {text}")
    return text if said[:1] == _FOUND else None


def _heard(pipe: int, wait_s: float) -> bytes | None:
    """Return the copy's answer, b"" if it ends without one; None if the time is over."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    return os.read(pipe, 1 + _MOST_NBYTES) if poll.poll(wait_s * 1000) else None


def _end(pid: int, *, kill: bool) -> str:
    """Wait for the copy's end, which its own alarm brings at the latest; returns how it ended."""
    try:
        if kill:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except (ChildProcessError, ProcessLookupError):  # a handler of the user's has waited for it
        return "ended"
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"


def _be_the_copy(look: Callable[[], str | None], pipe: int, wait_s: float) -> NoReturn:
    said = _RAISED
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which this one's parent gets as well
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, wait_s + 1.0)  # in case this process dies first
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        torch.set_num_threads(1)  # the others have not come along, and would be waited for
        gc.freeze()  # the parent's garbage, whose finalizers are the parent's to run
        _be_silent()
        _leave_descriptors(pipe)
        _leave_shared_memory()
        found = look()
        said = _NOTHING if found is None else _FOUND + found.encode(errors="replace")
    except BaseException as error:
        said = _RAISED + f"{type(error).__name__}: {error}".encode(errors="replace")
    finally:
        try:
            os.write(pipe, said[: 1 + _MOST_NBYTES])
        finally:
            os._exit(0)  # without handlers of exit, and without what waits to be printed


def _be_silent() -> None:
    """Print and log nothing: the user's code will say it again later."""
    logging.disable()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # a notebook's are no descriptors


def _leave_descriptors(pipe: int) -> None:
    """Replace the descriptors that this process shares with its parent, and keep reading files.

    Both share the position in an open file, so each file is opened again, for reading. Output to a socket, a pipe or
    the terminal would go there in the parent's name.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor in (pipe, nothing):
            continue
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:  # of the listing itself
            continue
        if descriptor <= 2 or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)):
            os.dup2(nothing, descriptor)
        elif stat.S_ISREG(mode):
            _open_anew(descriptor, nothing)


def _open_anew(descriptor: int, nothing: int) -> None:
    try:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        anew = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    except OSError:  # the current user of this process may not read it
        os.dup2(nothing, descriptor)
        return
    os.lseek(anew, position, os.SEEK_SET)
    os.dup2(anew, descriptor)
    os.close(anew)


def _leave_shared_memory() -> None:
    """Make memory that is shared with other processes (counters, locks, caches) private, with its current content."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for start, nbytes in list(_shared_memory()):
        if nbytes > _COPIED_NBYTES:
            libc.mprotect(start, nbytes, _PROT_READ)
            continue
        held = ctypes.string_at(start, nbytes)
        flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS
        if libc.mmap(start, nbytes, _PROT_READ | _PROT_WRITE, flags, -1, 0) != start:
            raise OSError(ctypes.get_errno(), "shared memory could not be copied")
        ctypes.memmove(start, held, nbytes)


def _shared_memory() -> Iterator[tuple[int, int]]:
    """Yield (address, bytes) of memory that this process may write to and others see; devices left out."""
    with open("/proc/self/maps") as file:
        for line in file:
            where, may, _, _, _, *name = line.split(maxsplit=5)
            if may[1] == "w" and may[3] == "s" and name and _is_memory(name[0]):
                start, end = (int(one, 16) for one in where.split("-"))
                yield start, end - start


def _is_memory(name: str) -> bool:
    return name.startswith("/") and (name.startswith(("/dev/shm/", "/dev/zero")) or not name.startswith("/dev/"))
