"""Figures that hold for all samples of a run: the agent's CPU relative to the loader's, and fits of each encoding."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from sophon_loader.decide.facts import Choice
from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.encodings.estimate import Features, Fit, Fitted, UsedAt
from sophon_loader.encodings.registry import fitted, used_at
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.plans.probes import Probe, UpkeepCosts, op_ratios


@dataclass(frozen=True)
class Calibration:
    """Figures that hold for all samples.

    Args:
        op_ratio: agent CPU seconds per loader CPU second, for each op.
        read_s: agent CPU seconds to read a file.
        upkeep_s: see `UpkeepCosts`.
        encode_s: agent CPU seconds to encode a value as it is.
        overhead_s: loader CPU seconds per sample apart from the ops.
        crops_first: True if the pipeline begins with a crop whose region can be cut out of the bitstream.
        fits: by the name of an encoding, in the catalogue's order; one that is missing has too few trials.
    """

    op_ratio: tuple[float, ...]
    read_s: float = 0.0
    upkeep_s: UpkeepCosts = field(default_factory=UpkeepCosts)
    encode_s: float = 0.0
    overhead_s: float = 0.0
    crops_first: bool = False
    fits: dict[str, Fit] = field(default_factory=dict)

    def check(self, ops: int) -> None:
        """Check that every number can be calculated with, for a profile of `ops` ops.

        Raises:
            ValueError, TypeError: a number is invalid.
        """
        if len(self.op_ratio) != ops:
            raise ValueError(f"op_ratio must have {ops} numbers, got {len(self.op_ratio)}")
        seconds = [*self.op_ratio, self.read_s, *self.upkeep_s, self.encode_s, self.overhead_s]
        sizes: list[float] = []
        for name, fit in self.fits.items():
            _check_fit(name, fit)
            sizes += fit.coefficients.values()
            seconds += [fit.scale, fit.encode_s]
        if not (all(0 <= value < math.inf for value in seconds) and all(map(math.isfinite, sizes))):
            raise ValueError(f"a calibration must have finite numbers and no negative times, got {self}")

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Calibration:
        """Return the calibration that `to_plain` made plain.

        Raises:
            KeyError, TypeError, AttributeError: `to_plain` does not give such data.
        """
        fits = {name: Fit(**fit) for name, fit in values["fits"].items()}
        op_ratio, upkeep_s = tuple(values["op_ratio"]), UpkeepCosts(*values["upkeep_s"])
        return Calibration(**{**values, "op_ratio": op_ratio, "upkeep_s": upkeep_s, "fits": fits})


def _check_fit(name: str, fit: Fit) -> None:
    estimate = fitted().get(name)
    if estimate is None:
        raise ValueError(f"fits must be of {tuple(fitted())}, got one of {name!r}")
    if set(fit.coefficients) != set(estimate.features):
        raise ValueError(f"the fit of {name} must have coefficients for {estimate.features}, got {fit}")
    first = 0 if used_at(name) in (UsedAt.FILE, UsedAt.FIRST_REGION) else 1
    if type(fit.cut) is not int or fit.cut < first:
        raise ValueError(f"the fit of {name} must be of a stage from {first} on, got {fit}")


def fitted_choices(allowed: Collection[str], *, reach: int, resize_cut: int | None, crops_first: bool) -> list[Choice]:
    """Return the choices of a pipeline whose sizes are found by trials.

    Args:
        allowed: names of the encodings that may be used.
        reach: the last stage that the agent can reach.
        resize_cut: the stage right after the first crop or resize; None without one.
        crops_first: see `Calibration`.
    """
    choices = []
    for name in fitted():
        place = used_at(name)
        if name not in allowed:
            continue
        if place is UsedAt.FILE or (place is UsedAt.FIRST_REGION and crops_first):
            choices.append(Choice(0, name))
        elif place is UsedAt.RESIZED and resize_cut is not None and resize_cut <= reach:
            choices.append(Choice(resize_cut, name))
    return choices


def calibrated(
    profile: SampleProfile,
    probes: Sequence[Probe],
    shares: Mapping[int, float],
    overhead_s: float,
    *,
    crops_first: bool,
) -> Calibration:
    """Return the calibration for probes and a profile; without probes the agent's CPU counts as equal.

    Args:
        profile: of all samples.
        probes: the agent's answers.
        shares: by probed sample, the share of the picture that its first crop read.
        overhead_s: see `Calibration`; below 0 counts as 0.
        crops_first: see `Calibration`.
    """
    plain = [probe for probe in probes if probe.encoding in PLAIN]
    rows = sorted({probe.index for probe in plain})
    tried = [replace(probe, index=rows.index(probe.index)) for probe in plain]
    ratios = op_ratios(tried, profile.op_ms[rows].astype(np.float64) / 1000, profile.nbytes[rows, 0] > 0)
    fits = {}
    for name, estimate in fitted().items():
        fit = _fit(estimate, profile, [probe for probe in probes if probe.encoding == name], shares)
        if fit is not None:
            fits[name] = fit
    return Calibration(
        tuple(float(ratio) for ratio in ratios),
        read_s=_mean([probe.op_s[0] for probe in probes if probe.op_s]),
        upkeep_s=UpkeepCosts(op_s=_mean([probe.upkeep_s for probe in probes if probe.upkeep_s])),
        encode_s=_mean([probe.op_s[-1] for probe in plain if len(probe.op_s) > 1]),
        overhead_s=max(0.0, overhead_s),
        crops_first=crops_first,
        fits=fits,
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _fit(estimate: Fitted, profile: SampleProfile, probes: Sequence[Probe], shares: Mapping[int, float]) -> Fit | None:
    used = [probe for probe in probes if profile.nbytes[probe.index, 0]]
    if estimate.needs_px:
        used = [probe for probe in used if profile.sides[probe.index].all()]
    if not used:
        return None
    cut = used[0].cut
    rows = np.array([probe.index for probe in used])
    given = Features(
        file_nbytes=profile.nbytes[rows, 0],
        value_nbytes=profile.nbytes[rows, min(cut, profile.ops)],
        px=profile.sides[rows].astype(np.float64).prod(axis=1),
        share=np.array([shares[index] for index in rows]),
    )
    nbytes = np.array([probe.nbytes for probe in used], dtype=np.float64)
    return estimate.fit(cut, given, nbytes, [probe.op_s[-1] for probe in used])
