"""What the tests of a running agent share: the process, and a client that says anything at all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import psutil
import zmq

from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentUnreachable
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.announcement import Announcement, announced
from sophon_loader.wire.frames import content_hash, pack, unpack
from sophon_loader.wire.messages import AskStatus, Failed, Fetch, Item, Message, Register, Registered, Sample, Status
from storage_agent.command.status import ask_status
from tests.support.warm import Forked, Warm, shared

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "storage_agent")
EXPORT = "pictures"
WAIT_S = 40.0
"""Long enough on a busy machine; a test that works never waits for it."""
Found = TypeVar("Found")


def until(condition: Callable[[], Found | Literal[False] | None], what: str, wait_s: float = WAIT_S) -> Found:
    """The first true value of `condition`, asked again and again until a deadline."""
    end = time.monotonic() + wait_s
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {wait_s:g} s"
        time.sleep(0.02)
    return found


def run_command(*arguments: str, timeout_s: float = 90.0) -> subprocess.CompletedProcess[str]:
    """`sophon-agent` with these arguments, to its end."""
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)


def with_modules(folder: Path | None) -> dict[str, str]:
    """The environment of a Python that finds the modules of `folder` before all others."""
    if folder is None:
        return dict(os.environ)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


class Agent:
    """A `sophon-agent serve` process on a free port of this host; it listens when the constructor returns.

    Args:
        exports: name -> folder, or a location with a scheme.
        arguments: more of the command line.
        workers: processes that run ops.
        modules: a folder whose modules its Python finds before all others.
        log: the file for its standard error; the tests' own otherwise.
        prefix: a command that runs the one behind it, under other limits say.
        warm: what it is forked from; False: the command is started, as it always is with `modules` or a `prefix`.
    """

    def __init__(
        self,
        exports: Mapping[str, Path | str],
        *arguments: str,
        workers: int = 1,
        modules: Path | None = None,
        log: Path | None = None,
        prefix: Sequence[str] = (),
        warm: Warm | bool = True,
    ) -> None:
        self.exports = exports
        self.arguments = arguments
        self.modules = modules
        self.log = log
        self._prefix = prefix
        self._warm = (shared() if warm is True else warm) if warm and not (prefix or modules) else None
        self._serve = ["serve", "--workers", str(workers)]
        if log is None:
            self._serve += ["--log-level", "warning"]
        self._bind: Sequence[str] = ()
        self._clients: list[Client] = []
        self._descendants: set[psutil.Process] = set()
        self.process, self.announcement = self._started()

    def _started(self) -> tuple[subprocess.Popen[bytes], Announcement]:
        exports = [part for name, folder in self.exports.items() for part in ("--export", f"{name}={folder}")]
        arguments = [*self._serve, *exports, *(self._bind or ("--bind", "tcp://127.0.0.1:0")), *self.arguments]
        with contextlib.ExitStack() as files:
            errors = 2 if self.log is None else files.enter_context(self.log.open("ab")).fileno()
            process = self._process(arguments, errors)
        try:
            return process, announced(process, WAIT_S)
        except AgentUnreachable as error:
            _close_pipes(process)
            raise AssertionError(f"the agent must say where it listens: {error} {self.errors()}") from error

    def _process(self, arguments: Sequence[str], errors: int) -> subprocess.Popen[bytes]:
        how: dict[str, Any] = {"cwd": ROOT, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        if self._warm is not None and not self.modules:
            return Forked([*COMMAND, *arguments], warm=self._warm, **how)
        return subprocess.Popen([*self._prefix, *COMMAND, *arguments], env=with_modules(self.modules), **how)

    def start(self) -> None:
        """Start it again on its old port, with the `exports`, `arguments` and `modules` of now."""
        self._bind = ("--bind", self.endpoint)
        end_s = time.monotonic() + WAIT_S
        while True:
            try:
                self.process, self.announcement = self._started()
                return
            except AssertionError:  # the port is not free again yet
                if time.monotonic() > end_s:
                    raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self.announcement.endpoint

    def address(self, export: str = EXPORT) -> str:
        """Where a loader finds an export (`name` or `name/folder`)."""
        return f"{self.endpoint}/{export}"

    def errors(self) -> str:
        """What it has written to its log."""
        return "" if self.log is None else self.log.read_text()

    def client(self, **options: Any) -> Client:
        """A new connection, with options of zmq's sockets."""
        self._clients.append(Client(self.endpoint, **options))
        return self._clients[-1]

    def status(self) -> dict[str, Any]:
        """The agent's numbers about itself; fails when it does not answer."""
        return ask_status(self.endpoint, 10.0)

    def alive(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self.status()["instance"])
        except AgentUnreachable:
            return False

    def ready(self) -> Agent:
        """Wait until every worker is."""
        client = self.client()
        workers = self.announcement.workers
        until(lambda: client.status()["workers"] == workers, "all workers are ready", 3 * WAIT_S)
        return self

    def pause(self) -> None:
        """Stop the broker in its tracks; connections stay open."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `pause`."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it as a power cut would: the broker and its workers (which end when the broker does)."""
        self.end(signal.SIGKILL)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.go_on()
        try:
            return self.process.wait(WAIT_S)
        finally:
            for client in self._clients:
                client.close()
            self._clients.clear()
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            _close_pipes(self.process)

    def descendants(self) -> set[psutil.Process]:
        """Every process that this agent has been seen to have started, the agent excluded."""
        if self.process.poll() is None:
            self._descendants |= set(psutil.Process(self.pid).children(recursive=True))
        return self._descendants

    def assert_gone(self) -> None:
        """Nothing that the agent has started is left."""
        names = []
        for process in psutil.wait_procs(self.descendants(), timeout=10.0)[1]:
            with contextlib.suppress(psutil.ZombieProcess):  # it has ended, and init has not noticed yet
                names.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
                process.kill()
        assert not names


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class StartAgent(Protocol):
    """What the fixture `start_agent` is."""

    def __call__(self, *arguments: str, workers: int = 2) -> Agent: ...


