"""Cost of latency to the storage: images per second by the round trip to the agent.

    python -m bench.latency --json latency.json
    python -m bench.latency --parts pictures --round-trips-ms 0 100 --rounds 2
    python -m bench.latency --parts pictures --batch-size 256 --workers 1 4 --peers
    python -m bench.latency --parts pictures --prefetch none 2 --peers

Agent and loaders run on linked hosts (`bench/bed`; needs root), pinned to a core each, and every loader talks to the
agent through a relay of its own (`bench/bed/relay.py`), which holds bytes back by half a round trip in each direction;
at 0 ms, too, so that all pay for the relay's copying. The relays run on the agent's core. All loaders of a part with
one batch size and number of workers take turns, epoch by epoch, in an order that rotates every round; a figure is the
ratio to the same loader at 0 ms in the same round. Bar, where the wire limits at 0 ms: >= 0.95.

Images per second are those of an epoch less one round trip, which the first reply takes in any case. From the
first batch on they would be too many: several workers have most of their first ones by then.

Two parts. `pictures`: the usual training pipeline at 100 Mbit/s, next to peers over the same way (`bench/peers`). They
are made ready on demand; one that cannot be is listed with the reason. `trivial`: 1 Gbit/s and uncompressed pictures of
108 KB, as in bench.link.

With `--prefetch none`, ours are given no `prefetch_factor` and look ahead by themselves: +9 in the table is 9 batches,
over all workers, that torch has yet to hand out. With a number, what is on its way to a worker lies in batches that
torch has handed to it, so `--batch-size` times the number must cover it: 1 Gbit/s over 100 ms takes 116 samples of
108 KB. A loader whose `report()` says that they do not is marked. With several, ours run another epoch at 0 ms after
each of those in a round, in which the memory of the loader's processes is read all the time: the most of their
proportional sizes, of their private pages, and of what they hold in /dev/shm. Policies take turns only where peers do,
too: idle workers keep shared memory, and less of it where it is scarce.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.bed import LinkedHosts
from bench.children import Child, ChildFailed, start_agent
from bench.far import NONE, Case, Part, our_child, peer_child, peer_server, warm
from bench.link import TRIVIAL_MBIT, TRIVIAL_REPEAT, trivial_pictures
from bench.loading import MEMORY
from bench.peers.environments import Installed, Unavailable, install
from bench.peers.systems import SYSTEMS

BAR = 0.95
PARTS = ("pictures", "trivial")
PEERS = tuple(name for name, system in SYSTEMS.items() if not system.ours and not system.remote_workers)
TORCHS_PREFETCH = 2
LONG = 2
"""An epoch has at least so many times the samples that torch hands out at its start."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    ready, unavailable = installed(options.peers if "pictures" in options.parts else [], options.peers_venv.resolve())
    round_trips = sorted({0.0, *options.round_trips_ms})
    summary: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for part in parts_of(options, Path(temporary)):
            peers = ready if part.name == "pictures" else []
            for together in [options.policies] if peers else [[policy] for policy in options.policies]:
                cases = [Case(*case) for case in itertools.product(together, options.prefetch, round_trips)]
                measured = rows_of(part, cases, peers, round_trips, options.rounds, unavailable)
                rows += measured
                summary += summarise(part, measured)
    show(summary, unavailable)
    found = {
        "settings": {"data": options.data.name},
        "rounds": rows,
        "summary": summary,
        "unavailable": unavailable,
        "bar": BAR,
    }
    record.write(options.output, found)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.latency", __doc__, pictures=True)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct}
    add("--parts", default=list(PARTS), choices=PARTS, **several)
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--round-trips-ms", type=arguments.not_negative, default=[0.0, 10.0, 30.0, 100.0], metavar="MS", **several)
    add("--policies", type=arguments.policy(), default=["no-off", "auto"], metavar="NAME", **several)
    add("--peers", default=["http", "streaming"], choices=PEERS, nargs="*", action=arguments.Distinct, metavar="NAME")
    add("--peers-venv", type=Path, default=record.REPOSITORY / ".venv-peers", metavar="FOLDER")
    add("--rounds", type=arguments.count(), default=3)
    add(
        "--repeat",
        type=arguments.count(),
        default=4,
        help="How often an epoch of our loader goes through the pictures, at least.",
    )
    add("--batch-size", type=arguments.count(), default=[16], metavar="N", **several)
    add("--workers", type=arguments.count(), default=[1], metavar="N", **several)
    ahead = "Batches that a worker of ours prepares ahead; none: no number is given. Each is measured."
    add("--prefetch", type=prefetch, default=[NONE], metavar="N", help=ahead, **several)
    return parser


def prefetch(text: str) -> int | str:
    """A number of batches, or that none is given."""
    return text if text == NONE else arguments.count(TORCHS_PREFETCH)(text)


def parts_of(options: argparse.Namespace, made: Path) -> Iterator[Part]:
    """Yield the parts to measure.

    Args:
        options: of the command line.
        made: an empty folder for pictures that are made.
    """
    for name in options.parts:
        pictures = name == "pictures"
        data = options.data if pictures else trivial_pictures(made)
        link_mbit = options.link_mbit if pictures else TRIVIAL_MBIT
        count = sum(1 for _ in data.glob("*/*"))
        ahead = max(TORCHS_PREFETCH if one == NONE else one for one in options.prefetch)
        for batch_size in options.batch_size:
            for workers in options.workers:
                least = math.ceil(LONG * workers * ahead * batch_size / count)
                repeat = max(least, options.repeat if pictures else TRIVIAL_REPEAT)
                yield Part(name, str(data), link_mbit, repeat, batch_size, workers)


