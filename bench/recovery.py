"""How long a disturbance is remembered: epochs of `auto` after another program, or a quota, took a host's core away.

    python -m bench.recovery --data PATH --json recovery.json
    python -m bench.recovery --packages OTHER_CHECKOUT         the packages (and loader processes) of another checkout

Agent and loaders run on linked hosts (`bench/testbed.py`; needs root), pinned to a core each. Every case has a loader
process of its own, which starts without a profile; they take turns, epoch by epoch, in an order that rotates every
round, so that what else happens on the machine happens to all. One of them is never disturbed. Printed are the median
of a case's last epochs as a multiple of the undisturbed one's, and the first epoch after the disturbance from which on
all are within 10 % of the undisturbed epochs of the same rounds.

The other checkout needs its C extension beside its sources (`sophon_loader/native/_jpegcrop*.so`), else its `auto` has
no roi-jpeg to choose.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import record
from bench.policies import measured, policy_loader, start_agent
from bench.testbed import MIN_QUOTA_CORES, REPOSITORY, LinkedHosts, child_argv

NEAR = 1.10
"""Times the undisturbed epoch of the same round: single epochs of a second on shared cores scatter by up to that."""
LAST = 4
"""Epochs whose median is compared, the last ones: enough that one slow one among them does not count."""
SPIN_S = 600.0
"""How long a busy process would run if nobody ended it."""


@dataclass(frozen=True)
class Case:
    """A disturbance: on which host, in which epochs, and whether by a quota or by a busy process on its core."""

    host: str
    epochs: tuple[int, ...]
    starves: bool = False


CASES = {
    "undisturbed": Case("agent", ()),
    "loader-1-2": Case("loader", (1, 2)),
    "loader-0-1": Case("loader", (0, 1)),
    "agent-1-2": Case("agent", (1, 2)),
    "starved-2": Case("agent", (2,), starves=True),
}


def main() -> int:
    options = checked(parser())
    data = (options.data or record.default_data()).resolve()
    if options.packages is not None:
        use_packages(options.packages.resolve())
    with LinkedHosts(options.link_mbit).open() as bed:
        rows = compare(bed, data, options)
    summary = [summarise(rows, name) for name in options.cases]
    show(summary, f"{data.name}, {options.link_mbit:g} Mbit/s, agent at {options.agent_cores:g} cores")
    names = ("link_mbit", "agent_cores", "starved_cores", "epochs", "repeat", "batch_size")
    settings = {"data": data.name, "packages": package_commit(options.packages)}
    settings |= {name: getattr(options, name) for name in names}
    record.write(options.json, "bench.recovery", {"settings": settings, "epochs": rows, "summary": summary})
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--epochs", type=int, default=12, help="of each case, all counted")
    parser.add_argument("--link-mbit", type=float, default=100.0)
    parser.add_argument("--agent-cores", type=float, default=1.0, help="CPU quota of the agent")
    parser.add_argument("--starved-cores", type=float, default=MIN_QUOTA_CORES, help="its quota while it starves")
    parser.add_argument("--repeat", type=int, default=1, help="how often an epoch goes through the pictures")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--packages", type=Path, metavar="CHECKOUT", help="whose packages run; default: this one's")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments, or the exit with what is wrong with them."""
    options = parser.parse_args()
    options.cases = ["undisturbed", *(name for name in dict.fromkeys(options.cases) if name != "undisturbed")]
    least = max((epoch for name in options.cases for epoch in CASES[name].epochs), default=0) + 1 + LAST
    if options.epochs < least:
        parser.error(f"--epochs must be at least {least}, so that {LAST} come after the last disturbance")
    if options.data is not None and not options.data.is_dir():
        parser.error(f"--data must be an ImageFolder tree, got {options.data}")
    if not options.link_mbit > 0:
        parser.error(f"--link-mbit must be above 0, got {options.link_mbit}")
    for name in ("agent_cores", "starved_cores"):
        if not getattr(options, name) >= MIN_QUOTA_CORES:
            parser.error(f"--{name.replace('_', '-')} must be at least {MIN_QUOTA_CORES}, got {getattr(options, name)}")
    for name in ("repeat", "batch_size"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(options, name)}")
    if options.packages is not None and not (options.packages / "bench" / "policies.py").is_file():
        parser.error(f"--packages must be a checkout of this repository, got {options.packages}")
    return options


