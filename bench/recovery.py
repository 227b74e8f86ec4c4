"""How long a disturbance is remembered: epochs of `auto` after another program, or a quota, took a host's core away.

    python -m bench.recovery --data PATH --json recovery.json

Agent and loaders run on linked hosts (`bench/bed`; needs root), pinned to a core each. Every case has a loader process
of its own, which starts without a profile; they take turns, epoch by epoch, in an order that rotates every round, so
that what else happens on the machine happens to all. One of them is never disturbed. Printed are the median of a case's
last epochs as a multiple of the undisturbed one's, and the first epoch after the disturbance from which on all are
within 10 % of the undisturbed epochs of the same rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.bed import MIN_QUOTA_CORES, LinkedHosts
from bench.bed.self_check import spinning
from bench.children import AGENT_CORE, LOADER_CORE, child, start_agent
from bench.epochs import LoaderSettings, measured_epoch, policy_loader

NEAR = 1.10
"""Times the undisturbed epoch of the same round: single epochs of a second on shared cores scatter by up to that."""
LAST = 4
"""Epochs whose median is compared, the last ones: enough that one slow one among them does not count."""


@dataclass(frozen=True)
class Case:
    """A disturbance: on which host, in which epochs, and whether by a quota or by a busy process on its core."""

    host: str
    epochs: tuple[int, ...]
    starves: bool = False


@dataclass(frozen=True)
class Quotas:
    """The agent's CPU quota in cores, as a rule and while it starves."""

    usual: float
    starved: float


UNDISTURBED = "undisturbed"
CASES = {
    UNDISTURBED: Case("agent", ()),
    "loader-1-2": Case("loader", (1, 2)),
    "loader-0-1": Case("loader", (0, 1)),
    "agent-1-2": Case("agent", (1, 2)),
    "starved-2": Case("agent", (2,), starves=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    cases = [UNDISTURBED, *(name for name in options.cases if name != UNDISTURBED)]
    least = max((epoch for name in cases for epoch in CASES[name].epochs), default=0) + 1 + LAST
    if options.epochs < least:
        remedy = f"{LAST} must come after the last disturbance"
        bench.refuse("--epochs", f"at least {least}", options.epochs, remedy)
    arguments.require_bed(bench, linked=True)
    quotas = Quotas(options.agent_cores, options.starved_cores)
    loader = LoaderSettings("auto", str(options.data), options.repeat, options.batch_size, encodings="auto")
    with LinkedHosts(options.link_mbit).open() as bed:
        start_agent(bed, options.data, quotas.usual)
        rows = compared(bed, cases, loader, quotas, options.epochs)
    summary = [summarise(rows, name) for name in cases]
    show(summary, f"{options.data.name}, {options.link_mbit:g} Mbit/s, agent at {options.agent_cores:g} cores")
    names = ("link_mbit", "agent_cores", "starved_cores", "epochs", "repeat", "batch_size")
    settings = {"data": options.data.name, **{name: getattr(options, name) for name in names}}
    record.write(options.output, {"settings": settings, "epochs": rows, "summary": summary})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.recovery", __doc__, pictures=True)
    add = parser.add_argument
    cases = list(CASES)
    add("--cases", nargs="+", default=cases, choices=cases, action=arguments.Distinct, metavar="CASE")
    add("--epochs", type=arguments.count(), default=12, help="of each case, all counted")
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--agent-cores", type=arguments.quota, default=1.0, help="CPU quota of the agent")
    add("--starved-cores", type=arguments.quota, default=MIN_QUOTA_CORES, help="its quota while it starves")
    add("--repeat", type=arguments.count(), default=1, help="how often an epoch goes through the pictures")
    add("--batch-size", type=arguments.count(), default=16)
    return parser


def compared(
    bed: LinkedHosts, cases: Sequence[str], settings: LoaderSettings, quotas: Quotas, epochs: int
) -> list[dict[str, Any]]:
    """The rows of all epochs.

    Args:
        bed: an open bed with an agent.
        cases: their names; each gets a loader of its own.
        settings: of the loaders.
        quotas: of the agent.
        epochs: of each loader.
    """
    rows = []
    with ExitStack() as stack:
        loaders = {name: stack.enter_context(policy_loader(bed, settings)) for name in cases}
        progress = tqdm(total=epochs * len(loaders), desc="epochs", file=sys.stderr)
        for number in range(epochs):
            for name in record.in_turns(list(loaders), number):
                disturbed = number in CASES[name].epochs
                with disturbance(bed, CASES[name], quotas) if disturbed else nullcontext():
                    row = measured_epoch(bed, loaders[name], number)
                rows.append({"case": name, "number": number, "disturbed": disturbed, **row})
                tqdm.write(f"  {name} {number}: {row['seconds']:.2f} s{' (disturbed)' * disturbed}", file=sys.stderr)
                progress.update()
    return rows


@contextmanager
def disturbance(bed: LinkedHosts, case: Case, quotas: Quotas) -> Iterator[None]:
    """Takes from a host's core, until the block ends.

    Args:
        bed: an open bed.
        case: which host, and how.
        quotas: of the agent.
    """
    if case.starves:
        bed.agent_host.set_quota(quotas.starved)
        try:
            yield
        finally:
            bed.agent_host.set_quota(quotas.usual)
        return
    host, core = (bed.loader_host, LOADER_CORE) if case.host == "loader" else (bed.agent_host, AGENT_CORE)
    with child(host, core, spinning, {}):
        yield


def summarise(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The figures of a case.

    Args:
        rows: the epochs of all cases.
        name: of the case.
    """
    mine = {row["number"]: row for row in rows if row["case"] == name}
    plain = {row["number"]: row for row in rows if row["case"] == UNDISTURBED}
    seconds = [row["seconds"] for row in mine.values()]
    nbytes = [row["interface_bytes"] for row in mine.values()]
    last_disturbed = max(CASES[name].epochs, default=0)
    late = [
        number
        for number, row in mine.items()
        if number > last_disturbed and row["seconds"] > NEAR * plain[number]["seconds"]
    ]
    return {
        "case": name,
        "seconds": seconds,
        "interface_bytes": nbytes,
        "last_seconds": median(seconds[-LAST:]),
        "last_interface_bytes": median(nbytes[-LAST:]),
        "ratio": median(seconds[-LAST:]) / median([row["seconds"] for row in plain.values()][-LAST:]),
        "back_in": max(late, default=last_disturbed) - last_disturbed + 1,
        "same_batches": all(row["digest"] == plain[number]["digest"] for number, row in mine.items()),
    }


def show(summary: list[dict[str, Any]], title: str) -> None:
    """Print the summary.

    Args:
        summary: an entry per case.
        title: of the table.
    """
    table = Table("case", "epochs, s", "last, s", "MB", "times undisturbed", "back in epoch", "same", title=title)
    for entry in summary:
        table.add_row(
            entry["case"],
            " ".join(f"{seconds:.1f}" for seconds in entry["seconds"]),
            f"{entry['last_seconds']:.2f}",
            f"{entry['last_interface_bytes'] / 1e6:.1f}",
            f"{entry['ratio']:.2f}",
            "" if entry["case"] == UNDISTURBED else f"+{entry['back_in']}",
            str(entry["same_batches"]),
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main())
