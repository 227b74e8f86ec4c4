"""A made-up host and agent for tests of `main/live.py`: what a loader would count there, without processes or time.

The plan under test is the real one, with its tariff in shared memory and its workers' dealer; only the seconds are made
up, from true rates that the plan does not know. The slowest resource decides how many samples there are in a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from sophon_loader.decide.facts import Choice, ChoiceTable, Rates
from sophon_loader.decide.plan import Prices
from sophon_loader.main.live import LivePlan
from sophon_loader.wire.messages import Offer
from sophon_loader.workers.counters import NO_TOTALS, Statistics, Totals
from sophon_loader.workers.tariff import Dealer
from tests.support.decide_tables import facts_of, linear_optimum

KINDS = 300
"""Samples that are told apart; the dataset has as many as you like of each."""
STEP_S = 0.25
OFFERED_EVERY = 16
READ_S, FILE_UPKEEP_S, WORK_UPKEEP_S = 0.00005, 0.00008, 0.00022
LOADER_S = 0.0003
"""CPU seconds of a sample at the loader beside ops and decoding."""
SHORTEST_NET_S, BUSY_NET_S = 0.0005, 0.02


def pictures(file_nbytes: float, decode_s: float, part: float, webp_nbytes: float) -> list[list[Offer]]:
    """The choices of samples like those of a set of pictures in docs/results.md, with the scatter of photographs."""
    rng = np.random.default_rng(0)
    size = file_nbytes * rng.lognormal(-0.08, 0.4, KINDS)
    decode = decode_s * size / file_nbytes
    share = np.clip(part * rng.uniform(0.3, 1.7, KINDS), 0.05, 1)
    webp = webp_nbytes * rng.uniform(0.6, 1.4, KINDS)
    after_s, resize_s = 0.0006, 0.0006
    found = []
    for n in range(KINDS):
        cut_s = decode[n] * min(share[n] + 0.32, 1.0) + resize_s
        part_s = decode[n] * min(share[n] + 0.05, 1.0) + resize_s
        found.append([
            Offer(0, "file", round(size[n]), 0.0, cut_s + after_s),
            Offer(0, "roi-jpeg", round(size[n] * share[n]), 0.27 * decode[n], part_s + after_s),
            Offer(2, "pixels", 150_528, cut_s, after_s),
            Offer(2, "webp", round(webp[n]), cut_s + 0.0016, after_s + 0.0009),
        ])  # fmt: skip
    return found


SETS = {"imagenet": pictures(108e3, 0.0029, 0.46, 69e3), "photos": pictures(293e3, 0.0063, 0.43, 55e3)}


@dataclass(frozen=True)
class Truth:
    """What the resources can really do.

    Args:
        wire_bytes_s: of the link.
        loader_cores: that the loader's processes get of those they may use.
        agent_cores: that the agent promises.
        agent_share: of its cores that work there gets; another program has the rest.
        gpu_samples_s: of the training step.
        per_rest: CPU seconds at the loader, per second that the same would take at the agent.
    """

    wire_bytes_s: float = 12.5e6
    loader_cores: float = 1.0
    agent_cores: float = 1.0
    agent_share: float = 1.0
    gpu_samples_s: float = math.inf
    per_rest: float = 1.0


class World:
    """Plays a plan.

    Args:
        live: to be played.
        statistics: its own, for what workers note beside the counters.
        samples: the choices of each kind.
        processes: of the loader.
        files_here: files need neither wire nor agent.
    """

    def __init__(
        self,
        live: LivePlan,
        statistics: Statistics,
        samples: list[list[Offer]],
        processes: int = 1,
        files_here: bool = False,
    ) -> None:
        self.live = live
        self.truth = Truth()
        self.seconds = 0.0
        self.totals = NO_TOTALS
        self.revised: list[float] = []
        self._statistics = statistics
        self._samples = samples
        self._processes = processes
        self._files_here = files_here
        self._dealer = Dealer(live.shared.tariff)
        self._place = 0

    def best_samples_s(self) -> float:
        """What no plan can exceed, by the linear programme over the true costs."""
        truth, table = self.truth, self._table()
        rates = Rates(
            truth.gpu_samples_s, truth.wire_bytes_s, truth.loader_cores, truth.agent_cores * truth.agent_share
        )
        return KINDS / linear_optimum(table, rates)

    def files_samples_s(self) -> float:
        """What there is without offloading."""
        costs = [self._costs(offers, offers[0]) for offers in self._samples]
        return self._samples_s(np.mean(costs, axis=0))

    def _table(self) -> ChoiceTable:
        choices = tuple(Choice(one.cut, one.encoding) for one in self._samples[0])
        costs = np.array([[self._costs(offers, one) for one in offers] for offers in self._samples], np.float32)
        table = ChoiceTable(choices, costs[:, :, 0], costs[:, :, 2], costs[:, :, 1])
        assert facts_of(table).samples == KINDS
        return table

    def _costs(self, offers: list[Offer], taken: Offer) -> tuple[float, float, float]:
        """(bytes, loader CPU seconds, agent CPU seconds) of a sample."""
        is_file = taken == offers[0]
        loader_s = taken.rest_s * self.truth.per_rest + LOADER_S
        if is_file and self._files_here:
            return 0.0, loader_s, 0.0
        agent_s = taken.agent_s + READ_S + (FILE_UPKEEP_S if is_file else WORK_UPKEEP_S)
        return float(taken.nbytes), loader_s, agent_s

    def _terms(self, costs: np.ndarray) -> dict[str, float]:
        truth = self.truth
        return {
            "gpu": 1 / truth.gpu_samples_s,
            "wire": costs[0] / truth.wire_bytes_s,
            "loader-cpu": costs[1] / truth.loader_cores,
            "agent-cpu": costs[2] / (truth.agent_cores * truth.agent_share),
        }

    def _samples_s(self, costs: np.ndarray) -> float:
        return 1 / max(self._terms(costs).values())

    def play(self, seconds: float) -> list[float]:
        """Samples/s of each step."""
        found = []
        for _ in range(round(seconds / STEP_S)):
            found.append(self._step())
        return found

    def _step(self) -> float:
        dealt: list[tuple[list[Offer], Offer, Prices | None]] = []
        while len(dealt) < KINDS:
            for prices in self._dealer.batch(32):
                offers = self._samples[self._place % KINDS]
                self._place += 1
                dealt.append((offers, offers[0] if prices is None else cheapest(offers, prices), prices))
        costs = np.mean([self._costs(offers, one) for offers, one, _ in dealt], axis=0)
        samples_s = self._samples_s(costs)
        count = samples_s * STEP_S
        each = count / len(dealt)
        self.totals = _added(self.totals, self._counted(dealt, each, costs, samples_s))
        self.seconds += STEP_S
        self._statistics.agent_cores.array[:] = self.truth.agent_cores / self._processes
        self._statistics.shortest_net_s.array[:] = SHORTEST_NET_S
        if self.live.progressed(self.seconds, self.totals, self.truth.gpu_samples_s):
            self.revised.append(self.seconds)
        return samples_s

    def _counted(
        self, dealt: list[tuple[list[Offer], Offer, Prices | None]], each: float, costs: np.ndarray, samples_s: float
    ) -> Totals:
        """What the workers add to their counters in a step, and to the offers."""
        truth, terms = self.truth, self._terms(costs)
        slowest = max(terms, key=lambda name: terms[name])
        worked = [(offers, one) for offers, one, _ in dealt if one != offers[0]]
        crossed = [one for offers, one, _ in dealt if not (self._files_here and one == offers[0])]
        work_s = each * sum(one.agent_s for _, one in worked)
        loader_s = samples_s * STEP_S * float(costs[1])
        busy_s = loader_s * self._processes / truth.loader_cores
        waited_s = max(0.0, self._processes * STEP_S - busy_s) if slowest in ("wire", "agent-cpu") else 0.0
        fresh = each * len(crossed) * min(1.0, waited_s / (self._processes * STEP_S))
        told = [(offers, one) for offers, one, prices in dealt if prices is not None][::OFFERED_EVERY]
        for number, (offers, _) in enumerate(told):
            self.live.shared.offers.write(number % self._processes, offers)
        upkeep_s = each * (WORK_UPKEEP_S * len(worked) + FILE_UPKEEP_S * (len(crossed) - len(worked)))
        return replace(
            NO_TOTALS,
            samples=samples_s * STEP_S,
            file_bytes=each * sum(offers[0].nbytes for offers, _, _ in dealt),
            wire_bytes=each * sum(one.nbytes for one in crossed),
            loader_cpu_s=loader_s,
            agent_cpu_s=work_s + upkeep_s + each * READ_S * len(crossed),
            waited_s=waited_s,
            offloaded=each * len(worked),
            upkeep_s=upkeep_s,
            offloaded_upkeep_s=each * WORK_UPKEEP_S * len(worked),
            busy_s=busy_s,
            work_cpu_s=work_s,
            work_s=work_s / truth.agent_share,
            read_bytes=each * sum(offers[0].nbytes for offers, one, _ in dealt if one in crossed),
            read_s=each * 0.0002 * len(crossed),
            fresh=fresh,
            net_s=fresh * (BUSY_NET_S if slowest == "wire" else SHORTEST_NET_S),
            weighed=len(told) * each,
            weighed_rest_s=each * sum(one.rest_s for _, one in told),
            weighed_loader_s=each * truth.per_rest * sum(one.rest_s for _, one in told),
        )  # type: ignore[arg-type]


def cheapest(offers: list[Offer], prices: Prices) -> Offer:
    """As the agent takes it."""
    return min(
        offers, key=lambda one: prices.wire * one.nbytes + prices.agent * one.agent_s + prices.loader * one.rest_s
    )


def _added(before: Totals, more: Totals) -> Totals:
    names = [field.name for field in fields(Totals) if field.name not in ("cuts", "encodings")]
    return Totals(**{name: getattr(before, name) + getattr(more, name) for name in names})
