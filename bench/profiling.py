"""Cost of profiling: the first epoch of `sophon`, relative to the same epoch of `no-off` without it.

    python -m bench.profiling --link-mbit 100 --rounds 5 --json profiling.json

Both send the same files in a first epoch; `sophon` also measures every op of every sample and has the agent run a few
samples dry (`auto` has no such epoch). Each epoch is run by a fresh loader process, over the test bed's link, in an
order that rotates. The baseline is given a finished profile, so that it has nothing to measure. Bar: at most 1.02 times
as long.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import arguments, record
from bench.bed import Bed, open_testbed
from bench.children import start_agent
from bench.epochs import LoaderSettings, policy_loader

BAR = 1.02
NAMES = ("no-off", "sophon")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per policy, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench)
    agent_cores = arguments.agent_quota(bench, None)
    settings = LoaderSettings("no-off", str(options.data), options.repeat)
    with open_testbed(link_mbit=options.link_mbit or None) as bed:
        start_agent(bed, options.data, agent_cores)
        rows = compared(bed, settings, options.rounds)
    summary = {name: record.spread([row[name] for row in rows]) for name in rows[0]}
    for name in NAMES[1:]:
        ratio = summary[f"{name}_ratio"]
        low, high = ratio["min"], ratio["max"]
        print(f"first epoch of {name} / no-off: {ratio['median']:.3f} ({low:.3f} to {high:.3f}; bar {BAR})")
    record.write(options.output, {"rounds": rows, "summary": summary, "bar": BAR})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.profiling", __doc__, pictures=True)
    parser.add_argument("--link-mbit", type=arguments.rate, default=100.0)
    parser.add_argument("--rounds", type=arguments.count(), default=5)
    parser.add_argument("--repeat", type=arguments.count(), default=3)
    return parser


def compared(bed: Bed, settings: LoaderSettings, rounds: int) -> list[dict[str, Any]]:
    """Seconds of a first epoch of each policy, and their ratios to no-off's, per round.

    Args:
        bed: an open bed with an agent.
        settings: of no-off's loader.
        rounds: first epochs of each.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        profile = str(Path(folder) / "profile.npz")
        with policy_loader(bed, replace(settings, policy="sophon", profile=profile)) as loader:
            loader.order("epoch 1")  # saves the profile that no-off is given
            loader.order("epoch 2")
        for number in tqdm(range(rounds), desc="rounds", file=sys.stderr):
            seconds = {}
            for name in record.in_turns(NAMES, number):
                given = profile if name == "no-off" else None
                with policy_loader(bed, replace(settings, policy=name, profile=given)) as loader:
                    seconds[name] = loader.order("epoch 0")["seconds"]
            ratios = {f"{name}_ratio": seconds[name] / seconds["no-off"] for name in NAMES[1:]}
            rows.append({**seconds, **ratios})
    return rows


if __name__ == "__main__":
    sys.exit(main())
