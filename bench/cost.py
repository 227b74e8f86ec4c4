"""CPU costs of a sample without an agent or a slow wire: our loader, torch's, and SPDL, on one core.

    python -m bench.cost --data PATH --json cost.json
    python -m bench.cost --data PATH --ways torch fused --workers 1

All ways read the same folder, shuffled, in batches of 64: RandomResizedCrop(224), RandomHorizontalFlip, ToTensor and
Normalize.

    torch   torch's DataLoader on ImageFolder: torchvision's ops on Pillow's pictures
    v2      torch's DataLoader, torchvision's v2 ops on tensors of `torchvision.io.decode_image`: other pixels
    spdl    Meta's SPDL: threads in place of worker processes, FFmpeg's decoder and scaler: other pixels
    pillow  our loader without an agent, `fused=False`: torch's pixels, for the same box and side
    fused   our loader without an agent: the same pixels

Every way has a process of its own, pinned to one core with all that it starts. Ways take turns, epoch by epoch, in an
order that rotates; first epochs do not count. CPU is that of all processes of a way. Ratios are to `torch` in the same
round. SPDL is installed on demand into an environment of its own below --peers-venv.

Then the stages of a sample: torch's loader and ours without workers, one process each, in turns.

Bar: fused / torch >= 2.5 in images/s, with one worker and with two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, cost_spdl, cost_stages, record
from bench.bed import Bed, LoopbackHosts
from bench.children import Child, ChildFailed, name_of, started
from bench.cost_ways import BATCH_SIZE, FUSED, SPDL, TORCH, WAYS, loading
from bench.peers.environments import Unavailable
from sophon_loader.native import fused

BAR = 2.5
WARM_EPOCHS = 2
"""Before the measured ones; the first one starts worker processes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the results; 1 when the bar is missed."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    if FUSED in options.ways and fused.DECODE not in fused.checked():
        remedy = "build the extension with `python setup.py build_ext --inplace`, on a processor with AVX2"
        bench.refuse("the decoder", "one that gives the installed Pillow's pixels", "none", remedy)
    core = max(os.sched_getaffinity(0))
    settings = {"data": str(options.data), "repeat": options.repeat, "batch_size": options.batch_size}
    pythons, versions, unavailable = _pythons(options.ways, options.peers_venv.resolve())
    rows = []
    with LoopbackHosts(None).open() as bed:
        for workers in options.workers:
            with _children(bed, core, pythons, {**settings, "workers": workers}, unavailable) as children:
                rows += in_rounds(children, options.rounds, f"{workers} workers", {"workers": workers})
        stages = cost_stages.measured(bed, core, settings, options.rounds)
    found: dict[str, Any] = {
        "settings": {**settings, "data": options.data.name},
        "versions": versions,
        "unavailable": unavailable,
        "rounds": rows,
        "summary": summarised(rows),
        "stages": stages,
    }
    show(found)
    record.write(options.output, found)
    return int(not all(row["ratio"]["median"] >= BAR for row in _judged_rows(found["summary"])))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.cost", __doc__, pictures=True)
    add = parser.add_argument
    ways = list(WAYS)
    what = "The ways that are compared."
    add("--ways", nargs="+", default=ways, choices=ways, action=arguments.Distinct, metavar="NAME", help=what)
    add("--workers", nargs="+", type=arguments.count(), default=[1, 2], action=arguments.Distinct, metavar="N")
    add("--rounds", type=arguments.count(), default=7)
    add("--repeat", type=arguments.count(), default=4)
    add("--batch-size", type=arguments.count(), default=BATCH_SIZE)
    add("--peers-venv", type=Path, default=record.REPOSITORY / ".venv-peers", metavar="FOLDER")
    return parser


