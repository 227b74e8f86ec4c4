"""What drives an offloading loader in the main process: the agreement with the agent, the plan, the epochs."""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from sophon_loader.client.address import Address
from sophon_loader.client.local_agent import LocalAgent
from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.pipelines import Pipeline, pipeline_of, same_pipeline
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.cost import EpochTime, moved
from sophon_loader.decide.facts import FILE, Facts, Rates
from sophon_loader.decide.plan import Plan, uniform_plan
from sophon_loader.decide.policy import Policy, TryingPolicy
from sophon_loader.encodings.names import encoding_names, missing
from sophon_loader.encodings.registry import PLAIN
from sophon_loader.errors import ConfigError, OffloadWarning
from sophon_loader.host import cores_available
from sophon_loader.main.agreement import Agreement, agree, common_root, own_address
from sophon_loader.main.profiler import Profiler
from sophon_loader.main.tail import Split, Tail, split
from sophon_loader.main.trials import TrialRunner
from sophon_loader.profiling.guard import Guard
from sophon_loader.profiling.steps import StepClock, gpu_utilisation
from sophon_loader.report import Report
from sophon_loader.workers.batches import BatchMemory, Collate
from sophon_loader.workers.counters import NO_TOTALS, Statistics, Totals
from sophon_loader.workers.dataset import OffloadedDataset
from sophon_loader.workers.plan import SharedPlan

_MAX_DEGRADED = 0.05
"""Of an epoch's samples: with more of them at an earlier cut than planned, its CPU seconds say nothing of the plan."""

_MIN_SPARE = 0.01
"""Cores that a local agent is counted to have where the loader's processes may use all: too few to be worth a thing."""


