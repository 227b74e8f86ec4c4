"""FastFlow's own figures: throughput by operator split and by share, what it decides, and what its trials cost.

    python -m bench.fastflow --data PATH --json fastflow.json

A bed as for bench.policies, with one core at either end. There is no limit on the wire by default, so that the loader's
CPU is the bottleneck, which FastFlow is made for; an epoch is long enough for several trial windows.

- Splits (its Fig. 8): every sample cut at one boundary of the pipeline, for each boundary; 0 is the local pipeline.
- Shares (its Fig. 9): the whole pipeline offloaded for a share of the samples.
- Decisions: the cut and the share that `fastflow`, `fastflow-every` and the published form take, the share that the
  sweep finds best, and images/s under each.
- Profile time: batches and seconds that went to trials, by the length of --job-epochs epochs; first without a metric
  store, then with the one that the first has left.

Each plan has a loader of its own with one worker; a first epoch, after which rates and caches have settled, is left
out. Plans take turns for --rounds rounds; a row is the run with the middle rate, and the range of that. The best share
is the top of the parabola that lies nearest to the rows within a tenth of the fastest: runs of one plan differ by more
than neighbouring rows do.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.bed import open_testbed
from bench.children import LOADER_CORE, Child, Orders, agent_address, child, start_agent
from bench.loading import OPS, folder, our_loader, quiet
from bench.paper_tables import best_share, rate_of
from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.decide import FILE, Choice, Facts, FastFlow, Plan
from sophon_loader.decide.plan import spread

TRYING = ("trial of", "check of")
"""Beginnings of the reasons of plans that are only tried."""
FORMS: dict[str, dict[str, Any]] = {
    "fastflow": {},
    "fastflow-every": {"cuts": "every"},
    "fastflow, published": {"cuts": "every", "published": True},
}


class Split:
    """A share of the samples at one cut.

    Args:
        cut: 0 for the file itself.
        share: of the samples, in [0, 1].
    """

    name = "split"
    needs_profile = False

    def __init__(self, cut: int, share: float = 1.0) -> None:
        self._choices = (FILE, Choice(cut, "pixels")) if cut else (FILE, FILE)
        self._share = share

    def plan(self, facts: Facts) -> Plan:
        """Return the same plan for any facts."""
        return Plan(self.name, self._choices, spread(facts.samples, self._share).astype("uint8"), "asked for")


# --- the loader's process ---------------------------------------------------------------------------------------------


@contextmanager
def loader_of_fastflow(address: str, data: str, repeat: int, batch_size: int, step_ms: float) -> Iterator[Orders]:
    """Loaders, one after the other. Orders, each with settings in JSON: `split` and `decide`.

    Args:
        address: of the agent.
        data: the ImageFolder tree.
        repeat: how often an epoch goes through it.
        batch_size: samples per batch.
        step_ms: length of the training step of a batch, a sleep.
    """
    quiet()
    dataset = folder(data, repeat)

    def loader_under(policy: Any, profile: str | None = None) -> OffloadingDataLoader[Any]:
        torch.manual_seed(0)
        as_in_paper: dict[str, Any] = {"encodings": "paper", "options": OffloadOptions(fused=False)}
        return our_loader(dataset, 1, batch_size, agent=address, policy=policy, profile=profile, **as_in_paper)

    def split(told: str) -> dict[str, float]:
        loader = loader_under(Split(**json.loads(told)))
        _epoch(loader, step_ms)
        found = _epoch(loader, step_ms)
        loader.close()
        return found

    def decide(told: str) -> dict[str, Any]:
        settings = json.loads(told)
        profile, epochs = settings.pop("profile"), settings.pop("epochs")
        loader = loader_under(FastFlow(**settings), profile)
        found = _job(loader, step_ms, epochs)
        loader.close()
        return found

    yield {"split": split, "decide": decide}


def _epoch(loader: OffloadingDataLoader[Any], step_ms: float) -> dict[str, float]:
    started_s, samples = time.perf_counter(), 0
    for _, labels in loader:
        samples += len(labels)
        time.sleep(step_ms / 1000)
    seconds = time.perf_counter() - started_s
    totals = loader.report().totals
    return {
        "seconds": seconds,
        "images_per_s": samples / seconds,
        "loader_ms": 1000 * totals.loader_cpu_s / samples,
        "agent_ms": 1000 * totals.agent_cpu_s / samples,
        "bytes": totals.wire_bytes / samples,
    }


def _job(loader: OffloadingDataLoader[Any], step_ms: float, epochs: int) -> dict[str, Any]:
    """Epochs until all has been tried, at least `epochs`, and one more."""
    tried_batches = batches = 0
    tried_s = job_s = 0.0
    number = 0
    trying = True
    while trying or number < epochs:
        since_s = time.perf_counter()
        for _ in loader:
            time.sleep(step_ms / 1000)
            now_s = time.perf_counter()
            trying = loader.report().plan_reason.startswith(TRYING)
            if number < epochs:
                batches, job_s = batches + 1, job_s + now_s - since_s
            if trying:
                tried_batches, tried_s = tried_batches + 1, tried_s + now_s - since_s
            since_s = now_s
        number += 1
    found = _epoch(loader, step_ms)
    report = loader.report().as_dict()
    offloaded = {int(cut): count for cut, count in report["cuts"].items() if int(cut)}
    return {
        **found,
        "cut": max(offloaded, default=0),
        "share": sum(offloaded.values()) / report["samples"],
        "reason": report["plan_reason"],
        "tried_batches": tried_batches,
        "tried_s": tried_s,
        "job_batches": batches,
        "job_s": job_s,
        "of_job": tried_s / job_s,
    }


# --- the bench's process ----------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print tables, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench)
    agent_cores = arguments.agent_quota(bench, options.agent_cores)
    told = {name: getattr(options, name) for name in ("data", "repeat", "batch_size", "step_ms")}
    with open_testbed(link_mbit=options.link_mbit or None) as bed, tempfile.TemporaryDirectory() as profiles:
        start_agent(bed, options.data, agent_cores)
        settings = {"address": agent_address(bed), **told}
        with child(bed.loader_host, LOADER_CORE, loader_of_fastflow, settings) as loader:
            sweep = {"shares": options.shares, "rounds": options.rounds}
            found = measured(loader, **sweep, trial_steps=options.trial_steps, epochs=options.job_epochs, at=profiles)
    show(found)
    settings = {**told, **sweep, "data": options.data.name, "link_mbit": options.link_mbit, "agent_cores": agent_cores}
    record.write(options.output, {"settings": settings, **found})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.fastflow", __doc__, pictures=True)
    add = parser.add_argument
    add("--link-mbit", type=arguments.rate, default=0.0)
    add("--agent-cores", type=arguments.quota)
    add("--repeat", type=arguments.count(), default=7)
    add("--batch-size", type=arguments.count(), default=8)
    add("--step-ms", type=arguments.not_negative, default=0.0)
    add("--trial-steps", type=arguments.count(), default=50)
    add(
        "--job-epochs",
        type=arguments.count(),
        default=3,
        help="Epochs of the job that the time of trials is compared with.",
    )
    add("--rounds", type=arguments.count(), default=3, help="How often splits and shares are measured.")
    add("--shares", type=arguments.count(), default=10, help="Steps in which the offloaded share goes up to all.")
    return parser


def measured(loader: Child, *, shares: int, rounds: int, trial_steps: int, epochs: int, at: str) -> dict[str, Any]:
    """Splits, shares, decisions, and the time of trials.

    Args:
        loader: takes `split` and `decide`.
        shares: steps in which the share goes up.
        rounds: of splits and shares.
        trial_steps: of FastFlow.
        epochs: of a job.
        at: a folder for profiles.
    """
    plans = [{"cut": cut} for cut in range(OPS + 1)] + [
        {"cut": OPS, "share": step / shares} for step in range(1, shares)
    ]
    orders = [json.dumps(plan) for plan in plans]
    runs: dict[str, list[dict[str, Any]]] = {order: [] for order in orders}
    turns = [order for number in range(rounds) for order in record.in_turns(orders, number * len(orders) // rounds)]
    for order in tqdm(turns, desc="plans", file=sys.stderr):
        runs[order].append(loader.order(f"split {order}"))
    rows = [{**plan, **middle_of(runs[order])} for plan, order in zip(plans, orders, strict=True)]
    splits, swept = rows[: OPS + 1], rows[OPS + 1 :]
    sweep = sorted(({"share": 1.0, **row} for row in (*swept, rows[OPS])), key=lambda row: row["share"])
    sweep.insert(0, {**rows[0], "share": 0.0})
    jobs = []
    for form, settings in tqdm(FORMS.items(), desc="decisions", file=sys.stderr):
        told = {**settings, "trial_steps": trial_steps, "epochs": epochs, "profile": f"{at}/{form}.npz"}
        for store in ("empty", "kept"):
            jobs.append({"form": form, "store": store, **loader.order(f"decide {json.dumps(told)}")})
    return {
        "splits": splits,
        "shares": sweep,
        "jobs": jobs,
        "best_cut": max(splits, key=lambda row: row["images_per_s"])["cut"],
    }


def middle_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run with the middle rate, with the lowest and the highest of them as `range`."""
    runs = sorted(runs, key=lambda run: run["images_per_s"])
    return {**runs[len(runs) // 2], "range": [runs[0]["images_per_s"], runs[-1]["images_per_s"]]}


def show(found: dict[str, Any]) -> None:
    """Print what was measured.

    Args:
        found: as `measured` gives it.
    """
    console = Console(width=110)
    for name, title in (("splits", "every sample cut at"), ("shares", "share of the whole pipeline")):
        table = Table(title, "images/s", "epoch s", "loader ms", "agent ms", "KB on the wire")
        for row in found[name]:
            figures = (row[one] for one in ("seconds", "loader_ms", "agent_ms"))
            first = str(row["cut"]) if name == "splits" else f"{row['share']:.0%}"
            table.add_row(first, rate_of(row), *(f"{value:.2f}" for value in figures), f"{row['bytes'] / 1000:.1f}")
        console.print(table)
    table = Table("form", "metric store", "cut", "share", "images/s", "batches tried", "seconds", "of the job")
    for job in found["jobs"]:
        decided = (str(job["cut"]), f"{job['share']:.0%}", f"{job['images_per_s']:.1f}")
        cost = (str(job["tried_batches"]), f"{job['tried_s']:.1f}", f"{job['of_job']:.2%}")
        table.add_row(job["form"], job["store"], *decided, *cost)
    console.print(table)
    print(f"best by the sweeps: cut {found['best_cut']}, share of the whole pipeline {best_share(found['shares']):.0%}")


if __name__ == "__main__":
    sys.exit(main())