@contextlib.contextmanager
def agent_for(
    exports: Path | Mapping[str, Path | str],
    *arguments: str,
    workers: int = 1,
    modules: Path | None = None,
    warm: Warm | bool = True,
) -> Iterator[Agent]:
    """An agent for the duration of a block; it dies with the test process, whatever happens.

    Args:
        exports: name -> folder; a folder alone is `EXPORT`.
        arguments: more of the command line.
        workers: processes that run ops.
        modules: a folder whose modules its Python finds before all others.
        warm: see `Agent`.
    """
    named = {EXPORT: exports} if isinstance(exports, Path) else exports
    agent = Agent(named, "--end-with-stdin", *arguments, workers=workers, modules=modules, warm=warm)
    try:
        yield agent
    finally:
        agent.end()


class Client:
    """A socket to an agent."""

    def __init__(self, address: str, **options: int) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.connect(address)

    def send(self, message: Message, *payload: bytes) -> None:
        self.socket.send_multipart([pack(message, *payload[:1]), *payload])

    def receive(self, wait_s: float = WAIT_S) -> tuple[Message, Payload]:
        assert self.socket.poll(int(1000 * wait_s)), f"no answer within {wait_s:g} s"
        header, *payload = self.socket.recv_multipart()
        return unpack(header), b"".join(payload)

    def ask(self, message: Message, *payload: bytes) -> Message:
        self.send(message, *payload)
        return self.receive()[0]

    def status(self) -> dict[str, Any]:
        answer = self.ask(AskStatus())
        assert isinstance(answer, Status)
        return answer.values

    def register(self, chain: Chain) -> str:
        registration = registration_of(chain, software())
        answer = self.ask(Register(content_hash(registration)), registration)
        assert isinstance(answer, Registered), answer
        return answer.digest

    def samples(self, count: int) -> dict[int, Sample]:
        """The next `count` answers, which must be samples, by their ids."""
        found = {}
        for _ in range(count):
            message, _ = self.receive()
            assert isinstance(message, Sample), message
            found[message.id] = message
        assert len(found) == count, "an id must be answered once"
        return found

    def failed(self, message: Message, *payload: bytes) -> Failed:
        """The refusal of a message."""
        answer = self.ask(message, *payload)
        assert isinstance(answer, Failed), answer
        return answer

    def close(self) -> None:
        self.socket.close()
        self.context.term()


def fetch(
    keys: Sequence[str],
    cut: int = 0,
    digest: str = "",
    first: int = 0,
    encoding: str = "file",
    allowed: Sequence[str] = (*encoding_names(), ANY_PART),
    occurrence: int = 0,
) -> Fetch:
    """Ask for files, with ids from `first` on."""
    items = [Item(first + n, n, occurrence, cut, encoding, key) for n, key in enumerate(keys)]
    return Fetch("d", digest, seed=1, epoch=0, keep_info=False, dry=False, allowed=list(allowed), items=items)
