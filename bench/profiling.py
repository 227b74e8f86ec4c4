"""What profiling costs: the first epoch of `auto` and of `sophon` against the same epoch of `no-off` without it.

    python -m bench.profiling --link-mbit 100 --rounds 5 --json profiling.json

All three send the same files in a first epoch; the first two also measure every op of every sample and have the agent
run a few samples dry. Each epoch is run by a fresh loader process, over the test bed's link, in an order that rotates.
The baseline is given a finished profile, so that it has nothing to measure. Bar: at most 1.02 times as long.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import policies, record
from bench.testbed import open_testbed

BAR = 1.02
NAMES = ("no-off", "sophon", "auto")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--link-mbit", type=float, default=100.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="how often an epoch goes through the pictures")
    parser.add_argument("--json", type=Path, metavar="OUT")
    mine = parser.parse_args()
    data = (mine.data or record.default_data()).resolve()
    options = policies.parser().parse_args(["--repeat", str(mine.repeat), "--data", str(data)])
    rows: list[dict[str, Any]] = []
    with open_testbed(link_mbit=mine.link_mbit) as bed, tempfile.TemporaryDirectory() as folder:
        policies.start_agent(bed, data, options)
        profile = Path(folder) / "profile.npz"
        with policies.policy_loader(bed, data, "sophon", options, profile) as process:
            policies.order(process, "epoch 1")  # saves the profile that no-off is given
            policies.order(process, "epoch 2")
        for number in tqdm(range(mine.rounds), desc="rounds", file=sys.stderr):
            seconds = {}
            for name in record.in_turns(NAMES, number):
                given = profile if name == "no-off" else None
                with policies.policy_loader(bed, data, name, options, given) as process:
                    seconds[name] = policies.order(process, "epoch 0")["seconds"]
            ratios = {f"{name}_ratio": seconds[name] / seconds["no-off"] for name in NAMES[1:]}
            rows.append({**seconds, **ratios})
    summary = {name: record.spread([row[name] for row in rows]) for name in rows[0]}
    for name in NAMES[1:]:
        ratio = summary[f"{name}_ratio"]
        low, high = ratio["min"], ratio["max"]
        print(f"first epoch of {name} / no-off: {ratio['median']:.3f} ({low:.3f} to {high:.3f}; bar {BAR})")
    record.write(mine.json, "bench.profiling", {"rounds": rows, "summary": summary, "bar": BAR})
    return 0


if __name__ == "__main__":
    sys.exit(main())
