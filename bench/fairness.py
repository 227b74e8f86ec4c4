"""Fairness of one agent to its clients, for any requests, and with clients that misbehave.

    python -m bench.fairness --json fairness.json
    python -m bench.fairness --clients 16 --seconds 10 --attack-seconds 5

Clients with windows of 8, 32, 128 and 512 samples in turn ask one agent with one worker, over loopback, for crops that
its worker makes. Each asks again for as many as have arrived. The figures are the slowest one's share of the fair rate
(all alike), and the peak memory of the agent's processes. Only samples that the worker has made count. Requests of
large windows beyond the agent's queue go out as files, which need no worker. Bar: half of the fair share.

Then a normal client alone, and next to each attacker: headers of empty lists, listings without an end, slow ops, large
values, a client that never reads. The figure is its rate as a part of that alone, with files that go out while slow
samples occupy the worker. Bar: half.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import zmq
from torchvision.transforms import v2
from tqdm import tqdm

from bench import arguments, record
from bench.children import EXPORT, local_agent
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import content_hash, pack, unpack
from sophon_loader.wire.limits import MAX_REQUEST_NBYTES
from sophon_loader.wire.messages import AskListing, Failed, Fetch, Item, Register, Registered, Sample

WINDOWS = (8, 32, 128, 512)
BAR = 0.5
ANSWER_S = 60.0
NORMAL_WINDOW = 32
PAUSE_S = 0.01
"""Between two messages of an attacker: it shall load the agent, and not the core that all share."""
CROP = chain_of(v2.Compose([v2.RandomResizedCrop(64)]))
SLOW = chain_of(v2.Compose([v2.Resize(1000), v2.GaussianBlur(199)]))


@dataclass
class Asker:
    """A client that always has a window of samples unanswered.

    Args:
        socket: connected to the agent.
        digest: of its pipeline.
        window: samples.
        keys: of the pictures.
        cut: that is asked for.
        samples: number of samples that have arrived.
        worked: those of them that a worker has made.
    """

    socket: zmq.Socket[bytes]
    digest: str
    window: int
    keys: Sequence[str]
    cut: int = 2
    asked: int = 0
    samples: int = 0
    worked: int = 0
    unanswered: int = 0

    def ask(self) -> None:
        """Ask for what has room in the window, once that is a quarter of it."""
        room = self.window - self.unanswered
        if room < max(1, self.window // 4):
            return
        numbers = range(self.asked, self.asked + room)
        items = [Item(n, n, 0, self.cut, "pixels", self.keys[n % len(self.keys)]) for n in numbers]
        self.socket.send(pack(Fetch(EXPORT, self.digest, 1, 0, False, False, ["pixels"], items)))
        self.asked += room
        self.unanswered += room

    def take(self) -> None:
        """Count the samples that have arrived."""
        while self.socket.poll(0):
            message = unpack(self.socket.recv_multipart()[0])
            answered = len(message.ids) if isinstance(message, Failed) else 1
            self.unanswered -= answered
            if isinstance(message, Sample):
                self.samples += 1
                self.worked += message.cut == self.cut


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write the results; 1 when a bar is missed."""
    options = arguments.parsed(parser(), argv)
    keys = sorted(str(path.relative_to(options.data)) for path in options.data.glob("*/*"))
    with local_agent(options.data) as (address, pid), zmq.Context() as context:
        endpoint = address.rpartition("/")[0]
        shares, memory_mb = shares_of(context, endpoint, pid, keys, options.clients, options.seconds)
        slowest = min(shares)
        print(
            f"{options.clients} clients: slowest {slowest:.2f} of the fair share (bar {BAR}), agent {memory_mb:.0f} MB"
        )
        alone = rate(context, endpoint, keys, options.attack_seconds)
        kept = {}
        for name, attack in tqdm(ATTACKS.items(), desc="attackers", file=sys.stderr):
            kept[name] = beside(context, endpoint, keys, options.attack_seconds, attack) / alone
            print(f"beside {name}: {kept[name]:.2f} of {alone:.0f} samples/s (bar {BAR})")
        context.destroy(linger=0)
    figures = {"shares": shares, "slowest": slowest, "agent_mb": memory_mb, "alone_samples_s": alone, "kept": kept}
    record.write(options.output, {**figures, "bar": BAR})
    return int(min(slowest, *kept.values()) < BAR)


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.fairness", __doc__, pictures=True)
    parser.add_argument("--clients", type=arguments.count(2), default=64)
    parser.add_argument(
        "--seconds", type=arguments.count(), default=120, help="How long all clients together are measured, in seconds."
    )
    parser.add_argument(
        "--attack-seconds", type=arguments.count(), default=10, help="How long each attacker is measured, in seconds."
    )
    return parser


