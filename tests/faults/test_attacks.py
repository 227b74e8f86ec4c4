"""What one client may do to an agent, and what the others notice of it: nothing but a fair share.

Each attack was seen to stop the agent, or to fill its memory, before it was bounded. They are small here: seconds each.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import psutil
import pytest
from torchvision.transforms import v2

from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.limits import MAX_DESCRIPTION_NBYTES, MAX_KEYS, MAX_PIPELINES, MAX_REQUEST_NBYTES
from sophon_loader.wire.messages import AskListing, AskSizes, Failed, Ping, Register, Sample
from tests.support.agent_ops import Gate, Hog, Invert, waiting
from tests.support.agents import Agent, Client, fetch, until
from tests.support.pictures import make_tree
from tests.support.raw import RawPeer

MB = 1 << 20
BIG = "big.bin"
HUGE = "huge.bin"
KEY = "class_0/0000.jpg"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tree(tmp_path_factory.mktemp("attacked") / "tree", 8, plain=True)
    picture = next(root.glob("class_0/*"))
    picture.rename(root / KEY)
    (root / BIG).write_bytes(os.urandom(MB))
    with (root / HUGE).open("wb") as file:
        file.truncate(64 * MB)
    return root


@pytest.fixture(scope="module")
def victim(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent that must outlive all attacks, with workers whose patience and memory are short."""
    one = Agent(
        {"d": tree}, "--end-with-stdin", "--ops", "tests.support.agent_ops", "--job-seconds", "4",
        "--worker-memory-mb", "512", workers=2, log=tmp_path_factory.mktemp("attacked") / "log",
    )  # fmt: skip
    yield one.ready()
    one.descendants()
    assert one.end() == 0 and "Traceback" not in one.errors()
    one.assert_gone()


@pytest.fixture
def normal(victim: Agent) -> Iterator[Client]:
    """A client that must be served whatever the others do, and find nothing left of them afterwards."""
    client = victim.client()
    _served(client)
    yield client
    _served(client)
    until(lambda: client.status()["outstanding"] == 0, "nothing is counted that nobody waits for")


def _served(client: Client, cut: int = 0) -> None:
    """Its samples come; at whatever cut the agent finds time for."""
    client.send(fetch([KEY] * 8, cut, client.register(chain_of(Invert())) if cut else ""))
    client.samples(8)


def _cpu_s(agent: Agent) -> float:
    times = psutil.Process(agent.pid).cpu_times()
    return times.user + times.system


def _rss(agent: Agent) -> int:
    """Memory of the broker."""
    return int(psutil.Process(agent.pid).memory_info().rss)


def test_headers_of_empty_lists(victim: Agent, normal: Client) -> None:
    attacker, before_s = victim.client(), _cpu_s(victim)
    header = b"\xdd" + (MAX_REQUEST_NBYTES - 5).to_bytes(4, "big") + b"\x90" * (MAX_REQUEST_NBYTES - 5)
    for _ in range(16):
        attacker.socket.send(header)
    _served(normal)
    for _ in range(16):
        answer, _ = attacker.receive()
        assert isinstance(answer, Failed) and answer.failure == "too-long"
    assert _cpu_s(victim) - before_s < 4, "it was 14 s"


def test_registrations_of_four_megabytes(victim: Agent, normal: Client) -> None:
    attacker = victim.client()
    workers = [psutil.Process(pid) for pid in normal.status()["op_worker_pids"]]
    before = [worker.memory_info().rss for worker in workers]
    row = ["v2.RandomOrder", {"transforms": [{"$": "op", "name": "v2.Identity", "params": {}}] * 120_000}]
    description = msgpack.packb([["decode", {}], row])
    assert len(description) < MAX_DESCRIPTION_NBYTES
    for n in range(4):
        registration = msgpack.packb([{**software(), "n": str(n)}, description])
        failed = attacker.failed(Register(content_hash(registration)), registration)
        assert failed.failure == "bad-pipeline" and "values" in failed.text
    _served(normal, 2)
    for worker, nbytes in zip(workers, before, strict=True):
        assert worker.memory_info().rss < nbytes + 200 * MB, "it was 580 MB for one"


