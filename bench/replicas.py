"""Gain of more agents with the same files: throughput with two and four, alike and unlike, relative to one.

    python -m bench.replicas --data PATH --json replicas.json
    python -m bench.replicas --data PATH --cases workers      what a loader's worker holds for 1, 2 and 8 agents

Agents of one worker each serve the same pictures over loopback. In `wire`, each paces its replies to `--link-mbit`; in
`cpu`, each has a CPU quota of `--agent-cores`, and all ops run there; a third agent has a quarter of either. A loader
with `one` agent, with `two`, with the `unlike` pair, and in `cpu` with `four`, take turns, epoch by epoch, and which
goes first changes every round. A figure is images per second by the sum of what its agents would deliver, each by its
rate or quota and by what `one` has delivered in the same round. Bars: 0.95 for `wire` (1.9 times one agent's with two),
0.95 for the unlike, and 0.9 for two and four whose CPU limits. Two cores are few for all these processes: nothing else
should run.

`auto` is left out of `cpu`: it would run ops at the loader too, so that one agent's rate is no measure of two.

`workers`: descriptors, threads and memory of a loader's only worker after an epoch, in a fresh process for each number
of agents. No bar.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench import arguments, record
from bench.bed import LoopbackHosts, why_no_quota
from bench.children import AGENT, EXPORT, OP_WORKERS_AT_ONCE, alone, local_agent, wait_for_worker
from bench.loading import our_loader, quiet, rates_in_turns, samples_per_s, training_pipeline
from bench.record import REPOSITORY
from sophon_loader import RemoteImageFolder
from sophon_loader.wire.announcement import announced

CASES = ("wire", "cpu", "workers")
POLICIES = ("no-off", "auto")
UNLIKE = 0.25
"""Share of the others' link, or cores, that the third agent has."""
SHARES = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "weak": UNLIKE}
"""Each agent's rate or quota, by what is given."""
LOADERS = {"one": ("a",), "two": ("a", "b"), "unlike": ("a", "weak"), "four": ("a", "b", "c", "d")}
"""The agents of each loader."""
SUMS = {name: sum(SHARES[agent] for agent in agents) for name, agents in LOADERS.items()}
"""Expected rate of each loader's agents, as a multiple of one agent's."""
BARS = {
    "wire": {"two": 0.95, "unlike": 0.95},
    "cpu": {"two": 0.9, "unlike": 0.95, "four": 0.9},
}
"""Minimum images per second by the sum: per case, the loaders compared with `one`."""
NUMBERS = (1, 2, 8)
"""Agents of the loaders whose workers are looked at."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results; 1 where a bar is missed."""
    options = arguments.parsed(parser(), argv)
    quiet()
    rounds: list[dict[str, Any]] = []
    found: dict[str, Any] = {"left_out": {}}
    if "wire" in options.cases:
        for policy in options.policies:
            rounds += loaders(options.data, "wire", policy, options.rounds, mbit=options.link_mbit)
    if "cpu" in options.cases:
        if reason := why_no_quota():
            found["left_out"]["cpu"] = reason
        else:
            rounds += loaders(options.data, "cpu", "all-off", options.rounds, cores=options.agent_cores)
    summary = summarise(rounds)
    for row in summary:
        what = f"{row['case']}, {row['policy']}: {row['agents']}, of the sum"
        print(record.judged(what, row["of_the_sum"], row["bar"]))
    if "workers" in options.cases:
        found["workers"] = workers(options.data)
        for one in found["workers"]:
            print(
                "{agents} agents: a worker has {descriptors} descriptors, {threads} threads, {pss_mb:.0f} MB (PSS), "
                "{private_mb:.0f} MB private".format(**one)
            )
    settings = {"link_mbit": options.link_mbit, "agent_cores": options.agent_cores}
    record.write(options.output, {"settings": settings, "rounds": rounds, "summary": summary, **found})
    return int(any(row["of_the_sum"]["median"] < row["bar"] for row in summary))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.replicas", __doc__, pictures=True)
    add = parser.add_argument
    what = f"Any of {', '.join(CASES)} (default: all)."
    add("--cases", nargs="+", default=CASES, choices=CASES, action=arguments.Distinct, metavar="CASE", help=what)
    add(
        "--policies", type=arguments.policy(), nargs="+", default=list(POLICIES), action=arguments.Distinct, metavar="P"
    )
    add("--link-mbit", type=arguments.above_zero, default=20.0, help="Rate of an agent's replies in Mbit/s, in `wire`.")
    # With 0.3 cores each, four agents and the loader that takes what they send would need nearly all of two cores.
    add("--agent-cores", type=arguments.quota, default=0.15, help="CPU quota of an agent in cores, in `cpu`.")
    add("--rounds", type=arguments.count(), default=3)
    return parser


