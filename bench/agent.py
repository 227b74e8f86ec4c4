"""How fast one agent hands files to one client over loopback, and what that costs each side.

    python -m bench.agent --json agent.json

One DEALER socket asks for whole files in a window, as a loader worker does, and throws them away. CPU seconds are those
of the agent's process tree and of this process. Bar: >= 600 MB/s.

Also the memory of one loader worker (proportional set size after an epoch), ours under `no-off` with a local agent
against torch's DataLoader, each in a process of its own. Bar: <= 1.15 times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from bench import record
from bench.loading import epoch, folder, our_loader, torch_loader, worker_pss_mb
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.wire.announcement import announced
from sophon_loader.wire.messages import Fetch, Sample

BAR_MB_S = 600.0
BAR_MEMORY = 1.15
PER_MESSAGE = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=1500, help="megabytes per round")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--memory-of", choices=("torch", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    data = (options.data or record.default_data()).resolve()
    if options.memory_of:
        print(worker_mb(options.memory_of, data))
        return 0
    keys = sorted(str(path.relative_to(data)) for path in data.glob("*/*"))
    command = [sys.executable, "-m", "storage_agent", "serve", "--end-with-stdin", "--export", f"bench={data}"]
    command += ["--bind", "tcp://127.0.0.1:0", "--workers", "1", "--readers", str(options.readers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None and agent.stdin is not None
        address = Address(announced(agent).endpoint, "bench")
        connection = Connection(address, options.window)
        connection.greet(10.0)
        stream(connection, keys, 300, options.window)  # fills the page cache and waits for the worker's start
        rounds = [
            round_of(connection, keys, options.mb, options.window, agent.pid)
            for _ in tqdm(range(options.rounds), desc="rounds", file=sys.stderr)
        ]
        connection.close()
        agent.stdin.close()
        agent.wait(20)
    summary = {name: record.spread([row[name] for row in rounds]) for name in rounds[0]}
    print(f"file replies over loopback: {summary['mb_s']['median']:.0f} MB/s (bar {BAR_MB_S:.0f}), "
          f"CPU seconds per GB: agent {summary['agent_cpu_s_per_gb']['median']:.2f}, "
          f"client {summary['client_cpu_s_per_gb']['median']:.2f}")  # fmt: skip
    memory = memory_of_workers(data)
    print(f"memory of a loader worker: {memory['ours_mb']:.0f} MB, torch's {memory['torch_mb']:.0f} MB, "
          f"ratio {memory['ratio']:.3f} (bar {BAR_MEMORY})")  # fmt: skip
    figures = {"rounds": rounds, "summary": summary, "memory": memory}
    record.write(options.json, "bench.agent", {**figures, "bar_mb_s": BAR_MB_S, "bar_memory": BAR_MEMORY})
    return 0


def round_of(connection: Connection, keys: list[str], mb: int, window: int, pid: int) -> dict[str, Any]:
    """One measurement."""
    agent_before, client_before = tree_cpu_s(pid), sum(os.times()[:2])
    started = time.perf_counter()
    nbytes = stream(connection, keys, mb, window)
    seconds = time.perf_counter() - started
    gigabytes = nbytes / 1e9
    return {
        "mb_s": nbytes / 1e6 / seconds,
        "agent_cpu_s_per_gb": (tree_cpu_s(pid) - agent_before) / gigabytes,
        "client_cpu_s_per_gb": (sum(os.times()[:2]) - client_before) / gigabytes,
    }


def stream(connection: Connection, keys: list[str], mb: int, window: int) -> int:
    """Fetch files until `mb` megabytes have come; returns the bytes."""
    asked = answered = nbytes = 0
    while nbytes < mb * 1_000_000 or answered < asked:
        while nbytes < mb * 1_000_000 and asked - answered <= window - PER_MESSAGE:
            files = {number: keys[number % len(keys)] for number in range(asked, asked + PER_MESSAGE)}
            connection.send(Fetch.of_files(connection.address.export, files))
            asked += PER_MESSAGE
        reply = connection.receive(10.0)
        if reply is None or not isinstance(reply[0], Sample):
            raise SystemExit(f"the agent must answer every request with a sample, got {reply}")
        answered += 1
        nbytes += len(reply[1])
    return nbytes


def memory_of_workers(data: Path) -> dict[str, float]:
    """PSS in MB of one worker of each loader."""
    found = {}
    for name in ("torch", "ours"):
        command = [sys.executable, "-m", "bench.agent", "--memory-of", name, "--data", str(data)]
        found[f"{name}_mb"] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {**found, "ratio": found["ours_mb"] / found["torch_mb"]}


def worker_mb(name: str, data: Path) -> float:
    """PSS in MB of the one worker of a loader after an epoch; runs in a process of its own."""
    dataset = folder(data)
    loader = torch_loader(dataset, 1) if name == "torch" else our_loader(dataset, 1)
    epoch(loader)
    used = max(worker_pss_mb())
    if name == "ours":
        loader.close()
    return used


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its children."""
    root = psutil.Process(pid)
    return sum(sum(process.cpu_times()[:2]) for process in [root, *root.children(recursive=True)])


if __name__ == "__main__":
    sys.exit(main())
