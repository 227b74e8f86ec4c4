"""What the main process knows of a run: rates, sample costs, and the facts a policy plans from."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sophon_loader.agreement import Agreement, key_and_path
from sophon_loader.client.connection import Connection
from sophon_loader.datasets import Offloadable
from sophon_loader.decide.facts import ChoiceTable, Facts, Rates
from sophon_loader.host import cores_available, software
from sophon_loader.pipeline.chain import Chain
from sophon_loader.profiling.costs import Calibration, calibrated, plain_table
from sophon_loader.profiling.probes import Probe, Prober, ProbeRequest, spread_over
from sophon_loader.profiling.rates import EpochMeasure, StepClock, measure_wire, revised
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.profiling.store import ProfileKey, StoredProfile, load, save
from sophon_loader.statistics import Totals
from sophon_loader.wire.frames import content_hash

_PROBE_WAIT_S = 5.0
_TERM_NAMES = {
    "gpu_samples_s": "gpu",
    "wire_bytes_s": "wire",
    "loader_cores": "loader-cpu",
    "agent_cores": "agent-cpu",
}


@dataclass(frozen=True)
class Pipelines:
    """The chains of a dataset's sources, and how far the agent gets in them."""

    chains: tuple[Chain, ...]
    reach: tuple[int, ...]

    @property
    def max_cut(self) -> int:
        """The last stage that the agent can reach for some source."""
        return max(self.reach, default=0)

    @property
    def resize_cut(self) -> int | None:
        """The stage behind the first crop or resize, if the agent can reach it."""
        cuts = [chain.resize_cut for chain in self.chains if chain.resize_cut is not None]
        return min(max(cuts), self.max_cut) or None if cuts else None


