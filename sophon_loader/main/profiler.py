"""What the main process knows of a run: rates, sample costs, and the facts a policy plans from."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon_loader import native
from sophon_loader.client.burst import measure_wire
from sophon_loader.client.connection import Connection
from sophon_loader.client.dry_runs import Prober
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Choice, ChoiceTable, Facts, Rates
from sophon_loader.errors import AgentUnreachable
from sophon_loader.host import cores_available
from sophon_loader.main.agreement import Agreement, key_and_path
from sophon_loader.pipeline.chain import Chain, isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.pipeline.software import software
from sophon_loader.profiling.costs import COMPRESSED, ROI, Calibration, CostModel, calibrated, region_share
from sophon_loader.profiling.guard import Retry
from sophon_loader.profiling.probes import PROBE_EPOCH, Probe, ProbeRequest, spread_over
from sophon_loader.profiling.rates import FASTER, EpochMeasure, Healing, wire_may_do_more
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.profiling.steps import StepClock
from sophon_loader.profiling.store import ProfileKey, StoredProfile, load, save
from sophon_loader.wire.frames import content_hash
from sophon_loader.workers.counters import Totals

_PROBE_WAIT_S = 5.0
_MIN_COUNTED = 16
"""Samples of which a mean is taken."""
_MAX_LOAD = 4.0
"""Of measured to planned CPU seconds: what is beyond is no error of the model but a disturbance."""
_MODEL_ERROR = 1.25
"""Times that the model may be wrong about CPU seconds; it was by up to 24 % (docs/results.md, "Fewer agent cores")."""
_EXACT_SHARES = 2_000
"""Regions that are drawn for planning; one takes about 25 us."""
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
        return max(cuts) if cuts and max(cuts) <= self.max_cut else None

    def plain_cuts(self, allowed: Collection[str]) -> range:
        """The stages from 1 on at which a value may cross as it is: images as `pixels`, tensors as `array`."""
        images = min(self.max_cut, max((chain.image_stages for chain in self.chains), default=0))
        first = 1 if "pixels" in allowed else images + 1
        last = self.max_cut if "array" in allowed else images
        return range(first, last + 1)


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
        self._allowed = frozenset(agreement.encodings if agreement else ())
        self.pipelines = Pipelines(chains, agreement.reach if agreement else tuple(0 for _ in chains))
        self.clock = StepClock()
        self.samples = SampleProfile(len(data), max((len(chain) for chain in chains), default=1))
        self._most_loader_cores = loader_cores = min(cores_available(), float(processes))
        agent_cores = agreement.agent_cores if agreement else math.inf
        self.rates = Rates(math.inf, math.inf, loader_cores, max(agent_cores, 1e-3))
        self.notes: tuple[str, ...] = ()
        self._offered_agent_cores = agreement.agent_cores if agreement else 0.0
        self._healing = Healing()
        self._wire_may_do_more = False
        self._best_wire_bytes_s = 0.0
        self._wire_retry = Retry()
        self._probes: list[Probe] = []
        self._prober: Prober | None = None
        self._calibration: Calibration | None = None
        self._overhead_s = 0.0
        self._upkeep_s: tuple[float, ...] = (0.0, 0.0)
        self._load: dict[str, float] = {}
        self._path = path
        self._key = self._profile_key()
        self._saved_coverage = 0.0
        if path is not None:
            self._reuse(path)
        self.samples.recording = agreement is not None and self.samples.coverage < 1

    def resize(self, processes: int) -> None:
        """There is another number of loader processes now."""
        self._most_loader_cores = min(cores_available(), float(processes))
        self.rates = replace(self.rates, loader_cores=self._most_loader_cores)

    # --- measuring --------------------------------------------------------------------------------------------

    @property
    def knows_wire(self) -> bool:
        """Whether the wire's rate is known, and not only that it is at least what an epoch has used."""
        return math.isfinite(self.rates.wire_bytes_s) and not self._wire_may_do_more

    def measure_wire(self) -> None:
        """Measure the wire by a burst of files, while the workers do not use it; nothing if the agent is gone."""
        self._wire_may_do_more = False
        if self._agreement is None:
            return
        terms = self._agreement.terms
        keys = [key_and_path(self._data, terms, index)[0] for index in spread_over(len(self._data))]
        window = terms.options.window
        connection = Connection(terms.address, window)
        try:
            with contextlib.suppress(AgentUnreachable):
                found, known = measure_wire(connection, keys, window), self.rates.wire_bytes_s
                self.rates = replace(self.rates, wire_bytes_s=max(found, known) if math.isfinite(known) else found)
        finally:
            connection.close()

    def start_probing(self) -> None:
        """Have the agent run a few samples dry, beside the epoch."""
        if self._agreement is None or self._prober is not None or self._probes:
            return
        terms = self._agreement.terms
        if requests := self._probe_requests():
            self._prober = Prober(terms.address, requests, terms.seed, terms.options.dead_after_s)
            self._prober.start()

    def _probe_requests(self) -> list[ProbeRequest]:
        assert self._agreement is not None
        terms, requests = self._agreement.terms, []
        for index in spread_over(len(self._data)):
            source, _ = self._data.locate(index)
            digest = content_hash(terms.registrations[source])
            key, _ = key_and_path(self._data, terms, index)
            for choice in self._probed_choices(source):
                requests.append(ProbeRequest(index, choice.cut, choice.encoding, key, digest))
        return requests

    def _probed_choices(self, source: int) -> list[Choice]:
        """What to try: all ops, and each encoding whose size cannot be told without trying."""
        reach, chain = self.pipelines.reach[source], self.pipelines.chains[source]
        choices = [Choice(reach, "pixels")] if reach else []
        if chain.resize_cut is not None and chain.resize_cut <= reach:
            choices += [Choice(chain.resize_cut, name) for name in COMPRESSED if name in self._allowed]
        if self.crops_first and ROI.encoding in self._allowed:
            choices.append(ROI)
        return choices

    @property
    def crops_first(self) -> bool:
        """Whether all pipelines begin with a crop whose region is known, and no op looks at more than pixels."""
        return native.available and all(
            len(chain) > 1 and chain.ops[1].crop is not None and not chain.keeps_info for chain in self.pipelines.chains
        )

    def stop_probing(self) -> None:
        """Take over what the prober has found; waits a few seconds for its end."""
        if self._prober is not None:
            self._probes = self._prober.finish(_PROBE_WAIT_S)
            self._prober = None

    def cancel_probing(self) -> None:
        """Have the prober ask no more; what it has found is lost."""
        if self._prober is not None:
            self._prober.cancel(_PROBE_WAIT_S)
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
            offloaded=totals.offloaded,
            upkeep_s=_upkeep(totals),
        )

    def learn(self, epoch: EpochMeasure, planned: EpochTime | None = None) -> None:
        """Correct the rates by what an epoch has shown, and keep the profile if it has grown.

        Args:
            planned: what the plan said of an epoch over all samples, if one was followed to the end.
        """
        before_s = self._known_upkeep_s
        self._upkeep_s = tuple(new or old for new, old in zip(epoch.upkeep_s, self._upkeep_s, strict=True))
        if planned is not None and epoch.samples >= _MIN_COUNTED:
            self._learn_load(epoch, planned, before_s)
        before = self.rates
        self.rates = self._healing.revised(
            before, epoch, self._most_loader_cores, self._offered_agent_cores, planned=planned is not None
        )
        came_down = self._wire_came_down(before)
        self._wire_may_do_more = wire_may_do_more(before, self.rates, epoch) or came_down
        if self.samples.recording:
            if not epoch.offloaded:
                self._learn_overhead(epoch)
            self.stop_probing()
            self._calibration = None
            self.samples.recording = self.samples.coverage < 1
        self._save()

    def _wire_came_down(self, before: Rates) -> bool:
        """Whether the wire's rate is lower than it once was, and it is time to see by a burst if it still has to be.

        An epoch may have blamed the wire for what was the agent's fault, or have met it in a bad moment. Later ones
        need not show it: their plan sends only as much as that rate allows, so that something else is the limit too.
        """
        rates = [rate for rate in (before.wire_bytes_s, self.rates.wire_bytes_s) if math.isfinite(rate)]
        self._best_wire_bytes_s = max([self._best_wire_bytes_s, *rates])
        if not self.rates.wire_bytes_s * FASTER < self._best_wire_bytes_s:
            self._wire_retry.succeeded()
            return False
        due = self._wire_retry.due
        (self._wire_retry.failed if due else self._wire_retry.passed)()
        return due

    def _learn_load(self, epoch: EpochMeasure, planned: EpochTime, before_s: tuple[float, ...]) -> None:
        """How the CPU seconds of an epoch compare to those that were planned for it, with the upkeep of `before_s`."""
        rates, share = self.planning_rates, epoch.samples / max(1, len(self._data))
        self._note_load("loader_cores", epoch.loader_cpu_s, planned.loader_cpu_s * rates.loader_cores * share)
        counts = (epoch.samples - epoch.offloaded, epoch.offloaded)
        upkeep_s = sum(n * s for n, s in zip(counts, epoch.upkeep_s, strict=True))
        if epoch.agent_cpu_s > 2 * upkeep_s:  # else too little of it was ops and encodings to say something of them
            missed_s = sum(n * (new - old) for n, new, old in zip(counts, self._known_upkeep_s, before_s, strict=True))
            planned_s = planned.agent_cpu_s * rates.agent_cores * share + missed_s
            self._note_load("agent_cores", epoch.agent_cpu_s, planned_s)
        elif self._load.get("agent_cores", 1.0) > _MODEL_ERROR:
            # A plan that avoids the agent because of it would never show that it was only a disturbance.
            self._load["agent_cores"] = math.sqrt(self._load["agent_cores"])

    def _note_load(self, name: str, used_s: float, planned_s: float) -> None:
        """A disturbance can only make work take more CPU seconds: that it took far fewer is believed at once."""
        if used_s > 0 and 0 < planned_s < math.inf:
            load = min(max(used_s / planned_s, 1 / _MAX_LOAD), _MAX_LOAD)
            known = self._load.get(name, load)
            self._load[name] = load if load * _MODEL_ERROR < known else math.sqrt(load * known)

    @property
    def _known_upkeep_s(self) -> tuple[float, float]:
        """As measured, or else as the probes have shown."""
        file_s, run_s = (new or old for new, old in zip(self._upkeep_s, self.calibration.upkeep_s, strict=True))
        return file_s, run_s

    @property
    def planning_rates(self) -> Rates:
        """The rates in the CPU seconds that the cost model counts, which may be shorter or longer than real ones."""
        cores = {name: getattr(self.rates, name) / load for name, load in self._load.items()}
        return replace(self.rates, **cores)

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

    def model(self) -> CostModel:
        """What each choice costs."""
        calibration = replace(self.calibration, upkeep_s=self._known_upkeep_s)
        files_here = self._agreement is not None and self._agreement.terms.files_here
        plain = self.pipelines.plain_cuts(self._allowed)
        reach = self.pipelines.max_cut
        return CostModel(self.samples, calibration, reach, self._allowed, plain=plain, files_here=files_here)

    def table(self, epoch: int) -> ChoiceTable | None:
        """The costs of every choice in an epoch; None while no sample is profiled."""
        return self.model().table(self._shares(epoch))

    def _shares(self, epoch: int) -> NDArray[np.float64]:
        """The share of each picture that the first crop will read: exact for few samples, else like some drawn."""
        count = len(self._data)
        if count <= _EXACT_SHARES:
            return self._drawn_shares(range(count), epoch)
        drawn = self._drawn_shares([int(i) for i in np.linspace(0, count - 1, _EXACT_SHARES)], epoch)
        return np.resize(np.random.default_rng(0).permutation(drawn), count)

    def _drawn_shares(self, rows: Sequence[int], epoch: int) -> NDArray[np.float64]:
        shares = np.ones(len(rows))
        if not self.crops_first or self._agreement is None:
            return shares
        seed = self._agreement.terms.seed
        with isolated(GENERATORS):
            for position, row in enumerate(rows):
                chain = self.pipelines.chains[self._data.locate(row)[0]]
                shares[position] = region_share(chain, self.samples.sides[row], Draw(seed, epoch, row))
        return shares

    @property
    def calibration(self) -> Calibration:
        """What is the same for all samples."""
        if self._calibration is None:
            rows = sorted({probe.index for probe in self._probes})
            shares = dict(zip(rows, self._drawn_shares(rows, PROBE_EPOCH), strict=True))
            self._calibration = calibrated(
                self.samples, self._probes, shares, self._overhead_s, crops_first=self.crops_first
            )
        return self._calibration

    def facts(self, table: ChoiceTable | None) -> Facts:
        """What a policy plans from."""
        plain, resize_cut = self.pipelines.plain_cuts(self._allowed), self.pipelines.resize_cut
        compressed = resize_cut or 0 if not self._allowed.isdisjoint(COMPRESSED) else 0
        max_cut = plain[-1] if plain else compressed
        coverage = self.samples.coverage if table is not None else 0.0
        resize_cut = resize_cut if resize_cut in plain else None
        return Facts(len(self._data), self.planning_rates, table, max_cut, resize_cut, coverage)

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
            figures = found.figures
            calibration = Calibration.from_plain(figures["calibration"])
            calibration.check(self.samples.ops)
            wire, gpu = float(figures["wire_bytes_s"]), float(figures["gpu_samples_s"])
            rates = replace(self.rates, wire_bytes_s=wire, gpu_samples_s=gpu)
            self.samples.load(found.arrays)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.notes = (f"measuring anew: the profile at {path} does not fit: {error!r}",)
            return
        self._calibration, self._overhead_s, self.rates = calibration, calibration.overhead_s, rates
        self._saved_coverage = self.samples.coverage
        self.notes = (f"reusing the profile at {path}",)

    def _save(self) -> None:
        if self._path is None or self.samples.coverage <= self._saved_coverage:
            return
        figures: dict[str, Any] = {
            "calibration": self.model().calibration.to_plain(),
            "wire_bytes_s": self.rates.wire_bytes_s,
            "gpu_samples_s": self.rates.gpu_samples_s,
        }
        self._saved_coverage = self.samples.coverage
        try:
            save(self._path, self._key, StoredProfile(dict(self.samples.arrays()), figures))
        except OSError as error:  # the profile is there, only not for the next run
            self.notes = (*self.notes, f"cannot save the profile at {self._path}: {error}")


def _upkeep(totals: Totals) -> tuple[float, float]:
    files = totals.samples - totals.offloaded - totals.fallbacks
    return (
        (totals.upkeep_s - totals.offloaded_upkeep_s) / files if files >= _MIN_COUNTED else 0.0,
        totals.offloaded_upkeep_s / totals.offloaded if totals.offloaded >= _MIN_COUNTED else 0.0,
    )


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
