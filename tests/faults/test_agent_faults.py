"""What a real agent does when something goes wrong: processes that die, clients that vanish, too much work."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.wire.messages import AskListing, Failed, Hello, Listing, Ping, Pong, Register, Sample, Welcome
from sophon_loader.wire.version import VERSIONS
from tests.support.agent_ops import Gate, Invert, waiting
from tests.support.agents import ROOT, Agent, Client, StartAgent, agent_for, fetch, until


@pytest.fixture(scope="module")
def hardy(start_agent: StartAgent) -> Iterator[Agent]:
    """An agent whose workers and clients the tests mistreat; it must outlive them all."""
    one = start_agent("--ops", "tests.support.agent_ops", "--max-queued", "3").ready()
    yield one
    one.descendants()
    assert one.end() == 0
    assert "Traceback" not in one.errors()
    one.assert_gone()


@pytest.fixture(scope="module")
def key(image_tree: Path) -> str:
    return str(Path(ImageFolder(image_tree).samples[0][0]).relative_to(image_tree))


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gate"
    yield path
    path.touch()  # whatever the test did, nobody waits on


def _gated(client: Client, gate: Path) -> str:
    return client.register(chain_of(Gate(str(gate))))


def _recovered(one: Agent, key: str) -> None:
    """Both workers are there, and ops run."""
    client = one.client()
    until(lambda: client.status()["op_workers"] == 2, "dead workers are replaced")
    until(lambda: client.status()["outstanding"] == 0, "what was asked for before is done")
    client.send(fetch([key] * 3, 2, client.register(chain_of(Invert()))))
    assert {sample.cut for sample in client.samples(3).values()} == {2}
    until(lambda: client.status()["outstanding"] == 0, "nothing is counted that has been answered")


# --- work -----------------------------------------------------------------------------------------------------


def test_what_waits_behind_a_slow_sample_is_taken_over(hardy: Agent, key: str, gate: Path) -> None:
    client = hardy.client()
    slow, quick = _gated(client, gate), client.register(chain_of(Invert()))
    client.send(fetch([key], 2, slow))
    until(lambda: len(waiting(gate)) == 1, "one worker is at the gate")
    client.send(fetch([key] * 5, 2, quick, first=1))  # some of them are given to the worker at the gate
    assert {s.cut for s in client.samples(5).values()} == {2}
    gate.touch()
    assert client.samples(1)[0].cut == 2
    _recovered(hardy, key)
    assert not client.socket.poll(200), "each is answered once"


def test_a_worker_that_is_killed(hardy: Agent, key: str, gate: Path) -> None:
    client = hardy.client()
    client.send(fetch([key] * 4, 2, _gated(client, gate)))
    until(lambda: len(waiting(gate)) == 2, "both workers are at the gate")
    pids = waiting(gate)
    victim = min(pids)
    before = client.status()
    assert victim in before["op_worker_pids"]
    psutil.Process(victim).kill()
    lost = client.samples(2)
    assert {(s.cut, s.encoding) for s in lost.values()} == {(0, "file")}
    assert all("worker died on this or another sample" in s.note for s in lost.values())
    gate.touch()
    kept = client.samples(2)
    assert {s.cut for s in kept.values()} == {2} and kept.keys() | lost.keys() == {0, 1, 2, 3}
    _recovered(hardy, key)
    after = client.status()
    assert victim not in after["op_worker_pids"] and after["worker_deaths"] == before["worker_deaths"] + 1
    (line,) = [line for line in hardy.errors().splitlines() if " warning worker died" in line][-1:]
    assert "exit_code=-9" in line and line.count(f'"d/{key}"') == 2, "both samples that it had"


def test_every_worker_killed_with_work_queued_and_pipelines_to_build(hardy: Agent, key: str, gate: Path) -> None:
    client = hardy.client()
    client.send(fetch([key] * 7, 2, _gated(client, gate)))
    until(lambda: len(waiting(gate)) == 2, "both workers are at the gate")
    pids = waiting(gate)
    other = hardy.client()
    registration = registration_of(chain_of(v2.CenterCrop(9)), software())
    other.send(Register(digest_of(registration)), registration)
    other.send(AskListing("d", ""))
    assert isinstance(other.receive()[0], Listing), "readers need no worker"
    for pid in pids:
        psutil.Process(pid).kill()
    gate.touch()
    assert len(client.samples(7)) == 7
    assert type(other.receive()[0]).__name__ == "Registered"
    _recovered(hardy, key)


def digest_of(registration: bytes) -> str:
    from sophon_loader.wire.frames import content_hash

    return content_hash(registration)


# --- clients --------------------------------------------------------------------------------------------------


def test_a_client_that_vanishes(hardy: Agent, key: str, gate: Path) -> None:
    observer = hardy.client()
    digest = _gated(observer, gate)
    before = observer.status()["dropped_replies"]
    for n in range(5):
        client = hardy.client()
        client.send(fetch([key] * 3, 2, digest))
        client.send(fetch([key] * 500, 0, first=100))
        if n % 2:
            client.receive()
        client.close()
    gate.touch()
    _recovered(hardy, key)
    assert observer.status()["dropped_replies"] > before
    assert 'reason="the loader is gone"' in hardy.errors()


def test_a_client_that_never_reads(hardy: Agent, key: str) -> None:
    """Its replies are dropped beyond a limit; the others do not notice."""
    deaf = hardy.client(RCVHWM=1, RCVBUF=4096)
    for n in range(40):
        deaf.send(fetch([key] * 400, 0, first=400 * n))
    deaf.send(Ping())
    lively = hardy.client()
    for _ in range(20):
        lively.send(fetch([key] * 50))
        lively.samples(50)
    before = psutil.Process(hardy.pid).memory_info().rss
    assert before < 2 << 30
    deaf.close()
    _recovered(hardy, key)


def test_a_client_that_comes_back_under_its_old_name(hardy: Agent, key: str) -> None:
    first = hardy.client(ROUTING_ID=b"one and the same")
    first.send(fetch([key] * 100))
    first.receive()
    second = hardy.client(ROUTING_ID=b"one and the same")
    second.send(Hello(list(VERSIONS), "again"))
    until(lambda: isinstance(second.receive()[0], Welcome), "the newcomer is served")
    _recovered(hardy, key)


# --- the end --------------------------------------------------------------------------------------------------


def test_sigterm_with_work_in_flight(start_agent: StartAgent, key: str, gate: Path) -> None:
    one = start_agent("--ops", "tests.support.agent_ops").ready()
    client = one.client()
    client.send(fetch([key] * 6, 2, _gated(client, gate)))
    until(lambda: len(waiting(gate)) == 2, "both workers are at the gate")
    one.descendants()
    one.process.send_signal(signal.SIGTERM)

    def refused() -> bool:
        client.send(fetch([key], 0, first=1000))
        message, _ = client.receive()
        return isinstance(message, Failed) and message.failure == "stopping"

    until(refused, "new work is refused")
    gate.touch()
    assert {s.cut for s in client.samples(6).values()} == {2}, "what was taken is done"
    assert one.process.wait(30) == 0 and "Traceback" not in one.errors()
    one.assert_gone()


def test_sigterm_at_once(start_agent: StartAgent) -> None:
    one = start_agent()
    one.process.send_signal(signal.SIGTERM)
    one.descendants()
    assert one.process.wait(30) == 0 and "Traceback" not in one.errors()
    one.assert_gone()


def test_sigkill_leaves_no_process(start_agent: StartAgent, key: str, gate: Path) -> None:
    one = start_agent("--ops", "tests.support.agent_ops").ready()
    client = one.client()
    client.send(fetch([key] * 4, 2, _gated(client, gate)))
    until(lambda: len(waiting(gate)) == 2, "both workers are at the gate")
    assert len(one.descendants()) >= 4, "two op workers, their forkserver, the resource tracker"
    assert one.end(signal.SIGKILL) == -signal.SIGKILL
    one.assert_gone()


def test_sigkill_leaves_no_file(image_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of workers that are replaced when they and the forkserver have been killed, in whatever order."""
    with tempfile.TemporaryDirectory(prefix=100 * "x") as temporary:  # longer than the path of a socket may be
        monkeypatch.setenv("TMPDIR", temporary)
        with agent_for(image_tree, workers=2) as one:
            one.ready()
            assert os.listdir(temporary) == []
            for process in one.descendants():
                with contextlib.suppress(psutil.NoSuchProcess):  # the end of another has ended it
                    process.kill()
            until(lambda: one.status()["worker_deaths"] >= 2, "their end is noticed")
            one.ready()
            assert os.listdir(temporary) == []
            one.kill()
            assert os.listdir(temporary) == []


