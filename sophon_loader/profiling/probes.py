"""What ops cost at the agent: a small share of the samples is run there dry, and compared with the loader's times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_PROBES = 64
PROBE_EPOCH = 0
"""The epoch whose random numbers probes are run with."""


@dataclass(frozen=True)
class Probe:
    """One sample at the agent: CPU seconds of reading, of each op, and of encoding at `cut`; and its upkeep."""

    index: int
    cut: int
    encoding: str
    nbytes: int
    op_s: tuple[float, ...]
    upkeep_s: float = 0.0


@dataclass(frozen=True)
class ProbeRequest:
    """What to try: a sample by its index and key in the export."""

    index: int
    cut: int
    encoding: str
    key: str
    digest: str


def spread_over(samples: int, most: int = MAX_PROBES) -> list[int]:
    """Up to `most` indices, evenly over all of them."""
    count = min(samples, most)
    return [int(i) for i in np.linspace(0, samples - 1, count).round()] if count else []


def op_ratios(probes: Sequence[Probe], loader_s: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Agent CPU seconds per loader CPU second, for each op, float64[ops].

    Args:
        loader_s: float64[N, ops], the loader's times.
        known: bool[N], which of them are measured.

    The ratio of an op that no probe reached is that of all ops together; 1 without any probe.
    """
    ops = loader_s.shape[1]
    agent, loader = np.zeros(ops), np.zeros(ops)
    for probe in probes:
        if not known[probe.index]:
            continue
        times = np.asarray(probe.op_s[1 : 1 + min(probe.cut, ops)])
        agent[: len(times)] += times
        loader[: len(times)] += loader_s[probe.index, : len(times)]
    overall = agent.sum() / loader[agent > 0].sum() if (loader[agent > 0] > 0).any() else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((agent > 0) & (loader > 0), agent / loader, overall)
    return np.asarray(ratios, dtype=np.float64)
