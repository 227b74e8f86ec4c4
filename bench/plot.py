"""Draw the papers' figures, and that of the peers, from the result files.

    python -m bench.plot                       docs/figures from bench/results
    python -m bench.plot my.json --out DIR     from a file that a bench wrote

For each dataset: epoch time and traffic per policy (from the result with the most agent cores), and epoch time per
policy against the agent's cores (from all its results). Bars are medians over the rounds, whiskers their range.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.record import REPOSITORY, RESULTS

COLOURS = {
    "no-off": "#7f7f7f",
    "all-off": "#d62728",
    "resize-off": "#ff7f0e",
    "fastflow": "#9467bd",
    "sophon": "#1f77b4",
    "auto": "#2ca02c",
}
OURS, PEER = "#2ca02c", "#7f7f7f"


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what the files have."""
    options = parser().parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    by_data: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in options.files:
        found = json.loads(file.read_text())["rows"]
        if file.stem.startswith("policies") and found["settings"]["link_mbit"]:
            by_data[found["settings"]["data"]].append(found)
        elif "workloads" not in found and (draw := DRAWN.get(file.stem.partition("-")[0])):
            print(draw(found, options.out / f"{file.stem}.png"))
    for data, results in by_data.items():
        results.sort(key=lambda result: result["settings"]["agent_cores"] or math.inf)
        print(ample(results[-1], options.out / f"policies-{data}.png"))
        if len(results) > 1:
            print(against_cores(results, options.out / f"cores-{data}.png"))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = sorted(RESULTS.glob("*.json"))
    parser.add_argument(
        "files",
        nargs="*",
        type=result_file,
        default=known,
        metavar="FILE",
        help="Result files (default: those in bench/results).",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=REPOSITORY / "docs" / "figures",
        help="Folder for the figures (default: docs/figures).",
    )
    return parser


def result_file(text: str) -> Path:
    """A file that a bench has written."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"must be a file that a bench wrote, got {text}; write one with --json")
    return path


def ample(result: dict[str, Any], path: Path) -> Path:
    """Epoch time and traffic per policy, side by side.

    Args:
        result: the rows of a result file of bench.policies.
        path: of the picture.
    """
    settings, summary = result["settings"], result["summary"]
    names = [entry["policy"] for entry in summary]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    size = "interface_bytes" if summary[0]["interface_bytes"] else "payload_bytes"
    for axis, key, unit, label in ((axes[0], "seconds", 1.0, "epoch time, s"), (axes[1], size, 1e6, "traffic, MB")):
        for position, entry in enumerate(summary):
            bar(axis, position, entry[key], unit, COLOURS.get(entry["policy"], "#17becf"), 0.7)
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylabel(label)
    cores = f"agent at {_cores_of(result)} core(s)"
    figure.suptitle(f"{settings['data']}, {settings['link_mbit']:g} Mbit/s, {cores}")
    return saved(figure, path)


def against_cores(results: list[dict[str, Any]], path: Path) -> Path:
    """Epoch time per policy for each number of agent cores.

    Args:
        results: the rows of result files of bench.policies on the same pictures.
        path: of the picture.
    """
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
    axis.set_xticks(range(len(results)), [_cores_of(result) for result in results])
    axis.set_xlabel("agent cores")
    axis.set_ylabel("epoch time, s")
    axis.set_yscale("log")
    axis.legend(ncols=6, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axis.set_title(f"{results[0]['settings']['data']}, {results[0]['settings']['link_mbit']:g} Mbit/s")
    return saved(figure, path)


def _cores_of(result: dict[str, Any]) -> str:
    cores = result["settings"]["agent_cores"]
    return "all" if cores is None else f"{cores:g}"


def draw_peers(rows: dict[str, Any], path: Path) -> Path:
    """Images per second and bytes per image of each system that took part.

    Args:
        rows: the rows of a result file of bench.peers.
        path: of the picture.
    """
    entries = [entry for entry in rows["summary"] if entry["images_per_s"]]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True, sharey=True)
    measures = (("images_per_s", 1.0, "images/s"), ("bytes_per_image", 1e3, "kB on the link per image"))
    for axis, (key, unit, label) in zip(axes, measures, strict=True):
        for position, entry in enumerate(entries):
            value = {name: number / unit for name, number in entry[key].items()}
            middle = value["median"]
            whisker = [[middle - value["min"]], [value["max"] - middle]]
            axis.barh(position, middle, color=OURS if entry["ours"] else PEER, xerr=whisker, capsize=2)
            axis.annotate(f" {middle:.3g}", (value["max"], position), va="center", fontsize=8)
        axis.set_xlabel(label)
        axis.margins(x=0.15)
    axes[0].set_yticks(range(len(entries)), [entry["system"] for entry in entries])
    axes[0].invert_yaxis()
    figure.suptitle(f"{rows['settings']['data']}, {rows['settings']['link_mbit']:g} Mbit/s, one core on each side")
    return saved(figure, path)


def saved(figure: Any, path: Path) -> Path:
    """Write a finished figure, and forget it; where it is.

    Args:
        figure: of matplotlib.
        path: of the picture.
    """
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def draw_utilisation(rows: dict[str, Any], path: Path) -> Path:
    """The GPU's idle share by policy, a group of bars for each model and batch size.

    Args:
        rows: the rows of a result file of bench.utilisation.
        path: of the picture.
    """
    cases = rows["cases"]
    names = list(cases[0]["policies"])
    figure, axis = plt.subplots(figsize=(9, 3.4), constrained_layout=True)
    width = 0.8 / len(names)
    for group, case in enumerate(cases):
        for position, name in enumerate(names):
            at = group + (position - (len(names) - 1) / 2) * width
            idle = case["policies"][name]["gpu_idle_share"]
            bar(axis, at, idle, 0.01, COLOURS.get(name, "#17becf"), width * 0.95, None if group else name)
    axis.set_xticks(range(len(cases)), [f"{case['model']}, {case['batch_size']}" for case in cases])
    axis.set_xlabel("model, batch size")
    axis.set_ylabel("GPU idle, %")
    axis.legend(ncols=6, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    axis.set_title(f"{rows['settings']['data']}, {rows['settings']['link_mbit']:g} Mbit/s")
    return saved(figure, path)


def draw_fastflow(rows: dict[str, Any], path: Path) -> Path:
    """Throughput by operator split, and over the share, with what each form decided on.

    Args:
        rows: the rows of a result file of bench.fastflow.
        path: of the picture.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True, sharey=True)
    axes[0].bar([row["cut"] for row in rows["splits"]], [row["images_per_s"] for row in rows["splits"]], color=OURS)
    axes[0].set_xlabel("every sample cut at")
    axes[0].set_ylabel("images/s")
    swept = rows["shares"]
    axes[1].plot([100 * row["share"] for row in swept], [row["images_per_s"] for row in swept], "o-", color=PEER)
    for job in rows["jobs"]:
        if job["store"] == "empty":
            label = f"{job['form']}: cut {job['cut']}"
            axes[1].plot([100 * job["share"]], [job["images_per_s"]], "*", markersize=12, label=label)
    axes[1].set_xlabel("share offloaded, %; the line: of the whole pipeline")
    axes[1].set_ylim(bottom=0)
    axes[1].legend(fontsize=8)
    figure.suptitle(f"{rows['settings']['data']}, no limit on the wire, one core on each side")
    return saved(figure, path)


