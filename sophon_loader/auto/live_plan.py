"""Revises the prices of requests every second, from the measurements of the last seconds.

The agent chooses for each sample, at the prices that are set here. They are the duals of a linear programme over recent
samples, at recent rates, so nothing is kept per sample of the dataset.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sophon_loader.auto.conditions import MAX_WIRE_BYTES_S, Conditions, Guard, MeasuredWindow
from sophon_loader.auto.corrections import CostCorrections
from sophon_loader.auto.prices import (
    NO_CPU,
    CachedShare,
    at_first,
    facts_of,
    in_units_of_the_agent,
    of_files,
    rates_of,
    with_tried,
)
from sophon_loader.auto.shared_live import KeptLive, Live
from sophon_loader.auto.shared_offers import SharedOffers
from sophon_loader.auto.shared_tariff import SharedTariff
from sophon_loader.auto.wanted_agents import AgentCores
from sophon_loader.decide.cost import EpochWork, time_without_offloading
from sophon_loader.decide.facts import OFFLOADS_FROM_CORES, ChoiceTable, Facts
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.decide.tariff import FILES, Tariff, Traffic
from sophon_loader.measures.counters import NO_TOTALS, Statistics
from sophon_loader.measures.findings import Findings
from sophon_loader.measures.moment import NOTHING_PASSED, Moment
from sophon_loader.measures.verdict import Verdict
from sophon_loader.wire.wanted_cores import WantedCores

FIRST_WINDOW_S = 0.25
"""Length of a window in seconds, until the wire has shown its limit."""
FIRST_WINDOWS = 12
"""Maximum number of such windows: by then the rate that a plan needs has crossed the wire."""
WINDOW_S = 1.0
MIN_WINDOW_SAMPLES = 16
"""Minimum samples in a window; with fewer, one large file dominates the mean."""
MIN_OFFERS = 8
"""Minimum number of samples for new prices; with fewer the first ones are as good."""
TRIED_SHARE = 1 / 64
"""Share of the samples offloaded as trials while nothing else is, so that the costs of offloading stay known."""
TRIED_OF_AGENT = 1 / 32
"""Maximum share of the agent's cores used for trials while nothing is offloaded; the agent has files to send."""
TRIED_FROM_CORES = 0.03
"""Minimum agent cores for trials. With fewer, a few samples would delay all others."""
HELD = "; for now the agent is asked for files, because offloading gave fewer samples/s than files promise"
"""End of the reason for a tariff that is not followed."""
GUESSED = "; the network's speed is a guess, because nothing has waited for it yet"
FIRST_TRIED_SHARE = 1 / 8
"""Share of the samples offloaded as trials before costs are known, if files are read here: some 500 samples suffice."""


