"""What the tests of a running agent share: the process, and a client that says anything at all."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import psutil
import zmq

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentUnreachable
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.announcement import Announcement, announced
from sophon_loader.wire.frames import content_hash, pack, unpack
from sophon_loader.wire.messages import AskStatus, Failed, Fetch, Item, Message, Register, Registered, Sample, Status

ROOT = Path(__file__).parents[2]
WAIT_S = 40.0
"""Long enough on a busy machine; a test that works never waits for it."""
Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, wait_s: float = WAIT_S) -> Found:
    """The first true value of `condition`, asked again and again until a deadline."""
    end = time.monotonic() + wait_s
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {wait_s:g} s"
        time.sleep(0.02)
    return found


class Agent:
    """A `sophon-agent serve` process of the export `d`, on a free port."""

    def __init__(self, folder: Path, log: Path, *arguments: str, workers: int = 2, **popen: Any) -> None:
        command = [sys.executable, "-m", "storage_agent", "serve", "--export", f"d={folder}"]
        command += ["--bind", "tcp://127.0.0.1:0", "--workers", str(workers), *arguments]
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, **popen)
        self._clients: list[Client] = []
        self._descendants: set[psutil.Process] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.announcement.endpoint

    @cached_property
    def announcement(self) -> Announcement:
        """What it prints once it listens."""
        try:
            return announced(self.process, WAIT_S)
        except AgentUnreachable as error:
            raise AssertionError(f"the agent must say where it listens: {self.errors()}") from error

    def errors(self) -> str:
        return self.log.read_text()

    def client(self, **options: Any) -> Client:
        """A new connection."""
        self._clients.append(Client(self.address, **options))
        return self._clients[-1]

    def ready(self) -> Agent:
        """Wait until every worker is."""
        client = self.client()
        workers = self.announcement.workers
        until(lambda: client.status()["workers"] == workers, "all workers are ready")
        return self

    def descendants(self) -> set[psutil.Process]:
        """Every process that this agent has been seen to have started, the agent excluded."""
        if self.process.poll() is None:
            self._descendants |= set(psutil.Process(self.pid).children(recursive=True))
        return self._descendants

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit status."""
        self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(WAIT_S)
        finally:
            self._clean_up()

    def _clean_up(self) -> None:
        for client in self._clients:
            client.close()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def assert_gone(self) -> None:
        """Nothing that the agent has started is left."""
        _, left = psutil.wait_procs(self.descendants(), timeout=10.0)
        names = [f"{process.pid} {' '.join(process.cmdline())[:200]}" for process in left]
        for process in left:
            process.kill()
        assert not names


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
        self.socket.send_multipart([pack(message), *payload])

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
    allowed: Sequence[str] = encoding_names(),
    occurrence: int = 0,
) -> Fetch:
    """Ask for files, with ids from `first` on."""
    items = [Item(first + n, n, occurrence, cut, encoding, key) for n, key in enumerate(keys)]
    return Fetch("d", digest, seed=1, epoch=0, keep_info=False, dry=False, allowed=list(allowed), items=items)