@contextmanager
def agent(data: Path, mbit: float | None, cores: float | None) -> Iterator[str]:
    """The address of an agent of one worker while the block runs, paced or with a CPU quota.

    Args:
        data: the ImageFolder tree that it serves.
        mbit: that it paces its replies to; None for no limit.
        cores: its quota from when its worker is ready; None for no limit.
    """
    with LoopbackHosts(mbit).open() as bed:
        command = [*AGENT, "--export", f"{EXPORT}={data}", "--bind", "tcp://127.0.0.1:0", "--workers", "1"]
        command += [*OP_WORKERS_AT_ONCE, *bed.agent_arguments]
        process = bed.agent_host.popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        address = f"{announced(process).endpoint}/{EXPORT}"
        wait_for_worker(address, with_ops=True)
        bed.agent_host.set_quota(cores)
        yield address


def loaders(
    data: Path, case: str, policy: str, rounds: int, mbit: float | None = None, cores: float | None = None
) -> list[dict[str, Any]]:
    """Samples per second of each loader, round by round.

    Args:
        data: an ImageFolder tree.
        case: of `CASES`.
        policy: of all loaders.
        rounds: epochs of each loader that count.
        mbit: that an agent with a share of 1 paces its replies to; None for no limit.
        cores: quota of such an agent; None for no limit.
    """
    names = ("one", *BARS[case])
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(agent(data, mbit and mbit * share, cores and cores * share))
            for name, share in SHARES.items()
            if any(name in LOADERS[loader] for loader in names)
        }
        every = {}
        for name in names:
            addresses = [started[each] for each in LOADERS[name]]
            dataset = RemoteImageFolder(addresses[0], training_pipeline())
            every[name] = our_loader(dataset, 1, agent=addresses, policy=policy)
            stack.callback(every[name].close)
            samples_per_s(every[name])  # starts workers, fills the page cache, and lets a policy find its choices
        return rates_in_turns(every, rounds, f"{case}, {policy}", {"case": case, "policy": policy})


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images per second by the sum, per case, policy and loader.

    Args:
        rows: of `loaders`.
    """
    summary = []
    for case, policy in dict.fromkeys((row["case"], row["policy"]) for row in rows):
        its = [row for row in rows if (row["case"], row["policy"]) == (case, policy)]
        for agents, bar in BARS[case].items():
            about = {"case": case, "policy": policy, "agents": agents, "bar": bar}
            rates = {
                "one_images_per_s": record.spread([row["one"] for row in its]),
                "images_per_s": record.spread([row[agents] for row in its]),
            }
            shares = record.spread([row[agents] / row["one"] / SUMS[agents] for row in its])
            summary.append({**about, **rates, "of_the_sum": shares})
    return summary


def workers(data: Path) -> list[dict[str, Any]]:
    """Return a worker's descriptors, threads and memory, by the number of agents.

    Args:
        data: an ImageFolder tree.
    """
    with ExitStack() as stack:
        addresses: list[str] = []
        while len(addresses) < max(NUMBERS):
            addresses.append(stack.enter_context(local_agent(data))[0])
            wait_for_worker(addresses[-1])  # one after the other, on few cores
        return [alone(worker, {"addresses": addresses[:number]}) for number in NUMBERS]


def worker(addresses: Sequence[str]) -> dict[str, Any]:
    """Return descriptors, threads and memory of a loader's worker with these agents after an epoch.

    Args:
        addresses: of the agents.
    """
    loader = our_loader(
        RemoteImageFolder(addresses[0], training_pipeline()), 1, agent=list(addresses), policy="resize-off"
    )
    samples_per_s(loader)
    (one,) = multiprocessing.active_children()
    process = psutil.Process(one.pid)
    memory = process.memory_full_info()
    held = {"descriptors": process.num_fds(), "threads": process.num_threads()}
    found = {"agents": len(addresses), **held, "pss_mb": memory.pss / 1e6, "private_mb": memory.uss / 1e6}
    loader.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