def test_very_many_registrations(victim: Agent, normal: Client) -> None:
    """They do not push out a pipeline that is in use."""
    attacker, digest = victim.client(), normal.register(chain_of(Invert()))
    for n in range(MAX_PIPELINES // 16 + 1):
        for px in range(16 * n, 16 * n + 16):
            attacker.register(chain_of(v2.CenterCrop(1 + px)))
        normal.send(fetch([KEY], 2, digest))
        ((_, sample),) = normal.samples(1).items()
        assert sample.cut == 2


def test_slow_ops_of_one_client(victim: Agent, normal: Client, tmp_path: Path) -> None:
    """The others get files meanwhile; workers are replaced; what waits is dropped when the client leaves."""
    attacker, gate = victim.client(), tmp_path / "gate"
    digest = normal.register(chain_of(Invert()))
    attacker.send(fetch([KEY] * 500, 2, attacker.register(chain_of(Gate(str(gate))))))
    until(lambda: len(waiting(gate)) == 2, "both workers are taken")
    before, notes = normal.status(), []
    for _ in range(3):
        normal.send(fetch([KEY] * 8, 2, digest))
        notes += [sample.note for sample in normal.samples(8).values()]
    assert any("busy with slow samples of other loaders" in note for note in notes)
    deaths = before["worker_deaths"]
    until(lambda: normal.status()["worker_deaths"] > deaths, "a worker that takes too long is replaced")
    answer, _ = attacker.receive()
    assert isinstance(answer, Sample) and answer.cut == 0 and "it took more than 4 s" in answer.note
    _served(normal, 2)
    assert normal.status()["outstanding"] > 300
    attacker.close()
    until(lambda: normal.status()["outstanding"] < 10, "nobody waits for these any more")
    gate.touch()
    until(lambda: normal.status()["op_workers"] == 2, "both workers are there")


def test_an_op_that_would_make_a_vast_image(victim: Agent, normal: Client) -> None:
    """Of a picture of some thousand px; it does not run, in a container neither."""
    attacker = victim.client()
    peaks = _peaks(normal)
    for transform in (v2.Resize(9000), v2.RandomApply([v2.Pad(5000)], p=1.0)):
        attacker.send(fetch([KEY], 2, attacker.register(chain_of(transform)), encoding="pixels"))
        ((_, sample),) = attacker.samples(1).items()
        assert sample.cut == 0 and "an op must make at most 64000000 px here" in sample.note
    assert _peaks(normal) - peaks < 100 * MB, "it was 250 MB for the first of them"
    _served(normal, 2)


def _peaks(client: Client) -> int:
    """The most memory that each worker has had, all together, in bytes."""
    found = 0
    status = client.status()
    for pid in status["worker_pids"] + status["op_worker_pids"]:
        words = Path(f"/proc/{pid}/status").read_text().split()
        found += int(words[words.index("VmHWM:") + 1]) << 10
    return found


def test_an_op_that_wants_all_memory(victim: Agent, normal: Client) -> None:
    attacker = victim.client()
    attacker.send(fetch([KEY] * 2, 2, attacker.register(chain_of(Hog(4096)))))
    samples = attacker.samples(2).values()
    assert all(sample.cut == 0 and "MemoryError" in sample.note for sample in samples), "and not for its time"
    _served(normal, 2)


def test_a_thousand_listings_and_large_questions(victim: Agent, normal: Client) -> None:
    """Who asks in turn with them waits for few of them, not for all that came before."""
    attacker = victim.client()
    for n in range(1000):
        attacker.send(AskSizes("d", [KEY] * MAX_KEYS) if n < 100 else AskListing("d", ""))
    until(lambda: normal.status()["outstanding"] > 900, "they wait")
    for _ in range(4):
        _served(normal)
    assert normal.status()["outstanding"] > 900, "they still wait"
    attacker.close()


def test_a_message_without_an_end(victim: Agent, normal: Client) -> None:
    before, sent = _rss(victim), 0
    with RawPeer(victim.endpoint) as peer, contextlib.suppress(OSError):
        while sent < 2000 * MB:
            for _ in range(4):
                peer.send(bytes(MB), more=True)
                sent += MB
            time.sleep(0.01)
    assert sent < 2000 * MB, "it is hung up on"
    assert _rss(victim) - before < sent / 2 + 300 * MB
    assert normal.status()["hung_up"] >= 1


def test_a_message_of_very_many_frames(victim: Agent, normal: Client) -> None:
    hung_up = normal.status()["hung_up"]
    with RawPeer(victim.endpoint) as peer, contextlib.suppress(OSError):
        frames = b"\x01\x00" * 500_000
        peer.socket.sendall(frames + b"\x00\x00")
        _served(normal)
        while peer.socket.recv(1 << 16):
            pass
    until(lambda: normal.status()["hung_up"] > hung_up, "it is hung up on")


def test_clients_that_never_read(victim: Agent, normal: Client) -> None:
    """Six of them want 3 GB; nothing is read for them that they do not take."""
    before = _rss(victim)
    deaf = [victim.client(RCVHWM=1, RCVBUF=4096) for _ in range(6)]
    for client in deaf:
        client.send(fetch([BIG] * 500))
        for _ in range(50):
            client.send(Ping())
    until(lambda: normal.status()["outstanding"] > 2000, "they wait")
    for _ in range(4):
        _served(normal, 2)
    until(lambda: _at_rest(normal), "nothing more is read")
    assert _rss(victim) - before < 800 * MB, "it was 2.9 GB"
    assert normal.status()["outstanding"] > 2000, "still"
    for client in deaf:
        client.close()


def test_many_messages_without_an_end(victim: Agent, normal: Client) -> None:
    """None of them too long, and all of them together: it was 31 MB for each connection, however many there were."""
    before, hung_up = _rss(victim), normal.status()["hung_up"]
    with contextlib.ExitStack() as peers:
        for _ in range(30):
            peer = peers.enter_context(RawPeer(victim.endpoint))
            with contextlib.suppress(OSError):
                for _ in range(30):
                    peer.send(bytes(MB), more=True)
        assert _rss(victim) - before < 800 * MB, "it was 930 MB"
        until(lambda: normal.status()["hung_up"] > hung_up, "those with most are hung up on")
        _served(normal, 2)
        assert "unread messages" in victim.errors()
    until(lambda: normal.status()["unread_requests_mb"] < 1, "nothing is left of them")


def test_many_large_replies_that_nobody_reads(victim: Agent, normal: Client) -> None:
    """1.9 GB, of clients that each have asked for two: no more is made than all may leave unread."""
    before = _rss(victim)
    deaf = [victim.client(RCVHWM=1, RCVBUF=4096) for _ in range(15)]
    for client in deaf:
        client.send(fetch([HUGE] * 2))
    until(lambda: "it does not read, and unread replies exceed" in victim.errors(), "it is noticed")
    assert _rss(victim) - before < 1200 * MB
    for _ in range(4):
        _served(normal, 2)
    for client in deaf:
        client.close()
    until(lambda: normal.status()["unread_replies_mb"] < 1, "nothing is left of them")


def test_connections_that_say_nothing_cost_nothing(victim: Agent, normal: Client) -> None:
    """The broker sleeps, and so do its threads: nothing counts connections, or looks at them, by the clock."""
    idle = [RawPeer(victim.endpoint) for _ in range(50)]
    try:
        idle[0].socket.sendall(b"\x01\x08half")
        time.sleep(0.5)  # until what was said before has been dealt with
        before = _turns_of(victim)
        time.sleep(1.0)
        assert _turns_of(victim) - before < 5, "it was 10 a second, with a question to the kernel about each connection"
    finally:
        for peer in idle:
            peer.socket.close()


def _turns_of(agent: Agent) -> int:
    """How often the broker's thread has gone to sleep."""
    return int(psutil.Process(agent.pid).num_ctx_switches().voluntary)


def _at_rest(client: Client) -> bool:
    """Whether nothing is answered any more."""
    before = client.status()["outstanding"]
    time.sleep(0.3)
    return bool(client.status()["outstanding"] == before)


def _let_in(agent: Agent) -> Client | None:
    """A new client that has been answered. One that was turned away has lost what it said, as a loader would find."""
    client = agent.client()
    client.send(Ping())
    if client.socket.poll(2000):
        client.receive()
        return client
    client.close()
    return None


def test_more_connections_than_descriptors(tree: Path, tmp_path: Path) -> None:
    """They are let go, the oldest that never spoke first; samples are read, and a worker that dies is replaced."""
    shell = ("sh", "-c", 'ulimit -n 200; exec "$@"', "sh")
    ops = ("--ops", "tests.support.agent_ops")
    one = Agent({"d": tree}, "--end-with-stdin", *ops, workers=1, log=tmp_path / "log", prefix=shell).ready()
    idle: list[socket.socket] = []
    try:
        until(lambda: one.status()["op_workers"] == 1, "the op worker is ready")
        host, port = one.endpoint.removeprefix("tcp://").split(":")
        for _ in range(400):
            with contextlib.suppress(OSError):
                idle.append(socket.create_connection((host, int(port)), timeout=30.0))
        client = until(lambda: _let_in(one), "a newcomer is let in")
        _served(client)
        (pid,) = client.status()["op_worker_pids"]
        psutil.Process(pid).kill()
        until(lambda: client.status()["op_worker_pids"] not in ([], [pid]), "the worker is replaced")
        until(lambda: client.status()["op_workers"] == 1, "and ready")
        client.send(fetch([KEY] * 4, 2, client.register(chain_of(Invert()))))
        assert {sample.cut for sample in client.samples(4).values()} == {2}
        assert client.status()["hung_up"] > 100
        assert psutil.Process(one.pid).num_fds() < 200
    finally:
        for connection in idle:
            connection.close()
        assert one.end() == 0 and "Traceback" not in one.errors()
