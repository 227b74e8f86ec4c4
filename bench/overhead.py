"""What the loader costs where there is nothing to gain: against torch's DataLoader on the same files.

    python -m bench.overhead --json overhead.json

Both read the same ImageFolder with one worker; ours through a local agent under `no-off` and without any wire limit.
The two take turns, epoch by epoch, and which one goes first changes every round; a round's figure is the ratio of their
throughputs. Bar: median ratio >= 0.95.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench import record
from bench.loading import epoch, folder, our_loader, quiet, torch_loader

BAR = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=4, help="how often the pictures are gone through per epoch")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    quiet()
    dataset = folder(options.data or record.default_data(), options.repeat)
    loaders = {"torch": torch_loader(dataset, options.workers), "ours": our_loader(dataset, options.workers)}
    for loader in loaders.values():  # start workers and agent, fill the page cache
        epoch(loader)
    rows: list[dict[str, Any]] = []
    for number in tqdm(range(options.rounds), desc="rounds", file=sys.stderr):
        order = list(loaders) if number % 2 == 0 else list(reversed(loaders))
        rates = {}
        for name in order:
            seconds, samples = epoch(loaders[name])
            rates[name] = samples / seconds
        rows.append({**rates, "ratio": rates["ours"] / rates["torch"]})
    loaders["ours"].close()
    summary = {name: record.spread([row[name] for row in rows]) for name in ("torch", "ours", "ratio")}
    ratio = summary["ratio"]
    print(f"ours / torch, {options.workers} worker(s): {ratio['median']:.3f} "
          f"({ratio['min']:.3f} to {ratio['max']:.3f} over {options.rounds} rounds; bar {BAR})")  # fmt: skip
    record.write(options.json, "bench.overhead", {"rounds": rows, "summary": summary, "bar": BAR})
    return 0


if __name__ == "__main__":
    sys.exit(main())
