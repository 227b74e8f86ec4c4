"""Files in which a run keeps results for later ones, and the conditions for reusing them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sophon_loader.auto.shared_live import KeptLive
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.facts import Choice, Rates
from sophon_loader.decide.policy import Trial
from sophon_loader.errors import PlanError
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.software import software
from sophon_loader.plans.calibration import Calibration
from sophon_loader.plans.profile_store import ProfileKey, StoredProfile, load, replacing, save
from sophon_loader.plans.trial_windows import KeptTrials
from sophon_loader.wire.frames import content_hash

TRIALS_FORMAT = 1
"""Version of the trials' format; increased if the same text would mean something else."""


@dataclass(frozen=True)
class KeptProfile:
    """Figures that a run takes over from an earlier one, apart from the profiles of the samples.

    Args:
        calibration: figures that hold for all samples.
        rates: the wire's of then, the others of now: the training step may be another model's.
    """

    calibration: Calibration
    rates: Rates


class ProfileFile:
    """The file in which a run keeps its profile.

    Example:
        >>> file = ProfileFile(Path("run.npz"), profile_key(data, chains, agent))
        >>> file.reuse(samples, rates)
        'there is no profile at run.npz yet'

    Args:
        path: it need not exist.
        key: conditions of the profile.
    """

    def __init__(self, path: Path, key: ProfileKey) -> None:
        self.path = path
        self._key = key
        self._saved_coverage = 0.0

    def reuse(self, samples: SampleProfile, rates: Rates) -> KeptProfile | str:
        """Take over the file's content, or return the reason why not; then `samples` is as it was.

        Args:
            samples: to be filled.
            rates: as they are now.
        """
        found = load(self.path, self._key)
        if isinstance(found, str):
            return found
        try:
            calibration = Calibration.from_plain(found.figures["calibration"])
            calibration.check(samples.ops)
            rates = replace(rates, wire_bytes_s=float(found.figures["wire_bytes_s"]))
            samples.load(found.arrays)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"the profile at {self.path} does not fit ({error!r})"
        self._saved_coverage = samples.coverage
        return KeptProfile(calibration, rates)

    def save(self, samples: SampleProfile, calibration: Calibration, rates: Rates) -> str:
        """Write the profile, if it has more samples than the file's; returns the reason of a failure, or "".

        Args:
            samples: profiles of samples.
            calibration: figures that hold for all of them.
            rates: only the wire's is kept.
        """
        if samples.coverage <= self._saved_coverage:
            return ""
        figures: dict[str, Any] = {"calibration": calibration.to_plain(), "wire_bytes_s": rates.wire_bytes_s}
        self._saved_coverage = samples.coverage  # also if it fails: the next epoch would most likely fail, too
        try:
            save(self.path, self._key, StoredProfile(dict(samples.arrays()), figures))
        except OSError as error:  # this run has its profile all the same
            return f"cannot save the profile at {self.path}: {error}"
        return ""

    def reuse_live(self) -> KeptLive | str:
        """Return the file's figures for a policy that sets prices, or the reason why they cannot be used."""
        found = load(self.path, self._key)
        if isinstance(found, str):
            return found
        figures = found.figures.get("live")
        if not isinstance(figures, dict) or not all(_is_figure(value) for value in figures.values()):
            return f"the profile at {self.path} is one of a policy that plans for each sample"
        return KeptLive(figures, found.arrays)

    def save_live(self, kept: KeptLive) -> str:
        """Write the figures of a policy that sets prices; returns the reason of a failure, or ""."""
        try:
            save(self.path, self._key, StoredProfile(kept.arrays, {"live": kept.figures}))
        except OSError as error:
            return f"cannot save the profile at {self.path}: {error}"
        return ""


class TrialFile:
    """The file in which a run keeps its trials, next to its profile's (FastFlow calls this its metric store).

    Example:
        >>> TrialFile(Path("run.npz"), key, {"processes": 2.0}).reuse()
        'there are no trials at run.npz.trials yet'

    Args:
        profile: the path of the profile's file.
        key: conditions of the trials.
        conditions: figures that must be equal, by name.
    """

    def __init__(self, profile: Path, key: ProfileKey, conditions: Mapping[str, float]) -> None:
        self.path = profile.with_name(f"{profile.name}.trials")
        self._made_of = {"format": TRIALS_FORMAT, **asdict(key), **conditions}

    def reuse(self) -> KeptTrials | str:
        """Return the trials in the file, or the reason why they cannot be used."""
        if not self.path.exists():
            return f"there are no trials at {self.path} yet"
        try:
            found = json.loads(self.path.read_text())
            if found["made_of"] != self._made_of:
                return f"the trials at {self.path} were made under other conditions"
            trials = [Trial(Choice(*choice), *figures) for choice, *figures in found["trials"]]
            gpu_samples_s = float(found["gpu_samples_s"] or math.inf)
        except (OSError, ValueError, TypeError, LookupError, RecursionError, PlanError) as error:
            return f"the trials at {self.path} are damaged ({error!r})"
        if not trials or not gpu_samples_s > 0:
            return f"the trials at {self.path} are damaged (no trial, or a rate that is not above 0)"
        return KeptTrials(tuple(trials), gpu_samples_s)

    def save(self, kept: KeptTrials) -> str:
        """Write the trials; returns the reason of a failure, or ""."""
        gpu_samples_s = kept.gpu_samples_s if math.isfinite(kept.gpu_samples_s) else None
        trials = [
            ((one.choice.cut, one.choice.encoding), one.share, one.samples_s, one.loader_cpu_s_per_sample)
            for one in kept.trials
        ]
        text = json.dumps({"made_of": self._made_of, "gpu_samples_s": gpu_samples_s, "trials": trials}, indent=1)
        try:
            with replacing(self.path) as file:
                file.write(text.encode())
        except OSError as error:
            return f"cannot save the trials at {self.path}: {error}"
        return ""


def _is_figure(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def profile_key(data: Offloadable, chains: Sequence[Chain], agent: str) -> ProfileKey:
    """Return the conditions of a profile.

    Args:
        data: the files, by their names and order.
        chains: the pipelines, by source.
        agent: see `Agreement.agent`; "none" without one.
    """
    pipelines = content_hash(b"".join(chain.description + repr(chain.local_ops).encode() for chain in chains))
    return ProfileKey(_fingerprint(data), pipelines, agent, dict(software()))


def _fingerprint(data: Offloadable) -> str:
    digest = hashlib.sha256()
    for array in (data.source_of.array, data.row_of.array):
        digest.update(array.tobytes())
    for source in data.sources:
        digest.update(source.keys.fingerprint())
    return digest.hexdigest()[:32]
