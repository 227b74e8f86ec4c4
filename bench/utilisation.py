"""Idle time of the GPU: its share over the policies, three models' step times, and batch sizes.

    python -m bench.utilisation --data PATH --link-mbit 100 --json utilisation.json

A bed as for bench.policies, and the same loaders, warm-up and turns. The training step is a sleep, which leaves the CPU
alone as a GPU does: its length per image is the model's multiply-adds (of torchvision's documentation, at 224 px) times
--ms-per-gmac. By default that makes the steps of AlexNet much shorter than 100 Mbit/s bring pictures of ImageNet, those
of ResNet-18 a little, and those of ResNet-50 longer: the three cases of SOPHON's evaluation. Idle is the share of an
epoch for which the training loop waits for a batch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import arguments, record
from bench.bed import open_testbed
from bench.children import start_agent
from bench.epochs import LoaderSettings
from bench.policies import POLICIES, compared, figures_of

GMACS = {"alexnet": 0.71, "resnet18": 1.81, "resnet50": 4.09}
"""10^9 multiply-adds for a picture of 224 px."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench)
    agent_cores = arguments.agent_quota(bench, options.agent_cores)
    cases = []
    with open_testbed(link_mbit=options.link_mbit or None) as bed:
        start_agent(bed, options.data, agent_cores)
        for model in options.models:
            for batch_size in options.batch_sizes:
                step_ms = batch_size * GMACS[model] * options.ms_per_gmac
                loaders = [
                    LoaderSettings(policy, str(options.data), options.repeat, batch_size, step_ms)
                    for policy in options.policies
                ]
                rows = compared(bed, loaders, options.epochs)
                figures = {
                    policy: figures_of([row for row in rows if row["policy"] == policy]) for policy in options.policies
                }
                cases.append({"model": model, "batch_size": batch_size, "step_ms": step_ms, "policies": figures})
    show(cases, options.policies, f"GPU idle, {options.data.name}, {options.link_mbit:g} Mbit/s")
    settings = {"data": options.data.name, "link_mbit": options.link_mbit, "agent_cores": agent_cores}
    settings |= {"ms_per_gmac": options.ms_per_gmac, "epochs": options.epochs}
    record.write(options.output, {"settings": settings, "cases": cases})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.utilisation", __doc__, pictures=True)
    add = parser.add_argument
    add("--link-mbit", type=arguments.rate, default=100.0)
    add("--agent-cores", type=arguments.quota)
    add(
        "--ms-per-gmac",
        type=arguments.above_zero,
        default=3.8,
        help="Milliseconds of a training step per 10^9 multiply-adds of the network.",
    )
    several: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct}
    add("--models", type=model, default=list(GMACS), metavar="NAME", **several)
    add("--batch-sizes", type=arguments.count(), default=[16, 64], metavar="N", **several)
    add("--epochs", type=arguments.count(), default=2)
    add("--repeat", type=arguments.count(), default=1)
    policy = arguments.policy("torch")
    add("--policies", type=policy, default=list(POLICIES), metavar="NAME", **several)
    return parser


def model(text: str) -> str:
    """The name of a model."""
    if text not in GMACS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(GMACS)}, got {text}; name one of these")
    return text


def show(cases: list[dict[str, Any]], policies: Sequence[str], title: str) -> None:
    """Print the idle shares, a row per model and batch size.

    Args:
        cases: with the figures of each policy.
        policies: the columns.
        title: of the table.
    """
    table = Table("model", "batch", "step ms", *policies, title=title)
    for case in cases:
        idle = (f"{case['policies'][policy]['gpu_idle_share']['median']:.0%}" for policy in policies)
        table.add_row(case["model"], str(case["batch_size"]), f"{case['step_ms']:.0f}", *idle)
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main())
