"""Recovery of rates that were learnt in a bad moment: the rates that may rise without proof, and the time of a burst.

Values: each method returns the next one, and changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from sophon_loader.decide.facts import Rates
from sophon_loader.plans.rates import (
    AGENT_IS_FREE_BELOW,
    GROWTH,
    HELD_UP_BY_NOTHING_ELSE_FROM,
    EpochMeasure,
    revised,
)

ANOTHER_RATE_FROM = 1.1
"""Factor above which a rate counts as another one; less is noise, as in `decide.cost.moved`."""
TESTED_FROM = 0.5
"""Share of an epoch's time for which a resource must be used to test its rate. The rate of one that was hardly used
stays as uncertain as before."""
MAX_GROWTH = 12.0
"""Largest growth, the last of 1.5, 3, 6 and 12. It leads from a hundredth of the agent's cores, the smallest quota
there can be, to all of them in three epochs."""
MAX_EPOCHS = 16
"""Longest wait before a retry, in epochs. A trial costs at worst one slow epoch, so a run that always fails loses 1
in 17."""


@dataclass(frozen=True)
class Retry:
    """Time to try again after a failure: after 1, 2, 4, ... and from then on 16 epochs.

    It counts whole epochs: a failure at the end of epoch k is due again for epoch k + 2, the next time 3 epochs later,
    then 5 later. A value: each method returns the next one.

    Example:
        >>> Retry().failed().due, Retry().failed().passed().due
        (False, True)

    Args:
        wait: epochs to wait for after the next failure.
        left: epochs still to wait for.
    """

    wait: int = 1
    left: int = 0

    @property
    def due(self) -> bool:
        """True if the next epoch may try."""
        return self.left == 0

    @property
    def fresh(self) -> bool:
        """True if it has not failed since it last succeeded."""
        return self.wait == 1

    def failed(self) -> Retry:
        """Return it after an epoch that tried and failed."""
        return Retry(wait=min(2 * self.wait, MAX_EPOCHS), left=self.wait)

    def passed(self) -> Retry:
        """Return it after an epoch that did not try."""
        return replace(self, left=max(0, self.left - 1))

    def succeeded(self) -> Retry:
        """Return it after a success: the waits start from the shortest one again."""
        return Retry()


@dataclass(frozen=True)
class Hope:
    """Permission of one rate to rise without proof, by the results of its earlier rises.

    Args:
        retry: time at which it may rise again after a rise that ended badly.
        untested: True if it has risen, and no epoch has tested that.
    """

    retry: Retry = field(default_factory=Retry)
    untested: bool = False

    def judged(self, *, lowered: bool, tested: bool) -> Hope:
        """Return it after an epoch.

        Args:
            lowered: the epoch has proved the rate noticeably too high.
            tested: the epoch used the resource.
        """
        if self.untested and lowered:
            return Hope(self.retry.failed())
        if self.untested and tested:
            return Hope(self.retry.succeeded())
        return replace(self, retry=self.retry.passed())


@dataclass(frozen=True)
class Healing:
    """Permissions of rates to rise without proof after an epoch, and their growth, by the results of earlier rises.

    A rise ends badly when a later epoch lowers the rate again. Then the rate stays where it is for 1 epoch, the next
    time for 2, 4, ... at most 16. A resource may really be slower than it looks when idle. A rise ends well when an
    epoch uses the resource and does not lower the rate; then the pauses start from 1 again. A rise that is not tested
    changes nothing.

    Every epoch that uses the agent and finds it free doubles the growth of its cores. From a hundredth of them to all
    takes three such epochs in a row; a constant factor of 1.5 would take eleven. An epoch that lowers them resets the
    factor, and it stays there as long as the last rise has ended badly. The first wrong trial of a low rate can make an
    epoch 3 times as long, each further one 1.5 times.

    Example:
        >>> rates, healing = Healing().after(rates, epoch, max_loader_cores=2.0, offered_agent_cores=4.0, planned=True)

    Args:
        loader, agent: of the loader's and of the agent's cores.
        growth: factor of the agent's cores that is tried next.
    """

    loader: Hope = field(default_factory=Hope)
    agent: Hope = field(default_factory=Hope)
    growth: float = GROWTH

    def after(
        self,
        rates: Rates,
        epoch: EpochMeasure,
        max_loader_cores: float,
        offered_agent_cores: float,
        *,
        planned: bool,
    ) -> tuple[Rates, Healing]:
        """Return the rates after an epoch, by `rates.revised`, and the permissions after the next one.

        To be called for every epoch, with the rates that it returned for the last one.

        Args:
            rates, epoch, max_loader_cores, offered_agent_cores: as for `rates.revised`.
            planned: True if the policy's own plan was followed. Otherwise the agent's cores rise once, but not again
                before a test. In many epochs without offloading they would become all that it offers, and the first
                plan after them would be far from the known costs.
        """
        proved = revised(rates, epoch, max_loader_cores, may_rise=())
        loader_tested = epoch.loader_cpu_s >= TESTED_FROM * rates.loader_cores * epoch.seconds
        agent_tested = (
            epoch.queueing < AGENT_IS_FREE_BELOW
            and epoch.offloaded > 0
            and epoch.agent_cpu_s >= TESTED_FROM * rates.agent_cores * epoch.seconds
        )
        growth = self._next_growth(lowered=proved.agent_cores < rates.agent_cores, tested=agent_tested)
        loader = self.loader.judged(
            lowered=proved.loader_cores * ANOTHER_RATE_FROM < rates.loader_cores, tested=loader_tested
        )
        agent = self.agent.judged(
            lowered=proved.agent_cores * ANOTHER_RATE_FROM < rates.agent_cores, tested=agent_tested
        )
        may_rise = set()
        if loader.retry.due:
            may_rise.add("loader_cores")
        if agent.retry.due and (planned or not agent.untested):
            may_rise.add("agent_cores")
        found = revised(rates, epoch, max_loader_cores, offered_agent_cores, may_rise, growth)
        loader = replace(loader, untested=loader.untested or found.loader_cores > proved.loader_cores)
        agent = replace(agent, untested=agent.untested or found.agent_cores > proved.agent_cores)
        return found, Healing(loader, agent, growth)

    def _next_growth(self, *, lowered: bool, tested: bool) -> float:
        if lowered:
            return GROWTH
        if tested and (self.agent.retry.fresh or self.agent.untested):
            return min(2 * self.growth, MAX_GROWTH)
        return self.growth


@dataclass(frozen=True)
class WireDoubt:
    """Doubt about the wire's rate: it may be faster, so that a burst of files has to measure it.

    There are two such cases. An epoch has brought more than the rate allows, without being held up by the wire. Or the
    rate is lower than it once was: an epoch may have blamed the wire for the agent's fault, or have met it in a bad
    moment. Later epochs need not show that: their plan sends only as much as the rate allows, so that something else
    limits them too. The second case is checked after 1, 2, 4, ... and then every 16 epochs.

    Args:
        burst_due: True if a burst is to measure before the next epoch.
        best_bytes_s: the highest known rate of the wire; 0 before any.
        retry: time at which a rate that fell is checked again.
    """

    burst_due: bool = False
    best_bytes_s: float = 0.0
    retry: Retry = field(default_factory=Retry)

    def after(self, before: Rates, after: Rates, epoch: EpochMeasure) -> WireDoubt:
        """Return it after an epoch.

        Args:
            before, after: the rates at its start and at its end.
            epoch: its measurements.
        """
        known = [rate for rate in (before.wire_bytes_s, after.wire_bytes_s) if math.isfinite(rate)]
        best = max([self.best_bytes_s, *known])
        did_more = wire_may_do_more(before, after, epoch)
        came_down = after.wire_bytes_s * ANOTHER_RATE_FROM < best
        if not came_down:
            return WireDoubt(did_more, best, self.retry.succeeded())
        if self.retry.due:
            return WireDoubt(True, best, self.retry.failed())
        return WireDoubt(did_more, best, self.retry.passed())

    def after_burst(self) -> WireDoubt:
        """Return it after a burst with any result."""
        return replace(self, burst_due=False)


def wire_may_do_more(before: Rates, after: Rates, epoch: EpochMeasure) -> bool:
    """Return True if an epoch has shown that the wire is faster than was known, but not how fast it is.

    Args:
        before, after: the rates before and after the epoch.
        epoch: its measurements. One that waited for nothing but replies has shown the wire's rate.
    """
    is_higher = after.wire_bytes_s > ANOTHER_RATE_FROM * before.wire_bytes_s
    return is_higher and not epoch.late >= HELD_UP_BY_NOTHING_ELSE_FROM
