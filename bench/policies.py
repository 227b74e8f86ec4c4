"""The policies side by side on one dataset, over a real link between two hosts on this machine.

    python -m bench.policies --data PATH --link-mbit 100 --agent-cores 1.0 --epochs 3 --json policies.json

The agent runs in one network namespace, the loaders in another; the link between them is shaped on the agent's side.
Agent and loaders are pinned to a core each, and the agent's CPU is capped at --agent-cores. Each policy has a loader
process of its own with one worker; `torch` is torch's DataLoader on the files themselves. After a profiling pass (and,
for fastflow, its trials) the policies take turns, epoch by epoch, in an order that rotates every round. Bytes are those
of the interface's own counters. The training step is a sleep of --step-ms per batch, which stands for a GPU that leaves
the CPU alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.bed import Bed, open_testbed
from bench.children import start_agent
from bench.epochs import LoaderSettings, measured_epoch, policy_loader, warm_epochs, warm_up

POLICIES = ("no-off", "all-off", "resize-off", "fastflow", "sophon", "auto")
SPREADS = ("seconds", "images_per_s", "interface_bytes", "payload_bytes", "agent_cpu_s", "loader_cpu_s")
"""Figures of an epoch; the summary has their median and range."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench)
    agent_cores = arguments.agent_quota(bench, options.agent_cores)
    loaders = [
        LoaderSettings(
            policy=policy,
            data=str(options.data),
            repeat=options.repeat,
            batch_size=options.batch_size,
            step_ms=options.step_ms,
            encodings=options.encodings,
        )
        for policy in options.policies
    ]
    with open_testbed(link_mbit=options.link_mbit or None) as bed:
        start_agent(bed, options.data, agent_cores)
        rows = compared(bed, loaders, options.epochs)
        shaped = bed.shaped
    summary = summarise(rows, options.policies)
    quota = "no quota" if agent_cores is None else f"{agent_cores:g} cores"
    show(summary, f"{options.data.name}, {options.link_mbit:g} Mbit/s, agent at {quota}")
    settings = {"data": options.data.name, "link_mbit": options.link_mbit, "shaped": shaped, "agent_cores": agent_cores}
    settings |= {"step_ms": options.step_ms, "batch_size": options.batch_size, "encodings": options.encodings}
    record.write(options.output, {"settings": settings, "epochs": rows, "summary": summary})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.policies", __doc__, pictures=True)
    add = parser.add_argument
    add("--link-mbit", type=arguments.rate, default=100.0)
    add("--agent-cores", type=arguments.quota)
    add("--step-ms", type=arguments.not_negative, default=0.0)
    add("--epochs", type=arguments.count(), default=3)
    add("--repeat", type=arguments.count(), default=1)
    add("--batch-size", type=arguments.count(), default=16)
    policy = arguments.policy("torch")
    add("--policies", nargs="+", type=policy, default=list(POLICIES), action=arguments.Distinct, metavar="NAME")
    add(
        "--encodings",
        default="paper",
        choices=("paper", "auto"),
        help="Encodings of every policy but auto, which takes all.",
    )
    return parser


def compared(bed: Bed, loaders: Sequence[LoaderSettings], rounds: int) -> list[dict[str, Any]]:
    """The rows of all measured epochs.

    Args:
        bed: an open bed with an agent.
        loaders: the loader processes, one per policy.
        rounds: epochs of each.
    """
    with contextlib.ExitStack() as stack:
        running = {one.policy: stack.enter_context(policy_loader(bed, one)) for one in loaders}
        for one in tqdm(loaders, desc="profiling", file=sys.stderr):
            warm_up(running[one.policy], warm_epochs(one))
        rows = []
        progress = tqdm(total=rounds * len(loaders), desc="epochs", file=sys.stderr)
        for number in range(rounds):
            for name in record.in_turns(list(running), number):
                rows.append({"round": number, **measured_epoch(bed, running[name], number)})
                progress.update()
        return rows


def summarise(rows: list[dict[str, Any]], policies: list[str]) -> list[dict[str, Any]]:
    """Medians and ranges per policy, and ratios to torch or no-off, round by round.

    Args:
        rows: the measured epochs.
        policies: which of them, in order.
    """
    first = "torch" if "torch" in policies else "no-off"
    base = {row["round"]: row for row in rows if row["policy"] == first}
    digests = {row["round"]: row["digest"] for row in rows if row["policy"] != "torch"}
    summary = []
    for policy in policies:
        mine = [row for row in rows if row["policy"] == policy]
        entry = {"policy": policy, **figures_of(mine)}
        if base:
            entry["times_faster"] = record.spread([base[row["round"]]["seconds"] / row["seconds"] for row in mine])
            size = "interface_bytes" if mine[0]["interface_bytes"] else "payload_bytes"
            if policy != "torch" and first != "torch":
                entry["times_less_bytes"] = record.spread([base[row["round"]][size] / row[size] for row in mine])
        if policy != "torch":
            entry["same_batches"] = all(digests[row["round"]] == row["digest"] for row in mine)
        summary.append(entry)
    return summary


def figures_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one policy's epochs by themselves."""
    entry: dict[str, Any] = {}
    for name in SPREADS:
        values = [row[name] for row in rows if row[name] is not None]
        entry[name] = record.spread(values) if values else None
    last = rows[-1]
    entry["offloaded_share"] = last["offloaded"] / max(1, last["samples"])
    entry["choices"] = last["choices"]
    entry["bottleneck"] = last["bottleneck"]
    entry["gpu_idle_share"] = record.spread([row["gpu_idle_share"] for row in rows])
    predicted = [row["predicted_seconds"] / row["seconds"] for row in rows if row["predicted_seconds"]]
    entry["predicted_to_measured"] = record.spread(predicted) if predicted else None
    return entry


def show(summary: list[dict[str, Any]], title: str) -> None:
    """Print the summary.

    Args:
        summary: an entry per policy.
        title: of the table.
    """
    table = Table("policy", "epoch s", "MB", "faster", "fewer bytes", "offloaded", "predicted", "same", title=title)
    for entry in summary:
        size = entry["interface_bytes"] or entry["payload_bytes"]
        table.add_row(
            entry["policy"],
            _median(entry["seconds"], "{:.2f}"),
            f"{size['median'] / 1e6:.1f}" if size else "",
            _median(entry.get("times_faster"), "{:.2f}x"),
            _median(entry.get("times_less_bytes"), "{:.3f}x"),
            f"{entry['offloaded_share']:.0%}",
            _median(entry["predicted_to_measured"], "{:.2f}x"),
            str(entry.get("same_batches", "")),
        )
    Console(width=110).print(table)


def _median(values: dict[str, float] | None, form: str) -> str:
    return "" if values is None else form.format(values["median"])


if __name__ == "__main__":
    sys.exit(main())
