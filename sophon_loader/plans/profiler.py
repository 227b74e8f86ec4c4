"""Measurements of a run in the main process: rates, sample costs, and a policy's facts.

Owns the connections and the thread that measure; the other files here draw the conclusions.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

from sophon_loader.auto.shared_live import KeptLive
from sophon_loader.client.connection import Connection
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Choice, ChoiceTable, Facts, Rates
from sophon_loader.decide.words import resource
from sophon_loader.device.step_clock import StepClock, gpu_utilisation
from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.errors import AgentUnreachable
from sophon_loader.fleet.agreement import Agreement
from sophon_loader.host.system import cores_available
from sophon_loader.measures.counters import Totals
from sophon_loader.measures.findings import Findings
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import Chain
from sophon_loader.plans.allowed_cuts import AllowedCuts
from sophon_loader.plans.burst import measure_wire
from sophon_loader.plans.calibration import Calibration, calibrated, fitted_choices
from sophon_loader.plans.costs import CostModel
from sophon_loader.plans.dry_runs import Prober
from sophon_loader.plans.kept import ProfileFile, TrialFile, profile_key
from sophon_loader.plans.learnt import MIN_COUNTED, Bounds, Learnt
from sophon_loader.plans.probes import PROBE_EPOCH, Probe, ProbeRequest, UpkeepCosts, spread_over
from sophon_loader.plans.rates import EpochMeasure
from sophon_loader.plans.shares import CropShares
from sophon_loader.plans.stages import Throughput
from sophon_loader.plans.trial_windows import KeptTrials
from sophon_loader.wire.frames import content_hash

_PROBE_WAIT_S = 5.0
"""Seconds that an epoch's end waits for remaining dry runs; without them the agent's CPU counts as the loader's."""


