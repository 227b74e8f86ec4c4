"""From measurements to what each choice of each sample costs: in bytes, and in CPU seconds on either side.

Used by the main process to make the table that a policy plans with, and by workers to choose anew when a request is
made, because what `roi-jpeg` weighs depends on the crop of the epoch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.facts import FILE, Choice, ChoiceTable
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.pushdown import WORTH_SHARE
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.profiling.probes import Probe, op_ratios
from sophon_loader.profiling.samples import UNKNOWN_NBYTES, SampleProfile

HEADER_NBYTES = 90
"""What a reply weighs beside its payload."""
ROI = Choice(0, "roi-jpeg")
COMPRESSED = ("webp", "jxl")
DECODE_PER_ENCODE = {"webp": 0.54, "jxl": 0.75}
"""Loader CPU seconds to decode per agent CPU second to encode; jxl decodes what it has encoded, too (docs/wire.md)."""
CUT_SHARE, FIXED_SHARE = 0.27, 0.05
"""Of a full decoding: cutting the bitstream, and decoding a part beside its share of the picture (docs/native.md)."""
_MIN_PROBES = 8
_MAX_LOG = 30.0
"""Of an estimated size's logarithm: past every size there is, and no overflow."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Compression:
    """How an encoding of the image at stage `cut` does: log(bytes) = coefficients . features (see `_features`)."""

    cut: int
    coefficients: tuple[float, ...]
    scale: float
    encode_s: float


