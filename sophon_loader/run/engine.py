"""Driver of an offloading loader in the main process: its agent, its runs, its epochs."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.utils.data import default_collate

from sophon_loader.auto.live_plan import LivePlan
from sophon_loader.auto.shared_live import Live
from sophon_loader.auto.shared_offers import SharedOffers
from sophon_loader.auto.shared_tariff import SharedTariff
from sophon_loader.auto.wanted_agents import WantedFile
from sophon_loader.batches.batches import BatchMemory
from sophon_loader.batches.collate import Collate
from sophon_loader.batches.slots import Slots
from sophon_loader.cache.loader_cache import cache_of, note_on, see_reads
from sophon_loader.datasets.pipelines import Pipeline, pipeline_of
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.policy import PricingPolicy, StagedPolicy
from sophon_loader.device.step_clock import StepClock
from sophon_loader.device.tail import split
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.epoch.account import Account
from sophon_loader.epoch.epoch import Epoch
from sophon_loader.errors import raised_by_handler
from sophon_loader.fleet.agent_chooser import AgentChooser
from sophon_loader.logs import log_line
from sophon_loader.measures.counters import Statistics, Totals
from sophon_loader.measures.findings import Findings
from sophon_loader.measures.moment import Moment
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.plans.gathering import exchange
from sophon_loader.plans.profiler import Profiler
from sophon_loader.plans.steering import Steering
from sophon_loader.ranks.ranks import ToldReports
from sophon_loader.report.report import Report
from sophon_loader.run.begin_live_plan import live_plan
from sophon_loader.run.exporting import CountedEpochs
from sophon_loader.run.outcome import LEFT, NO_EPOCH, circumstances, why_nothing
from sophon_loader.run.run import Run
from sophon_loader.settings import Settings

log = logging.getLogger(__name__)


class Engine:
    """The state of one OffloadingDataLoader whose dataset can be offloaded.

    Args:
        data: the dataset, taken apart.
        settings: of the loader.
    """

    def __init__(self, data: Offloadable, settings: Settings) -> None:
        self.data = data
        self._settings = settings
        self.options = settings.options
        self._cache = cache_of(data, settings.options)
        self._who = AgentChooser(data, settings)
        self._contact = self._who.contact
        self._live: LivePlan | None = None
        self._shared: Live | None = None
        self._steering: Steering | None = None
        self._run: Run | None = None
        self._processes, self._statistics, self._memory = 1, Statistics(1, encoding_names()), BatchMemory(1)
        self._slots: Slots | None = None
        self._dataset: Any = None
        self._epoch: Epoch | None = None
        self._iterations = 0
        self.counted = CountedEpochs()
        self._wanted_file = WantedFile()
        self._reports: ToldReports | None = None
        self._refused = ""  # why no epoch could begin

    # --- before an epoch --------------------------------------------------------------------------------------

    def prepare(
        self,
        seed: Seed,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        processes: int = 1,
        *,
        needed: bool = False,
    ) -> Any:
        """Return what workers are given from now on (`_dataset_of`); agree with the agent if that has not been done.

        Called before every epoch that starts new workers; does nothing while the transforms stay the same.

        Args:
            seed: of the run.
            collate_fn: the user's; `self.collate_fn` is then the one for the workers.
            processes: number of processes that load.
            needed: True if nothing can be done without the agent.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        pipelines = tuple(pipeline_of(owner) for owner in self.data.owners)
        run = self._run
        same = self._dataset is not None and self._goes_on_as(run, pipelines, collate_fn, seed, processes)
        if self._dataset is not None and same and processes == self._processes:
            return self._dataset
        if processes != self._processes:
            self._set_processes(processes)
        if run is None or not same:
            self._end_run()
            try:
                run = self._run = self._new_run(pipelines, collate_fn, seed, needed=needed)
            except Exception as error:
                self._refused = f": {error}"
                raise
            self._live = None
        else:
            run.profiler.resize(processes)
            self._close_dataset()
        priced = isinstance(self._settings.policy, PricingPolicy) and self._contact.asked
        self._shared = Live(SharedTariff(), SharedOffers(self._processes, encoding_names())) if priced else None
        self._live = self._live_plan(run)
        reused, plain = self._settings.options.reuse_batch_memory, run.split.arrange is None
        in_batches = reused and plain and run.split.collate_fn is default_collate
        self._slots = Slots(self._memory) if in_batches else None
        self._dataset = self._dataset_of(run)
        return self._dataset

    def _dataset_of(self, run: Run) -> Any:
        """Return what workers of a run are given: an `OffloadedDataset`, or something else in a subclass."""
        return run.dataset(
            None if self._steering is None else self._steering.shared,
            self._statistics,
            self._contact.routes,
            self._shared,
            fused=self._settings.options.fused,
            slots=self._slots,
            cache=self._cache,
        )

    @property
    def samples(self) -> int:
        """Number of samples in the dataset."""
        return len(self.data)

    def _live_plan(self, run: Run) -> LivePlan | None:
        samples, before, agent = self.samples, self._live, self._contact.agent
        if not self._contact.asked:
            return None
        admitted = 0.0 if self._cache is None else self._cache.share
        counted, processes = self._statistics, self._processes
        return live_plan(self._settings, run, agent, counted, processes, samples, before, admitted, self._shared)

    def _new_run(
        self,
        pipelines: tuple[Pipeline, ...],
        collate_fn: Callable[[list[Any]], Any],
        seed: Seed,
        *,
        needed: bool,
    ) -> Run:
        settings = self._settings
        divided = split([one.chain for one in pipelines], collate_fn, settings.tail)
        contact = self._contact = self._who.for_run()
        agreement = contact.begin(divided.chains, seed, self._processes, needed=needed)
        self._steering = self._reports = None
        # Only a plan needs something per sample. Without an agent there is none, and with prices the agent chooses.
        policy = settings.policy
        planned = None if isinstance(policy, PricingPolicy) or not contact.asked else policy
        whose = str(contact.agent) if contact.asked else "none"
        profiler = Profiler(
            self.data,
            divided.chains,
            agreement,
            self._processes,
            settings.profile,
            per_sample=planned is not None,
            agent=whose,
            stage_one_steps=policy.stage_one_steps if isinstance(policy, StagedPolicy) else 0,
        )
        if planned is not None:
            self._steering = Steering(planned, profiler, len(self.data))
        return Run(self.data, pipelines, collate_fn, divided, agreement, profiler, seed)

    def wanted(self) -> None:
        """Check, before each batch, if an agent has answered that was missing, given up, or started along with the
        loader.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset. The next
                iteration starts it again.
        """
        contact = self._contact
        if self._cache is not None and self._cache.reads.left_alone:
            see_reads(self._cache)
        self._who.look()
        self._see(contact.look)
        if contact.agreed is not None and not (self._steering is not None and self._steering.planner.by_cost):
            self._join()

    def meanwhile(self, epoch: Epoch) -> Callable[[], None] | None:
        """Return the function to call while a batch of an epoch is waited for; None if there is nothing to check.

        It looks for further agents of several, for reads of the cache that hang, and for a change of its folder.
        """
        several, cache = len(self._contact.routes) > 1, self._cache
        if not several and cache is None:
            return None
        known = weakref.ref(self)  # this engine holds the dataset, which holds what is returned: no circle

        def look() -> None:
            if cache is not None:
                see_reads(cache)
            engine = known() if several and not epoch.superseded else None
            if engine is not None:
                engine.wanted()

        return look

    def _see(self, look: Callable[[], bool]) -> None:
        """Check if an agent has answered."""
        try:
            came = look()
        except Exception as error:
            if self._contact.why_alone and not raised_by_handler(error):
                self._refused = f": {error}"
                self._know(self.run)
                self.close()
            raise
        if came and self._epoch is not None and not self._epoch.learnt:
            self._epoch.ready_after = self._epoch.delivered

    def _join(self) -> None:
        """Go on with an agent that has answered, if there is one."""
        agreement = self._contact.take()
        if agreement is None:
            return
        run, began_without = replace(self.run, agreement=agreement), bool(self._contact.missing)
        if began_without:
            run.profiler.begin(agreement, self._processes)
            if self._steering is not None:
                self._steering.begin_anew()
            else:
                self._live = self._live_plan(run)
        self._know(run)
        self._contact.tell_workers()
        epoch = self._epoch
        if not began_without or epoch is None or epoch.learnt:
            return
        if self._live is not None:
            self._live.begin(epoch.share)
        elif self._steering is not None and not self._steering.planner.by_cost:
            epoch.replanned = True
            self._steering.begin(epoch, agreement)

    def _begin_with_agent(self, *, measuring: bool) -> None:
        """Prepare an epoch: use an agent that has answered, or wait for it if nothing can be measured without it.

        Else warn the user once that it is missing.
        """
        self.wanted()
        if measuring and self._contact.missing:
            self._see(self._contact.wait)
        self._join()
        if self._contact.missing and self.run.agreement is None:
            self._contact.tell_missing()

    def may_change(self, processes: int) -> bool:
        """Return True if this number of processes can take over in the middle of the running epoch.

        The run must stay the same, and have no plan, since a plan is made and judged for a number of processes.
        """
        run, pipelines = self.run, tuple(pipeline_of(owner) for owner in self.data.owners)
        if self._steering is not None or self._epoch is None or self._epoch.measuring:
            return False
        return self._goes_on_as(run, pipelines, run.collate_fn, run.seed, processes)

    def _goes_on_as(
        self, run: Run | None, pipelines: tuple[Pipeline, ...], collate_fn: Any, seed: Seed, processes: int
    ) -> bool:
        """Return True if everything that a run began with is unchanged, the agent included."""
        asked, fits = self._contact.asked, self._contact.fits(processes) and not self._who.is_another
        return run is not None and fits and run.is_of(pipelines, collate_fn, seed, asked=asked)

    def goes_on(self, epoch: Epoch) -> None:
        """Note that other processes have taken over: plans that follow current costs begin again."""
        if self._live is not None:
            self._live.begin(epoch.share)

    def _know(self, run: Run) -> None:
        """Go on with the same run, after learning more about it."""
        self._run = run
        if self._epoch is not None:
            self._epoch.account.notes = run.notes(self._contact.note)

    def _set_processes(self, processes: int) -> None:
        if self._epoch is not None:  # goes on with others, if it does
            self._epoch.carried = self._epoch.with_carried(self._statistics.totals(self._epoch.iteration))
        self._processes = processes
        self._statistics = Statistics(processes, encoding_names())
        self._contact.resize(processes)
        self._memory = BatchMemory(processes)

    @property
    def run(self) -> Run:
        """The run that `prepare` has prepared."""
        assert self._run is not None, "prepare() comes first"
        return self._run

    @property
    def collate_fn(self) -> Any:
        """Function with which the workers make batches."""
        divided = self.run.split
        memory = self._memory if self._settings.options.reuse_batch_memory else None
        return Collate(divided.collate_fn, memory, divided.arrange, self._slots)

    @property
    def step_clock(self) -> StepClock:
        """Clock that measures the user's training step."""
        return self.run.profiler.clock

    # --- an epoch ---------------------------------------------------------------------------------------------

    def begin(
        self, number: int, lag: int, *, measuring: bool = False, share: float = 1.0, alone: bool = False
    ) -> Epoch:
        """Start an iteration: measure what is still unknown, and plan it.

        Args:
            number: of the epoch.
            lag: number of batches that workers ask for ahead of the one being delivered.
            measuring: run without offloading, and plan for the epochs to come.
            share: of the samples, that it is to deliver; predictions are for this share.
            alone: True if this rank may be the only one that iterates.
        """
        if self._epoch is not None:
            self._end_epoch(self._epoch, whole=False)
            self._epoch.superseded = True
        self._begin_with_agent(measuring=measuring)
        run, profiler, steering = self.run, self.run.profiler, self._steering
        self._iterations += 1
        account = Account(self._settings.policy.name, number, LEFT, run.notes(self._contact.note))
        self._epoch = epoch = Epoch(self._iterations, account, pass_length=self.samples, measuring=measuring, lag=lag)
        self.counted.begin(account)
        epoch.share = share
        self._statistics.said.begin()
        if self._reports is None:
            plans = steering is not None and steering.planner.needs_profile
            self._reports, gathering = exchange(self.data, profiler.samples if plans else None, alone=alone)
            if steering is not None:
                steering.gathering = gathering
        account.findings = Findings(rates=profiler.rates.measured())
        if self._live is not None:
            self._live.begin(share)
            account.findings = self._found(self._live)
        elif steering is not None and run.agreement is not None:
            if steering.planner.needs_profile:
                profiler.make_ready()
            steering.begin(epoch, run.agreement)
        return epoch

    def progressed(self, epoch: Epoch, seconds: float) -> None:
        """Update the report, and a plan that follows current costs.

        Args:
            epoch: the running one.
            seconds: since it began.
        """
        live, totals = self._live, epoch.with_carried(self._statistics.totals(epoch.iteration))
        self._contact.loop_waited(epoch.awaited_s)
        each = self._counts_each(epoch, totals)
        epoch.account.now = now = Moment(seconds, totals, epoch.awaited_s, round(each * epoch.delivered))
        as_agreed = self._dataset is None or self._dataset.as_agreed
        epoch.replanned |= not as_agreed  # the loop has changed a transform: what is measured is not of the plan
        if as_agreed and live is not None and live.progressed(now, each * self.step_clock.of_device_s):
            epoch.account.findings = found = self._found(live)
            self._wanted_file.say(self._contact.announced_in, found.wanted)
        self._contact.tell_fallbacks(totals)

    def _counts_each(self, epoch: Epoch, totals: Totals) -> float:
        """Return how often workers count for each sample of the training."""
        return 1.0

    def _found(self, live: LivePlan) -> Findings:
        return live.findings(judging=self.step_clock.judges, of_one=self._contact.cores_of_one)

    def delivered(self, epoch: Epoch, seconds: float, samples: int) -> None:
        """Note that a batch has arrived.

        Args:
            epoch: of the batch.
            seconds: since the batch before.
            samples: number of samples in the batch.
        """
        steering, profiler, agreement = self._steering, self.run.profiler, self.run.agreement
        if profiler.in_stage_one and (found := profiler.first_steps(epoch.this_pass()[1])):
            epoch.account.findings = replace(epoch.account.findings, plan_reason=found)
        if not epoch.measuring and steering is not None and steering.planner.trying and agreement is not None:
            steering.delivered(epoch, agreement, seconds, samples)

    def turned_over(self, epoch: Epoch) -> None:
        """Learn and plan, because the epoch has delivered as many samples as the dataset has, and goes on."""
        if epoch.measuring:
            return
        if self._live is not None:
            epoch.turn_over()
            return
        self._learn(epoch, whole=True)
        epoch.turn_over()
        self._join()
        if self._steering is not None and self.run.agreement is not None:
            self._steering.turned_over(epoch, self.run.agreement)

    def finished(self, epoch: Epoch) -> None:
        """Note that the epoch has delivered its last batch."""
        self.step_clock.pause()
        self._end_epoch(epoch, whole=True)
        if self._reports is not None:
            self._reports.tell(epoch.iteration, self.report())
        seconds, limits = epoch.account.moment.seconds, epoch.account.findings.bottleneck
        log.info(log_line("epoch ended", epoch=epoch.number, samples=epoch.delivered, seconds=seconds, limits=limits))

    def _end_epoch(self, epoch: Epoch, *, whole: bool) -> None:
        """Learn from an epoch, if that has not been done; `whole` if it was not given up."""
        account = epoch.account
        if account.moment.totals.samples and not epoch.learnt:
            if self._live is not None:
                account.findings = self._found(self._live)
            account.why_not = self._why_not(epoch)
            epoch.learnt = True
            epoch.note_starving(self._processes)
            if self._live is not None:
                self.run.profiler.keep_live(self._live.kept())
                return
            self._learn(epoch, whole=whole and not epoch.partial and not account.passes)

    def _learn(self, epoch: Epoch, *, whole: bool) -> None:
        """Learn from the pass that has just ended; `whole` if it delivered as many samples as the dataset has."""
        profiler, steering = self.run.profiler, self._steering
        seconds, totals = epoch.this_pass()
        measure = profiler.epoch_measure(totals, seconds, self._processes)
        profiler.learn(measure, None if steering is None else steering.predicted(epoch, totals, whole=whole))
        if steering is not None and steering.gathering is not None and self.run.agreement is not None:
            steering.gathering.tell()
        account = epoch.account
        account.findings = profiler.findings(account.findings, measure, totals, measured=epoch.measuring)

    def _why_not(self, epoch: Epoch) -> str:
        """Return the reason why nothing was offloaded; for an epoch that has ended, the reason at its end."""
        if epoch.learnt:
            return epoch.account.why_not
        followed = self._live or (self._steering.planner if self._steering is not None else None)
        found = circumstances(self.run, self._contact, self._settings.policy, followed)
        return why_nothing(replace(found, ready_after=epoch.ready_after), epoch.account.report())

    @property
    def has_begun(self) -> bool:
        """True if there has been an epoch."""
        return self._epoch is not None

    def report(self) -> Report:
        """Return the report of the newest epoch; it does not change later."""
        if self._epoch is None:
            return Report(self._settings.policy.name, NO_EPOCH + self._refused)
        account, judged = self._epoch.account, self.step_clock.judges
        said = self._statistics.said.notes(account.moment.totals.degraded)
        agents, of_agents = self._contact.shares()
        return account.report(
            why_not=self._why_not(self._epoch),
            judged=judged,
            notes=(*said, *(one.note for one in agents), *of_agents, *note_on(self._cache, self._settings.policy)),
            agents=tuple(agents),
            agent_address="" if self._contact.agent is None else str(self._contact.agent),
            group_bytes=self._contact.group_bytes(),
        )

    def report_of_ranks(self) -> Report:
        """Return the sum of the ranks' reports of this rank's newest epoch; see `ToldReports`."""
        if self._reports is None or self._epoch is None:
            return self.report()
        return self._reports.summed(self._epoch.iteration, self.report(), ended=self._epoch.learnt)

    # --- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the local agent and this process's connection, if there are any; a later epoch starts them again."""
        self._end_run()
        self._contact.close()
        self._wanted_file.close()
        self._memory.forget_ended()

    def _end_run(self) -> None:
        self._contact.leave()
        if self._dataset is not None:
            if self._epoch is not None:
                self._epoch.account.why_not = self._why_not(self._epoch)
                self._epoch.learnt = True  # what has been measured of it is of the pipelines of before
            self.run.profiler.cancel_probing()
            self._close_dataset()

    def _close_dataset(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
            self._dataset = None
