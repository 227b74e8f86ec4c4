"""Cost of keys: throughput with them, relative to throughput without, over loopback.

    python -m bench.keys --json keys.json
    python -m bench.keys --policies --mb 1500       the streams alone

Two agents of one worker each serve the same pictures, one with keys. Loaders of one worker each take turns, epoch by
epoch, and which goes first changes every round. A round's figure is the ratio of their samples/s. `no-off`: files
cross, `resize-off`: crops and anything smaller. Bar: median >= 0.95.

`stream`: one connection asks for files and throws them away, as in bench.agent. Nothing but the wire takes time there,
so that shows what a byte costs to seal and open: CPU seconds per GB, of both ends together and of the agent, and
microseconds of the agent's processes per file. No bar.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import arguments, record
from bench.agent import stream
from bench.children import local_agent
from bench.loading import folder, our_loader, quiet, samples_per_s, tree_cpu_s
from sophon_loader import OffloadOptions
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from storage_agent.clients.key_files import FIRST, KeyFolder

BAR = 0.95
POLICIES = ("no-off", "resize-off")
SIDES = ("with", "without")
STREAMS = ("mb_s", "cpu_s_per_gb", "agent_cpu_s_per_gb", "agent_us_per_file")
WINDOW = 64
WARM_MB = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results."""
    options = arguments.parsed(parser(), argv)
    quiet()
    with ExitStack() as stack:
        keys = KeyFolder(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys")
        token = str(keys.add(FIRST))  # before there is a socket
        agents = {
            "with": stack.enter_context(local_agent(options.data, "--keys", str(keys.path))),
            "without": stack.enter_context(local_agent(options.data)),
        }
        loaded = [
            row
            for policy in options.policies
            for row in loaders(options.data, policy, agents, token, options.rounds, options.repeat)
        ]
        streamed = streams(options.data, agents, token, options.rounds, options.mb)
    summary = summarise(loaded)
    for row in summary:
        print(record.judged(f"{row['policy']}, with keys / without", row["ratio"], BAR))
    spreads = {
        name: {side: record.spread([row[name] for row in streamed if row["keys"] == side]) for side in SIDES}
        for name in STREAMS
    }
    for side in SIDES:
        rate, costs, agents_costs, per_file = (spreads[name][side]["median"] for name in STREAMS)
        print(f"stream {side} keys: {rate:.0f} MB/s, {costs:.2f} CPU seconds per GB, {agents_costs:.2f} of them "
              f"the agent's, {per_file:.0f} us per file")  # fmt: skip
    found = {"loaders": loaded, "summary": summary, "streams": streamed, "bar": BAR}
    record.write(options.output, found | {f"stream_{name}": spread for name, spread in spreads.items()})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.keys", __doc__, pictures=True)
    add = parser.add_argument
    what = "The policies that are compared; none may be named, for the streams alone."
    policies: dict[str, Any] = {"type": arguments.policy(), "action": arguments.Distinct, "metavar": "P"}
    add("--policies", nargs="*", default=list(POLICIES), help=what, **policies)
    add("--rounds", type=arguments.count(), default=5)
    add("--repeat", type=arguments.count(), default=4)
    add("--mb", type=arguments.count(), default=500, help="Megabytes of files that a round streams.")
    return parser


def loaders(
    data: Path, policy: str, agents: dict[str, tuple[str, int]], token: str, rounds: int, repeat: int
) -> list[dict[str, Any]]:
    """Samples per second of a loader with keys and of one without, round by round.

    Args:
        data: an ImageFolder tree.
        policy: of both.
        agents: address and process id of both agents.
        token: the file of the loader's key.
        rounds: epochs of each loader that count.
        repeat: how often an epoch goes through the pictures.
    """
    dataset = folder(data, repeat)
    options = {"with": OffloadOptions(key=token), "without": OffloadOptions()}
    both = {s: our_loader(dataset, 1, agent=agents[s][0], policy=policy, options=options[s]) for s in SIDES}
    for loader in both.values():
        samples_per_s(loader)  # starts workers, fills the page cache
    rows = []
    for number in tqdm(range(rounds), desc=policy, file=sys.stderr):
        row: dict[str, Any] = {"round": number, "policy": policy}
        for side in record.in_turns(list(SIDES), number):
            row[side] = samples_per_s(both[side])
        rows.append(row)
    for loader in both.values():
        loader.close()
    return rows


def streams(data: Path, agents: dict[str, tuple[str, int]], token: str, rounds: int, mb: int) -> list[dict[str, Any]]:
    """Megabytes and CPU seconds of connections that do nothing but fetch files.

    Args:
        data: an ImageFolder tree.
        agents: address and process id of both agents.
        token: the file of the loader's key.
        rounds: of each connection.
        mb: megabytes per round.
    """
    files = sorted(str(path.relative_to(data)) for path in data.glob("*/*"))
    file_nbytes = sum((data / name).stat().st_size for name in files) / len(files)
    open_by = {"with": token, "without": None}
    connections = {}
    for side in SIDES:
        connections[side] = Connection(Address.parse(agents[side][0]).with_key(open_by[side]), WINDOW)
        connections[side].greet(10.0)
        stream(connections[side], files, WARM_MB, WINDOW)
    rows = []
    for number in tqdm(range(rounds), desc="stream", file=sys.stderr):
        for side in record.in_turns(list(SIDES), number):
            pid = agents[side][1]
            agent_s, client_s, started_s = tree_cpu_s(pid), sum(os.times()[:2]), time.perf_counter()
            nbytes = stream(connections[side], files, mb, WINDOW)
            seconds = time.perf_counter() - started_s
            agent_s = tree_cpu_s(pid) - agent_s
            cpu_s = agent_s + sum(os.times()[:2]) - client_s
            costs = {"cpu_s_per_gb": cpu_s / nbytes * 1e9, "agent_cpu_s_per_gb": agent_s / nbytes * 1e9}
            costs["agent_us_per_file"] = agent_s / nbytes * file_nbytes * 1e6
            rows.append({"round": number, "keys": side, "mb_s": nbytes / 1e6 / seconds, **costs})
    for connection in connections.values():
        connection.close()
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ratio per policy.

    Args:
        rows: of `loaders`.
    """
    return [
        {"policy": policy, "ratio": record.spread([r["with"] / r["without"] for r in rows if r["policy"] == policy])}
        for policy in dict.fromkeys(row["policy"] for row in rows)
    ]


if __name__ == "__main__":
    sys.exit(main())
