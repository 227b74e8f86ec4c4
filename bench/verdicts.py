"""Situations in which one resource limits, and what a loader says of them against what was measured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.scene import Conditions

BEHIND = 1.3
"""Minimum ratio of the first resource's use to the second's, for the first one to be the limit by itself."""
IN_USE = 0.8
"""Minimum share of the time for which the limiting resource is used; with less, something uncounted limits."""
WITHIN = 0.15
"""Maximum relative error of the predicted gain from more of a resource."""
SCARCE: dict[str, tuple[str, tuple[float, float]]] = {
    "gpu": ("step_ms", (300.0, 1200.0)),
    "wire": ("link_mbit", (4.0, 20.0)),
    "loader-cpu": ("loader_cores", (0.03, 0.08)),
    "agent-cpu": ("agent_cores", (0.01, 0.03)),
    "agent-disk": ("disk_mb_s", (0.5, 3.0)),
}
"""Setting that makes a resource the limit, and its range."""
AMPLE_LINK_MBIT = (300.0, 1000.0)
AMPLE_CORES = (0.8, 1.0)
AMPLE_STEP_MS = (0.0, 5.0)
MORE = {"wire": ("link_mbit", 2.0), "agent-cpu": ("agent_cores", 2.0)}
"""Setting, and its factor, that tests each gain in `would_bring`."""
WOULD_BRING = (
    Conditions(),
    Conditions(link_mbit=40.0),
    Conditions(link_mbit=300.0, agent_cores=0.5),
    Conditions(link_mbit=40.0, agent_cores=0.1),
    Conditions(link_mbit=100.0, agent_cores=0.25),
)
"""Situations in which it is asked what more would bring."""


def situations(seed: int, disk: bool) -> Iterator[tuple[str, Conditions]]:
    """Conditions without end, and the resource that is meant to limit; each has its turn.

    Args:
        seed: of what is drawn.
        disk: whether the agent's disk can be limited.
    """
    drawn = random.Random(seed)
    while True:
        for meant, (name, ends) in SCARCE.items():
            ample = Conditions(
                link_mbit=drawn.uniform(*AMPLE_LINK_MBIT),
                agent_cores=drawn.uniform(*AMPLE_CORES),
                step_ms=drawn.uniform(*AMPLE_STEP_MS),
            )
            scarce: dict[str, Any] = {name: drawn.uniform(*ends)}
            if disk or meant != "agent-disk":
                yield meant, replace(ample, **scarce)


def limiting(shares: dict[str, float]) -> str | None:
    """The resource that limits by itself; None when another one is close, or none is in use.

    Args:
        shares: of the limit of each resource that was used, the most used first.
    """
    (first, most), (_, next_one) = list(shares.items())[:2]
    return first if most >= max(IN_USE, BEHIND * next_one) else None


def judged(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of right verdicts, and the situations with wrong ones.

    Args:
        rows: a situation each, with `truth`, None where it is not clear, and `said`.
    """
    decided = [row for row in rows if row["truth"] is not None]
    wrong = [row for row in decided if row["said"] != row["truth"]]
    by_resource = {}
    for name in SCARCE:
        of = [row for row in decided if row["truth"] == name]
        if of:
            by_resource[name] = f"{sum(row['said'] == name for row in of)} of {len(of)}"
    return {
        "situations": len(rows),
        "decided": len(decided),
        "right": len(decided) - len(wrong),
        "by_resource": by_resource,
        "wrong": [{name: row[name] for name in ("conditions", "truth", "said", "shares")} for row in wrong],
    }
