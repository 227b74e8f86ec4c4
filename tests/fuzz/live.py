"""A live agent under inputs that mean harm, with a normal client beside them.

    python -m tests.fuzz.live --json live.json
    python -m tests.fuzz.live --frames 20000 --descriptions 2000 --strangers 500

Three attacks, one after the other, each of one process that gives way to all others (nice 19):

- frames: messages with changed headers and payloads, half of them under a seal that fits, over connections that are
  made anew now and then, and connections of bytes that are no protocol at all;
- descriptions: changed registrations of pipelines, which reach the worker;
- strangers, at an agent with keys: connections that say nothing, that say anything (a port scan), that stop in the
  middle of the handshake, and clients with a wrong key.

Told are the memory of all the agent's processes after an attack, in parts of that before (what they share counts once;
the first hundredth of an attack comes before), and the normal client's p95 of one crop after the other, in parts of
that in quiet. Bars: 1.05 and 3. Exit status 1 when one is missed, or when the agent does not answer.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import zmq
from tqdm import tqdm

from bench.fairness import CROP, memory_of
from bench.record import stamp, write_json
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.errors import AgentUnreachable
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import content_hash, pack, seal, unpack
from sophon_loader.wire.messages import Fetch, Item, Ping, Pong, Register, Sample
from storage_agent.clients.key_files import FIRST, KeyFolder
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import SEPARATOR, targets
from tests.support.agents import EXPORT, Agent
from tests.support.pictures import make_tree

MEMORY_BAR, LATENCY_BAR = 1.05, 3.0
FILES = 16
QUIET_S = 8.0
ANSWER_S = 60.0
BURST = 100
"""Messages between two signs of life of the agent."""
BURSTS_OF_A_CONNECTION = 50
PAUSE_S = 0.002
"""Of the normal client, between two samples."""


@dataclass(frozen=True)
class Result:
    """What an attack did.

    Args:
        name: of the attack.
        count: of its inputs.
        seconds: that it took.
        memory: of the agent's processes afterwards, in parts of that before.
        before_mb: what that was, MB.
        p95: of the normal client meanwhile, in parts of that in quiet.
        quiet_ms: what that was, ms.
    """

    name: str
    count: int
    seconds: float
    memory: float
    before_mb: float
    p95: float
    quiet_ms: float

    @property
    def passes(self) -> bool:
        """Whether both bars are met."""
        return self.memory <= MEMORY_BAR and self.p95 <= LATENCY_BAR


# --- the normal client ------------------------------------------------------------------------------------------------


def _normal(address: str, token: str | None, keys: list[str], pipe: Pipe) -> None:
    """The body of the normal client's process: a sample after the other; at each word, what has been since the last."""
    connection = Connection(Address.parse(address).with_key(token), window=1)
    connection.greet(ANSWER_S)
    registration = registration_of(CROP, software())
    connection.register(registration, ANSWER_S)
    digest, number, took_s = content_hash(registration), 0, list[float]()
    while True:
        number += 1
        item = Item(number, number, 0, 2, "pixels", keys[number % len(keys)])
        since_s = time.monotonic()
        connection.send(Fetch(EXPORT, digest, 1, 0, False, False, ["pixels"], [item]))
        answer = connection.receive(ANSWER_S)
        took_s.append(time.monotonic() - since_s)
        if answer is None or not isinstance(answer[0], Sample):
            pipe.send(f"a sample must come within {ANSWER_S:g} s, got {answer}")
            return
        if pipe.poll(PAUSE_S):
            if pipe.recv() == "end":
                break
            pipe.send(took_s)
            took_s = []
    connection.close()


