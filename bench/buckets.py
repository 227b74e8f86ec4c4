"""Costs of a bucket: throughput over objects of a store, relative to that over the folder.

    python -m bench.buckets --json buckets.json

SeaweedFS holds the pictures as objects. Agents of one worker each serve them, over relays that add a round trip between
agent and store, and another agent serves the folder. All is on this host, so that store, relays, agents and loaders
share its cores, and each agent paces its replies to the limit.

`loaders`: loaders of one worker each take turns, epoch by epoch, and which goes first changes every round. A round's
figure is the ratio of samples/s to those over the folder. Bar: median >= 0.95. An epoch goes through the pictures four
times: each epoch begins with a round trip to the store, at any length.

`stream`: one connection asks an agent for whole files in a window and throws them away, as in bench.agent: gets per
second, and CPU time of the agent's processes per get. The store's own CPU takes most of this host's, so gets per second
are those of the store here.

`memory`: what an agent's processes hold at most, while many connections do the same at once.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psutil
from torch.utils.data import ConcatDataset
from tqdm import tqdm

from bench import arguments, record
from bench.agent import stream
from bench.bed.relay import Relay
from bench.children import local_agent
from bench.loading import our_loader, quiet, rates_in_turns, samples_per_s, training_pipeline, tree_cpu_s
from bench.peers import seaweed
from bench.peers.environments import see_own_programs
from sophon_loader import RemoteImageFolder
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection

BAR = 0.95
POLICIES = ("no-off", "auto")
PARTS = ("loaders", "stream", "memory")
FOLDER = "folder"
WINDOW = 128
"""Files that a connection has asked for and not got."""
STORE_MBIT = 2000.0
"""Rate of relays that do not slow down, in Mbit/s."""
WARM_MB = 5
FIRST_PORT = 18330
READ_EVERY_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results; 1 where the bar is missed."""
    options = arguments.parsed(parser(), argv)
    quiet()
    see_own_programs()
    with seaweed.serving(options.data, "127.0.0.1", FIRST_PORT) as url:
        found = measured(options, url)
    summary = found.get("summary", [])
    for row in summary:
        print(record.judged(f"{row['policy']}, store {row['store']} away / folder", row["ratio"], BAR))
    for row in found.get("streams", []):
        print(f"stream, store {row['store']} away: {row['gets_per_s']:.0f} gets/s, {row['agent_ms_per_get']:.2f} ms of "
              "the agent's CPU each")  # fmt: skip
    for row in found.get("memory", []):
        print(f"{row['connections']} connections: {row['pss_mb']:.0f} MB")
    record.write(options.output, {**found, "bar": BAR})
    return int(any(row["ratio"]["median"] < BAR for row in summary))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.buckets", __doc__, pictures=True)
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), action=arguments.Distinct)
    add(
        "--policies", type=arguments.policy(), nargs="+", default=list(POLICIES), action=arguments.Distinct, metavar="P"
    )
    add("--link-mbit", type=arguments.rate, default=100.0)
    add(
        "--round-trips-ms",
        type=arguments.number(0, "of 0 or more"),
        nargs="+",
        default=[0.0, 20.0, 50.0],
        action=arguments.Distinct,
        help="Round trips between agent and store, in milliseconds; each is measured.",
    )
    add("--rounds", type=arguments.count(), default=5)
    add("--repeat", type=arguments.count(), default=4)
    add("--mb", type=arguments.count(), default=300)
    add("--clients", type=arguments.count(), nargs="+", default=[1, 32], action=arguments.Distinct)
    return parser


@contextmanager
def bucket_agents(
    url: str, round_trips_ms: Sequence[float], limit: Sequence[str]
) -> Iterator[dict[str, tuple[str, int]]]:
    """Agents that serve the bucket, while the block runs: address and process id of each, by how far its store is.

    Args:
        url: of the store.
        round_trips_ms: that are added on the way to it, one for each agent.
        limit: more of their command lines.
    """
    place, agents = urlsplit(url), {}
    assert place.hostname is not None and place.port is not None
    with ExitStack() as stack:
        for ms in round_trips_ms:
            seen = url
            if ms:
                relay = stack.enter_context(Relay((place.hostname, place.port), ms / 1000, STORE_MBIT))
                seen = f"http://127.0.0.1:{relay.port}"
            folder = ["--index-folder", stack.enter_context(tempfile.TemporaryDirectory())]
            os.environ.update(seaweed.environment(seen))
            agents[f"{ms:g} ms"] = stack.enter_context(local_agent(f"s3://{seaweed.BUCKET}", *folder, *limit))
        yield agents