def installed(names: Sequence[str], environments: Path) -> tuple[list[Installed], dict[str, str]]:
    """The peers that are ready, and why the others are not.

    Args:
        names: of peers.
        environments: folder of their environments.
    """
    ready, unavailable = [], {}
    for name in names:
        try:
            ready.append(install(SYSTEMS[name], environments))
        except Unavailable as reason:
            unavailable[name] = str(reason)
    return ready, unavailable


def rows_of(
    part: Part,
    cases: Sequence[Case],
    peers: Sequence[Installed],
    round_trips_ms: Sequence[float],
    rounds: int,
    unavailable: dict[str, str],
) -> list[dict[str, Any]]:
    """All measured epochs of a part.

    Args:
        part: what is loaded.
        cases: of our loaders.
        peers: that are ready.
        round_trips_ms: 0 among them.
        rounds: epochs of each case.
        unavailable: the reasons of peers that fail are added.
    """
    with ExitStack() as stack:
        bed = stack.enter_context(LinkedHosts(part.link_mbit).open())
        start_agent(bed, Path(part.data), cores=None)
        loaders: dict[str, tuple[Case, Child]] = {}
        for case in cases:
            loaders[case.name] = case, stack.enter_context(our_child(bed, part, case))
        for each in peers:
            try:
                server = stack.enter_context(peer_server(bed, part, each))
                for round_trip_ms in round_trips_ms:
                    case = Case(each.system.name, "", round_trip_ms)
                    loaders[case.name] = case, stack.enter_context(peer_child(bed, part, each, server, case))
            except ChildFailed as reason:
                unavailable[each.system.name] = str(reason)
        for case, loader in tqdm(loaders.values(), desc=f"{part.title}, warming up", file=sys.stderr):
            warm(loader, case)
        near = (
            {case.name for case in cases if not case.round_trip_ms}
            if len({one.prefetch for one in cases}) > 1
            else set()
        )
        rows = []
        for number in tqdm(range(rounds), desc=part.title, file=sys.stderr):
            for name in record.in_turns(list(loaders), number):
                case, loader = loaders[name]
                row = loader.order(f"epoch {number}")
                images_per_s = row["samples"] / (row["seconds"] - case.round_trip_ms / 1000)
                row |= {"round": number, "part": part.name, **asdict(case), "images_per_s": images_per_s}
                rows.append(row | (loader.order(f"memory {number}") if name in near else {}))
                tqdm.write(f"  {part.title}, {name}: {images_per_s:.1f} images/s", file=sys.stderr)
        return rows


def summarise(part: Part, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images per second and the ratio to 0 ms, case by case.

    Args:
        part: what was loaded.
        rows: its measured epochs.
    """
    of: dict[Case, list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault(Case(row["system"], row["prefetch"], row["round_trip_ms"]), []).append(row)
    summary = []
    for case, far in of.items():
        near = of[replace(case, round_trip_ms=0.0)]
        entry = {
            "part": part.name,
            "link_mbit": part.link_mbit,
            "batch_size": part.batch_size,
            "workers": part.workers,
            **asdict(case),
            "images_per_s": record.spread([row["images_per_s"] for row in far]),
            "ratio": record.spread(
                [one["images_per_s"] / by["images_per_s"] for one, by in zip(far, near, strict=True)]
            ),
            "first_batch_s": record.spread([row["first_batch_s"] for row in far]),
            **{name: record.spread([row[name] for row in far]) for name in far[0] if name.endswith("_mb")},
        }
        if "choices" in far[-1]:
            entry |= {"choices": far[-1]["choices"], "starved": any(row["starved"] for row in far)}
            entry["ahead"] = max(row["ahead"] for row in far)
            entry["limited_by"] = near[-1]["bottleneck"]
            if entry["limited_by"] == "wire":
                entry["verdict"] = "ok" if entry["ratio"]["median"] >= BAR else "below"
        summary.append(entry)
    return summary


def show(summary: Sequence[dict[str, Any]], unavailable: dict[str, str]) -> None:
    """Print the summary.

    Args:
        summary: of all parts.
        unavailable: peers that could not take part, and why.
    """
    columns = ("part", "link", "batch", "workers", "system", "prefetch", "round trip, ms", "images/s", "of 0 ms")
    table = Table(*columns, "first batch, s", "MB, pss/private/shm", "bar", title="images per second by round trip")
    for entry in summary:
        ratio = entry["ratio"]
        starved = ", look-ahead limits" if entry.get("starved") else ""
        ahead = f" +{entry['ahead']}" if entry.get("ahead") else ""
        verdict = f"{BAR}: {entry['verdict']}" if "verdict" in entry else f"limited by {entry.get('limited_by')}"
        table.add_row(
            entry["part"],
            f"{entry['link_mbit']:g}",
            *(str(entry[name]) for name in ("batch_size", "workers", "system")),
            f"{entry['prefetch']}{ahead}",
            f"{entry['round_trip_ms']:g}",
            f"{entry['images_per_s']['median']:.1f}",
            f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})",
            f"{entry['first_batch_s']['median']:.2f}",
            "/".join(f"{entry[name]['median']:.0f}" for name in MEMORY if name in entry),
            f"{verdict}{starved}" if "choices" in entry else "",
        )
    console = Console(width=150)
    console.print(table)
    for name, reason in unavailable.items():
        console.print(f"{name}: not available: {reason}")


if __name__ == "__main__":
    sys.exit(main())