@dataclass(frozen=True)
class Calibration:
    """What is the same for all samples.

    Args:
        op_ratio: agent CPU seconds per loader CPU second, for each op.
        read_s: agent CPU seconds to read a file.
        upkeep_s: agent CPU seconds beside reading, ops and encoding: of a file that crosses as it is, and of a sample
            that has ops run.
        encode_s: agent CPU seconds to encode a value plainly.
        overhead_s: loader CPU seconds per sample beside the ops.
        crops_first: whether the pipeline begins with a crop whose region can be cut out of the bitstream.
        roi: bytes of a part per byte of file and share of the picture, fixed bytes, and agent CPU seconds per
            file byte; None when `roi-jpeg` is not to be had.
        compressions: by encoding name.
    """

    op_ratio: tuple[float, ...]
    read_s: float = 0.0
    upkeep_s: tuple[float, float] = (0.0, 0.0)
    encode_s: float = 0.0
    overhead_s: float = 0.0
    crops_first: bool = False
    roi: tuple[float, float, float] | None = None
    compressions: dict[str, Compression] = field(default_factory=dict)

    def check(self, ops: int) -> None:
        """See that every number can be calculated with, for a profile of `ops` ops.

        Raises:
            ValueError, TypeError: one cannot.
        """
        seconds, sizes = [*self.op_ratio, self.read_s, *self.upkeep_s, self.encode_s, self.overhead_s], []
        if len(self.upkeep_s) != 2:
            raise ValueError(f"upkeep_s must have 2 numbers, got {len(self.upkeep_s)}")
        if len(self.op_ratio) != ops:
            raise ValueError(f"op_ratio must have {ops} numbers, got {len(self.op_ratio)}")
        if self.roi is not None:
            slope, fixed, per_byte = self.roi
            sizes += [slope, fixed]
            seconds += [per_byte]
        for name, one in self.compressions.items():
            if name not in COMPRESSED or type(one.cut) is not int or one.cut < 1 or len(one.coefficients) != 4:
                raise ValueError(f"compressions must be of {COMPRESSED} with 4 coefficients, got {name} {one}")
            sizes += one.coefficients
            seconds += [one.scale, one.encode_s]
        if not (all(0 <= value < math.inf for value in seconds) and all(map(math.isfinite, sizes))):
            raise ValueError(f"a calibration must have finite numbers and no negative times, got {self}")

    def to_plain(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @staticmethod
    def from_plain(values: dict[str, Any]) -> Calibration:
        """The inverse of `to_plain`."""
        compressions = {
            name: Compression(**{**one, "coefficients": tuple(one["coefficients"])})
            for name, one in values["compressions"].items()
        }
        roi = None if values["roi"] is None else tuple(values["roi"])
        pairs = {name: tuple(values[name]) for name in ("op_ratio", "upkeep_s")}
        return Calibration(**{**values, **pairs, "roi": roi, "compressions": compressions})


def calibrated(
    profile: SampleProfile,
    probes: Sequence[Probe],
    shares: Mapping[int, float],
    overhead_s: float,
    *,
    crops_first: bool,
) -> Calibration:
    """The calibration that probes and a profile give; without probes the agent's CPU counts as equal.

    Args:
        shares: by probed sample, the share of the picture that its first crop read.
    """
    plain = [probe for probe in probes if probe.encoding in ("pixels", "array")]
    ratios = op_ratios(plain, profile.op_ms.astype(np.float64) / 1000, profile.known)
    compressions = {
        name: _compression(profile, [p for p in probes if p.encoding == name], shares) for name in COMPRESSED
    }
    return Calibration(
        tuple(float(ratio) for ratio in ratios),
        read_s=_mean([probe.op_s[0] for probe in probes if probe.op_s]),
        upkeep_s=(0.0, _mean([probe.upkeep_s for probe in probes if probe.upkeep_s])),
        encode_s=_mean([probe.op_s[-1] for probe in plain if len(probe.op_s) > 1]),
        overhead_s=max(0.0, overhead_s),
        crops_first=crops_first,
        roi=_roi(profile, [probe for probe in probes if probe.encoding == ROI.encoding], shares),
        compressions={name: one for name, one in compressions.items() if one is not None},
    )


def region_share(chain: Chain, sides: NDArray[np.uint16], draw: Draw) -> float:
    """Share of a picture that the first crop of a chain will read; 1 when that is not known.

    Seeds the global generators: call it within `isolated()`.
    """
    width, height = int(sides[0]), int(sides[1])
    return chain.located(width, height, draw).share if width and height else 1.0


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _roi(
    profile: SampleProfile, probes: Sequence[Probe], shares: Mapping[int, float]
) -> tuple[float, float, float] | None:
    """Least squares of the parts' bytes over (file bytes x share), and the seconds of cutting per file byte."""
    used = [probe for probe in probes if profile.nbytes[probe.index, 0] > 0]
    if len(used) < _MIN_PROBES:
        return None
    files = np.array([profile.nbytes[probe.index, 0] for probe in used], dtype=np.float64)
    share = np.array([shares[probe.index] for probe in used])
    found = np.array([probe.nbytes for probe in used], dtype=np.float64)
    (slope, fixed), *_ = np.linalg.lstsq(np.stack([files * share, np.ones_like(files)], axis=1), found, rcond=None)
    return float(slope), float(fixed), float(sum(probe.op_s[-1] for probe in used) / files.sum())


def _compression(profile: SampleProfile, probes: Sequence[Probe], shares: Mapping[int, float]) -> Compression | None:
    used = [probe for probe in probes if profile.nbytes[probe.index, 0] > 0 and profile.sides[probe.index].all()]
    if len(used) < _MIN_PROBES:
        return None
    rows = np.array([probe.index for probe in used])
    cut = used[0].cut
    features = _features(profile, rows, np.array([shares[probe.index] for probe in used]), cut)
    found = np.array([probe.nbytes for probe in used], dtype=np.float64)
    coefficients, *_ = np.linalg.lstsq(features, np.log(found), rcond=None)
    scale = found.mean() / np.exp(features @ coefficients).mean()  # the mean of a logarithm is not that of the bytes
    encode_s = _mean([probe.op_s[-1] for probe in used])
    return Compression(cut, tuple(float(c) for c in coefficients), float(scale), encode_s)


def _features(profile: SampleProfile, rows: NDArray[Any], share: NDArray[Any], cut: int) -> NDArray[np.float64]:
    """float64[n, 4]: 1, the file's bits per px, how much the region is enlarged or shrunk, and their product.

    A finely detailed picture compresses badly, an enlarged one well.
    """
    px = np.maximum(profile.sides[rows].astype(np.float64).prod(axis=1), 1)
    out_px = np.maximum(profile.nbytes[rows, min(cut, profile.ops)].astype(np.float64) / 3, 1)
    detail = 8 * profile.nbytes[rows, 0] / px
    zoom = np.log(np.maximum(share * px, 1) / out_px)
    return np.stack([np.ones_like(px), detail, zoom, detail * zoom], axis=1)


class CostModel:
    """Costs of every choice, from a profile and a calibration.

    Args:
        reach: the last stage the agent can reach.
        allowed: encodings that may be used.
        plain: the stages at which a value may cross as it is; None for all that the agent can reach.
        files_here: what would cross as a file is read by the loader itself: no wire, no agent.
    """

    def __init__(
        self,
        profile: SampleProfile,
        calibration: Calibration,
        reach: int,
        allowed: Collection[str],
        *,
        plain: range | None = None,
        files_here: bool = False,
    ) -> None:
        self._profile = profile
        self._files_here = files_here
        self.calibration = calibration
        stages = min(reach, profile.ops)
        reached = range(1, stages + 1)
        choices = [FILE, *(Choice(stage, "pixels") for stage in reached if plain is None or stage in plain)]
        if calibration.roi is not None and ROI.encoding in allowed:
            choices.append(ROI)
        choices += [
            Choice(one.cut, name)
            for name, one in calibration.compressions.items()
            if name in allowed and one.cut <= stages
        ]
        self.choices: tuple[Choice, ...] = tuple(choices)

    def to_plain(self) -> dict[str, Any]:
        """As plain data, without the profile."""
        choices = [[choice.cut, choice.encoding] for choice in self.choices]
        return {"calibration": self.calibration.to_plain(), "choices": choices, "files_here": self._files_here}

    @staticmethod
    def from_plain(profile: SampleProfile, values: dict[str, Any]) -> CostModel:
        """The inverse of `to_plain`."""
        calibration = Calibration.from_plain(values["calibration"])
        model = CostModel(profile, calibration, 0, (), files_here=values["files_here"])
        model.choices = tuple(Choice(cut, encoding) for cut, encoding in values["choices"])
        return model

    def knows(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """bool[n]: which of the samples `rows`, int[n], have been profiled."""
        known: NDArray[np.bool_] = self._profile.nbytes[rows, 0] > 0
        return known

    def costs(self, rows: NDArray[Any], share: NDArray[Any]) -> tuple[Floats, Floats, Floats]:
        """(wire bytes, agent CPU seconds, loader CPU seconds), each float32[n, C].

        Args:
            rows: int[n], the samples; what is asked of a sample without a profile is meaningless.
            share: float[n], share of the picture that the first crop reads; 1 where that is not known.
        """
        profile, calibration = self._profile, self.calibration
        op_s = profile.op_ms[rows].astype(np.float32) / 1000
        spent = np.cumsum(op_s * np.asarray(calibration.op_ratio, np.float32), axis=1)
        left = op_s.sum(axis=1, keepdims=True) - np.cumsum(op_s, axis=1)
        decode_s, nbytes = op_s[:, 0], profile.nbytes[rows]
        there = (nbytes > 0) & (nbytes < UNKNOWN_NBYTES)  # 0: its pipeline ends before this stage
        wire, agent, loader = (np.empty((len(rows), len(self.choices)), np.float32) for _ in range(3))
        for column, choice in enumerate(self.choices):
            if choice == FILE:
                wire[:, column] = nbytes[:, 0]
                agent[:, column] = 0
                loader[:, column] = left[:, 0] + decode_s * self._decoded_share(share)
            elif choice == ROI:
                slope, fixed, per_byte = calibration.roi or (1, 0, 0)
                wire[:, column] = np.clip(nbytes[:, 0] * share * slope + fixed, 0, nbytes[:, 0])
                agent[:, column] = nbytes[:, 0] * per_byte
                loader[:, column] = left[:, 0] + decode_s * np.minimum(share + FIXED_SHARE, 1)
            elif choice.encoding == "pixels":
                wire[:, column] = np.where(there[:, choice.cut], nbytes[:, choice.cut], np.inf)
                agent[:, column] = spent[:, choice.cut - 1] + calibration.encode_s
                loader[:, column] = left[:, choice.cut - 1]
            else:
                one = calibration.compressions[choice.encoding]
                found = np.exp(np.minimum(_features(profile, rows, share, one.cut) @ one.coefficients, _MAX_LOG))
                known = there[:, one.cut] & profile.sides[rows].all(axis=1)
                wire[:, column] = np.where(known, np.minimum(found * one.scale, 1.2 * nbytes[:, one.cut]), np.inf)
                agent[:, column] = spent[:, one.cut - 1] + one.encode_s
                loader[:, column] = left[:, one.cut - 1] + one.encode_s * DECODE_PER_ENCODE[choice.encoding]
        agent[:, :1] += np.float32(calibration.read_s + calibration.upkeep_s[0])
        agent[:, 1:] += np.float32(calibration.read_s + calibration.upkeep_s[1])
        wire += HEADER_NBYTES
        if self._files_here:
            wire[:, 0] = agent[:, 0] = 0
        return wire, agent, loader + np.float32(calibration.overhead_s)

    def _decoded_share(self, share: NDArray[Any]) -> NDArray[Any]:
        """What decoding a file costs the loader, of a full decoding: it cuts the bitstream first where that pays."""
        if not self.calibration.crops_first:
            return np.ones_like(share)
        return np.where(share < WORTH_SHARE, np.minimum(share + FIXED_SHARE + CUT_SHARE, 1), 1.0)

    def table(self, share: NDArray[Any]) -> ChoiceTable | None:
        """The costs of all samples; None while none is profiled.

        A sample without a profile counts as an average one at stage 0 and has no other choice.

        Args:
            share: float[N], see `costs`.
        """
        known = self._profile.known
        if not known.any():
            return None
        wire, agent, loader = self.costs(np.arange(len(known)), share)
        for values, filler in ((wire, math.inf), (agent, 0.0), (loader, 0.0)):
            if not known.all():
                values[~known, 0] = values[known, 0].mean()
                values[~known, 1:] = filler
        return ChoiceTable(self.choices, wire, agent, loader)