class Engine:
    """The state of one OffloadingDataLoader whose dataset can be offloaded.

    Args:
        agent: an address, "local", or None to read all files on this host.
        encodings: names that may be used on the wire.
        rows: number of processes that load.
        profile_path: where profiles are kept, or None.
        tail: the device on which the last ops shall run, batch by batch; None to run all ops with the samples.
    """

    def __init__(
        self,
        data: Offloadable,
        agent: str | None,
        policy: Policy,
        encodings: Sequence[str],
        options: OffloadOptions,
        rows: int,
        profile_path: Path | None = None,
        tail: torch.device | None = None,
    ) -> None:
        self.data = data
        self.options = options
        own = own_address(data)
        self._agent = str(own) if agent is None and own is not None else agent
        self._address = Address.parse(self._agent) if self._agent not in (None, "local") else None
        self._local_agent: LocalAgent | None = None
        self._policy = policy
        self._encodings = tuple(name for name in encoding_names() if name in encodings)
        self._processes = rows
        self._profile_path = profile_path
        self._statistics = Statistics(rows, encoding_names())
        self._memory = BatchMemory(rows)
        self._plan = SharedPlan(len(data), encoding_names())
        self._iteration = self._epoch = self._lag = 0
        self._warned_of_silence = False
        self._tail_device = tail
        self._split: Split
        self._user_collate_fn: Any = None
        self._pipelines: list[Pipeline] = []
        self._dataset: OffloadedDataset | None = None
        self._agreement: Agreement | None = None
        self._profiler: Profiler
        self._planned_for: tuple[float, Rates] | None = None
        self._current: Plan
        self._predicted: EpochTime | None = None
        self._trials: TrialRunner | None = None
        self._learnt = True
        self._replanned = False  # in mid-epoch, or in mid-pass
        self._guard = Guard()
        self._guarded = False  # the plan is the guard's
        self._pass_began: tuple[float, Totals] = (0.0, NO_TOTALS)
        self.profiling = False
        self._report = Report(policy=policy.name)

    # --- before the first epoch -------------------------------------------------------------------------------

    def prepare(
        self, seed: int, collate_fn: Callable[[list[Any]], Any] = default_collate, processes: int = 1
    ) -> OffloadedDataset:
        """Agree with the agent and plan; the dataset that the workers shall use from now on.

        Called before every epoch that starts new workers; does nothing while the transforms stay the same.

        Args:
            collate_fn: the user's; `self.collate_fn` is then the one for the workers.
            processes: that load.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        pipelines = [pipeline_of(owner) for owner in self.data.owners]
        same = (
            self._dataset is not None
            and self._user_collate_fn is collate_fn
            and all(map(same_pipeline, self._pipelines, pipelines))
        )
        if self._dataset is not None and same and processes == self._processes:
            return self._dataset
        if processes != self._processes:
            self._processes = processes
            self._statistics = Statistics(processes, encoding_names())
            self._memory = BatchMemory(processes)
        if same:
            self._profiler.resize(processes)
            self._close_dataset()
        else:
            self._forget_dataset()
            self._pipelines, self._user_collate_fn = pipelines, collate_fn
            self._split = split([one.chain for one in pipelines], collate_fn, self._tail_device)
            self._agreement = self._agree(seed) if self._agent is not None and len(self.data) else None
            self._profiler = Profiler(self.data, self._split.chains, self._agreement, processes, self._profile_path)
            self._planned_for = None
            self._trials = None
            self._guard = Guard()
        self._dataset = OffloadedDataset(
            self.data,
            self._split.chains,
            [one.target_transform for one in pipelines],
            [len(one.chain) for one in pipelines],
            self._profiler.pipelines.reach,
            self._plan,
            self._statistics,
            self._profiler.samples,
            self._agreement.terms if self._agreement else None,
            seed,
        )
        return self._dataset

    @property
    def collate_fn(self) -> Any:
        """What the workers shall make batches with."""
        return Collate(self._split.collate_fn, self._memory, self._split.arrange)

    def _notes(self) -> tuple[str, ...]:
        local = sorted({label for chain in self._split.chains for label in chain.local_ops[:1]})
        notes = [f"{label} and what follows it stays at the loader: the op is not registered" for label in local]
        notes += [f"{name} is not offered: {why}" for name, why in missing().items() if name == "roi-jpeg"]
        notes += self._split.notes
        if self._agreement is not None:
            if set(PLAIN).isdisjoint(self._agreement.encodings):
                notes.append("no value crosses as it is: neither pixels nor array is among the encodings allowed")
            notes += self._agreement.notes
        return (*notes, *self._profiler.notes)

    def _agree(self, seed: int) -> Agreement:
        if self._agent == "local" and self._local_agent is None:
            base = common_root(self.data)
            if base is None or any(source.root is None for source in self.data.sources):
                raise ConfigError("agent='local' must have a dataset on this host, got a RemoteImageFolder")
            self._local_agent = LocalAgent(base, self.options)
        address = self._local_agent.address if self._local_agent else self._address
        assert address is not None
        agreement = agree(self.data, self._split.chains, address, self.options, seed, self._encodings)
        if self._local_agent is None:
            return agreement
        # It shares this host's cores with the loader's processes.
        spare = max(cores_available() - self._processes, _MIN_SPARE)
        terms = replace(agreement.terms, files_here=self.options.agent_limit_mbit is None)
        return replace(agreement, terms=terms, agent_cores=min(agreement.agent_cores, spare))

    # --- epochs -----------------------------------------------------------------------------------------------

    def begin(self, epoch: int, lag: int) -> int:
        """A new iteration starts: measure what is still unknown, and plan it; returns its number.

        Args:
            lag: batches that workers ask for ahead of the one being delivered.
        """
        self._end_epoch()
        self._iteration += 1
        self._replanned = False
        self._epoch, self._lag = epoch, lag
        self._pass_began = (0.0, NO_TOTALS)
        self._report = Report(policy=self._policy.name, notes=self._notes())
        if self._agreement is not None:
            self._measure_before()
            self._follow_plan()
        self._report.rates = _finite(asdict(self._profiler.rates))
        return self._iteration

    def _measure_before(self) -> None:
        profiler = self._profiler
        if self._policy.needs_profile and profiler.samples.known.any() and not profiler.knows_wire:
            profiler.measure_wire()  # the last epoch did not wait for the wire, so it has not shown what that can do
        if profiler.samples.recording and self._plans_by_cost:
            profiler.start_probing()

    @property
    def _plans_by_cost(self) -> bool:
        return self.profiling or self._policy.needs_profile or isinstance(self._policy, TryingPolicy)

    def _follow_plan(self) -> None:
        """Plan, if there is none yet or the rates have moved from under it."""
        profiler = self._profiler
        if self.profiling:
            self._planned_for = None
            self._set_plan(self._measuring())
            return
        if isinstance(self._policy, TryingPolicy):
            # Decided by trying; the table only serves to predict.
            self._trials = self._trials or TrialRunner(self._policy, self._facts, self._lag)
            self._set_plan(self._trials.plan)
            return
        known = (profiler.samples.coverage, profiler.planning_rates)
        before = self._planned_for
        changed = before is None or before[0] != known[0] or moved(before[1], known[1])
        if before is not None and changed:
            self._guard.rates_moved()
        if self._guard.must_not_offload and getattr(self._policy, "guarded", False):
            self._guarded = True
            self._set_plan(uniform_plan(self._policy.name, len(self.data), FILE, self._guard.reason))
            return
        if before is not None and not changed and not self._guarded:
            terms = self._current.predicted
            self._tell_plan(self._current, terms and terms.at(before[1], known[1]))
            return
        self._guarded = False
        table = profiler.table(self._epoch)
        if table is None and self._policy.needs_profile:
            plan = self._measuring()
        else:
            plan = self._policy.plan(profiler.facts(table))
            self._planned_for = known
        self._set_plan(plan)

    def _facts(self) -> Facts:
        return self._profiler.facts(self._profiler.table(self._epoch))

    def _measuring(self) -> Plan:
        return uniform_plan(self._policy.name, len(self.data), FILE, "this epoch measures, without offloading")

    def _set_plan(self, plan: Plan) -> None:
        self._current = plan
        dear = plan.prices is not None and (plan.prices.wire or plan.prices.agent or plan.prices.loader)
        allowed = self._agreement.encodings if self._agreement else None
        self._plan.set(plan, self._profiler.model() if dear else None, allowed)
        self._tell_plan(plan, plan.predicted)

    def _tell_plan(self, plan: Plan, predicted: EpochTime | None) -> None:
        self._predicted = predicted
        self._report.plan_reason = plan.reason
        self._report.predicted_seconds = predicted.seconds if predicted else None

    def delivered(self, seconds: float, samples: int) -> None:
        """A batch has come, `seconds` after the one before."""
        if self.profiling or self._trials is None or self._trials.done:
            return
        totals = self._statistics.totals(self._iteration)
        plan = self._trials.delivered(seconds, samples, totals.loader_cpu_s / max(1, totals.samples))
        if plan is not None:
            self._replanned = True
            self._set_plan(plan)

    def note_progress(self, seconds: float) -> None:
        """Bring the report up to date, `seconds` into the epoch."""
        totals = self._statistics.totals(self._iteration)
        self._report.update(self._epoch, seconds, totals)
        if totals.fallbacks and not self._warned_of_silence:
            self._warned_of_silence = True
            warnings.warn(
                f"the agent at {self._address or 'local'} does not answer: files are read on this host until it does; "
                "report() counts them as fallbacks",
                OffloadWarning,
                stacklevel=4,  # of the loop that iterates
            )

    def turn_over(self) -> None:
        """The iteration has delivered as many samples as the dataset has, and goes on: learn, and plan what follows."""
        if self.profiling:
            return
        self._learn(whole=True)
        self._report.passes += 1
        self._pass_began = (self._report.seconds, self._report.totals)
        if self._agreement is not None:
            before = self._current
            if self._profiler.samples.recording and self._plans_by_cost:
                self._profiler.start_probing()
            self._follow_plan()
            self._replanned = self._current is not before  # some of what comes next was asked for by the old plan

    def _end_epoch(self, *, whole: bool = False) -> None:
        """Learn from the iteration that has just ended or, not `whole`, been given up."""
        if self._report.totals.samples and not self._learnt:
            self._learnt = True
            self._learn(whole=whole and not self._report.passes)

    def _learn(self, *, whole: bool) -> None:
        """Learn from the pass that has just ended; `whole` if it was one over as many samples as there are."""
        report = self._report
        began_s, before = self._pass_began
        totals, seconds = report.totals.since(before), report.seconds - began_s
        measure = self._profiler.epoch_measure(totals, seconds, self._processes)
        odd = totals.fallbacks or totals.degraded > _MAX_DEGRADED * totals.samples
        as_planned = whole and not odd and not self._replanned
        self._profiler.learn(measure, self._predicted if as_planned else None)
        if as_planned and self._agreement is not None and not self.profiling:
            self._guard.told(totals.samples, seconds, offloading=self._offloads)
        report.bottleneck = self._profiler.bottleneck(measure)
        report.rates = _finite(asdict(self._profiler.rates))
        busy = gpu_utilisation()
        if busy is not None:
            report.rates["gpu_busy_share"] = busy

    @property
    def _offloads(self) -> bool:
        """Whether the current plan has anything done at the agent."""
        return any(choice != FILE for choice in self._current.counts())

    def finished(self) -> None:
        """The iteration has delivered its last batch."""
        self._profiler.clock.pause()
        self._end_epoch(whole=True)

    def current(self) -> tuple[int, int]:
        """(iteration, epoch) of the iteration that has begun last."""
        return self._iteration, self._epoch

    @property
    def step_clock(self) -> StepClock:
        """Measures the user's training step."""
        return self._profiler.clock

    def watch(self, batches: Iterator[Any], length: int | None, sizes: deque[int]) -> EpochIterator:
        """The user's iterator over an epoch's batches, which keeps the report up to date."""
        self._learnt = False
        return EpochIterator(self, batches, length, sizes, len(self.data), self._split.tail)

    def report(self) -> Report:
        """The report of the last epoch, or of the running one so far."""
        return self._report

    def close(self) -> None:
        """End the local agent and this process's connection, if there are any; a later epoch starts them anew."""
        self._forget_dataset()
        if self._local_agent is not None:
            self._local_agent.close()
            self._local_agent = None
        self._memory.forget_ended()

    def _forget_dataset(self) -> None:
        if self._dataset is not None:
            self._learnt = True  # what has been measured of the running iteration is of this pipeline
            self._predicted = None
            self._profiler.cancel_probing()
            self._close_dataset()

    def _close_dataset(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
            self._dataset = None


class EpochIterator(Iterator[Any]):
    """Yields an epoch's batches and measures it.

    Args:
        length: in batches; None if nobody knows.
        sizes: samples per batch, in order; filled while the sampler is read, and emptied here.
        pass_length: samples after which the engine turns over, if the iteration then goes on.
        tail: what is still to be done to the batches.

    Attributes:
        samples: delivered so far.
    """

    def __init__(
        self,
        engine: Engine,
        batches: Iterator[Any],
        length: int | None,
        sizes: deque[int],
        pass_length: int,
        tail: Tail | None,
    ) -> None:
        self._engine = engine
        self._batches = batches
        self._length = length
        self._sizes = sizes
        self._pass_length = pass_length
        self._tail = tail
        self._started_s = self._last_s = time.perf_counter()
        self._iteration, self._epoch = engine.current()
        self._clock = engine.step_clock
        self._clock.pause()
        self._size: int | None = None  # of the batch delivered last
        self._in_pass = 0
        self.samples = 0

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length of an iterator must be known, got a sampler that has none")
        return self._length

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        if self._size is not None:
            self._clock.step_ends(self._size)
        try:
            batch = next(self._batches)
            if self._tail is not None:
                batch = self._tail(batch)
        except StopIteration:
            self._note(finished=True)
            raise
        except Exception:
            if self._sizes:
                self._sizes.popleft()  # most likely a batch of its own; the ones around it are delivered
            self._note(finished=False)
            raise
        is_first, self._size = self._size is None, self._sizes.popleft()
        self._note(finished=False, is_first=is_first)
        self.samples += self._size
        self._in_pass += self._size
        self._clock.step_starts()
        return batch

    def _note(self, *, finished: bool, is_first: bool = False) -> None:
        if self._iteration != self._engine.current()[0]:
            return  # an abandoned iteration; the report is about the newest
        now_s = time.perf_counter()
        self._engine.note_progress(now_s - self._started_s)
        if finished:
            self._engine.finished()
        elif not is_first and self._size is not None:
            if self._in_pass >= self._pass_length:
                self._in_pass = 0
                self._engine.turn_over()
            self._engine.delivered(now_s - self._last_s, self._size)
        self._last_s = now_s


def _finite(rates: dict[str, float]) -> dict[str, float]:
    """Only the rates that have been measured."""
    return {name: value for name, value in rates.items() if math.isfinite(value)}