def use_packages(checkout: Path) -> None:
    """Have all processes that are started from now on take the packages from another checkout."""
    # Without the second, `python -m` looks into the working directory first.
    os.environ |= {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", "import sophon_loader, bench; print(sophon_loader.__file__, bench.__file__)"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    if not all(Path(path).is_relative_to(checkout) for path in found):
        raise SystemExit(
            f"the packages must come from {checkout}, got {found}; Python 3.11 or newer is needed for that"
        )


def package_commit(checkout: Path | None) -> str:
    """Name of the folder that the packages come from, without its path."""
    return (checkout or REPOSITORY).resolve().name


# --- the bench's process ----------------------------------------------------------------------------------------------


def compare(bed: LinkedHosts, data: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all epochs."""
    options.step_ms, options.encodings = 0.0, "auto"
    rows = []
    with contextlib.ExitStack() as stack:
        start_agent(bed, data, argparse.Namespace(agent_workers=1, agent_cores=options.agent_cores))
        loaders = {name: stack.enter_context(policy_loader(bed, data, "auto", options)) for name in options.cases}
        bar = tqdm(total=options.epochs * len(loaders), desc="epochs", file=sys.stderr)
        for number in range(options.epochs):
            for name in record.in_turns(list(loaders), number):
                disturbed = number in CASES[name].epochs
                with disturbance(bed, CASES[name], options) if disturbed else contextlib.nullcontext():
                    row = measured(bed, loaders[name], number)
                rows.append({"case": name, "number": number, "disturbed": disturbed, **row})
                tqdm.write(f"  {name} {number}: {row['seconds']:.2f} s{' (disturbed)' * disturbed}", file=sys.stderr)
                bar.update()
    return rows


@contextlib.contextmanager
def disturbance(bed: LinkedHosts, case: Case, options: argparse.Namespace) -> Iterator[None]:
    """Takes from a host's core, until the block ends."""
    if case.starves:
        bed.agent_host.set_quota(options.starved_cores)
        try:
            yield
        finally:
            bed.agent_host.set_quota(options.agent_cores)
        return
    host, core = (bed.loader_host, 0) if case.host == "loader" else (bed.agent_host, 1)
    with host.popen(
        child_argv("spin", str(SPIN_S)), cores={core}, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()  # the interpreter is up
        try:
            yield
        finally:
            busy.kill()


def summarise(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The figures of a case."""
    seconds = {case: [row["seconds"] for row in rows if row["case"] == case] for case in (name, "undisturbed")}
    mine, plain = seconds[name], seconds["undisturbed"]
    last_disturbed = max(CASES[name].epochs, default=0)
    late = [n for n in range(last_disturbed + 1, len(mine)) if mine[n] > NEAR * plain[n]]
    nbytes = [row["interface_bytes"] for row in rows if row["case"] == name]
    return {
        "case": name,
        "seconds": mine,
        "interface_bytes": nbytes,
        "last_seconds": median(mine[-LAST:]),
        "last_interface_bytes": median(nbytes[-LAST:]),
        "ratio": median(mine[-LAST:]) / median(plain[-LAST:]),
        "back_in": max(late, default=last_disturbed) - last_disturbed + 1,
        "same_batches": all(
            row["digest"] == other["digest"]
            for row in rows
            for other in rows
            if row["case"] == name and other["case"] == "undisturbed" and row["number"] == other["number"]
        ),
    }


def show(summary: list[dict[str, Any]], title: str) -> None:
    """Print the summary."""
    table = Table("case", "epochs, s", "last, s", "MB", "times undisturbed", "back in epoch", "same", title=title)
    for entry in summary:
        table.add_row(
            entry["case"],
            " ".join(f"{seconds:.1f}" for seconds in entry["seconds"]),
            f"{entry['last_seconds']:.2f}",
            f"{entry['last_interface_bytes'] / 1e6:.1f}",
            f"{entry['ratio']:.2f}",
            "" if entry["case"] == "undisturbed" else f"+{entry['back_in']}",
            str(entry["same_batches"]),
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main())