class Profiler:
    """Measures a run and remembers it.

    Args:
        agreement: None without an agent; then nothing is planned, but rates are still told.
        processes: loader processes.
        path: where profiles are kept, or None.
    """

    def __init__(
        self,
        data: Offloadable,
        chains: tuple[Chain, ...],
        agreement: Agreement | None,
        processes: int,
        path: Path | None,
    ) -> None:
        self._data = data
        self._agreement = agreement
        self.pipelines = Pipelines(chains, agreement.reach if agreement else tuple(0 for _ in chains))
        self.clock = StepClock()
        self.samples = SampleProfile(len(data), max((len(chain) for chain in chains), default=1))
        loader_cores = min(cores_available(), float(processes))
        agent_cores = agreement.agent_cores if agreement else math.inf
        self.rates = Rates(math.inf, math.inf, loader_cores, max(agent_cores, 1e-3))
        self.notes: tuple[str, ...] = ()
        self._probes: list[Probe] = []
        self._prober: Prober | None = None
        self._calibration: Calibration | None = None
        self._overhead_s = 0.0
        self._path = path
        self._key = self._profile_key()
        self._saved_coverage = 0.0
        if path is not None:
            self._reuse(path)
        self.samples.recording = agreement is not None and self.samples.coverage < 1

    # --- measuring --------------------------------------------------------------------------------------------

    def measure_wire(self) -> None:
        """Measure the wire by a burst of files, before the workers use it."""
        if self._agreement is None:
            return
        terms = self._agreement.terms
        keys = [key_and_path(self._data, terms, index)[0] for index in spread_over(len(self._data))]
        window = terms.options.window
        connection = Connection(terms.address, window)
        try:
            self.rates = replace(self.rates, wire_bytes_s=measure_wire(connection, keys, window))
        finally:
            connection.close()

    def start_probing(self) -> None:
        """Have the agent run a few samples dry, beside the epoch."""
        if self._agreement is None or self._prober is not None or self._probes or not self.pipelines.max_cut:
            return
        terms = self._agreement.terms
        self._prober = Prober(terms.address, self._probe_requests(), terms.seed, terms.options.dead_after_s)
        self._prober.start()

    def _probe_requests(self) -> list[ProbeRequest]:
        assert self._agreement is not None
        requests = []
        for index in spread_over(len(self._data)):
            source, _ = self._data.locate(index)
            cut = self.pipelines.reach[source]
            digest = content_hash(self.pipelines.chains[source].description)
            key, _ = key_and_path(self._data, self._agreement.terms, index)
            if cut > 0:
                requests.append(ProbeRequest(index, cut, "pixels", key, digest))
        return requests

    def stop_probing(self) -> None:
        """Take over what the prober has found; waits a few seconds for its end."""
        if self._prober is not None:
            self._probes = self._prober.finish(_PROBE_WAIT_S)
            self._prober = None

    def epoch_measure(self, totals: Totals, seconds: float, processes: int) -> EpochMeasure:
        """An epoch in the terms of `rates`."""
        return EpochMeasure(
            seconds=seconds,
            samples=totals.samples,
            wire_bytes=totals.wire_bytes,
            loader_cpu_s=totals.loader_cpu_s,
            agent_cpu_s=totals.agent_cpu_s,
            gpu_samples_s=self.clock.samples_s,
            queueing=totals.queued_s / totals.turnaround_s if totals.turnaround_s > 0 else 0.0,
            waiting=totals.waited_s / (seconds * processes) if seconds > 0 else 0.0,
        )

    def learn(self, epoch: EpochMeasure) -> None:
        """Correct the rates by what an epoch has shown, and keep the profile if it has grown."""
        self.rates = revised(self.rates, epoch)
        if self.samples.recording:
            self._learn_overhead(epoch)
            self.stop_probing()
            self._calibration = None
            self.samples.recording = self.samples.coverage < 1
        self._save()

    def _learn_overhead(self, epoch: EpochMeasure) -> None:
        known = self.samples.known
        if epoch.samples and known.any():
            ops_s = float(self.samples.op_ms[known].sum(axis=1, dtype=np.float64).mean()) / 1000
            self._overhead_s = max(0.0, epoch.loader_cpu_s / epoch.samples - ops_s)

    def bottleneck(self, epoch: EpochMeasure) -> str:
        """The resource that an epoch needed longest."""
        used = epoch.used(self.rates)
        return _TERM_NAMES[max(used, key=lambda name: used[name])]

    # --- planning ---------------------------------------------------------------------------------------------

    def table(self) -> ChoiceTable | None:
        """The costs of every choice; None while no sample is profiled."""
        return plain_table(self.samples, self.pipelines.max_cut, self.calibration)

    @property
    def calibration(self) -> Calibration:
        """What is the same for all samples."""
        if self._calibration is None:
            self._calibration = calibrated(self.samples, self._probes, self._overhead_s)
        return self._calibration

    def facts(self, table: ChoiceTable | None) -> Facts:
        """What a policy plans from."""
        pipelines = self.pipelines
        coverage = self.samples.coverage if table is not None else 0.0
        return Facts(len(self._data), self.rates, table, pipelines.max_cut, pipelines.resize_cut, coverage)

    # --- keeping ----------------------------------------------------------------------------------------------

    def _profile_key(self) -> ProfileKey:
        agent = str(self._agreement.terms.address) if self._agreement else "none"
        if agent.startswith("tcp://127.0.0.1:") and agent.endswith("/local"):
            agent = "local"  # on another port every time
        pipeline = content_hash(b"".join(_chain_id(chain) for chain in self.pipelines.chains))
        return ProfileKey(_fingerprint(self._data), pipeline, agent, dict(software()))

    def _reuse(self, path: Path) -> None:
        found = load(path, self._key)
        if isinstance(found, str):
            self.notes = (f"measuring anew: {found}",)
            return
        try:
            self.samples.load(found.arrays)
            figures = found.figures
            self._calibration = Calibration(**{**figures["calibration"], "op_ratio": tuple(figures["op_ratio"])})
            self._overhead_s = self._calibration.overhead_s
            wire = float(figures["wire_bytes_s"])
            self.rates = replace(self.rates, wire_bytes_s=wire, gpu_samples_s=float(figures["gpu_samples_s"]))
        except (KeyError, TypeError, ValueError) as error:
            self.notes = (f"measuring anew: the profile at {path} does not fit: {error!r}",)
            return
        self._saved_coverage = self.samples.coverage
        self.notes = (f"reusing the profile at {path}",)

    def _save(self) -> None:
        if self._path is None or self.samples.coverage <= self._saved_coverage:
            return
        calibration = asdict(self.calibration)
        figures: dict[str, Any] = {
            "op_ratio": list(calibration.pop("op_ratio")),
            "calibration": calibration,
            "wire_bytes_s": self.rates.wire_bytes_s,
            "gpu_samples_s": self.rates.gpu_samples_s,
        }
        save(self._path, self._key, StoredProfile(dict(self.samples.arrays()), figures))
        self._saved_coverage = self.samples.coverage


def _chain_id(chain: Chain) -> bytes:
    return chain.description + repr(chain.local_ops).encode()


def _fingerprint(data: Offloadable) -> str:
    digest = hashlib.sha256()
    for array in (data.of.array, data.rows.array):
        digest.update(array.tobytes())
    for source in data.sources:
        fingerprint: bytes = source.keys.fingerprint() if hasattr(source.keys, "fingerprint") else b"calls"
        digest.update(fingerprint)
    return digest.hexdigest()[:32]
