"""Rate at which one agent hands files to one client over loopback, and the costs of each side.

    python -m bench.agent --json agent.json

One DEALER socket asks for whole files in a window, as a loader worker does, and throws them away. CPU seconds are those
of the agent's process tree and of this process. Bar: >= 600 MB/s.

Also the memory of one loader worker (proportional set size after an epoch), ours under `auto` with a local agent
against torch's DataLoader, each in a process of its own. Bar: <= 1.15 times.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import arguments, record
from bench.children import alone, local_agent
from bench.loading import epoch, folder, our_loader, torch_loader, tree_cpu_s, worker_pss_mb
from sophon_loader import OffloadingDataLoader
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.wire.messages import Fetch, Sample
from storage_agent.host.agent_settings import AgentSettings

BAR_MB_S = 600.0
BAR_MEMORY = 1.15
PER_MESSAGE = 16
"""Files asked for in one message."""
WARM_MB = 300
"""Fetched before the first round: fills the page cache and waits for the worker's start."""
MAX_WINDOW = AgentSettings.max_outstanding
"""Maximum number of requests that an agent admits from one client."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print two lines, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    if options.window > MAX_WINDOW:
        bench.refuse("--window", f"at most {MAX_WINDOW}", options.window, "an agent admits no more of one client")
    keys = sorted(str(path.relative_to(options.data)) for path in options.data.glob("*/*"))
    with local_agent(options.data, "--readers", str(options.readers)) as (address, pid):
        connection = Connection(Address.parse(address), options.window)
        connection.greet(10.0)
        stream(connection, keys, WARM_MB, options.window)
        rounds = [
            round_of(connection, keys, options.mb, options.window, pid)
            for _ in tqdm(range(options.rounds), desc="rounds", file=sys.stderr)
        ]
        connection.close()
    summary = {name: record.spread([row[name] for row in rounds]) for name in rounds[0]}
    print(f"file replies over loopback: {summary['mb_s']['median']:.0f} MB/s (bar {BAR_MB_S:.0f}), "
          f"CPU seconds per GB: agent {summary['agent_cpu_s_per_gb']['median']:.2f}, "
          f"client {summary['client_cpu_s_per_gb']['median']:.2f}")  # fmt: skip
    memory = memory_of_workers(options.data)
    print(f"memory of a loader worker: {memory['ours_mb']:.0f} MB, torch's {memory['torch_mb']:.0f} MB, "
          f"ratio {memory['ratio']:.3f} (bar {BAR_MEMORY})")  # fmt: skip
    figures = {"rounds": rounds, "summary": summary, "memory": memory}
    record.write(options.output, {**figures, "bar_mb_s": BAR_MB_S, "bar_memory": BAR_MEMORY})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.agent", __doc__, pictures=True)
    parser.add_argument("--rounds", type=arguments.count(), default=5)
    parser.add_argument("--mb", type=arguments.count(), default=1500, help="Megabytes that a round sends.")
    parser.add_argument(
        "--window", type=arguments.count(PER_MESSAGE), default=64, help="Files asked for and not yet received."
    )
    parser.add_argument("--readers", type=arguments.count(), default=2, help="Threads of the agent that read files.")
    return parser


def round_of(connection: Connection, keys: list[str], mb: int, window: int, pid: int) -> dict[str, Any]:
    """One measurement.

    Args:
        connection: to the agent.
        keys: of the files.
        mb: megabytes to fetch.
        window: files asked for and not there.
        pid: of the agent.
    """
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
    """Fetch files over and over.

    Args:
        connection: to the agent.
        keys: of the files.
        mb: megabytes that are enough.
        window: files asked for and not there, at most.

    Returns:
        The number of bytes that have arrived.
    """
    asked = answered = nbytes = 0
    while nbytes < mb * 1_000_000 or answered < asked:
        while nbytes < mb * 1_000_000 and asked - answered <= window - PER_MESSAGE:
            files = {number: keys[number % len(keys)] for number in range(asked, asked + PER_MESSAGE)}
            connection.send(Fetch.of_files(connection.address.export, files))
            asked += PER_MESSAGE
        reply = connection.receive(10.0)
        if reply is None or not isinstance(reply[0], Sample):
            raise RuntimeError(f"the agent must answer every request with a sample, got {reply}")
        answered += 1
        nbytes += len(reply[1])
    return nbytes


def memory_of_workers(data: Path) -> dict[str, float]:
    """Return PSS in MB of one worker of each loader, and the ratio of our loader's to torch's."""
    torch_mb, ours_mb = (alone(worker_mb, {"name": name, "data": data}) for name in ("torch", "ours"))
    return {"torch_mb": torch_mb, "ours_mb": ours_mb, "ratio": ours_mb / torch_mb}


def worker_mb(name: str, data: str) -> float:
    """PSS in MB of the one worker of a loader after an epoch; in a process of its own.

    Args:
        name: `torch` or `ours`.
        data: an ImageFolder tree.
    """
    dataset = folder(data)
    loader = torch_loader(dataset, 1) if name == "torch" else our_loader(dataset, 1)
    epoch(loader)
    used = max(worker_pss_mb())
    if isinstance(loader, OffloadingDataLoader):
        loader.close()
    return used


if __name__ == "__main__":
    sys.exit(main())