class Profiler:
    """Measures a run and remembers it.

    Example:
        >>> profiler = Profiler(data, chains, agreement, processes=2, path=None)
        >>> profiler.learn(profiler.epoch_measure(totals, seconds=12.5, processes=2))
        >>> plan = policy.plan(profiler.facts(profiler.table(epoch=1)))

    Args:
        data: the dataset, taken apart.
        chains: its pipelines, by source.
        agreement: None without an agent; then nothing is planned, but rates are still reported.
        processes: number of loader processes.
        path: where profiles are kept, or None.
        per_sample: True to keep each sample's costs; otherwise nothing grows with the dataset.
        agent: identifies a profile's agent, if that is known before the agreement; see `Agreement.agent`.
        stage_one_steps: number of an epoch's steps that decide if samples are measured; 0: they are, under any limit.

    Attributes:
        learnt: results of epochs.
        samples: costs of each sample; filled by the workers.
        clock: measures the training step.
        pipelines: what the pipelines allow.
        notes: on the profile's file, for the report.
    """

    def __init__(
        self,
        data: Offloadable,
        chains: tuple[Chain, ...],
        agreement: Agreement | None,
        processes: int,
        path: Path | None,
        *,
        per_sample: bool = True,
        agent: str = "none",
        stage_one_steps: int = 0,
    ) -> None:
        self._data = data
        self._chains = chains
        self._path, self._per_sample, self._agent = path, per_sample, agent
        self._stage_one_steps = stage_one_steps
        self.clock = StepClock()
        self.samples = SampleProfile(len(data) if per_sample else 0, max((len(chain) for chain in chains), default=1))
        self.begin(agreement, processes)

    def begin(self, agreement: Agreement | None, processes: int) -> None:
        """Begin to measure; called again if an agent comes later, with its agreement.

        Args:
            agreement: None without an agent.
            processes: number of loader processes.
        """
        data, path, per_sample = self._data, self._path, self._per_sample
        self._agreement = agreement
        self._allowed = frozenset(agreement.encodings if agreement else ())
        self.pipelines = AllowedCuts(self._chains, agreement.reach if agreement else tuple(0 for _ in self._chains))
        loader_cores = min(cores_available(), float(processes))
        self.learnt = Learnt.nothing(Bounds(loader_cores, agreement.agent_cores if agreement else None, len(data)))
        seed = agreement.terms.seed if agreement else None
        self._shares = CropShares(self.pipelines, data.source_of.array, self.samples, seed)
        self._probes: list[Probe] = []
        self._prober: Prober | None = None
        self._calibration: Calibration | None = None
        self.notes: tuple[str, ...] = ()
        self._file: ProfileFile | None = None
        self._trials: TrialFile | None = None
        if path is not None:
            key = profile_key(data, self._chains, agreement.agent if agreement else self._agent)
            self._file = ProfileFile(path, key)
            cores = {"loader_cores": loader_cores, "agent_cores": agreement.agent_cores if agreement else 0.0}
            self._trials = TrialFile(path, key, {"processes": float(processes), **cores})
        if self._file is not None and per_sample:
            found = self._file.reuse(self.samples, self.learnt.rates)
            if isinstance(found, str):
                self.notes = (f"measuring anew: {found}",)
            else:
                self.notes = (f"reusing the profile at {path}",)
                self._calibration = found.calibration
                self.learnt = replace(self.learnt, rates=found.rates, overhead_s=found.calibration.overhead_s)
        self.samples.recording = agreement is not None and self.samples.coverage < 1 and not self._stage_one_steps
        self._stage_one_left = 0
        self._unoffloaded: Totals | None = None  # the newest of a pass without offloading

    def reuse_live(self) -> KeptLive | None:
        """Return an earlier run's figures for a policy that sets prices; None without any, and `notes` then say why."""
        if self._file is None:
            return None
        found = self._file.reuse_live()
        fits = isinstance(found, KeptLive)
        self.notes = (f"reusing the profile at {self._file.path}" if fits else f"measuring anew: {found}",)
        return found if isinstance(found, KeptLive) else None

    def keep_live(self, kept: KeptLive) -> None:
        """Write the figures of a policy that sets prices, if a profile is kept."""
        if self._file is not None:
            self._note(self._file.save_live(kept))

    def reuse_trials(self) -> KeptTrials | None:
        """Return an earlier run's trials, for a policy that tries; None without any, and `notes` then say why."""
        if self._trials is None:
            return None
        found = self._trials.reuse()
        self._note(f"trying anew: {found}" if isinstance(found, str) else f"reusing the trials at {self._trials.path}")
        return None if isinstance(found, str) else found

    def keep_trials(self, kept: KeptTrials) -> None:
        """Write the trials, if a profile is kept."""
        if self._trials is not None:
            self._note(self._trials.save(kept))

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes = (*self.notes, text)

    def resize(self, processes: int) -> None:
        """Note another number of loader processes."""
        self.learnt = self.learnt.resized(min(cores_available(), float(processes)))

    @property
    def rates(self) -> Rates:
        """Rates of the resources, as epochs have shown them."""
        return self.learnt.rates

    @property
    def planning_rates(self) -> Rates:
        """The rates to plan with; see `Learnt.planning_rates`. The GPU's is that of the steps up to now."""
        rates, gpu_samples_s = self.learnt.planning_rates, self.clock.samples_s
        return rates if math.isinf(gpu_samples_s) else replace(rates, gpu_samples_s=gpu_samples_s)

    @property
    def knows_wire(self) -> bool:
        """True if the wire needs no burst before the next plan; see `Learnt.knows_wire`."""
        return self.learnt.knows_wire

    # --- measuring --------------------------------------------------------------------------------------------

    def measure_wire(self) -> None:
        """Measure the wire by a burst of files, while the workers do not use it; nothing if the agent is gone."""
        found: float | None = None
        if self._agreement is not None:
            terms = self._agreement.terms
            keys = [self._agreement.locations.key_in_export(index) for index in spread_over(len(self._data))]
            connection = Connection(terms.address, terms.options.window, terms.options)
            try:
                with contextlib.suppress(AgentUnreachable):
                    found = measure_wire(connection, keys, terms.options.window)
            finally:
                connection.close()
        self.learnt = self.learnt.after_burst(found)

    def make_ready(self) -> None:
        """Make sure that the wire's rate is known if needed, as an epoch begins whose policy plans by sample costs."""
        staged = self._stage_one_steps > 0 and self.samples.coverage < 1 and not self.samples.recording
        self._stage_one_left = self._stage_one_steps if staged and self._agreement is not None else 0
        if (self._stage_one_left or self.samples.known.any()) and not self.knows_wire:
            self.measure_wire()  # the last epoch did not wait for the wire, so it has not shown its limit

    @property
    def in_stage_one(self) -> bool:
        """True if the limiting resource is still unknown, and `first_steps` is to be called."""
        return self._stage_one_left > 0

    def first_steps(self, totals: Totals) -> str:
        """Add a batch while `in_stage_one`, which decides if samples are measured from now on.

        Args:
            totals: of the epoch so far, without offloading.

        Returns:
            The result of stage 1, in words, after its last step; else "".
        """
        self._stage_one_left -= 1
        found = self._throughput(totals)
        if self._stage_one_left or found is None:
            return ""
        if found.bottleneck != "io":
            limiting = resource(found.bottleneck)
            return f"stage 1: {limiting} limits ({found}): samples are not measured, and nothing is offloaded"
        self.samples.recording = True
        self.start_probing()
        return f"stage 1: the network limits ({found}): this epoch measures, without offloading"

    def findings(self, before: Findings, epoch: EpochMeasure, totals: Totals, *, measured: bool) -> Findings:
        """Return the findings from an epoch, or from one pass of an endless one.

        Args:
            before: earlier findings, whose plan stays.
            epoch, totals: its measurements, and its counts.
            measured: True if it ran without offloading, to measure only.
        """
        rates, throughput = self.rates.measured(), self.throughput(totals, measured=measured)
        busy = gpu_utilisation()
        if busy is not None:
            rates["gpu_busy_share"] = busy
        bottleneck = epoch.bottleneck(self.rates) if self.clock.judges else None
        return replace(before, bottleneck=bottleneck, rates=rates, throughput=throughput)

    def throughput(self, totals: Totals, *, measured: bool) -> dict[str, float]:
        """Return stage 1 after a pass: samples/s of GPU, I/O and CPU by themselves, those that are known, by name.

        Args:
            totals: of the pass.
            measured: True if the wire is to be measured now, if it is not known.
        """
        if measured and not self.knows_wire:
            self.measure_wire()
        if not totals.offloaded:
            self._unoffloaded = totals
        found = None if self._unoffloaded is None else self._throughput(self._unoffloaded)
        return {} if found is None else found.measured()

    def _throughput(self, totals: Totals) -> Throughput | None:
        if not totals.samples:
            return None
        rates = replace(self.rates, gpu_samples_s=self.clock.samples_s)
        return Throughput.of(rates, totals.samples, totals.file_bytes, totals.loader_cpu_s)

    def start_probing(self) -> None:
        """Have the agent run a few samples dry, at the same time as the epoch."""
        if self._agreement is None or self._prober is not None or self._probes:
            return
        terms, requests = self._agreement.terms, []
        for index in spread_over(len(self._data)):
            source, _ = self._data.locate(index)
            if terms.known and terms.known[source] < 0:
                continue  # it is not asked by the pipeline
            digest = content_hash(terms.registrations[source])
            key = self._agreement.locations.key_in_export(index)
            for choice in self._probed_choices(source):
                requests.append(ProbeRequest(index, choice.cut, choice.encoding, key, digest))
        if requests:
            self._prober = Prober(terms.address, requests, terms.seed, terms.options)
            self._prober.start()

    def _probed_choices(self, source: int) -> list[Choice]:
        """Return the choices to try with a sample of this source: all ops, and encodings whose sizes need trials."""
        pipelines, reach = self.pipelines, self.pipelines.reach[source]
        choices = [Choice(reach, PLAIN[0])] if reach else []
        return choices + fitted_choices(
            self._allowed,
            reach=reach,
            resize_cut=pipelines.chains[source].resize_cut,
            crops_first=pipelines.crops_first,
        )

    def cancel_probing(self) -> None:
        """Have the prober ask no more; its results are lost."""
        if self._prober is not None:
            self._prober.cancel(_PROBE_WAIT_S)
            self._prober = None

    def epoch_measure(self, totals: Totals, seconds: float, processes: int) -> EpochMeasure:
        """Return the measurements of an epoch, or of one pass of an endless one, that rates are learnt from.

        Args:
            totals: counted by its workers.
            seconds: its duration.
            processes: number of loader processes.
        """
        return EpochMeasure(
            seconds=seconds,
            samples=totals.samples,
            wire_bytes=totals.wire_bytes,
            loader_cpu_s=totals.loader_cpu_s,
            agent_cpu_s=totals.agent_cpu_s,
            gpu_samples_s=self.clock.samples_s,
            queueing=totals.queued_s / totals.turnaround_s if totals.turnaround_s > 0 else 0.0,
            waiting=totals.waited_s / (seconds * processes) if seconds > 0 else 0.0,
            starving=totals.starved_s / (seconds * processes) if seconds > 0 else 0.0,
            offloaded=totals.offloaded,
            upkeep_s=_upkeep(totals),
        )

    def learn(self, epoch: EpochMeasure, planned: EpochTime | None = None) -> None:
        """Learn from an epoch, and keep the profile if it has grown.

        Args:
            epoch: its measurements.
            planned: the plan's estimate for an epoch over all samples, if one was followed to the end.
        """
        measured = self.samples.recording
        ops_s = self.samples.mean_ops_s if measured and not epoch.offloaded else None
        self.learnt = self.learnt.after(epoch, planned, self.calibration.upkeep_s, ops_s)
        if measured:
            if self._prober is not None:
                self._probes = self._prober.finish(_PROBE_WAIT_S)
                self._prober = None
            self._calibration = None
            self.samples.recording = self.samples.coverage < 1
            self._keep()

    def grown(self) -> None:
        """Use the profiles of more samples, which others have measured, and keep the profile."""
        self._calibration = None
        self.samples.recording = self.samples.coverage < 1
        self._keep()

    def _keep(self) -> None:
        if self._file is not None:
            self._note(self._file.save(self.samples, self.model().calibration, self.rates))

    # --- planning ---------------------------------------------------------------------------------------------

    @property
    def calibration(self) -> Calibration:
        """Figures that hold for all samples, without the upkeep that epochs have shown."""
        if self._calibration is None:
            rows = sorted({probe.index for probe in self._probes})
            shares = dict(zip(rows, self._shares.of(rows, PROBE_EPOCH), strict=True))
            self._calibration = calibrated(
                self.samples, self._probes, shares, self.learnt.overhead_s, crops_first=self.pipelines.crops_first
            )
        return self._calibration

    def model(self) -> CostModel:
        """Return the cost model of all choices."""
        upkeep_s = self.learnt.known_upkeep_s(self.calibration.upkeep_s)
        calibration = replace(self.calibration, upkeep_s=upkeep_s)
        files_here = self._agreement is not None and self._agreement.terms.files_here
        plain = self.pipelines.plain_cuts(self._allowed)
        reach = self.pipelines.max_cut
        return CostModel(self.samples, calibration, reach, self._allowed, plain=plain, files_here=files_here)

    def table(self, epoch: int) -> ChoiceTable | None:
        """Return the costs of every choice in an epoch; None while no sample is profiled."""
        return self.model().table(self._shares.in_turn(epoch))

    def facts(self, table: ChoiceTable | None) -> Facts:
        """Return the facts that a policy plans from."""
        plain, resize_cut = self.pipelines.plain_cuts(self._allowed), self.pipelines.resize_cut
        fitted = fitted_choices(
            self._allowed,
            reach=self.pipelines.max_cut,
            resize_cut=resize_cut,
            crops_first=self.pipelines.crops_first,
        )
        max_cut = plain[-1] if plain else max((choice.cut for choice in fitted), default=0)
        coverage = self.samples.coverage if table is not None else 0.0
        resize_cut = resize_cut if resize_cut in plain else None
        offered_cores = self._agreement.agent_cores if self._agreement else 0.0
        return Facts(len(self._data), self.planning_rates, table, max_cut, resize_cut, coverage, offered_cores)


def _upkeep(totals: Totals) -> UpkeepCosts:
    """Return the mean upkeep of either kind of sample, if there were enough of them."""
    files = totals.samples - totals.offloaded - totals.fallbacks
    upkeep = UpkeepCosts()
    if files >= MIN_COUNTED:
        upkeep = upkeep._replace(file_s=(totals.upkeep_s - totals.offloaded_upkeep_s) / files)
    if totals.offloaded >= MIN_COUNTED:
        upkeep = upkeep._replace(op_s=totals.offloaded_upkeep_s / totals.offloaded)
    return upkeep
