"""Draw the paper's two figures, and that of the peers, from the JSON files of benches.

    python -m bench.plot bench/results/<date>-<commit>.json --out docs/figures

For each dataset: epoch time and traffic per policy (from the result with the most agent cores), and epoch time per
policy against the agent's cores (from all its results). Bars are medians over the rounds, whiskers their range.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.peers.figure import draw_peers

COLOURS = {
    "no-off": "#7f7f7f",
    "all-off": "#d62728",
    "resize-off": "#ff7f0e",
    "fastflow": "#9467bd",
    "sophon": "#1f77b4",
    "auto": "#2ca02c",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="JSON files of benches")
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder; default %(default)s")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    by_data: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, found in results_in(options.files):
        if name.startswith("policies") and found["settings"]["link_mbit"]:
            by_data[found["settings"]["data"]].append(found)
        elif name.startswith("peers"):
            print(draw_peers(found, options.out / f"{name}.png"))
    for data, results in by_data.items():
        results.sort(key=lambda result: result["settings"]["agent_cores"])
        print(ample(results[-1], options.out / f"policies-{data}.png"))
        if len(results) > 1:
            print(against_cores(results, options.out / f"cores-{data}.png"))
    return 0


def results_in(files: list[Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name of the bench, its rows) of all results in the files."""
    for file in files:
        found = json.loads(file.read_text()).get("rows")
        if isinstance(found, dict) and "benches" in found:
            yield from ((name, bench["rows"]) for name, bench in found["benches"].items() if "rows" in bench)
        else:
            yield file.stem, found


def ample(result: dict[str, Any], path: Path) -> Path:
    """Epoch time and traffic per policy, side by side."""
    settings, summary = result["settings"], result["summary"]
    names = [entry["policy"] for entry in summary]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    size = "interface_bytes" if summary[0]["interface_bytes"] else "payload_bytes"
    for axis, key, unit, label in ((axes[0], "seconds", 1.0, "epoch time, s"), (axes[1], size, 1e6, "traffic, MB")):
        for position, entry in enumerate(summary):
            bar(axis, position, entry[key], unit, COLOURS.get(entry["policy"], "#17becf"), 0.7)
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylabel(label)
    cores = f"agent at {settings['agent_cores']:g} core(s)"
    figure.suptitle(f"{settings['data']}, {settings['link_mbit']:g} Mbit/s, {cores}")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def against_cores(results: list[dict[str, Any]], path: Path) -> Path:
    """Epoch time per policy for each number of agent cores."""
    figure, axis = plt.subplots(figsize=(9, 3.4), constrained_layout=True)
    found = {entry["policy"] for result in results for entry in result["summary"]}
    names = [name for name in COLOURS if name in found]
    width = 0.8 / len(names)
    for group, result in enumerate(results):
        entries = {entry["policy"]: entry for entry in result["summary"]}
        for position, name in enumerate(names):
            if name in entries:
                label = name if group == len(results) - 1 else None
                at = group + (position - (len(names) - 1) / 2) * width
                bar(axis, at, entries[name]["seconds"], 1.0, COLOURS.get(name, "#17becf"), width * 0.95, label)
    axis.set_xticks(range(len(results)), [f"{r['settings']['agent_cores']:g}" for r in results])
    axis.set_xlabel("agent cores")
    axis.set_ylabel("epoch time, s")
    axis.legend(ncols=6, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axis.set_title(f"{results[0]['settings']['data']}, {results[0]['settings']['link_mbit']:g} Mbit/s")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def bar(
    axis: Any, at: float, values: dict[str, float], unit: float, colour: str, width: float, label: str | None = None
) -> None:
    """One bar with its range and its figure above."""
    middle = values["median"] / unit
    low, high = middle - values["min"] / unit, values["max"] / unit - middle
    axis.bar(at, middle, width, color=colour, yerr=[[low], [high]], capsize=2, label=label)
    axis.annotate(f"{middle:.3g}", (at, middle + high), ha="center", va="bottom", fontsize=7)


if __name__ == "__main__":
    sys.exit(main())
