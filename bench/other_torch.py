"""What an agent with another torch gives, beside one with the loader's own: images per second, bytes, first batches.

    python -m bench.other_torch --json other_torch.json
    python -m bench.other_torch --round-trips-ms 0 100 --rounds 2

The other agent is this release in a Python that gives torch another version, so that nothing but the way of asking
differs: its loaders ask it for headers, draw the random numbers themselves, and ask by programs. Loader and agents run
on linked hosts (`bench/bed`; needs root), a core each, behind a relay that holds bytes back by half a round trip in
each direction, as in bench.latency. All loaders take turns, epoch by epoch, in an order that rotates every round; a
ratio is of one round. Per round and loader another loader is made for its first batch: its workers start, no header is
known, and with the other agent these are asked for first.

Bars: images per second of `auto` at least 0.97 of those with an agent alike, bytes at most 1.01 times theirs, the first
batch at most a round trip and a tenth of a second later.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.bed import LinkedHosts
from bench.children import PORT, Child, start_agent
from bench.far import NONE, Case, Part, our_child, warm

RATE_BAR, BYTES_BAR, FIRST_BAR_S = 0.97, 1.01, 0.1
ALIKE, OTHER = "the same torch", "another torch"
PORTS = {ALIKE: PORT, OTHER: PORT + 1}
OTHER_TORCH = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "2.0.0" if name == "torch" else real(name)
"""
"""Run by the other agent's Python when it starts."""
Loaders = dict[str, tuple[str, Case, Child]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    part = Part("pictures", str(options.data), options.link_mbit, options.repeat, options.batch_size, options.workers)
    with loaders_of(part, options.policies, options.round_trips_ms) as loaders:
        rows = measured(loaders, options.rounds)
    summary = summarise(rows)
    show(summary)
    record.write(options.output, {"settings": {"data": options.data.name}, "rounds": rows, "summary": summary})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.other_torch", __doc__, pictures=True)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct}
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--round-trips-ms", type=arguments.not_negative, default=[0.0, 30.0, 100.0], metavar="MS", **several)
    add("--policies", type=arguments.policy(), default=["auto"], metavar="NAME", **several)
    add("--rounds", type=arguments.count(), default=5)
    add("--repeat", type=arguments.count(), default=3, help="How often an epoch goes through the pictures.")
    add("--batch-size", type=arguments.count(), default=16)
    add("--workers", type=arguments.count(), default=1)
    return parser


@contextmanager
def loaders_of(part: Part, policies: Sequence[str], round_trips_ms: Sequence[float]) -> Iterator[Loaders]:
    """Both agents, and loaders of both that have settled, by name.

    Args:
        part: what is loaded.
        policies: of the loaders.
        round_trips_ms: of their ways.
    """
    with ExitStack() as stack:
        modules = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sophon-bench-")))
        (modules / "sitecustomize.py").write_text(OTHER_TORCH)
        bed = stack.enter_context(LinkedHosts(part.link_mbit).open())
        for agent, within in ((ALIKE, ()), (OTHER, ("env", f"PYTHONPATH={modules}"))):
            start_agent(bed, Path(part.data), cores=None, within=within, port=PORTS[agent])
        loaders: Loaders = {}
        for policy in policies:
            for round_trip_ms in round_trips_ms:
                for agent, port in PORTS.items():
                    case = Case(policy, NONE, round_trip_ms, port)
                    loaders[f"{agent}, {case.name}"] = agent, case, stack.enter_context(our_child(bed, part, case))
        for _, case, loader in tqdm(loaders.values(), desc="warming up", file=sys.stderr):
            warm(loader, case)
        yield loaders


def measured(loaders: Loaders, rounds: int) -> list[dict[str, Any]]:
    """All epochs, in turns.

    Args:
        loaders: by name.
        rounds: epochs of each.
    """
    rows = []
    for number in tqdm(range(rounds), desc="epochs", file=sys.stderr):
        for name in record.in_turns(list(loaders), number):
            agent, case, loader = loaders[name]
            row = loader.order(f"epoch {number}")
            facts = {"round": number, "agent": agent, "policy": case.system, "round_trip_ms": case.round_trip_ms}
            images_per_s = row["samples"] / (row["seconds"] - case.round_trip_ms / 1000)
            rows.append({**row, **facts, "images_per_s": images_per_s, "cold_first_batch_s": loader.order("first 0")})
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both agents side by side, by policy and round trip.

    Args:
        rows: all epochs.
    """
    summary = []
    for policy, round_trip_ms in dict.fromkeys((row["policy"], row["round_trip_ms"]) for row in rows):
        of = {agent: [row for row in rows if _about(row) == (policy, round_trip_ms, agent)] for agent in PORTS}
        pairs = list(zip(of[OTHER], of[ALIKE], strict=True))
        rate = record.spread([other["images_per_s"] / alike["images_per_s"] for other, alike in pairs])
        payload = record.spread([other["payload_bytes"] / alike["payload_bytes"] for other, alike in pairs])
        later = record.spread([other["cold_first_batch_s"] - alike["cold_first_batch_s"] for other, alike in pairs])
        reached = (
            rate["median"] >= RATE_BAR
            and payload["median"] <= BYTES_BAR
            and later["median"] <= round_trip_ms / 1000 + FIRST_BAR_S
        )
        summary.append(
            {
                "policy": policy,
                "round_trip_ms": round_trip_ms,
                "alike_images_per_s": record.spread([row["images_per_s"] for row in of[ALIKE]]),
                "other_images_per_s": record.spread([row["images_per_s"] for row in of[OTHER]]),
                "rate_ratio": rate,
                "bytes_ratio": payload,
                "first_batch_later_s": later,
                "files": of[OTHER][-1]["choices"].get("file", 0) / of[OTHER][-1]["samples"],
                "verdict": "ok" if reached else "below",
            }
        )
    return summary


def _about(row: dict[str, Any]) -> tuple[str, float, str]:
    return row["policy"], row["round_trip_ms"], row["agent"]


def show(summary: Sequence[dict[str, Any]]) -> None:
    """Print the summary.

    Args:
        summary: of all rows.
    """
    rates = f"{ALIKE}, images/s", f"{OTHER}, images/s"
    columns = ("policy", "round trip, ms", *rates, "ratio", "bytes", "first batch, s later")
    table = Table(*columns, "bars", title="an agent with another torch")
    for entry in summary:
        rate, payload, later = entry["rate_ratio"], entry["bytes_ratio"], entry["first_batch_later_s"]
        table.add_row(
            entry["policy"],
            f"{entry['round_trip_ms']:g}",
            f"{entry['alike_images_per_s']['median']:.1f}",
            f"{entry['other_images_per_s']['median']:.1f}",
            f"{rate['median']:.3f} ({rate['min']:.3f}-{rate['max']:.3f})",
            f"{payload['median']:.3f}",
            f"{later['median']:+.2f} ({later['min']:+.2f} to {later['max']:+.2f})",
            entry["verdict"],
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main())
