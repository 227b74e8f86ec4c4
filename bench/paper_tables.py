"""Tables of the papers' figures beyond the policies themselves, in Markdown, from the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.markdown import MISSING, Result, Results, middle, of_file, sources, spread, table

NEAR = 0.9
"""Share of the fastest row's rate from which on rows count as near it. Runs of one plan differ by up to 17 %."""
CORES = {"0.05": "policies-0.05", "0.25": "policies-0.25", "0.5": "policies-0.5", "1": "policies"}
"""Benches of the policies by the agent's cores."""


@of_file("utilisation")
def utilisation(result: Result) -> str:
    """Idle share of the GPU by policy, model and batch size."""
    cases = result.rows["cases"]
    policies = list(cases[0]["policies"])
    rows = []
    for case in cases:
        idle = (spread(case["policies"][policy]["gpu_idle_share"], 0, 0.01) for policy in policies)
        rows.append((case["model"], str(case["batch_size"]), f"{case['step_ms']:.0f}", *idle))
    return table(("model", "batch size", "step, ms", *policies), rows)


@of_file("fastflow")
def fastflow(result: Result) -> str:
    """Throughput by operator split and by share, and what trials decide and cost."""
    found, parts = result.rows, []
    for name, column in (("splits", "every sample cut at"), ("shares", "share of the whole pipeline")):
        rows = []
        for row in found[name]:
            first = str(row["cut"]) if name == "splits" else f"{row['share']:.0%}"
            figures = rate_of(row), f"{row['seconds']:.2f}", f"{row['loader_ms']:.2f}"
            rows.append((first, *figures, f"{row['agent_ms']:.2f}", f"{row['bytes'] / 1000:.1f}"))
        columns = (column, "images/s", "epoch, s", "loader CPU, ms", "agent CPU, ms", "KB on the wire")
        parts.append(table(columns, rows))
    jobs = []
    for job in found["jobs"]:
        decided = (str(job["cut"]), f"{job['share']:.0%}", f"{job['images_per_s']:.0f}")
        cost = (str(job["tried_batches"]), f"{job['tried_s']:.1f}", f"{job['of_job']:.2%}")
        jobs.append((f"`{job['form']}`", job["store"], *decided, *cost))
    titles = ("form", "metric store", "cut", "share", "images/s", "batches tried", "seconds", "of the job's time")
    share = best_share(found["shares"])
    best = f"The sweeps' best: cut {found['best_cut']}; {share:.0%} of the samples at the whole pipeline."
    return "\n\n".join([*parts, table(titles, jobs), best])


def rate_of(row: Mapping[str, Any]) -> str:
    """Images/s of a plan's middle run, and the range of all."""
    low, high = row["range"]
    return f"{row['images_per_s']:.0f} ({low:.0f}-{high:.0f})"


def best_share(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the best share by a parabola through the rows within a tenth of the fastest, within their range.

    With fewer than three such rows, it is the fastest row's own share.

    Args:
        rows: of a sweep, by rising share.
    """
    rates = [row["images_per_s"] for row in rows]
    near = [n for n, rate in enumerate(rates) if rate >= NEAR * max(rates)]
    within = slice(near[0], near[-1] + 1)
    shares = [float(row["share"]) for row in rows]
    bend, slope, _ = np.polyfit(shares[within], rates[within], 2) if len(near) > 2 else (0.0, 0.0, 0.0)
    if bend >= 0:
        return shares[rates.index(max(rates))]
    return float(min(max(-slope / (2 * bend), shares[near[0]]), shares[near[-1]]))


@of_file("overlap")
def overlap(result: Result) -> str:
    """Return a table of seconds per step next to an all-reduce on the same link, and of the waits of each side."""
    rows = []
    for case in result.rows["cases"]:
        figures = (f"{case[name]:.3f}" for name in ("step_s", "waited_s", "backward_s", "rank1_backward_s"))
        first = (case["policy"], "yes" if case["checkpoints"] else "no", str(case["prefetch"]))
        rows.append((*first, *figures, f"{case['offloaded']:.0%}"))
    columns = [*("policy", "checkpoints", "prefetch_factor", "step, s", "waits for a batch, s", "backward, s")]
    columns += ["rank 1's backward, s", "offloaded"]
    return table(columns, rows)


def study_detection(results: Results) -> str:
    """Gains in bytes, and gains in CPU, for each way of training detectors and each picture folder."""
    found = results.each("study-detection")
    if not found:
        return MISSING
    in_bytes, in_cpu = [], []
    for workload in found[0].rows["workloads"]:
        for result in found:
            one = result.rows["workloads"][workload]
            sophon, smallest, cheapest = (one[rule] for rule in ("sophon", "smallest", "cheapest"))
            rate = _known(sophon["bytes_per_cpu_s"], 1, 1e6)
            shrink = (f"{sophon['share']:.0%}", f"{sophon['times_fewer_bytes']:.2f}", rate)
            in_bytes.append((workload, result.data, *shrink, *_gained(smallest)))
            ends = (_known(one["end_to_file"], 2), f"{one['smaller_and_cheaper_share']:.0%}")
            in_cpu.append((workload, result.data, f"{one['loader_ms']:.1f}", *_gained(cheapest), *ends))
    costs = ("times fewer bytes, all", "agent CPU, ms", "loader CPU saved, ms")
    by_rule = ("SOPHON: samples that shrink", "times fewer bytes, all", "MB saved per CPU s")
    smaller = ("pictures become", "data", *by_rule, "`auto`: samples with a smaller form", "which", *costs)
    here = ("pictures become", "data", "loader CPU with the file, ms", "samples with a cheaper form", "which", *costs)
    cheaper = (*here, "smallest lossless result, of its file", "smaller and cheaper")
    by_size, by_cpu = table(smaller, in_bytes), table(cheaper, in_cpu)
    return f"In bytes:\n\n{by_size}\n\nIn CPU of the loader:\n\n{by_cpu}\n\n{sources(*found)}"


def _gained(rule: dict[str, Any]) -> Sequence[str]:
    forms = ", ".join(f"{name} {number}" for name, number in rule["forms"].items())
    costs = (_known(rule[name], 1) for name in ("agent_ms", "loader_ms_saved"))
    return (f"{rule['share']:.0%}", forms, f"{rule['times_fewer_bytes']:.2f}", *costs)


def _known(value: float | None, digits: int, unit: float = 1.0) -> str:
    return "" if value is None else f"{value / unit:.{digits}f}"


def fewer_cores(results: Results) -> str:
    """Epochs by the cores of the agent, under every policy that was measured."""
    used, rows, names = [], [], []
    for data in [result.data for result in results.each("policies")]:
        for cores, bench in CORES.items():
            result = results.named(f"{bench}-{data}")
            if result is None:
                continue
            used.append(result)
            entries = {entry["policy"]: entry for entry in result.rows["summary"]}
            names += [name for name in entries if name not in names]
            rows.append((data, cores, entries))
    if not rows:
        return MISSING
    lines = []
    for data, cores, entries in rows:
        cells = [_epoch_of(entries.get(name)) for name in names]
        lines.append((data, cores, *cells, spread(entries["auto"]["times_faster"], 2)))
    return table(("data", "agent cores", *names, "auto, times faster"), lines) + "\n\n" + sources(*used)


def _epoch_of(entry: dict[str, dict[str, float]] | None) -> str:
    """Seconds, and in brackets what was predicted, by them."""
    if entry is None:
        return ""
    predicted = middle(entry["predicted_to_measured"], 2)
    return middle(entry["seconds"], 2) + (f" ({predicted})" if predicted else "")
