"""A plan that lives: is `auto` right from the first second, and again soon after every change?

    python -m bench.live --data PATH --json live.json
    python -m bench.live --cases link step --data PATH

Agent and loaders run on linked hosts (`bench/bed`; needs root), pinned to a core each; 100 Mbit/s and one core for the
agent unless a case says otherwise. A loader has a process of its own with one worker, starts without a profile, and
streams the pictures, listed again and again with indices of their own. The runs of a case take turns, in an order that
rotates every round.

first-epoch: the first epoch of `auto` over 2000 samples by the median of the next three; its first batch against
    `no-off`'s. Bar: 1.10.
rank: epochs of rank 0 of 8 under a DistributedSampler that shuffles, by those of a single rank. Bar: each >= 0.95,
    a median over the rounds.
link, agent-quota, ...: something changes in mid-epoch. Images/s from 10 s after it, by those of a loader that started
    under the new conditions (bar: 0.95); the least window of 5 s by `no-off`'s images/s under them (bar: 0.97). Where
    `no-off` gives less than 25 batches in 5 s, windows are of so many times 5 s as it needs for them, or of all that is
    measured: the least of some windows of six batches is far below their mean in any case. Next to it is `no-off`'s own
    least window by its mean: files differ, and so do the windows of every reader.
steady: the standard deviation of windows of 5 s over --minutes. Bar: 5 %.
idle-wire: pictures whose crops are next to nothing, on a narrow link: is the wire, which the plan then leaves idle,
    believed to be so wide that all wait for it? The least window of 5 s by their median, from 2 s after the first
    batch on. Bar: 0.5.
verdict: --situations generated situations in which one resource is 1.3 x behind the next, by counters outside of the
    loader: does the report, asked while the epoch runs, name it? And in some: does twice of the wire, and of the
    agent's cores, bring what the report says (bar: within 15 %)?
memory: bytes per sample beyond the index, for 1.28 and 100 million samples. Bar: 0.
local: `agent="local"` where there is nothing to gain: first batch and first epoch against torch's DataLoader. Bar:
    0.3 s and 0.5 s later.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, live_alone, record, verdicts
from bench.bed.disks import why_no_disk
from bench.live_runs import BEFORE_S, MEASURED_S, WINDOW_S, busiest_elsewhere, calm, stream_of, streamed
from bench.scene import UNDISTURBED, Conditions, Scene, opened
from bench.streams import StreamSettings, deviation, streaming_loader, windows

MIN_BATCHES = 25
"""In a window that is compared with `no-off`."""
BAR_FIRST, BAR_RANK, BAR_RATIO, BAR_NO_OFF, BAR_STEADY, BAR_IDLE = 1.10, 0.95, 0.95, 0.97, 0.05, 0.5
FIRST_SAMPLES = 2000
STEADY_EPOCHS = 3
NARROW = Conditions(link_mbit=5.0, busy="loader")
IDLE_S, STARTED_S = 90.0, 2.0
FLAT_PICTURES, FLAT_SIZE, FLAT_FILE_NBYTES = 64, (420, 400), 60_000
RANKS, RANK_EPOCHS = 8, 8
TRIED = 1.5
"""Situations that are tried for each that is wanted: in some, two resources limit."""

BUSY_LOADER, BUSY_AGENT = Conditions(busy="loader"), Conditions(busy="agent")
DISTURBANCES: dict[str, tuple[Conditions, ...]] = {
    "link": (UNDISTURBED, Conditions(link_mbit=20.0), Conditions(link_mbit=200.0)),
    "agent-quota": (UNDISTURBED, Conditions(agent_cores=0.05), UNDISTURBED),
    "agent-starved": (UNDISTURBED, Conditions(agent_cores=0.01), UNDISTURBED),
    "step": (UNDISTURBED, Conditions(step_ms=600.0), UNDISTURBED),
    "loader-core": (UNDISTURBED, BUSY_LOADER, UNDISTURBED),
    "loader-core-first": (BUSY_LOADER, UNDISTURBED),
    "agent-core": (UNDISTURBED, BUSY_AGENT, UNDISTURBED),
    "second-job": (UNDISTURBED, Conditions(second_job=True), UNDISTURBED),
    "disk": (UNDISTURBED, Conditions(disk_mb_s=10.0), UNDISTURBED),
}
"""Conditions of a loader, phase by phase."""
CHANGES = "changes"
"""Stands for all of them on the command line."""


# --- cases over the link ----------------------------------------------------------------------------------------------


def first_epoch(options: Namespace, progress: Any) -> dict[str, Any]:
    """The first epoch of `auto` and its first batch.

    Args:
        options: of the command line.
        progress: updated after every run.
    """

    def auto() -> dict[str, Any]:
        with streaming_loader(scene.bed, stream_of(options, "auto", FIRST_SAMPLES)) as loader:
            epochs = [loader.order(f"epoch {number}") for number in range(1 + STEADY_EPOCHS)]
        steady_s = median(epoch["seconds"] for epoch in epochs[1:])
        first = epochs[0]
        return {"ratio": first["seconds"] / steady_s, "first_s": first["seconds"], "steady_s": steady_s} | {
            "first_batch_s": first["first_batch_s"],
            "epochs": epochs,
        }

    def no_off() -> dict[str, Any]:
        with streaming_loader(scene.bed, stream_of(options, "no-off", FIRST_SAMPLES)) as loader:
            return {"first_batch_s": loader.order("begin")}

    runs: dict[str, Callable[[], dict[str, Any]]] = {"auto": auto, "no-off": no_off}
    rows: list[dict[str, Any]] = []
    with opened(options.data) as scene:
        for number in range(live_alone.SHORT_ROUNDS):
            rows.append({name: runs[name]() for name in record.in_turns(list(runs), number)})
            progress.update()
    found = {name: record.spread([row["auto"][name] for row in rows]) for name in ("ratio", "first_s", "steady_s")}
    batches = {name: record.spread([row[name]["first_batch_s"] for row in rows]) for name in runs}
    return {**found, "first_batch_s": batches, "rounds": rows, "holds": found["ratio"]["median"] <= BAR_FIRST}


def rank(options: Namespace, progress: Any) -> dict[str, Any]:
    """Epochs of rank 0 of 8 and of a single rank, in turns. Both find an agent that knows their pipeline; else the
    first would be compared with one that profits from what the agent has learnt. The loaders of a round are new ones.

    Args:
        options: of the command line.
        progress: updated after every epoch.
    """
    rounds: list[dict[str, list[dict[str, Any]]]] = []
    with opened(options.data) as scene:
        of_rank = stream_of(options, "auto", FIRST_SAMPLES, RANKS)
        single = stream_of(options, "auto", FIRST_SAMPLES)
        with streaming_loader(scene.bed, single) as before:
            before.order("epoch 0")
        for turn in range(options.rounds):
            rows: dict[str, list[dict[str, Any]]] = {"rank": [], "single": []}
            with streaming_loader(scene.bed, of_rank) as one, streaming_loader(scene.bed, single) as other:
                loaders = {"rank": one, "single": other}
                for number in range(RANK_EPOCHS):
                    for name in record.in_turns(list(loaders), turn + number):
                        rows[name].append(loaders[name].order(f"epoch {number}"))
                    progress.update()
            rounds.append(rows)
    return {**ranked(rounds), "rounds": rounds}


def ranked(rounds: Sequence[dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """The figures of `rank`: of each epoch, over the rounds.

    Args:
        rounds: the epochs of both loaders, in order.
    """
    mine, others = (
        [[epoch["images_per_s"] for epoch in epochs] for epochs in zip(*(rows[name] for rows in rounds), strict=True)]
        for name in ("rank", "single")
    )
    ratios = [
        record.spread([one / other for one, other in zip(*rates, strict=True)])
        for rates in zip(mine, others, strict=True)
    ]
    rates = {"rank": list(map(median, mine)), "single": list(map(median, others))}
    return {
        "images_per_s": rates,
        "ratios": ratios,
        "holds": min(ratio["median"] for ratio in ratios) >= BAR_RANK,
    }


def disturbed(name: str, options: Namespace, progress: Any) -> dict[str, Any]:
    """One of `DISTURBANCES`: the loader that goes through it, and those that start under each of its conditions.

    Args:
        name: of the case.
        options: of the command line.
        progress: updated after every run.
    """
    phases = DISTURBANCES[name]
    runs = {"disturbed": ("auto", phases)}
    for conditions in dict.fromkeys((UNDISTURBED, *phases)):
        runs[f"auto {conditions}"] = ("auto", (conditions,))
    for conditions in dict.fromkeys(phases[1:]):
        runs[f"no-off {conditions}"] = ("no-off", (conditions,))
    found: dict[str, list[dict[str, Any]]] = {run: [] for run in runs}
    second = stream_of(options, "auto") if any(phase.second_job for phase in phases) else None
    own_disk = any(phase.disk_mb_s is not None for phase in phases)
    with opened(options.data, own_disk=own_disk, second=second) as scene:
        for number in range(options.rounds):
            for run in record.in_turns(list(runs), number):
                policy, through = runs[run]
                settings = stream_of(options, policy)
                row = calm(partial(streamed, scene, settings, through, MEASURED_S), options.patience)
                found[run].append(row)
                tqdm.write(f"  {name}, {run}: {row.get('failed') or rates_of(row)}", file=sys.stderr)
            progress.update()
    size = options.batch_size
    changes = [change(found, number, conditions, size) for number, conditions in enumerate(phases) if number]
    rounds = [{run: rows[number] for run, rows in found.items()} for number in range(options.rounds)]
    return {"changes": changes, "rounds": rounds, "holds": all(map(keeps_bars, changes))}


def keeps_bars(change: dict[str, Any]) -> bool:
    """Return True if the figures after a change keep the bars."""
    return bool(change["ratio"] >= BAR_RATIO and change["least_by_no_off"] >= BAR_NO_OFF)


def rates_of(run: dict[str, Any]) -> str:
    """Images/s of the phases of a run, in words."""
    phases = [f"{phase['images_per_s']:.0f} ({phase['report']['bottleneck']})" for phase in run["phases"]]
    told = f"first batch {run['first_batch_s']:.2f} s, images/s {', '.join(phases)}"
    return f"{told}; {busiest_elsewhere(run):.2f} cores elsewhere"


def least_window(values: Sequence[float], batches_per_s: float) -> float:
    """The least of windows in which there should be `MIN_BATCHES`: of fewer, chance alone makes it a low one.

    Args:
        values: images/s of one window of `WINDOW_S` after the other.
        batches_per_s: that are expected.
    """
    several = min(len(values), math.ceil(MIN_BATCHES / (WINDOW_S * batches_per_s)))
    return min(fmean(values[start : start + several]) for start in range(len(values) - several + 1))


def change(
    found: dict[str, list[dict[str, Any]]], number: int, conditions: Conditions, batch_size: int
) -> dict[str, Any]:
    """The figures after a change; medians of the rounds.

    Args:
        found: runs by name, a row per round.
        number: of the phase that the change begins.
        conditions: of that phase.
        batch_size: samples per batch.
    """
    rows = []
    for mine, fresh, plain in zip(
        found["disturbed"], found[f"auto {conditions}"], found[f"no-off {conditions}"], strict=True
    ):
        failed = [run["failed"] for run in (mine, fresh, plain) if "failed" in run]
        if failed:
            return {"to": str(conditions), "failed": failed[0], "ratio": 0.0, "least_by_no_off": 0.0}
        phase, other, without = mine["phases"][number], fresh["phases"][0], plain["phases"][0]
        least, own_least = (
            least_window(one["windows"], without["images_per_s"] / batch_size) for one in (phase, without)
        )
        rows.append(
            {
                "images_per_s": phase["images_per_s"],
                "fresh_images_per_s": other["images_per_s"],
                "no_off_images_per_s": without["images_per_s"],
                "ratio": phase["images_per_s"] / other["images_per_s"],
                "least_by_no_off": least / without["images_per_s"],
                "no_off_least": own_least / without["images_per_s"],
                "at_once": phase["at_once_images_per_s"] / other["images_per_s"],
                "bytes_per_image": phase["bytes_per_image"],
                "fresh_bytes_per_image": other["bytes_per_image"],
                "fallbacks": phase["report"]["fallbacks"],
                "elsewhere_cores": max(one["elsewhere_cores"] for one in (phase, other, without)),
            }
        )
    last = found["disturbed"][-1]["phases"][number]
    figures = {name: median(row[name] for row in rows) for name in rows[0]}
    return {"to": str(conditions), **figures, "bottleneck": last["report"]["bottleneck"], "shares": last["shares"]}


def steady(options: Namespace, progress: Any) -> dict[str, Any]:
    """Undisturbed minutes of `auto`, and a fifth as many of `no-off`, which tell what the machine itself does.

    Args:
        options: of the command line.
        progress: updated after every run.
    """
    found = {}
    with opened(options.data) as scene:
        for policy, minutes in (("no-off", options.minutes / 5), ("auto", options.minutes)):
            found[policy] = streamed(scene, stream_of(options, policy), (UNDISTURBED,), 60 * minutes)
            progress.update()
    if failed := [run["failed"] for run in found.values() if "failed" in run]:
        return {"failed": failed[0], "holds": False}
    by_policy = {}
    for policy, run in found.items():
        values = run["phases"][0]["windows"]
        by_policy[policy] = {"deviation": deviation(values), "windows": len(values), **record.spread(values)}
    holds = by_policy["auto"]["deviation"] <= BAR_STEADY
    return {"policies": by_policy, "minutes": options.minutes, "rounds": [found], "holds": holds}


def idle_wire(options: Namespace, progress: Any) -> dict[str, Any]:
    """`auto` on a link that would be busy with files, and is idle with what the agent makes of them.

    Args:
        options: of the command line.
        progress: updated after the run.
    """
    with TemporaryDirectory(prefix="sophon-flat-") as folder:
        save_flat_pictures(Path(folder) / "flat")
        with opened(Path(folder)) as scene:
            settings = replace(stream_of(options, "auto"), data=folder)
            run = streamed(scene, settings, (NARROW,), IDLE_S)
    progress.update()
    if "failed" in run:
        return {**run, "holds": False}
    log = run["rounds"]
    values = windows(log, log[0][0] + STARTED_S, log[-1][0], WINDOW_S)
    least = min(values) / median(values)
    return {"least": least, "images_per_s": median(values), "rounds": [run], "holds": least >= BAR_IDLE}


def save_flat_pictures(folder: Path) -> None:
    """JPEGs of a single colour each, in files whose bytes are nearly all comment.

    Args:
        folder: is made.
    """
    folder.mkdir()
    for number in range(FLAT_PICTURES):
        colour = (5 * number % 256, 3 * number % 256, 7 * number % 256)
        picture = Image.new("RGB", FLAT_SIZE, colour)
        picture.save(folder / f"{number}.jpg", comment=b" " * FLAT_FILE_NBYTES)


def verdict(options: Namespace, progress: Any) -> dict[str, Any]:
    """Compare the report's verdict with the truth.

    Args:
        options: of the command line.
        progress: updated after every run.
    """
    reason = why_no_disk()
    settings = stream_of(options, "auto")
    rows: list[dict[str, Any]] = []
    with opened(options.data, own_disk=reason is None) as scene:
        tried = islice(verdicts.situations(0, disk=reason is None), round(TRIED * options.situations))
        for meant, conditions in tried:
            run = calm(partial(streamed, scene, settings, (conditions,), BEFORE_S), options.patience)
            row = {"meant": meant, "conditions": str(conditions), **run}
            if "failed" not in run:
                phase = run["phases"][0]
                truth, said = verdicts.limiting(phase["shares"]), phase["report"]["bottleneck"]
                row |= {"truth": truth, "said": said, "shares": phase["shares"]}
                rows.append(row)
                tqdm.write(f"  {conditions}: {truth}, said: {said}", file=sys.stderr)
                progress.update(truth is not None)
            if sum(one["truth"] is not None for one in rows) >= options.situations:
                break
        brought = would_bring(scene, settings, progress, options.patience)
    found = verdicts.judged(rows)
    near = [abs(one["said"] / one["measured"] - 1) <= verdicts.WITHIN for one in brought.get("rows", [])]
    holds = found["right"] == found["decided"] >= options.situations and all(near)
    left_out = {} if reason is None else {"left_out": {"agent-disk": reason}}
    return {**found, **left_out, "would_bring": brought, "rounds": rows, "holds": holds}


def would_bring(scene: Scene, settings: StreamSettings, progress: Any, patience: int) -> dict[str, Any]:
    """Compare the report's gain from twice of a resource with the rate of a loader that starts with it.

    Args:
        scene: with an agent.
        settings: of the loaders.
        progress: updated after every situation.
        patience: see `calm`.
    """
    rows = []
    for conditions in verdicts.WOULD_BRING:
        base = calm(partial(streamed, scene, settings, (conditions,), MEASURED_S), patience)
        told = {} if "failed" in base else base["phases"][0]["report"]["would_bring"]
        if not told:
            return {"skipped": "the report does not tell what more would bring"}
        for resource, (field, times) in verdicts.MORE.items():
            more = replace(conditions, **{field: times * getattr(conditions, field)})
            if resource not in told or more.agent_cores > 1:  # its host has one core
                continue
            run = calm(partial(streamed, scene, settings, (more,), MEASURED_S), patience)
            if "failed" in run:
                continue
            measured = run["phases"][0]["images_per_s"] / base["phases"][0]["images_per_s"]
            row = {"conditions": str(conditions), "more": resource, "said": told[resource], "measured": measured}
            tqdm.write(f"  {row}", file=sys.stderr)
            rows.append(row)
        progress.update()
    return {"rows": rows}


# --- the command ------------------------------------------------------------------------------------------------------


CASES: dict[str, Callable[[Namespace, Any], dict[str, Any]]] = {
    "first-epoch": first_epoch,
    "rank": rank,
    **{name: partial(disturbed, name) for name in DISTURBANCES},
    "steady": steady,
    "idle-wire": idle_wire,
    "verdict": verdict,
    "memory": live_alone.memory,
    "local": live_alone.local,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table per case, write the results; 1 when a bar is missed."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    cases = cases_of(options.cases)
    progress = tqdm(total=sum(steps(name, options) for name in cases), desc="runs", file=sys.stderr)
    for name in cases:
        progress.set_description(name)
        if name == "disk" and (reason := why_no_disk()):
            left_out[name] = reason
            continue
        found[name] = CASES[name](options, progress)
        show(name, found[name])
    names = ("rounds", "minutes", "situations", "batch_size")
    settings = {"data": options.data.name, **{name: getattr(options, name) for name in names}}
    record.write(options.output, {"settings": settings, "cases": found, "left_out": left_out})
    missed = [name for name, case in found.items() if not case["holds"]]
    print(f"below their bar: {', '.join(missed)}" if missed else "all bars kept")
    return 1 if missed else 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.live", __doc__, pictures=True)
    add = parser.add_argument
    cases = list(CASES)
    what = f"Any of {', '.join(cases)}, or {CHANGES} for those in which something changes (default: all)."
    known = [*cases, CHANGES]
    add("--cases", nargs="+", default=cases, choices=known, action=arguments.Distinct, metavar="CASE", help=what)
    add(
        "--rounds",
        type=arguments.count(),
        default=1,
        help="Rounds of rank, and of the cases in which something changes.",
    )
    add("--patience", type=arguments.count(0), default=0, help="How often a run is repeated when the machine was busy.")
    add("--minutes", type=arguments.above_zero, default=10.0, help="Length of steady in minutes.")
    add("--situations", type=arguments.count(), default=40, help="Situations that verdict generates.")
    add("--batch-size", type=arguments.count(), default=16)
    return parser


def cases_of(names: Sequence[str]) -> list[str]:
    """The cases of these names, in their usual order."""
    chosen = {*names, *(DISTURBANCES if CHANGES in names else ())}
    return [name for name in CASES if name in chosen]


def steps(name: str, options: Namespace) -> int:
    """Return the number of steps of the progress bar for a case.

    Args:
        name: of the case.
        options: of the command line.
    """
    own = {"rank": RANK_EPOCHS * options.rounds, "steady": 2, "verdict": options.situations + len(verdicts.WOULD_BRING)}
    own |= {"memory": live_alone.MEMORY_RUNS, "first-epoch": live_alone.SHORT_ROUNDS, "local": live_alone.SHORT_ROUNDS}
    return int(own.get(name, options.rounds))


def show(name: str, case: dict[str, Any]) -> None:
    """Print the figures of a case.

    Args:
        name: of the case.
        case: its figures.
    """
    if "changes" not in case:
        print(f"{name}: {record.summary_of({**case, 'rounds': [], 'epochs': []})}", flush=True)
        return
    columns = ("changed to", "images/s", "fresh", "ratio", "at once", "no-off", "least / no-off", "its own", "said")
    table = Table(*columns, title=name)
    for one in case["changes"]:
        if "failed" in one:
            table.add_row(one["to"], one["failed"])
            continue
        table.add_row(
            one["to"],
            f"{one['images_per_s']:.0f}",
            f"{one['fresh_images_per_s']:.0f}",
            f"{one['ratio']:.2f}",
            f"{one['at_once']:.2f}",
            f"{one['no_off_images_per_s']:.0f}",
            f"{one['least_by_no_off']:.2f}",
            f"{one['no_off_least']:.2f}",
            str(one["bottleneck"]),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
