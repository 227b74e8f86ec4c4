"""Other systems and ours over the same link: same files, same crop, flip and normalisation.

    python -m bench.peers --data PATH --link-mbit 100 --epochs 3 --json peers.json

Two network namespaces joined by a shaped link, as in bench.policies: servers on one core of one side, loaders on one
core of the other. Every system has a server and a loader process with one worker; they take turns, epoch by epoch, in
an order that rotates every round. A system that uses CPU while it waits has its turns when the others have ended. Bytes
are the interface's own counters (server to loader), CPU seconds those of all processes of a side while a system has its
turn.

The time to the first batch is that of a fresh process: from before the loader is constructed, libraries imported and
server running, to the first batch; without the profiling pass that ours has before its epochs. Whether batches are the
same with another number of workers is tried in the loaders' first whole epoch, over an unlimited link.

Peers are installed on demand, each into a virtual environment of its own below --peers-venv. One that cannot be
installed or started is listed with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.bed import LinkedHosts
from bench.peers.comparison import Comparison
from bench.peers.environments import Installed, Unavailable, install, see_own_programs
from bench.peers.systems import SYSTEMS


def main(argv: Sequence[str] | None = None) -> int:
    """Install what is missing, measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    see_own_programs()
    entries: dict[str, dict[str, Any]] = {}
    ready: list[Installed] = []
    for name in tqdm(options.systems, desc="installing", file=sys.stderr):
        entries[name] = {"system": name, "what": SYSTEMS[name].what, "ours": SYSTEMS[name].ours, "unavailable": None}
        try:
            ready.append(install(SYSTEMS[name], options.peers_venv.resolve()))
        except Unavailable as reason:
            entries[name]["unavailable"] = str(reason)
    with LinkedHosts(options.link_mbit or None).open() as bed:
        comparison, rows = Comparison(bed, options.data, options.batch_size, entries), []
        for apart in (False, True):
            rows += comparison.run([each for each in ready if each.system.apart is apart], options.epochs)
    summary = summarise(rows, entries)
    found = {
        "settings": {"data": options.data.name, "link_mbit": options.link_mbit, "batch_size": options.batch_size},
        "versions": {each.system.name: each.versions for each in ready},
        "epochs": rows,
        "summary": summary,
        "bar": bar(summary),
    }
    show(found)
    record.write(options.output, found)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.peers", __doc__, pictures=True)
    add = parser.add_argument
    add("--link-mbit", type=arguments.rate, default=100.0)
    add("--epochs", type=arguments.count(), default=3)
    add("--batch-size", type=arguments.count(), default=16)
    systems = list(SYSTEMS)
    add("--systems", nargs="+", default=systems, choices=systems, action=arguments.Distinct, metavar="NAME")
    add("--peers-venv", type=Path, default=record.REPOSITORY / ".venv-peers", metavar="FOLDER")
    return parser


def summarise(rows: list[dict[str, Any]], entries: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Each system's entry, with medians and ranges over its rounds and whether two workers made the same batches.

    Args:
        rows: the measured epochs.
        entries: what is known of each system besides.
    """
    summary = []
    for name, entry in entries.items():
        mine = [row for row in rows if row["system"] == name]
        one, two = entry.get("one_worker"), entry.get("two_workers")
        summary.append(
            {
                **entry,
                "images_per_s": per_image(mine, "seconds", inverse=True),
                "bytes_per_image": per_image(mine, "interface_bytes"),
                "server_cpu_s_per_image": per_image(mine, "server_cpu_s"),
                "loader_cpu_s_per_image": per_image(mine, "loader_cpu_s"),
                "same_batches": one["digest"] == two["digest"] if one and two else None,
                "same_order": one["labels_digest"] == two["labels_digest"] if one and two else None,
            }
        )
    return summary


def per_image(rows: list[dict[str, Any]], key: str, inverse: bool = False) -> dict[str, float] | None:
    """Median and range of a figure per image over the rounds, or of images per unit of it.

    Args:
        rows: the epochs of a system.
        key: of the figure.
        inverse: whether images per unit of it are meant.
    """
    values = [row[key] / row["samples"] for row in rows]
    return record.spread([1 / value if inverse else value for value in values]) if values else None


def bar(summary: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the factor in images/s of our default over the best peer; None if one of them is missing."""
    rates = {entry["system"]: entry["images_per_s"]["median"] for entry in summary if entry["images_per_s"]}
    peers = {name: rate for name, rate in rates.items() if not SYSTEMS[name].ours}
    if (ours := default_of(rates)) is None or not peers:
        return None
    best = max(peers, key=peers.__getitem__)
    return {"best_peer": best, "times_faster": rates[ours] / peers[best]}


def default_of(systems: Collection[str]) -> str | None:
    """The name of our default among those of some systems: of a folder rather than of a bucket."""
    return next((name for name in ("auto", "auto-bucket") if name in systems), None)


def show(found: dict[str, Any]) -> None:
    """Print the table and the bar."""
    settings = found["settings"]
    columns = ("system", "images/s", "kB/image", "server ms", "loader ms", "first batch s", "same batches", "order")
    table = Table(*columns, title=f"{settings['data']}, {settings['link_mbit']:g} Mbit/s, a core on each side")
    words = {True: "yes", False: "no", None: ""}
    for entry in found["summary"]:
        table.add_row(
            entry["system"],
            _median(entry["images_per_s"], 1, "{:.1f}"),
            _median(entry["bytes_per_image"], 1e-3, "{:.1f}"),
            _median(entry["server_cpu_s_per_image"], 1e3, "{:.2f}"),
            _median(entry["loader_cpu_s_per_image"], 1e3, "{:.2f}"),
            "{:.2f}".format(entry["first_batch_s"]) if "first_batch_s" in entry else "",
            words[entry["same_batches"]],
            words[entry["same_order"]],
        )
    console = Console(width=110)
    console.print(table)
    for entry in found["summary"]:
        if entry["unavailable"]:
            console.print(f"{entry['system']}: not available: {entry['unavailable']}")
    if found["bar"]:
        console.print(
            f"our default delivers {found['bar']['times_faster']:.2f} times what {found['bar']['best_peer']} does"
        )


def _median(values: dict[str, float] | None, unit: float, form: str) -> str:
    return "" if values is None else form.format(values["median"] * unit)


if __name__ == "__main__":
    sys.exit(main())