def draw_overlap(rows: dict[str, Any], path: Path) -> Path:
    """Draw the parts of a step's time, a bar for each policy and prefetch_factor, without and with checkpoints.

    Args:
        rows: the rows of a result file of bench.overlap.
        path: of the picture.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True, sharey=True)
    for axis, checkpoints in zip(axes, (False, True), strict=True):
        cases = [case for case in rows["cases"] if case["checkpoints"] == checkpoints]
        below = [0.0] * len(cases)
        for name, label, colour in (
            ("backward_s", "backward and all-reduce", "#1f77b4"),
            ("waited_s", "waits for a batch", "#d62728"),
            ("", "the rest", "#bbbbbb"),
        ):
            heights = [case[name] if name else case["step_s"] - under for case, under in zip(cases, below, strict=True)]
            axis.bar(range(len(cases)), heights, bottom=below, color=colour, label=label)
            below = [under + height for under, height in zip(below, heights, strict=True)]
        axis.set_xticks(range(len(cases)), [f"{case['policy']}, {case['prefetch']}" for case in cases], rotation=60)
        axis.set_title(f"{'with' if checkpoints else 'without'} checkpoints", fontsize=10)
    axes[0].set_ylabel("seconds per step")
    axes[0].legend(fontsize=8)
    settings = rows["settings"]
    figure.suptitle(
        f"{settings['data']}, {settings['link_mbit']:g} Mbit/s, all-reduce of {settings['gradient_mb']:g} MB"
    )
    return saved(figure, path)


def draw_study(rows: dict[str, Any], path: Path) -> Path:
    """A sample's mean size through the stages, and how the offloading efficiency is distributed.

    Args:
        rows: the rows of a result file of bench.study.
        path: of the picture.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    stages = list(rows["mean_bytes"])
    axes[0].bar(range(len(stages)), [rows["mean_bytes"][stage] / 1000 for stage in stages], color=PEER)
    axes[0].set_xticks(range(len(stages)), stages, rotation=30, ha="right", fontsize=8)
    axes[0].set_ylabel("mean size of a sample, KB")
    shares = rows["efficiency_bytes_per_cpu_s"]
    axes[1].plot(
        [value / 1e6 for value in shares.values()], [float(share.rstrip("%")) for share in shares], "o-", color=OURS
    )
    axes[1].set_xlabel("MB saved per CPU second, of the samples that shrink")
    axes[1].set_ylabel("percentile")
    figure.suptitle(f"{rows['data']}: {rows['shrinking_share']:.0%} of {rows['samples']} samples shrink")
    return saved(figure, path)


DRAWN = {
    "fastflow": draw_fastflow,
    "overlap": draw_overlap,
    "peers": draw_peers,
    "study": draw_study,
    "utilisation": draw_utilisation,
}
"""Further plots, by the beginning of the result file's name."""


def bar(
    axis: Any, at: float, values: dict[str, float], unit: float, colour: str, width: float, label: str | None = None
) -> None:
    """One bar with its range and its figure above.

    Args:
        axis: where it is drawn.
        at: its position.
        values: min, median and max.
        unit: what they are given in.
        colour: of the bar.
        width: of the bar.
        label: for the legend; None for none.
    """
    middle = values["median"] / unit
    low, high = middle - values["min"] / unit, values["max"] / unit - middle
    axis.bar(at, middle, width, color=colour, yerr=[[low], [high]], capsize=2, label=label)
    axis.annotate(f"{middle:.3g}", (at, middle + high), ha="center", va="bottom", fontsize=7)


if __name__ == "__main__":
    sys.exit(main())