def test_end_with_stdin(start_agent: StartAgent, key: str) -> None:
    one = start_agent("--end-with-stdin", workers=1)
    client = one.client()
    client.send(fetch([key]))
    client.samples(1)
    one.descendants()
    assert one.process.poll() is None and one.process.stdin is not None
    one.process.stdin.close()
    assert one.process.wait(30) == 0
    one.assert_gone()


# --- settings -------------------------------------------------------------------------------------------------


def test_a_limit_paces_the_replies(start_agent: StartAgent, image_tree: Path, key: str) -> None:
    one = start_agent("--limit-mbit", "20", workers=1)
    client = one.client()
    nbytes = (image_tree / key).stat().st_size
    count = -(-2_500_000 // nbytes)  # one second's worth
    assert count <= 1024
    started_s = time.monotonic()
    client.send(fetch([key] * count))
    received, alive = len(client.samples(1)), False
    client.send(Ping())
    while received < count:
        message, _ = client.receive()
        alive = alive or (isinstance(message, Pong) and received < count // 2)
        received += isinstance(message, Sample)
    took_s = time.monotonic() - started_s
    assert took_s > 0.5 * count * nbytes * 8 / 20e6
    assert alive, "a sign of life goes past the samples that wait"


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "storage_agent", "serve", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)


@pytest.mark.parametrize(("module", "text"), [
    ("tests.no_such_module", "ops must name modules that Python finds"),
    ("broken_ops_of_a_test", "ZeroDivisionError"),
])  # fmt: skip
def test_ops_that_cannot_be_imported(tmp_path: Path, module: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_ops_of_a_test.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = _serve("--export", f"d={tmp_path}", "--bind", "tcp://127.0.0.1:0", "--workers", "2", "--ops", module)
    assert done.returncode == 1 and text in done.stderr and module in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_is_taken(start_agent: StartAgent, tmp_path: Path, hardy: Agent) -> None:
    (tmp_path / "x.jpg").touch()
    for address in (hardy.endpoint, "tcp://192.0.2.1:5555", "tcp://nowhere.invalid:1"):
        done = _serve("--export", f"d={tmp_path}", "--bind", address)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1 and line.startswith("sophon-agent: --bind must be an address of this host")
