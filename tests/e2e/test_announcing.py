"""Agents that say in a folder that they are there: real processes that come, stay, go, and are killed."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sophon_loader.pipeline.chain import chain_of
from sophon_loader.wire.entry import AgentEntry
from sophon_loader.wire.messages import Ping
from tests.support.agent_ops import Gate
from tests.support.agents import Agent, Client, fetch, run_command, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "agents"
    made.mkdir()
    return made


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 KiB, which is full."""
    made = tmp_path / "full"
    made.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", made], capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (made / "data").write_bytes(bytes(8192))
        yield made
    finally:
        subprocess.run(["umount", "--lazy", made], check=True)


def _entries(folder: Path) -> list[AgentEntry]:
    return [AgentEntry.parse(path.read_text()) for path in sorted(folder.glob("[!.]*.json"))]


def _agent(root: Path, log: Path, *arguments: str, modules: Path | None = None) -> Agent:
    return Agent({"d": root, "e": root}, *arguments, log=log, modules=modules)


def test_agents_come_stay_and_go(root: Path, folder: Path, tmp_path: Path) -> None:
    agents = [_agent(root, tmp_path / f"log{n}", "--announce", str(folder)) for n in range(2)]
    try:
        until(lambda: len(_entries(folder)) == 2, "both are there")
        for agent in agents:
            assert AgentEntry([agent.endpoint], agent.status()["instance"], ["d", "e"]) in _entries(folder)
        files = {path: path.stat() for path in folder.iterdir()}
        until(lambda: all(path.stat().st_mtime > was.st_mtime for path, was in files.items()), "they are rewritten", 15)
        assert agents[0].end() == 0
        assert [entry.addresses for entry in _entries(folder)] == [[agents[1].endpoint]], "removed by its end"
        agents[1].kill()
        assert len(_entries(folder)) == 1, "a kill leaves it"
        agents[1].start()
        until(lambda: _entries(folder)[0].instance == agents[1].status()["instance"], "the next one takes its place")
        agents[1].process.stdin.close()
    finally:
        for agent in agents:
            agent.end()
    assert os.listdir(folder) == []


def test_the_name_of_the_host(root: Path, folder: Path, tmp_path: Path) -> None:
    """No key is in it, though the agent has some."""
    for more, host in (([], socket.gethostname()), (["--announce-as", "fileserver:7"], "fileserver")):
        keys = ["--keys", str(tmp_path / "keys")]
        given = ["--bind", "tcp://0.0.0.0:0", *keys, "--announce", str(folder), *more]
        agent = _agent(root, tmp_path / "log", *given)
        try:
            until(lambda: _entries(folder), "it is there")
            port = "7" if more else agent.endpoint.rpartition(":")[2]
            entry = _entries(folder)[0]
            assert entry.addresses == [f"tcp://{host}:{port}"]
            (file,) = folder.iterdir()
            said = file.read_text()
            for path in (tmp_path / "keys").rglob("*"):
                assert path.is_dir() or not any(word in said for word in path.read_text().split('"') if len(word) > 30)
        finally:
            agent.end()


def test_it_leaves_before_its_last_answers(root: Path, folder: Path, tmp_path: Path) -> None:
    """At SIGTERM loaders are to look elsewhere at once, not after the agent has done what it still has to do."""
    gate = tmp_path / "gate"
    agent = _agent(root, tmp_path / "log", "--ops", "tests.support.agent_ops", "--announce", str(folder)).ready()
    try:
        client = agent.client()
        key = os.path.relpath(next(path for path in sorted(root.rglob("*")) if path.is_file()), root)
        client.send(fetch([key], 2, client.register(chain_of(Gate(str(gate))))))
        until(lambda: client.status()["outstanding"], "it is at work")
        agent.process.terminate()
        until(lambda: os.listdir(folder) == [], "it has left", 8)
        assert agent.process.poll() is None, "it still answers"
        gate.touch()
        assert client.samples(1)
    finally:
        agent.end()


def test_a_slow_disk_holds_up_no_loader(root: Path, folder: Path, tmp_path: Path) -> None:
    """`os.replace` of that process stands for a disk on which each file takes a second."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text(
        "import os, time\nreplace = os.replace\n"
        "def slow(*given):\n    time.sleep(1.0)\n    open(os.environ['SLOW'], 'w').close()\n    replace(*given)\n"
        "os.replace = slow\n"
    )
    slow = tmp_path / "slow"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOW", str(slow))
        agent = _agent(root, tmp_path / "log", "--announce", str(folder), modules=tmp_path / "modules")
    try:
        client = agent.client()
        longest_s = 0.0
        while not slow.exists():
            longest_s = max(longest_s, _took_s(client))
        assert longest_s < 0.8
        until(lambda: _entries(folder), "it is announced all the same")
        agent.process.terminate()
        assert agent.process.wait(20.0) == 0
        assert os.listdir(folder) == []
    finally:
        agent.end()


def _took_s(client: Client) -> float:
    begun_s = time.monotonic()
    client.ask(Ping())
    return time.monotonic() - begun_s


def test_folders_that_cannot_be_used(root: Path, folder: Path, tmp_path: Path) -> None:
    serve = ["serve", "--export", f"d={root}", "--bind", "tcp://127.0.0.1:0"]
    for arguments, why in (
        (["--announce", str(tmp_path / "none")], "--announce must be an existing folder that can be written to, got"),
        (["--announce", str(folder), "--announce-as", "a:b"], "--announce-as must be HOST or HOST:PORT"),
        (["--announce-as", "a"], "--announce-as must go with --announce FOLDER, got 'a' alone"),
        (["--announce", str(folder), "--bind", "ipc://*"], "--announce must go with a --bind of tcp://, got ipc://*"),
        (["--announce", "/proc/self"], "--announce must be an existing folder that can be written to, got /proc/self"),
    ):
        done = run_command(*serve, *arguments)
        assert done.returncode == 1 and done.stdout == "" and why in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1


def test_a_full_disk_at_the_start(root: Path, full: Path) -> None:
    done = run_command("serve", "--export", f"d={root}", "--bind", "tcp://127.0.0.1:0", "--announce", str(full))
    assert done.returncode == 1 and "No space left on device" in done.stderr and done.stderr.count("\n") == 1
    assert os.listdir(full) == ["data"]


def test_a_disk_that_fills_later(root: Path, full: Path, tmp_path: Path) -> None:
    """A line of the log; the agent goes on, and is announced again once there is room."""
    (full / "data").unlink()
    agent = _agent(root, tmp_path / "log", "--announce", str(full))
    try:
        until(lambda: _entries(full), "it is there")
        with pytest.raises(OSError), open(full / "data", "wb", buffering=0) as data:
            while True:
                data.write(bytes(4096))
        until(lambda: "agent not announced" in agent.errors(), "it is said", 15)
        assert "No space left on device" in agent.errors() and agent.alive()
        assert len(_entries(full)) == 1, "the last one stays"
        (full / "data").unlink()
        until(lambda: agent.errors().count(" agent announced ") == 2, "it is said", 15)
    finally:
        assert agent.end() == 0
    assert os.listdir(full) == [] and "Traceback" not in agent.errors()
