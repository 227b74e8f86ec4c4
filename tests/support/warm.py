"""Python programs without the three seconds that importing torch takes: forked from a process that has imported it.

Such a program does what a new interpreter would do, as a child of the test's process, with pipes, environment and
folder of its own. Its interpreter is a copy, and so are those of its forkserver and its resource tracker.
Tests of the start itself, of what is imported, and of what an interpreter does at its end start the command.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import inspect
import json
import multiprocessing.util
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
SPAWNED = "from multiprocessing.spawn import"
"""What a spawned process runs; it must inherit nothing from the one that starts it, so it gets a new interpreter."""
INHERITED = "SOPHON_TESTS_WARM"
"""In the environment of a test process that has been forked: the descriptor of a warm process of its own."""
_MOST = 1 << 18
"""Bytes of a request: the environment, for the most part."""
_PR_SET_CHILD_SUBREAPER = 36
_MADV_COLLAPSE = 25
_HUGE = 1 << 21
"""Bytes of a huge page."""
_ASKED = [*inspect.signature(subprocess.Popen._execute_child).parameters][1:]  # type: ignore[attr-defined]
"""What `subprocess` hands to the method that starts a program."""


class Warm:
    """A process that has imported what agents and loaders import; it ends with this one.

    Args:
        modules: a folder whose modules it, and all that is forked from it, find before others.

    Example:
        >>> process = Forked([sys.executable, "-m", "storage_agent", "serve"], warm=Warm(), stdout=subprocess.PIPE)
        >>> announced(process)
    """

    def __init__(self, modules: Path | None = None) -> None:
        self._modules = modules
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        if modules is None and (inherited := os.environ.pop(INHERITED, "")):
            self._end = socket.socket(fileno=int(inherited))
            return
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            environment = self._finding_modules(os.environ)
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])

    def _finding_modules(self, environment: Mapping[str, str]) -> dict[str, str]:
        path = [str(one) for one in (self._modules, environment.get("PYTHONPATH")) if one]
        return {**environment, "PYTHONPATH": os.pathsep.join(path)}

    def start(self, command: Sequence[str], files: Sequence[int], environment: Mapping[str, str], **more: Any) -> int:
        """Fork a program; its process id.

        Args:
            command: behind the name of the interpreter.
            files: its standard input, output and error.
            environment: of the program.
            more: other arguments of `_become`; `kept`, the numbers that the program knows descriptors by which it
                inherits.
        """
        request = {"command": command, "environment": self._finding_modules(environment), **more}
        with self._lock, _adopting():
            socket.send_fds(self._end, [json.dumps(request).encode()], [*files, *more.get("kept", ())])
            return int(self._end.recv(16))

    def close(self) -> None:
        """End it, and what has been forked from it."""
        self._end.close()
        if self._process is not None:
            self._process.wait()


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Processes below this one whose parents end become its own children, as those that it starts are."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def shared() -> Warm:
    """The one of this process."""
    return _shared(os.getpid())


@functools.cache
def _shared(pid: int) -> Warm:
    return Warm()


class Forked(subprocess.Popen[Any]):
    """`subprocess.Popen` of a Python program that is forked from a warm process.

    Args:
        command: `[python, "-c", code, ...]`, `[python, "-m", module, ...]` or `[python, file, ...]`; `-u` may stand
            before these, and does nothing.
        warm: what it is forked from; the one of this process otherwise.
        own: whether it is given a warm process of its own.
        how: as `subprocess.Popen` takes it, without `pass_fds` and `preexec_fn`.
    """

    commands: dict[int, list[str]] = {}  # noqa: RUF012  of the class: process id -> what it runs

    def __init__(
        self, command: Sequence[str | os.PathLike[str]], *, warm: Warm | None = None, own: bool = False, **how: Any
    ) -> None:
        self._warm = shared() if warm is None else warm
        self._own = own
        super().__init__(command, **how)

    def _execute_child(self, *values: Any) -> None:
        asked = dict(zip(_ASKED, values, strict=True))
        command = [os.fspath(one) for one in asked["args"]]
        assert command[0] == sys.executable and not asked["pass_fds"] and not asked["preexec_fn"]
        pipes = [asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        try:
            given = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
            self.pid = self._warm.start(
                command[1:],
                [fd if fd != -1 else number for number, fd in enumerate(given)],
                os.environ if asked["env"] is None else asked["env"],
                folder=os.path.abspath(asked["cwd"] or os.getcwd()),
                session=bool(asked["start_new_session"]),
                own=self._own,
            )
            self._child_created = True
            self.commands[self.pid] = command
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run_forked(
    command: Sequence[str | os.PathLike[str]], *, timeout: float, **how: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with text that is captured, of a program that is forked.

    Raises:
        subprocess.TimeoutExpired: it has not ended in so many seconds, and is killed.
    """
    with Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.wait(), out, err)


def ready_to_fork() -> None:
    """Make the forks of this process cheap: all that it holds stays, and lies in huge pages where Linux 6.1 allows it.

    A fork copies one entry for 2 MiB in a huge page, instead of 512. It takes 9 ms instead of 38 where torch has been
    imported; a garbage collection, which would copy the pages of all objects, leaves those alone that are there now.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    madvise = ctypes.CDLL(None).madvise
    for start, end in _memory():
        first, last = -(-start // _HUGE), end // _HUGE
        if first < last:
            madvise(ctypes.c_void_p(first * _HUGE), ctypes.c_size_t((last - first) * _HUGE), _MADV_COLLAPSE)


def _memory() -> Iterator[tuple[int, int]]:
    """Addresses of this process's memory that is no file's and mostly in use."""
    start = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            start, end = (int(one, 16) for one in first.split("-"))
            file = len(rest) == 5 and rest[4] != "[heap]"
        elif first == "Anonymous:" and not file and int(rest[0]) << 10 > (end - start) // 2:
            yield start, end


_spawnv_passfds = multiprocessing.util.spawnv_passfds


def forkserver_or_other(path: Any, arguments: Sequence[Any], passfds: Sequence[int]) -> int:
    """In place of multiprocessing's `spawnv_passfds`, in the tests: its forkserver is forked from the warm process."""
    said = [os.fsdecode(one) for one in arguments]
    code = said.index("-c") + 1
    if not said[code].startswith("from multiprocessing.forkserver import"):
        return _spawnv_passfds(path, arguments, passfds)
    return shared().start(["-c", *said[code:]], [0, 1, 2], os.environ, folder=os.getcwd(), kept=[*passfds])


