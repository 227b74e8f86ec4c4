"""Groups on real links: two namespaces with an agent each, joined to this one by a shaped link each, counted there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader, OffloadOptions
from tests.support.agents import EXPORT, until
from tests.support.pictures import folder, make_tree

pytestmark = pytest.mark.bed

RATE_MBIT = 16
FILES, REPEATS = 96, 40
GROUPS = {"rail-0": ["10.213.0.0/30"], "rail-1": ["10.213.1.0/30"]}


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("rails") / "photos", FILES, sides=(200, 400))


@pytest.fixture(scope="module")
def rails(root: Path) -> Iterator[list[str]]:
    """Addresses of the agents."""
    agents = []
    names = [f"sophonrail{number}" for number in range(2)]
    try:
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b")
            ip("link", "set", f"{name}b", "netns", name)
            ip("addr", "add", f"10.213.{number}.1/30", "dev", f"{name}a")
            ip("link", "set", f"{name}a", "up")
            for what in (
                ["addr", "add", f"10.213.{number}.2/30", "dev", f"{name}b"],
                ["link", "set", f"{name}b", "up"],
            ):
                ip("-n", name, *what)
            shape = ["tc", "-n", name, "qdisc", "add", "dev", f"{name}b", "root", "tbf", "rate", f"{RATE_MBIT}mbit"]
            subprocess.run([*shape, "burst", "16kb", "latency", "50ms"], check=True, capture_output=True, timeout=20)
            command = ["ip", "netns", "exec", name, sys.executable, "-m", "storage_agent", "serve"]
            command += ["--export", f"{EXPORT}={root}", "--bind", f"tcp://10.213.{number}.2:5555", "--workers", "1"]
            agents.append(subprocess.Popen([*command, "--insecure", "--end-with-stdin"], stdin=subprocess.PIPE))
        yield [f"tcp://10.213.{number}.2:5555/{EXPORT}" for number in range(2)]
    finally:
        for agent in agents:
            if agent.stdin is not None:
                agent.stdin.close()
            agent.wait(30)
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=20)


def received() -> list[int]:
    """Bytes that have come by each rail."""
    files = [Path(f"/sys/class/net/sophonrail{number}a/statistics/rx_bytes") for number in range(2)]
    return [int(path.read_text()) for path in files]


def moved(root: Path, rails: list[str], step_s: float, batches: int) -> list[int]:
    """Bytes by each rail, of a rank of rail 0 with so long a training step, behind the first batches."""
    dataset = folder(root)
    loader: Any = OffloadingDataLoader(
        dataset,
        batch_size=8,
        seed=3,
        sampler=[number % FILES for number in range(REPEATS * FILES)],
        agent=rails,
        policy="no-off",
        num_workers=1,
        options=OffloadOptions(group="rail-0", groups=GROUPS),
    )
    try:
        before = received()
        for number, _ in enumerate(loader):
            time.sleep(step_s)
            if number == batches // 2:
                before = received()
            if number == batches:
                break
        return [now - then for now, then in zip(received(), before, strict=True)]
    finally:
        loader.close()


def test_traffic_stays_in_its_rail_while_that_keeps_up_and_leaves_it_when_not(root: Path, rails: list[str]) -> None:
    until(lambda: moved(root, rails, 0.0, 4), "they answer", 60.0)
    nbytes = sum(path.stat().st_size for path in root.rglob("*.*")) / FILES * 8
    slow = moved(root, rails, 2.5 * nbytes / (RATE_MBIT * 125_000), 60)
    assert slow[0] > 20 * slow[1], slow
    fast = moved(root, rails, 0.0, 200)
    assert fast[1] > 0.6 * fast[0], fast
    print(slow, fast)
