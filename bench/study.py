"""SOPHON's own study of a dataset: sizes through the stages, who shrinks, and what offloading a sample is worth.

    python -m bench.study --data PATH --json study.json
    python -m bench.study --data PATH --workload detection --json study-detection.json

Every file goes once through RandomResizedCrop(224), flip, ToTensor, Normalize, and stage 2 of the profiler measures it:
bytes at every stage, CPU milliseconds of every op, one thread. A sample shrinks if some stage is smaller than its file;
its offloading efficiency is what the smallest one saves, in bytes, per CPU second of the ops before it (HotStorage '24,
findings 1 to 3). No agent and no wire have a part in this. `bench/detection.py` says what is measured of detectors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torchvision import transforms
from tqdm import tqdm

from bench import arguments, detection, record
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw

STAGES = ("file", "Decode", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize")
CLASSIFICATION, DETECTION = NAMES = ("classification", "detection")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print two tables, write the results."""
    options = arguments.parsed(parser(), argv)
    torch.set_num_threads(1)
    files = sorted(options.data.glob("*/*"))
    if options.workload == DETECTION:
        found = {"data": options.data.name, **detection.study(files)}
        detection.show(found)
    else:
        found = {"data": options.data.name, **study(profile_of(files))}
        show(found)
    record.write(options.output, found)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.study", __doc__, pictures=True)
    what = f"What is trained on the pictures: {' or '.join(NAMES)}."
    parser.add_argument("--workload", type=workload, default=CLASSIFICATION, metavar="NAME", help=what)
    return parser


def workload(text: str) -> str:
    """A name of `NAMES`."""
    if text not in NAMES:
        rule = " or ".join(NAMES)
        raise argparse.ArgumentTypeError(f"must be {rule}, got {text!r}; leave it out for {CLASSIFICATION}")
    return text


def profile_of(files: Sequence[Any]) -> SampleProfile:
    """Stage 2 of all files."""
    normalise = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    crop, flip = transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
    chain = chain_of(transforms.Compose([crop, flip, transforms.ToTensor(), normalise]))
    profile = SampleProfile(len(files), len(chain))
    for index, path in enumerate(tqdm(files, desc="files", file=sys.stderr)):
        content = path.read_bytes()
        measured = profile.measure(len(content))
        chain.run(content, 0, len(chain), Draw(0, 0, index), after=measured.after)
        profile.store(index, measured)
    return profile


def study(profile: SampleProfile) -> dict[str, Any]:
    """Return the conclusions from the sizes and times of all samples.

    Args:
        profile: of at least one sample.
    """
    nbytes = profile.nbytes.astype(np.float64)
    smallest = nbytes.argmin(axis=1)  # of equal stages the earliest
    shrinks = smallest > 0
    saved = nbytes[:, 0] - nbytes.min(axis=1)
    spent_s = np.cumsum(profile.op_ms.astype(np.float64), axis=1) / 1000
    before_s = spent_s[np.flatnonzero(shrinks), smallest[shrinks] - 1]
    efficiency = saved[shrinks] / np.maximum(before_s, 1e-9)
    return {
        "samples": len(nbytes),
        "mean_bytes": dict(zip(STAGES, nbytes.mean(axis=0).tolist(), strict=True)),
        "mean_op_ms": dict(zip(STAGES[1:], profile.op_ms.mean(axis=0, dtype=np.float64).tolist(), strict=True)),
        "shrinking_share": float(shrinks.mean()),
        "smallest_at": {STAGES[stage]: int((smallest == stage).sum()) for stage in sorted(set(smallest.tolist()))},
        "times_fewer_bytes": float(nbytes[:, 0].sum() / nbytes.min(axis=1).sum()),
        "efficiency_bytes_per_cpu_s": _quantiles(efficiency),
    }


def _quantiles(values: NDArray[np.float64]) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        f"{share:.0%}": float(found) for share, found in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)
    }


def show(found: dict[str, Any]) -> None:
    """Print what was found."""
    table = Table("stage", "mean KB", "CPU ms of the op before it", "samples smallest here", title=found["data"])
    for stage, nbytes in found["mean_bytes"].items():
        ms = found["mean_op_ms"].get(stage)
        cells = ("" if ms is None else f"{ms:.2f}", str(found["smallest_at"].get(stage, 0)))
        table.add_row(stage, f"{nbytes / 1000:.1f}", *cells)
    console = Console()
    console.print(table)
    quantiles = found["efficiency_bytes_per_cpu_s"].items()
    console.print(
        f"{found['shrinking_share']:.1%} of {found['samples']} samples shrink; all at their smallest: "
        f"{found['times_fewer_bytes']:.3f} times fewer bytes; efficiency in MB per CPU s: "
        + ", ".join(f"{share} {value / 1e6:.1f}" for share, value in quantiles)
    )


if __name__ == "__main__":
    sys.exit(main())