class LivePlan:
    """Revises a tariff while an iteration runs.

    Args:
        policy: computes prices.
        samples: number of samples in the dataset.
        statistics: counted by the workers.
        processes: number of the loader's processes.
        encodings: all names.
        conditions: at first.
        traffic: allowed cost of saving traffic.
        agent_cores: cores of the agent at the handshake; inf if it has not sent them.
        admitted: share of the samples that the cache on this host is to hold.
        files_from_agents: True if only agents have the files.
        shared: with workers that run already; None for a new one.

    Attributes:
        shared: state shared with the workers.
        conditions: current rates of the resources.
        beside: corrections of the agent's estimates.
        wanted_cores: number of agent cores that could be used.
        tariff: prices of requests.
    """

    def __init__(
        self,
        policy: PricingPolicy,
        samples: int,
        statistics: Statistics,
        processes: int,
        encodings: Sequence[str],
        conditions: Conditions,
        traffic: Traffic,
        *,
        agent_cores: float = math.inf,
        admitted: float = 0.0,
        files_from_agents: bool = False,
        shared: Live | None = None,
    ) -> None:
        self._policy = policy
        self._agent_cores, self._admitted = agent_cores, admitted
        self._samples = samples
        self._statistics = statistics
        self._processes = processes
        self._traffic = traffic
        self.shared = shared or Live(SharedTariff(), SharedOffers(processes, encodings))
        self.conditions = conditions
        self.tariff = at_first(conditions)
        self.beside = CostCorrections()
        self.wanted_cores, self._files_from_agents = AgentCores(), files_from_agents
        self._mark: Moment | None = None
        self._latest: Moment | None = None
        self._carried = NOTHING_PASSED
        self._verdict: Verdict | None = None
        self._guard = Guard()
        self._newest = NO_TOTALS
        self._windows = 0
        self._of_samples = 1.0
        self._samples_s = 0.0
        self._cached = CachedShare()
        self._share()

    def take_over(self, kept: KeptLive) -> None:
        """Go on from the figures of an earlier run; none is taken if they do not fit."""
        try:
            wire_bytes_s, beside = float(kept.figures["wire_bytes_s"]), CostCorrections.kept(kept.figures)
            if not 0 <= wire_bytes_s <= MAX_WIRE_BYTES_S:
                return
            self.shared.offers.load(kept.arrays)
        except (KeyError, ValueError):
            return
        self.beside = beside
        if wire_bytes_s >= 1:
            self.conditions = self.conditions.with_wire(wire_bytes_s)
        self._revise()

    def kept(self) -> KeptLive:
        """Return the figures that another run may go on from."""
        wire_bytes_s = self.conditions.rates.wire_bytes_s if self.conditions.wire_seen else 0.0
        return KeptLive({"wire_bytes_s": wire_bytes_s, **self.beside.figures()}, self.shared.offers.arrays())

    def begin(self, share: float = 1.0) -> None:
        """Begin an iteration, whose counters start from nothing. The rest of the last window is carried over.

        Args:
            share: of the dataset's samples, that it is to deliver.
        """
        self._of_samples = share
        if self._mark is not None and self._latest is not None:
            self._carried = self._carried.with_what_passed(self._mark, self._latest)
        self._mark = self._latest = None

    def findings(self, *, judging: bool = True, of_one: float | None = None) -> Findings:
        """Return the current tariff and the resource that limits, for the report.

        Args:
            judging: True if enough steps were seen to name the resource that limits.
            of_one: cores of an agent on another host; None for none.
        """
        cores = self.wanted_cores.wanted
        rates, limits = self.conditions.rates.measured(), self.limits() if judging else {}
        if not self.conditions.wire_seen:
            del rates["wire_bytes_s"]
        return Findings(
            plan_reason=self.tariff.reason + self._caveat + (HELD if self._guard.must_not_offload else ""),
            predicted_seconds=self.predicted_s,
            bottleneck=next(iter(limits), None),
            rates=rates,
            throughput={} if self._verdict is None else self._verdict.throughput,
            limits=limits,
            verdict=self._verdict,
            wanted=WantedCores(cores, of_one) if judging and cores is not None and of_one else None,
        )

    @property
    def predicted_s(self) -> float | None:
        """Seconds of an epoch, by the cost model."""
        verdict = self._verdict
        if verdict is None or verdict.seconds is None:
            return None
        return verdict.seconds * self._of_samples * self._samples / verdict.facts.samples

    @property
    def offloads(self) -> bool:
        """True if the agent is asked for more than files, apart from the few samples of trials."""
        return self.tariff.offloads and not self._guard.must_not_offload

    def limits(self) -> dict[str, float]:
        """Return, by resource, the share of the time for which it is busy, the busiest first; empty if unknown."""
        verdict = self._verdict
        return {} if verdict is None else verdict.limits(offloading=not self._guard.must_not_offload)

    def progressed(self, now: Moment, most_samples_s: float) -> bool:
        """Revise the tariff if a window is full.

        Args:
            now: current counts of the iteration.
            most_samples_s: measured maximum of the training step; inf if unknown.

        Returns:
            True if the tariff was revised.
        """
        if self._mark is None:  # what was before the first batch is no measure: workers had to start
            self._mark = now
            return False
        self._latest = now
        window = self._carried.with_what_passed(self._mark, now)
        settled = self.conditions.wire_seen or self._windows >= FIRST_WINDOWS
        if window.seconds < (WINDOW_S if settled else FIRST_WINDOW_S):
            return False
        if window.totals.samples < MIN_WINDOW_SAMPLES and window.seconds < 4 * WINDOW_S:
            return False
        self._mark, self._carried = now, NOTHING_PASSED
        self.beside = self.beside.after(window.totals, self._file_rest_s())
        stepping_s = window.seconds - window.awaited_s
        steps_s = window.stepped / stepping_s if window.stepped and stepping_s > 0 else math.inf
        self.conditions = self.conditions.after(self._window(window, min(steps_s, most_samples_s)))
        self._samples_s = window.totals.samples / window.seconds
        self._newest = window.totals
        self._cached = self._cached.after(window.totals)
        revised = self._revise()
        self._windows += 1
        if settled:
            rows = 0 if self._verdict is None else self._verdict.facts.samples
            if self._verdict is not None and rows >= MIN_OFFERS and revised:
                self.wanted_cores.after(window.seconds, self._verdict)
            self._guard.after(window.totals.samples / window.seconds, self.tariff, rows)
        return revised

    def _window(self, passed: Moment, gpu_samples_s: float) -> MeasuredWindow:
        now = passed.totals
        return MeasuredWindow(
            seconds=passed.seconds,
            processes=self._processes,
            samples=now.samples,
            wire_bytes=now.wire_bytes,
            waited_s=now.waited_s,
            busy_s=now.busy_s,
            loader_cpu_s=now.loader_cpu_s,
            work_cpu_s=now.work_cpu_s,
            work_s=now.work_s,
            upkeep_s=now.upkeep_s,
            agent_cpu_s=now.agent_cpu_s,
            read_bytes=now.read_bytes,
            read_s=now.read_s,
            fresh=now.fresh,
            net_s=now.net_s,
            queued_s=now.fresh_queued_s,
            gpu_samples_s=gpu_samples_s,
            agent_cores=self._promised_cores,
            per_worker=_least(self._statistics.per_worker.array),
            shortest_net_s=float(self._statistics.shortest_net_s.array.min()),
            awaited=min(1.0, passed.awaited_s / passed.seconds),
        )

    @property
    def _promised_cores(self) -> float:
        """Return the cores that all connections together can rely on.

        Each connection received its share when it last asked: of a few connections then, or of all if the others
        paused. So the sum may be of more cores than there are. The agent has at least the largest of these shares.
        """
        told = self._statistics.agent_cores.array
        return float(min(told.sum(), max(self._agent_cores, told.max())))

    def _file_rest_s(self) -> float | None:
        """Return CPU seconds that a file leaves to the loader, by the agent's estimates; None before there is one."""
        _, costs = self.shared.offers.costs()
        return float(costs[:, 0, 2].mean()) if len(costs) else None

    def _revise(self) -> bool:
        table = self._table()
        if table is None:
            self._verdict = self._as_it_goes()
            self._share()  # for as many cores as the agent is known to have by now
            return False
        facts = self._facts(table)
        self.tariff = self._policy.tariff(facts, self._traffic)
        if self._agent_is_starved:
            without = self.tariff.without
            self.tariff = Tariff((FILES,), f"{NO_CPU}: nothing is offloaded", without, without)
        self._verdict = Verdict(
            self._policy,
            facts,
            self.conditions.wire_seen,
            self.tariff,
            self.conditions.agent_speed,
            self._files_from_agents,
        )
        self._share()
        return True

    def _as_it_goes(self) -> Verdict | None:
        """Return the verdict by recent samples' measured costs, while too little is known for a tariff."""
        now = self._newest
        if not now.samples:
            return None
        rates = rates_of(self.conditions, now.read_bytes / now.samples)
        time = EpochWork(now.wire_bytes, now.loader_cpu_s, now.agent_cpu_s).time(now.samples, rates)
        facts = Facts(now.samples, rates, None, 0, None, 0.0)
        return Verdict(self._policy, facts, self.conditions.wire_seen, replace(self.tariff, predicted=time))

    @property
    def _caveat(self) -> str:
        """Return a warning for a tariff limited by a wire that was never measured; "" for others."""
        times = self.tariff.without, self.tariff.predicted
        guessed = not self.conditions.wire_seen and any(time and time.bottleneck == "wire" for time in times)
        return GUESSED if guessed else ""

    def _facts(self, table: ChoiceTable) -> Facts:
        """Return the facts for a tariff.

        A wire that was never measured is taken for no faster than the current plan needs. If that alone spoke against
        files, while the training step limits, they would never be tried, and the agent would work without need.
        """
        facts = facts_of(table, self.conditions, self._cached.share, self._admitted)
        if not self.conditions.wire_seen and self._windows >= FIRST_WINDOWS:
            wide = replace(facts, rates=replace(facts.rates, wire_bytes_s=MAX_WIRE_BYTES_S))
            if time_without_offloading(table, wide.rates, wide.cached).bottleneck in ("gpu", "agent-disk"):
                return wide
        return facts

    def _table(self) -> ChoiceTable | None:
        """Return the costs for a tariff; None before enough is known."""
        table = self.shared.offers.table(self.beside, files_here=self.conditions.files_here)
        if table is not None and table.samples >= MIN_OFFERS:
            return table
        # Nothing is tried at an agent with next to no CPU, whose choices are unknown then; the limit still is known.
        return None if self._tried_share() else of_files(self._newest)

    def _share(self) -> None:
        """Have the workers follow the tariff."""
        tariff = Tariff((FILES,), "") if self._guard.must_not_offload else self.tariff
        if not self._cached.asks(tariff):
            tariff = with_tried(tariff, self.conditions.rates, self._tried_share())
        self.shared.tariff.set(in_units_of_the_agent(tariff, self.beside, self.conditions.per_worker))

    @property
    def _agent_is_starved(self) -> bool:
        """True if its workers have reported too little CPU for anything to be offloaded."""
        return 0 < self.conditions.per_worker < OFFLOADS_FROM_CORES

    def _tried_share(self) -> float:
        """Return the share of samples for trials while nothing need be offloaded: no burden for any agent."""
        cores, verdict = self.conditions.rates.agent_cores, self._verdict
        if cores < TRIED_FROM_CORES or self._agent_is_starved:
            return 0.0
        if verdict is None or len(self.shared.offers) < MIN_OFFERS:
            return FIRST_TRIED_SHARE
        each_s = max((one["agent_s"] for one in verdict.weighed().values()), default=0.0)
        used = self._samples_s * each_s  # cores, if all samples were offloaded
        return min(TRIED_SHARE, TRIED_OF_AGENT * cores / used) if used > 0 else TRIED_SHARE


def _least(told: NDArray[np.float64]) -> float:
    """Return the smallest value that workers have received; 0 if none has."""
    told = told[told > 0]
    return float(told.min()) if len(told) else 0.0
