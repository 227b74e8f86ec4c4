"""How rates come back that were learnt in a bad moment: which may rise without proof, and when a burst is due.

Values: each method returns what follows, and changes nothing.
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
"""A rate is another one if it is more than this many times as high; less is noise, as in `decide.cost.moved`."""
TESTED_FROM = 0.5
"""A rate has been put to the test by an epoch that used the resource for this share of its time. What was only hoped of
one that was hardly used is as open as before."""
MAX_GROWTH = 12.0
"""The last of 1.5, 3, 6 and 12. Enough to come from a hundredth of the agent's cores, the smallest quota there can be,
to all of them in three epochs."""
MAX_EPOCHS = 16
"""The longest wait before a retry. A trial costs at worst one slow epoch, so a run that always fails loses 1 in 17."""


@dataclass(frozen=True)
class Retry:
    """When to try again what has failed: after 1, 2, 4, ... and from then on 16 epochs.

    It counts whole epochs: what fails at the end of epoch k is due again for epoch k + 2, the next time 3 epochs later,
    then 5 later. A value: each method returns the one that follows.

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
        """Whether the next epoch may try."""
        return self.left == 0

    @property
    def fresh(self) -> bool:
        """Whether it has not failed since it last succeeded."""
        return self.wait == 1

    def failed(self) -> Retry:
        """The epoch that has ended tried it and failed."""
        return Retry(wait=min(2 * self.wait, MAX_EPOCHS), left=self.wait)

    def passed(self) -> Retry:
        """An epoch has ended that did not try it."""
        return replace(self, left=max(0, self.left - 1))

    def succeeded(self) -> Retry:
        """It was tried with success: the waits start from the shortest one again."""
        return Retry()


@dataclass(frozen=True)
class Hope:
    """Whether one rate may rise without proof, by how its earlier rises have ended.

    Args:
        retry: when it may rise again after a rise that ended badly.
        untested: whether it has risen, and no epoch has put that to the test.
    """

    retry: Retry = field(default_factory=Retry)
    untested: bool = False

    def judged(self, *, lowered: bool, tested: bool) -> Hope:
        """After an epoch.

        Args:
            lowered: the epoch has proved the rate noticeably too high.
            tested: the epoch made use of the resource.
        """
        if self.untested and lowered:
            return Hope(self.retry.failed())
        if self.untested and tested:
            return Hope(self.retry.succeeded())
        return replace(self, retry=self.retry.passed())


@dataclass(frozen=True)
class Healing:
    """Which rates may rise without proof after an epoch, and how far, by how earlier such rises have ended.

    A rise ends badly when a later epoch lowers the rate again. Then the rate stays where it is for 1 epoch, the next
    time for 2, 4, ... at most 16 epochs, so that a resource that is really slower than it looks when idle costs few
    epochs. It ends well when an epoch makes use of the resource and does not lower the rate; then the pauses start from
    1 again. A rise that is not put to the test changes nothing.

    Every epoch that makes use of the agent and finds it free doubles the factor by which its cores grow: from a
    hundredth of them to all takes three such epochs in a row, where a factor of 1.5 would take eleven. An epoch that
    lowers them sets the factor back, and it stays there as long as the last rise has ended badly: the first wrong trial
    of a low rate can make an epoch 3 times as long, each further one 1.5 times.

    Example:
        >>> rates, healing = Healing().after(rates, epoch, max_loader_cores=2.0, offered_agent_cores=4.0, planned=True)

    Args:
        loader, agent: of the loader's and of the agent's cores.
        growth: times the agent's cores that are tried next.
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
        """The rates after an epoch, as `rates.revised` gives them, and what to do after the next one.

        To be called for every epoch, with the rates that it gave for the last one.

        Args:
            rates, epoch, max_loader_cores, offered_agent_cores: as for `rates.revised`.
            planned: whether the policy's own plan was followed. Otherwise the agent's cores rise once, but not again
                before that has been put to the test: in many epochs in which nothing may be offloaded they would
                become all that it offers, and the first plan after them would be far from what is known.
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
    """Whether the wire may be faster than its rate says, so that a burst of files has to show how fast it is.

    There are two such cases. An epoch has brought more than the rate allows, without being held up by the wire. Or the
    rate is lower than it once was: an epoch may have blamed the wire for what was the agent's fault, or have met it in
    a bad moment. Later epochs need not show that: their plan sends only as much as the rate allows, so that something
    else limits them too. The second case is checked after 1, 2, 4, ... and then every 16 epochs.

    Args:
        burst_due: whether to measure before the next epoch.
        best_bytes_s: the highest rate that the wire was known to have; 0 before any.
        retry: when a rate that came down is checked again.
    """

    burst_due: bool = False
    best_bytes_s: float = 0.0
    retry: Retry = field(default_factory=Retry)

    def after(self, before: Rates, after: Rates, epoch: EpochMeasure) -> WireDoubt:
        """After an epoch.

        Args:
            before, after: the rates that it began with, and those it has led to.
            epoch: what it used.
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
        """After a burst, whatever it has found."""
        return replace(self, burst_due=False)


def wire_may_do_more(before: Rates, after: Rates, epoch: EpochMeasure) -> bool:
    """Whether an epoch has shown that the wire is faster than was known, but not how fast it is.

    Args:
        before, after: the rates before and after the epoch.
        epoch: what it used. One that waited for nothing but replies has shown the wire's rate.
    """
    is_higher = after.wire_bytes_s > ANOTHER_RATE_FROM * before.wire_bytes_s
    return is_higher and not epoch.late >= HELD_UP_BY_NOTHING_ELSE_FROM