def connected(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, **options: int) -> zmq.Socket[bytes]:
    """A socket to the agent, with options of zmq's."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value)
    socket.connect(endpoint)
    return socket


def registered(socket: zmq.Socket[bytes], chain: Chain) -> str:
    """The digest of a pipeline, once the agent has it."""
    registration = registration_of(chain, software())
    digest = content_hash(registration)
    socket.send_multipart([pack(Register(digest), registration), registration])
    if not socket.poll(int(1000 * ANSWER_S)):
        raise RuntimeError(f"the agent must register a pipeline within {ANSWER_S:g} s")
    answer = unpack(socket.recv_multipart()[0])
    if not isinstance(answer, Registered):
        raise RuntimeError(f"the agent must register a pipeline, got {answer}")
    return digest


def served(askers: Sequence[Asker], seconds: float, look: Callable[[], None] = lambda: None) -> None:
    """Let clients ask for some seconds, from the moment when each has had something.

    Args:
        askers: the clients; what they count is of these seconds.
        seconds: how long.
        look: called once a second.
    """
    poller = zmq.Poller()
    by_socket = {asker.socket: asker for asker in askers}
    for asker in askers:
        poller.register(asker.socket, zmq.POLLIN)
        asker.ask()
    end_s = time.monotonic() + ANSWER_S
    begun, look_s = False, 0.0
    while time.monotonic() < end_s:
        for socket, _ in poller.poll(100):
            by_socket[socket].take()
            by_socket[socket].ask()
        if not begun and all(asker.samples for asker in askers):
            begun, end_s = True, time.monotonic() + seconds
            for asker in askers:
                asker.samples = asker.worked = 0
        if time.monotonic() > look_s:
            look_s = time.monotonic() + 1.0
            look()


def shares_of(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, pid: int, keys: Sequence[str], clients: int, seconds: float
) -> tuple[list[float], float]:
    """Each client's samples of the worker as a part of the fair share, and the agent's memory at its highest in MB."""
    askers = []
    for number in range(clients):
        socket = connected(context, endpoint)
        askers.append(Asker(socket, registered(socket, CROP), WINDOWS[number % len(WINDOWS)], keys))
    seen_mb: list[float] = []
    served(askers, seconds, lambda: seen_mb.append(memory_of(pid)))
    fair = sum(asker.worked for asker in askers) / clients
    for asker in askers:
        asker.socket.close()
    return [asker.worked / fair if fair else 0.0 for asker in askers], max(seen_mb)


def memory_of(pid: int) -> float:
    """Memory of a process and its children, what they share counted once, in MB."""
    root = psutil.Process(pid)
    return float(sum(one.memory_full_info().pss for one in [root, *root.children(recursive=True)])) / 1e6


def rate(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: Sequence[str], seconds: float) -> float:
    """Samples per second of a normal client."""
    socket = connected(context, endpoint)
    asker = Asker(socket, registered(socket, CROP), NORMAL_WINDOW, keys)
    served([asker], seconds)
    socket.close()
    return asker.samples / seconds


Attack = Callable[[zmq.Socket[bytes], Sequence[str]], Callable[[], None]]
"""Makes ready over a socket that never reads, and gives what is done again and again."""


def beside(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: Sequence[str], seconds: float, attack: Attack
) -> float:
    """Return samples/s of a normal client next to an attacker."""
    over = threading.Event()

    def strike() -> None:
        socket = connected(context, endpoint, RCVHWM=1, SNDTIMEO=100)
        again = attack(socket, keys)
        while not over.wait(PAUSE_S):
            try:
                again()
            except zmq.Again:  # the agent does not take it: so much the better for the others
                continue
        socket.close()

    attacker = threading.Thread(target=strike)
    attacker.start()
    try:
        return rate(context, endpoint, keys, seconds)
    finally:
        over.set()
        attacker.join()


def _empty_lists(socket: zmq.Socket[bytes], keys: Sequence[str]) -> Callable[[], None]:
    header = b"\xdd" + (MAX_REQUEST_NBYTES - 5).to_bytes(4, "big") + b"\x90" * (MAX_REQUEST_NBYTES - 5)
    return lambda: socket.send(header)


def _listings(socket: zmq.Socket[bytes], keys: Sequence[str]) -> Callable[[], None]:
    return lambda: socket.send(pack(AskListing(EXPORT, "")))


def _slow_ops(socket: zmq.Socket[bytes], keys: Sequence[str], cut: int = 3) -> Callable[[], None]:
    asker = Asker(socket, registered(socket, SLOW), 512, keys, cut)

    def again() -> None:
        asker.take()
        asker.ask()

    return again


def _large_values(socket: zmq.Socket[bytes], keys: Sequence[str]) -> Callable[[], None]:
    return _slow_ops(socket, keys, cut=2)


def _never_reads(socket: zmq.Socket[bytes], keys: Sequence[str]) -> Callable[[], None]:
    return lambda: socket.send(pack(Fetch.of_files(EXPORT, {n: keys[n % len(keys)] for n in range(100)})))


ATTACKS: dict[str, Attack] = {
    "headers of empty lists": _empty_lists,
    "listings": _listings,
    "slow ops": _slow_ops,
    "large values": _large_values,
    "a client that never reads": _never_reads,
}


if __name__ == "__main__":
    sys.exit(main())