def measured(options: Any, url: str) -> dict[str, Any]:
    """The parts that are asked for.

    Args:
        options: of the command line.
        url: of the store.
    """
    found: dict[str, Any] = {}
    if "loaders" in options.parts:
        limit = [] if not options.link_mbit else ["--limit-mbit", f"{options.link_mbit:g}"]
        with bucket_agents(url, options.round_trips_ms, limit) as agents, local_agent(options.data, *limit) as beside:
            every = {name: address for name, (address, _) in agents.items()} | {FOLDER: beside[0]}
            rows = [
                row for policy in options.policies for row in loaders(every, policy, options.rounds, options.repeat)
            ]
        found |= {"rounds": rows, "summary": summarise(rows)}
    files = sorted(options.data.glob("*/*"))
    keys = [str(path.relative_to(options.data)) for path in files]
    mean_nbytes = sum(path.stat().st_size for path in files) / len(files)
    with bucket_agents(url, options.round_trips_ms, []) as agents:
        if "stream" in options.parts:
            found["streams"] = [
                {"store": name, **streamed(*agents[name], keys, mean_nbytes, options.mb)}
                for name in tqdm(agents, desc="stream", file=sys.stderr)
            ]
        if "memory" in options.parts:
            name = list(agents)[-1]
            found["memory"] = [
                {"store": name, **memory(*agents[name], keys, options.mb, count)}
                for count in tqdm(options.clients, desc="memory", file=sys.stderr)
            ]
    return found


def loaders(agents: dict[str, str], policy: str, rounds: int, repeat: int) -> list[dict[str, Any]]:
    """Samples per second by each agent, round by round.

    Args:
        agents: their addresses, by name.
        policy: of all loaders.
        rounds: epochs of each loader that count.
        repeat: how often an epoch goes through the pictures.
    """
    every = {}
    for name, address in agents.items():
        pictures: Any = ConcatDataset([RemoteImageFolder(address, training_pipeline())] * repeat)
        every[name] = our_loader(pictures, 1, agent=address, policy=policy)
    try:
        for loader in every.values():
            samples_per_s(loader)  # starts workers, fills the page cache, and lets a policy find its choices
        return rates_in_turns(every, rounds, policy, {"policy": policy})
    finally:
        for loader in every.values():
            loader.close()


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The ratio to the folder, per policy and way to the store.

    Args:
        rows: of `loaders`.
    """
    summary = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        its = [row for row in rows if row["policy"] == policy]
        for name in (name for name in its[0] if name not in ("round", "policy", FOLDER)):
            ratio = record.spread([row[name] / row[FOLDER] for row in its])
            rates = record.spread([row[name] for row in its])
            summary.append({"policy": policy, "store": name, "ratio": ratio, "samples_per_s": rates})
    return summary


def streamed(address: str, pid: int, keys: list[str], mean_nbytes: float, mb: int) -> dict[str, float]:
    """Gets per second of one connection, and the agent's CPU time for one.

    Args:
        address: of the agent.
        pid: of it.
        keys: of the files; all are fetched equally often.
        mean_nbytes: of a file.
        mb: megabytes to fetch.
    """
    with connected(address) as connection:
        stream(connection, keys, WARM_MB, WINDOW)
        cpu_s, started_s = tree_cpu_s(pid), time.perf_counter()
        nbytes = stream(connection, keys, mb, WINDOW)
        seconds, cpu_s = time.perf_counter() - started_s, tree_cpu_s(pid) - cpu_s
    gets = nbytes / mean_nbytes
    return {"gets_per_s": gets / seconds, "agent_ms_per_get": 1000 * cpu_s / gets}


@contextmanager
def connected(address: str) -> Iterator[Connection]:
    """A connection that has greeted."""
    connection = Connection(Address.parse(address), WINDOW)
    try:
        connection.greet(10.0)
        yield connection
    finally:
        connection.close()


def memory(address: str, pid: int, keys: list[str], mb: int, connections: int) -> dict[str, Any]:
    """The proportional set size of an agent's processes, at most, MB.

    Args:
        address: of the agent.
        pid: of it.
        keys: of the files.
        mb: megabytes that all connections fetch together.
        connections: how many there are at once.
    """

    def fetch() -> None:
        with connected(address) as connection:
            stream(connection, keys, max(1, mb // connections), WINDOW)

    threads = [threading.Thread(target=fetch) for _ in range(connections)]
    for one in threads:
        one.start()
    most = 0
    while any(one.is_alive() for one in threads):
        agent = psutil.Process(pid)
        most = max(most, sum(one.memory_full_info().pss for one in [agent, *agent.children(recursive=True)]))
        time.sleep(READ_EVERY_S)
    return {"connections": connections, "pss_mb": most / 1e6}


if __name__ == "__main__":
    sys.exit(main())
