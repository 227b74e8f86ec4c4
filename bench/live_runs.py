"""A run of bench.live: one loader that streams through phases, each under conditions of its own."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from bench.children import ChildFailed
from bench.scene import UNDISTURBED, Conditions, Scene, elsewhere_cores, shares
from bench.streams import StreamSettings, rate, step_share, streaming_loader, windows

SETTLE_S, MEASURED_S = 10.0, 15.0
"""Parts of every phase in seconds: left out at its start, and counted."""
BEFORE_S = 5.0
"""Seconds before a change that are shown for a phase, and do not count."""
WINDOW_S = 5.0
CALM_CORES = 0.15
"""CPU seconds per second elsewhere on the machine, kernel included, up to which a run counts as calm."""
ENDLESS = 60_000
"""Samples of an epoch that is to last for a minute and more."""


def stream_of(options: Namespace, policy: str, samples: int = ENDLESS, replicas: int = 1) -> StreamSettings:
    """A streaming loader.

    Args:
        options: of the command line.
        policy: its name.
        samples: of an epoch.
        replicas: see `StreamSettings`.
    """
    return StreamSettings(policy, str(options.data), samples, replicas, options.batch_size)


def streamed(scene: Scene, settings: StreamSettings, phases: Sequence[Conditions], last_s: float) -> dict[str, Any]:
    """One loader from its start through all phases.

    Args:
        scene: with an agent.
        settings: of the loader.
        phases: conditions, one after the other. A quota of the loader holds from the first batch on: starting a process
            under a small one takes minutes.
        last_s: how long is measured of every phase but the first of several.

    Returns:
        Seconds to the first batch, and a row per phase; `failed` instead of both where the loader failed.
    """
    rows: list[dict[str, Any]] = []
    try:
        scene.set(replace(phases[0], loader_cores=None))
        with streaming_loader(scene.bed, settings) as loader:
            first_s = loader.order("begin")
            for number, conditions in enumerate(phases):
                scene.set(conditions)
                loader.order(f"step {conditions.step_ms}")
                changed_s = time.monotonic()
                time.sleep(SETTLE_S)
                before = scene.counters()
                time.sleep(last_s if number or len(phases) == 1 else BEFORE_S)
                row = {"conditions": str(conditions), "changed_s": changed_s, "before": before}
                rows.append({**row, "after": scene.counters(), "report": loader.order("report")})
            log = loader.order(f"log {rows[-1]['after']['clock_s']}")
            scene.set(UNDISTURBED)  # a loader with next to no CPU takes long to end
            loader.order("stop")
    except ChildFailed as error:
        scene.set(UNDISTURBED)
        return {"failed": str(error)}
    measured = [phase_figures(row, log, conditions) for row, conditions in zip(rows, phases, strict=True)]
    return {"first_batch_s": first_s, "phases": measured, "rounds": log}


def calm(run: Callable[[], dict[str, Any]], patience: int) -> dict[str, Any]:
    """Repeat a run until nothing else was busy on this machine, and return it, or the one with the least of it.

    Args:
        run: is called once, and again while too much was busy.
        patience: maximum number of repetitions.
    """
    rows = []
    for _ in range(1 + patience):
        rows.append(run())
        if busiest_elsewhere(rows[-1]) <= CALM_CORES:
            break
    return min(rows, key=busiest_elsewhere)


def busiest_elsewhere(run: dict[str, Any]) -> float:
    """Cores that were busy elsewhere in that phase of a run in which there were the most.

    Args:
        run: as `streamed` returns it.
    """
    return max((phase["elsewhere_cores"] for phase in run.get("phases", ())), default=0.0)


def phase_figures(row: dict[str, Any], log: Any, conditions: Conditions) -> dict[str, Any]:
    """Return the figures of a phase.

    Args:
        row: as `streamed` has noted it.
        log: of the stream.
        conditions: that held.
    """
    start_s, end_s = row["before"]["clock_s"], row["after"]["clock_s"]
    images_per_s = rate(log, start_s, end_s)
    nbytes = row["after"]["interface_bytes"] - row["before"]["interface_bytes"]
    return {
        "conditions": row["conditions"],
        "images_per_s": images_per_s,
        "at_once_images_per_s": rate(log, row["changed_s"], start_s),
        "windows": windows(log, start_s, end_s, WINDOW_S),
        "bytes_per_image": nbytes / max(1.0, images_per_s * (end_s - start_s)),
        "shares": shares(conditions, row["before"], row["after"], step_share(log, start_s, end_s)),
        "elsewhere_cores": elsewhere_cores(row["before"], row["after"]),
        "report": row["report"],
    }