def _pythons(ways: list[str], root: Path) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The interpreter of each way that can run, the versions of what was installed, and why others cannot."""
    pythons = dict.fromkeys(ways, sys.executable)
    if SPDL not in ways:
        return pythons, {}, {}
    try:
        installed = cost_spdl.installed(root)
    except Unavailable as reason:
        del pythons[SPDL]
        return pythons, {}, {SPDL: str(reason)}
    return {**pythons, SPDL: str(installed.python)}, installed.versions, {}


@contextmanager
def _children(
    bed: Bed, core: int, pythons: dict[str, str], settings: dict[str, Any], unavailable: dict[str, str]
) -> Iterator[dict[str, Child]]:
    """A process per way, its first epochs done; one that fails in them is `unavailable` from then on."""
    with ExitStack() as stack:
        found = {}
        for way, python in pythons.items():
            if way in unavailable:
                continue
            starting = started(
                bed.loader_host, core, python, name_of(loading), {**settings, "way": way}, keep_errors=way == SPDL
            )
            try:
                child = stack.enter_context(starting)
                for _ in range(WARM_EPOCHS):
                    child.order("epoch")
            except ChildFailed as reason:
                if way != SPDL:
                    raise
                unavailable[way] = str(reason)
            else:
                found[way] = child
        yield found


def in_rounds(children: dict[str, Child], rounds: int, title: str, about: dict[str, Any]) -> list[dict[str, Any]]:
    """A row per round and child.

    Args:
        children: by name; they take turns, and which goes first changes every round.
        rounds: epochs of each.
        title: of the progress bar.
        about: what all rows say.
    """
    rows = []
    for number in tqdm(range(rounds), desc=title, file=sys.stderr):
        for name in record.in_turns(list(children), number):
            rows.append({"round": number, **about, "way": name, **children[name].order("epoch")})
    return rows


def summarised(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per number of workers and way: medians and spreads over the rounds.

    Args:
        rows: `round`, `workers`, `way`, `images_per_s` and `cpu_ms`.
    """
    torchs = {(row["workers"], row["round"]): row for row in rows if row["way"] == TORCH}
    summary = []
    for workers, way in dict.fromkeys((row["workers"], row["way"]) for row in rows):
        mine = [row for row in rows if (row["workers"], row["way"]) == (workers, way)]
        entry: dict[str, Any] = {"workers": workers, "way": way}
        entry |= {name: record.spread([row[name] for row in mine]) for name in ("images_per_s", "cpu_ms")}
        if torchs:
            pairs = [(row, torchs[workers, row["round"]]) for row in mine]
            entry["ratio"] = record.spread([row["images_per_s"] / other["images_per_s"] for row, other in pairs])
            entry["cpu_ratio"] = record.spread([other["cpu_ms"] / row["cpu_ms"] for row, other in pairs])
        summary.append(entry)
    return summary


def _judged_rows(summary: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in summary if row["way"] == FUSED and "ratio" in row]


def verdicts(summary: list[dict[str, Any]]) -> list[str]:
    """A line per number of workers against the bar."""
    lines = []
    for row in _judged_rows(summary):
        what = f"{FUSED} / {TORCH} in images/s, {row['workers']} worker{'s' * (row['workers'] > 1)}"
        lines.append(record.judged(what, row["ratio"], BAR))
    return lines


def show(found: dict[str, Any]) -> None:
    """Print both tables and the verdicts."""
    console = Console(width=110)
    table = Table("workers", "way", "images/s", "CPU ms", "times torch's images/s", "times less CPU")
    for row in found["summary"]:
        figures = (("images_per_s", 0), ("cpu_ms", 2), ("ratio", 2), ("cpu_ratio", 2))
        table.add_row(str(row["workers"]), row["way"], *(_cell(row.get(name), digits) for name, digits in figures))
    console.print(table)
    for way, stages in found["stages"].items():
        console.print(f"{way}, us: " + ", ".join(f"{name} {us['median']:.0f}" for name, us in stages["us"].items()))
    for way, reason in found["unavailable"].items():
        console.print(f"{way}: not available: {reason}", markup=False)
    for line in verdicts(found["summary"]):
        print(line)


def _cell(values: dict[str, float] | None, digits: int) -> str:
    if values is None:
        return ""
    low, middle, high = (f"{values[name]:.{digits}f}" for name in ("min", "median", "max"))
    return f"{middle} ({low}-{high})"


if __name__ == "__main__":
    sys.exit(main())