class Normal:
    """A client in a process of its own, which asks for one crop after the other; for a `with`.

    Args:
        address: of the agent's export.
        token: the client's key, if the agent has keys.
        keys: of the pictures.
    """

    def __init__(self, address: str, token: str | None, keys: list[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_normal, args=(address, token, keys, theirs), daemon=True)

    def p95_s(self) -> float:
        """Of its samples since this was asked last, s.

        Raises:
            RuntimeError: one did not come.
        """
        with contextlib.suppress(BrokenPipeError):  # it has said why before it ended
            self._pipe.send("tell")
        if not self._pipe.poll(2 * ANSWER_S):
            raise RuntimeError("the normal client must answer, and does not")
        took_s = self._pipe.recv()
        if isinstance(took_s, str):
            raise RuntimeError(took_s)
        return float(np.quantile(took_s, 0.95))

    def __enter__(self) -> Normal:
        self._process.start()
        self.p95_s()  # it has connected
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send("end")
        self._process.join(10.0)
        self._process.kill()


# --- attacks ----------------------------------------------------------------------------------------------------------


class Attacker:
    """A socket that sends anything, and drops what is answered.

    Args:
        context: for the socket.
        endpoint: of the agent.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._context, self._endpoint = context, endpoint
        self._sent = 0
        self._socket = self._connected()

    def _connected(self) -> zmq.Socket[bytes]:
        made = self._context.socket(zmq.DEALER)
        made.setsockopt(zmq.LINGER, 0)
        made.connect(self._endpoint)
        return made

    def send(self, frames: list[bytes]) -> None:
        """Send a message; after some, wait until the agent gives a sign of life."""
        self._socket.send_multipart(frames)
        self._sent += 1
        if self._sent % BURST == 0:
            self._see_that_it_lives()
        if self._sent % (BURST * BURSTS_OF_A_CONNECTION) == 0:
            self._socket.close()
            self._socket = self._connected()

    def _see_that_it_lives(self) -> None:
        self._socket.send(pack(Ping()))
        end_s = time.monotonic() + ANSWER_S
        while time.monotonic() < end_s:
            if self._socket.poll(1000) and isinstance(unpack(self._socket.recv_multipart()[0]), Pong):
                return
        raise AgentUnreachable(f"the agent must give a sign of life within {ANSWER_S:g} s")


def _frames(count: int, endpoint: str, seed: int) -> None:
    """Changed messages, and connections that speak no protocol."""
    inputs = mutated([*targets()["desk"].seeds(), *targets()["header"].seeds()], seed)
    draw = random.Random(seed)
    with zmq.Context() as context:
        attacker = Attacker(context, endpoint)
        for number in range(count):
            row, *payload = next(inputs).split(SEPARATOR)
            attacker.send([seal(row, b"".join(payload)) if number % 2 else row, *payload])
            if number % 1000 == 0:
                _say(endpoint, draw.randbytes(draw.randint(1, 4096)))
        context.destroy(linger=0)


def _descriptions(count: int, endpoint: str, seed: int) -> None:
    """Changed registrations."""
    inputs = mutated(list(targets()["registration"].seeds()), seed)
    with zmq.Context() as context:
        attacker = Attacker(context, endpoint)
        for _ in range(count):
            registration = next(inputs)
            attacker.send([pack(Register(content_hash(registration)), registration), registration])
        context.destroy(linger=0)


def _say(endpoint: str, data: bytes) -> socket.socket:
    """A connection by which something has been said."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    made = socket.create_connection((host, int(port)), timeout=ANSWER_S)
    with contextlib.suppress(OSError):  # it has been hung up on
        made.sendall(data)
    return made


def _strangers(count: int, endpoint: str, seed: int) -> None:
    """Connections of those that have no key, all held to the end."""
    draw, held = random.Random(seed), list[socket.socket]()
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    sayings = (b"", b"GET / HTTP/1.0\r\n\r\n", greeting[:11], greeting, greeting + b"\x04\x26\x05READY" + bytes(32))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    public, secret = zmq.curve_keypair()
    server, _ = zmq.curve_keypair()
    with zmq.Context() as context:
        for number in range(count):
            with contextlib.suppress(OSError):  # the agent has no room for it
                held.append(_say(endpoint, draw.choice(sayings)))
            if number % 100 == 0:
                wrong = context.socket(zmq.DEALER)
                wrong.setsockopt(zmq.LINGER, 0)
                wrong.curve_serverkey, wrong.curve_publickey, wrong.curve_secretkey = server, public, secret
                wrong.connect(endpoint)
                wrong.send(pack(Ping()), zmq.NOBLOCK)
        time.sleep(QUIET_S)
        for one in held:
            one.close()
        context.destroy(linger=0)


Attack = Callable[[int, str, int], None]


def _attack(attack: Attack, count: int, endpoint: str, seed: int) -> None:
    os.nice(19)
    attack(count, endpoint, seed)


def _struck(attack: Attack, count: int, endpoint: str, seed: int) -> None:
    """Carry an attack out, in a process of its own."""
    process = multiprocessing.get_context("spawn").Process(target=_attack, args=(attack, count, endpoint, seed))
    process.start()
    process.join()
    if process.exitcode:
        raise AgentUnreachable(f"the agent must answer an attacker, too; it ended with {process.exitcode}")


def measured(name: str, attack: Attack, count: int, agent: Agent, normal: Normal, seed: int) -> Result:
    """An attack on an agent, and what came of it.

    Args:
        name: of the attack.
        attack: what to do.
        count: of its inputs.
        agent: the victim.
        normal: a client of the victim.
        seed: of what is drawn.

    Raises:
        AgentUnreachable, RuntimeError: the agent did not answer.
    """
    _struck(attack, max(BURST, count // 100), agent.endpoint, seed)
    normal.p95_s()
    time.sleep(QUIET_S)
    quiet_s, before_mb = normal.p95_s(), memory_of(agent.pid)
    since_s = time.monotonic()
    _struck(attack, count, agent.endpoint, seed + 1)
    took_s, p95_s = time.monotonic() - since_s, normal.p95_s()
    time.sleep(2.0)  # until what was on its way has been dropped
    memory = memory_of(agent.pid) / before_mb
    return Result(name, count, took_s, memory, before_mb, p95_s / quiet_s, 1000 * quiet_s)


def results(frames: int, descriptions: int, strangers: int, seed: int) -> Iterator[Result]:
    """Each attack that has inputs, one after the other."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        tree = make_tree(folder / "pictures", FILES, plain=True)
        keys = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.jpg"))
        attacks: list[tuple[str, Attack, int]] = [
            ("frames", _frames, frames), ("descriptions", _descriptions, descriptions),
        ]  # fmt: skip
        if frames or descriptions:
            agent = Agent({EXPORT: tree, "d": tree}, "--end-with-stdin", log=folder / "open").ready()
            stack.callback(agent.end)
            with Normal(agent.address(), None, keys) as normal:
                for name, attack, count in attacks:
                    if count:
                        yield measured(name, attack, count, agent, normal, seed)
        if strangers:
            allowed = KeyFolder(folder / "keys")
            token = str(allowed.add(FIRST))
            agent = Agent({EXPORT: tree}, "--end-with-stdin", "--keys", str(allowed.path), log=folder / "closed")
            stack.callback(agent.end)
            with Normal(agent.address(), token, keys) as normal:
                yield measured("strangers", _strangers, strangers, agent, normal, seed)


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000, help="default %(default)s; 0: no such attack")
    parser.add_argument("--descriptions", type=int, default=100_000, help="default %(default)s; 0: no such attack")
    parser.add_argument("--strangers", type=int, default=5000, help="connections; default %(default)s; 0: none")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures")
    asked = parser.parse_args()
    found = []
    for one in tqdm(results(asked.frames, asked.descriptions, asked.strangers, asked.seed), unit="attack"):
        found.append(one)
        print(
            f"{one.count} {one.name} in {one.seconds:.0f} s: memory {one.memory:.3f} of {one.before_mb:.0f} MB (bar "
            f"{MEMORY_BAR}), p95 {one.p95:.2f} of {one.quiet_ms:.1f} ms (bar {LATENCY_BAR:g})",
            flush=True,
        )
    if asked.json is not None:
        counts = f"--frames {asked.frames} --descriptions {asked.descriptions} --strangers {asked.strangers}"
        command = f"python -m tests.fuzz.live {counts} --seed {asked.seed}"
        write_json(asked.json, {**stamp(command), "attacks": [asdict(one) for one in found]})
    return 0 if all(one.passes for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
