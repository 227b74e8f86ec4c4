"""Costs of ops at the agent: a few samples are run dry there, and their times compared with the loader's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_PROBES = 64
"""Number of samples that are run dry. Enough for means and fits of four coefficients, and little of an epoch's work."""
PROBE_EPOCH = 0
"""The epoch whose random numbers dry runs use."""


class UpkeepCosts(NamedTuple):
    """The agent's CPU seconds per sample apart from reading, ops and encoding; 0 if unknown.

    Args:
        file_s: of a sample that crosses as its file.
        op_s: of a sample that has ops run at the agent.
    """

    file_s: float = 0.0
    op_s: float = 0.0

    def or_else(self, other: UpkeepCosts) -> UpkeepCosts:
        """Return these seconds, and those of `other` for unknown ones."""
        return UpkeepCosts(self.file_s or other.file_s, self.op_s or other.op_s)

    def seconds(self, files: int, offloaded: int) -> float:
        """Return the CPU seconds of a number of samples.

        Args:
            files: samples that crossed as files.
            offloaded: samples that had ops run at the agent.
        """
        return files * self.file_s + offloaded * self.op_s


@dataclass(frozen=True)
class Probe:
    """Costs of one sample at the agent.

    Args:
        index: of the sample.
        cut: the stage up to which ops were run.
        encoding: in which the value at `cut` was encoded.
        nbytes: size of the payload.
        op_s: CPU seconds of reading, of each op up to `cut`, and of encoding.
        upkeep_s: the agent's CPU seconds apart from these.
    """

    index: int
    cut: int
    encoding: str
    nbytes: int
    op_s: tuple[float, ...]
    upkeep_s: float = 0.0


@dataclass(frozen=True)
class ProbeRequest:
    """A sample and a choice to try.

    Args:
        index: of the sample.
        cut: the stage up to which to run ops.
        encoding: for the value at `cut`.
        key: of the sample's file in the export.
        digest: of the pipeline's registration.
    """

    index: int
    cut: int
    encoding: str
    key: str
    digest: str


def spread_over(samples: int, most: int = MAX_PROBES) -> list[int]:
    """Return indices that lie evenly over all samples.

    Args:
        samples: number of samples.
        most: maximum number of indices.
    """
    count = min(samples, most)
    return [int(i) for i in np.linspace(0, samples - 1, count).round()] if count else []


def op_ratios(probes: Sequence[Probe], loader_s: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return agent CPU seconds per loader CPU second, for each op, float64[ops].

    The ratio of an op that no probe reached is that of all ops together; 1 without any probe.

    Args:
        probes: costs of samples at the agent.
        loader_s: float64[N, ops], the loader's times.
        known: bool[N], which of them are measured.
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