# --- in the warm process ----------------------------------------------------------------------------------------------


def main(end: socket.socket) -> None:
    """Fork programs until the other end is closed or its process is gone, and then end them."""
    gc.disable()  # nothing of what is imported is garbage
    for name in ("pytest", "sophon_loader.loader", "storage_agent.broker.broker", "storage_agent.workers.body"):
        importlib.import_module(name)
    path = _path_without(os.environ.get("PYTHONPATH", ""))
    ready_to_fork()
    running: set[int] = set()  # a pidfd of each program
    with selectors.DefaultSelector() as selector:
        parent = os.pidfd_open(os.getppid())
        for one in (end.fileno(), parent):
            selector.register(one, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in running:
                    running.remove(key.fd)
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    continue
                request, files, *_ = socket.recv_fds(end, _MOST, 16) if key.fd == end.fileno() else (b"", [])
                if not request:
                    for pidfd in running:
                        with contextlib.suppress(ProcessLookupError):
                            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    return
                pid = _orphan(functools.partial(_become, files, path, **json.loads(request)))
                for fd in files:
                    os.close(fd)
                with contextlib.suppress(ProcessLookupError):  # it has ended already
                    pidfd = os.pidfd_open(pid)
                    running.add(pidfd)
                    selector.register(pidfd, selectors.EVENT_READ)
                end.send(str(pid).encode())


def _warm_child() -> int:
    """Fork a process that does what this one does; the descriptor of the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if _fork() == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        number = os.dup2(theirs.fileno(), 3)
        _close_all_but([number])
        with socket.socket(fileno=number) as end:
            main(end)
        os._exit(0)
    return ours.detach()


def _path_without(own: str) -> list[str]:
    """Where this Python looks for modules, apart from its working directory and its own PYTHONPATH."""
    mine = {os.path.abspath(one) for one in own.split(os.pathsep) if one}
    return [one for one in sys.path[1:] if os.path.abspath(one) not in mine]


def _orphan(run: Callable[[], NoReturn]) -> int:
    """Fork a process whose parent ends, so that it becomes a child of whoever adopts it; its id."""
    reading, writing = os.pipe()
    parent = _fork()
    if parent == 0:
        pid = _fork()
        if pid == 0:
            run()
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(parent, 0)
    pid = int(os.read(reading, 16))
    os.close(reading)
    return pid


def _become(
    files: Sequence[int],
    path: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    session: bool = False,
    own: bool = False,
    kept: Sequence[int] = (),
) -> NoReturn:
    if session:
        os.setsid()
    if own:
        end = _warm_child()
        environment = {**environment, INHERITED: str(end)}
        files, kept = [*files, end], [end]
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, 1 + max([2, *kept])) for fd in files]
    for fd, number in zip(above, [0, 1, 2, *kept], strict=True):
        os.dup2(fd, number, inheritable=number < 3)
    _close_all_but(kept)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    multiprocessing.util.spawnv_passfds = _forked  # type: ignore[assignment]
    sys.path[:] = ["", *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *path]
    command = [one for number, one in enumerate(command) if number or one != "-u"]
    if command[0] == "-c":
        sys.argv[:] = ["-c", *command[2:]]
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        _end_with(lambda: exec(compile(command[1], "<string>", "exec"), main.__dict__))
    elif command[0] == "-m":
        sys.argv[:] = command[1:]
        sys.path[0] = folder
        _end_with(lambda: runpy.run_module(command[1], run_name="__main__", alter_sys=True))
    sys.argv[:] = command
    sys.path[0] = os.path.dirname(os.path.abspath(command[0]))
    _end_with(lambda: runpy.run_path(command[0], run_name="__main__"))


def _forked(path: Any, arguments: Sequence[Any], passfds: Sequence[int]) -> int:
    """In place of multiprocessing's: what a new Python would be told to run is run by a copy of this one."""
    said = [os.fsdecode(one) for one in arguments]
    code = said.index("-c") + 1
    if said[code].startswith(SPAWNED):
        return _spawnv_passfds(path, arguments, passfds)
    pid = _fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _close_all_but(passfds)
        sys.argv = ["-c", *said[code + 1 :]]  # Python 3.14 hands the forkserver those of its parent
        _end_with(lambda: exec(said[code], {}), at_exit=False)
    return pid


def _close_all_but(kept: Sequence[int]) -> None:
    """Of the descriptors above standard error."""
    ordered = sorted(kept)
    for low, high in zip([2, *ordered], [*ordered, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)


def _fork() -> int:
    """Without what Python 3.12 and later say where there are threads, which would be in the agents' logs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _end_with(run: Callable[[], object], at_exit: bool = True) -> NoReturn:
    """Run it to the end of this process, as Python would.

    Args:
        run: what to run.
        at_exit: whether to do then what was asked for; a copy must leave that to its parent.
    """
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        if at_exit:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        main(ours)
