"""A loader whose agents a real Ray cluster keeps: `python -m tests.support.under_ray FOLDER`.

Prints how long each event took until the agents were as they should be, in seconds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from sophon_loader import OffloadingDataLoader
from sophon_loader.routes.ray_actors import RayActors
from tests.support.agents import EXPORT, ROOT, run_command
from tests.support.pictures import folder, make_tree
from tests.support.replicas import LOADER, SOON
from tests.support.rostered import FILES, SAMPLER, Epoch, Listening, left

HEAD = "ray://127.0.0.1:8265"


class Cluster:
    """The program of `ray_cluster.py`."""

    def __init__(self, nodes: int) -> None:
        command = [sys.executable, "-m", "tests.support.ray_cluster", str(nodes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.address = self._said("ready")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        self._said("done")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60.0)

    def _said(self, word: str) -> str:
        for line in self.process.stdout or ():  # Ray says other things there
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"the cluster ended with status {self.process.wait()}")


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun_s = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - begun_s:.1f} s", flush=True)


def listed() -> list[str]:
    return [one.address.endpoint for one in RayActors(f"{HEAD}/{EXPORT}").look()]


def serving(endpoint: str) -> psutil.Process:
    """The process that listens there."""
    port = int(endpoint.rpartition(":")[2])
    (pid,) = {one.pid for one in psutil.net_connections("tcp4") if one.laddr[1] == port and one.status == "LISTEN"}
    return psutil.Process(pid)


def command(cluster: Cluster, name: str, *arguments: str, status: int = 0) -> str:
    done = run_command("ray", name, "--address", cluster.address, *arguments, timeout_s=150.0)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(cluster: Cluster, root: Path, start: Callable[..., str]) -> None:
    """An agent and its actor are killed, a node comes, and one goes: all in one epoch."""
    arguments: dict[str, Any] = {**LOADER, "options": SOON, "policy": "all-off", "sampler": SAMPLER}
    loader = OffloadingDataLoader(folder(root), agent=f"{HEAD}/{EXPORT}", **arguments)
    try:
        epoch = Epoch(loader, root)

        def all_used(those: list[str]) -> bool:
            return bool(those) and all(epoch.sent(Listening(one)) > 10 for one in those)

        with timed("both agents are used"):
            first = listed()
            assert len(first) == 2
            epoch.until(lambda: all_used(first), "both are used", 30.0)
        for what in ("agent", "actor"):
            killed, other = listed()
            agent = serving(killed)
            (agent if what == "agent" else psutil.Process(agent.ppid())).send_signal(signal.SIGKILL)
            with timed(f"another agent in place of one whose {what} was killed"):
                psutil.wait_procs([agent], 20.0)
                assert not agent.is_running()
                epoch.until(lambda known={killed, other}: all_used(list(set(listed()) - known)), "it is back", 60.0)
            assert killed not in listed() and other in listed()
        with timed("an agent more on a node that was added"):
            cluster.tell("add")
            start("--agents", "3")
            epoch.until(lambda: len(listed()) == 3 and all_used(listed()), "it is used", 60.0)
        with timed("a node was removed, and the others do its part"):
            before = listed()
            cluster.tell("remove 0")
            epoch.until(lambda: len(set(before) & set(listed())) == 2, "Ray has noticed", 60.0)
            epoch.until(lambda: bool(left(loader)) or len(listed()) == 2, "it has left", 40.0)
        assert "ray" not in sys.modules
    finally:
        loader.close()


def main(place: Path) -> None:
    root = make_tree(place / "pictures", FILES)
    keys = place / "keys"
    assert run_command("key", "add", "all", "--keys", str(keys)).returncode == 0
    token = (keys / "tokens" / "all").read_text()
    os.environ["SOPHON_KEY"] = token
    cluster = Cluster(2)

    def start(*arguments: str, status: int = 0) -> str:
        given = ["--export", f"{EXPORT}={root}", "--keys", str(keys), *arguments, "--", "--workers", "1"]
        return command(cluster, "start", *given, status=status)

    try:
        with timed("two agents serve"):
            assert start("--wait", "60").count("ALIVE") == 2
        said = start("--agents", "3", "--wait", "2", status=1)
        assert "3 agents must serve within 2 s, got 2; 2 nodes of the cluster carry the resource 'sophon'" in said
        assert said.count("is there already") == 2
        secret = token.strip()
        with_token = os.environ.pop("RAY_AUTH_TOKEN")
        refused = RayActors(f"{HEAD}/{EXPORT}")
        assert not refused.look() and "it answers 401, and wants another token than none" in refused.trouble
        os.environ["RAY_AUTH_TOKEN"] = with_token
        state = RayActors(f"{HEAD}/{EXPORT}")._answer().decode()
        assert secret not in state and with_token not in state
        train(cluster, root, start)
        told = [json.loads(line) for line in command(cluster, "list", "--json").splitlines() if line.startswith("{")]
        assert sum(one["state"] == "ALIVE" for one in told) == 2 and {one["name"] for one in told} == {
            f"sophon-{number}" for number in range(3)
        }
        agents = [serving(one) for one in listed()]
        with timed("all agents stop"):
            command(cluster, "stop")
            assert listed() == [] and not any(one.is_running() for one in agents)
    finally:
        cluster.close()
    print("all is well")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
