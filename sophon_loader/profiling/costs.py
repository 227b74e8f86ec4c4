"""From measurements to the table of costs that a policy plans with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.facts import Choice, ChoiceTable
from sophon_loader.profiling.probes import Probe, op_ratios
from sophon_loader.profiling.samples import SampleProfile

HEADER_NBYTES = 90
"""What a reply weighs beside its payload."""


@dataclass(frozen=True)
class Calibration:
    """What is the same for all samples.

    Args:
        op_ratio: agent CPU seconds per loader CPU second, for each op.
        read_s: agent CPU seconds to read a file and hand it out.
        encode_s: agent CPU seconds to encode a value plainly.
        overhead_s: loader CPU seconds per sample beside the ops.
    """

    op_ratio: tuple[float, ...]
    read_s: float = 0.0
    encode_s: float = 0.0
    overhead_s: float = 0.0


def calibrated(profile: SampleProfile, probes: Sequence[Probe], overhead_s: float) -> Calibration:
    """The calibration that probes and a profile give; without probes the agent's CPU counts as equal."""
    ratios = op_ratios(probes, profile.op_ms.astype(np.float64) / 1000, profile.known)
    reads = [probe.op_s[0] for probe in probes if probe.op_s]
    encodes = [probe.op_s[-1] for probe in probes if len(probe.op_s) > 1]
    return Calibration(
        tuple(float(ratio) for ratio in ratios),
        read_s=float(np.mean(reads)) if reads else 0.0,
        encode_s=float(np.mean(encodes)) if encodes else 0.0,
        overhead_s=max(0.0, overhead_s),
    )


def plain_table(profile: SampleProfile, reach: int, calibration: Calibration) -> ChoiceTable | None:
    """The costs of crossing at each stage as the value is; None while no sample is profiled.

    A sample without a profile counts as an average one at stage 0 and has no other choice.
    """
    known = profile.known
    if not known.any():
        return None
    stages = min(reach, profile.ops)
    choices = (Choice(0, "file"), *(Choice(stage, "pixels") for stage in range(1, stages + 1)))
    op_s = profile.op_ms.astype(np.float32) / 1000
    spent = np.cumsum(np.pad(op_s * np.asarray(calibration.op_ratio, np.float32), ((0, 0), (1, 0))), axis=1)
    done = np.cumsum(np.pad(op_s, ((0, 0), (1, 0))), axis=1)
    wire = profile.nbytes[:, : stages + 1].astype(np.float32) + HEADER_NBYTES
    agent = calibration.read_s + spent[:, : stages + 1]
    agent[:, 1:] += calibration.encode_s
    loader = calibration.overhead_s + done[:, -1:] - done[:, : stages + 1]
    wire[profile.nbytes[:, : stages + 1] == 0xFFFFFFFF] = np.inf
    for table, filler in ((wire, np.inf), (agent, 0), (loader, 0)):
        _fill_unknown(table, known, filler)
    return ChoiceTable(choices, wire, agent.astype(np.float32), loader.astype(np.float32))


def _fill_unknown(table: NDArray[Any], known: NDArray[np.bool_], filler: float) -> None:
    if not known.all():
        table[~known, 0] = table[known, 0].mean()
        table[~known, 1:] = filler
