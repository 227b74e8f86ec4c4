"""FastFlow's policy (VLDB '23): one cut for all samples and one share of them, from measured throughputs.

When: there is a bottleneck if the GPU could take more than 1.3 times what the local pipeline delivers. Which: each
candidate cut is tried on every sample for 50 to 100 training steps. How much: local and remote work side by side, each
at its own rate. It aims at CPU bottlenecks. It does not see single samples, so if offloading all of them makes the
traffic grow, it offloads nothing (SOPHON's evaluation finds the same).

Two things differ from its authors' code, unless the published form is requested. The share is computed and not a rule
of thumb; and it is tried once more, and must beat the local pipeline, because the formula ignores the wire.

The loader runs the trials. This is the state machine between them. It holds no state: the trials so far are its
argument. `next_trial` returns the next plan to measure, or None once enough is known; `decide` then makes the plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sophon_loader.decide.cost import epoch_work
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Facts
from sophon_loader.decide.plan import Plan, spread, uniform_plan
from sophon_loader.decide.policies.common import choice_at, same_for_all
from sophon_loader.decide.policy import Trial
from sophon_loader.errors import PlanError
from sophon_loader.figures import percent

BOTTLENECK_RATIO = 1.3
"""gpu / local above which the paper sees a prep stall."""
MIN_GAIN = 1.05
"""The check trial must be this much faster than local; below it is the noise of a 50-step window."""


@dataclass(frozen=True)
class _Offer:
    """The promise of a candidate's measurements: a share to offload, and samples/s, by which candidates are
    compared."""

    choice: Choice
    share: float
    samples_s: float


class FastFlow:
    """Offload one share of the samples at one cut, if a trial shows that it pays.

    A `TryingPolicy`: the loader measures the plans of `next_trial`, and follows that of `decide`.

    Args:
        cuts: candidate cuts, each >= 1, or `"every"` for every stage that the agent can reach. By default only the
            whole pipeline, because SOPHON's table 1 lists FastFlow as selecting how much data to offload, but not
            which ops.
        trial_steps: training steps that the loader measures per trial.
        published: take the share and the candidate by the authors' rules of thumb, and do not check what they promise.

    Attributes:
        name: "fastflow", or "fastflow-every" with every stage.

    Raises:
        PlanError: a cut is below 1.

    Example:
        >>> loader = OffloadingDataLoader(dataset, agent="tcp://storage:5555/pictures", policy=FastFlow(cuts=[2, 4]))
    """

    needs_profile = False

    def __init__(
        self,
        cuts: Sequence[int] | Literal["every"] | None = None,
        trial_steps: int = 50,
        *,
        published: bool = False,
    ) -> None:
        if isinstance(cuts, str) and cuts != "every":
            raise PlanError(f"cuts must be numbers or 'every', got {cuts!r}; leave it out for the whole pipeline")
        if cuts is not None and cuts != "every" and any(cut < 1 for cut in cuts):
            raise PlanError(f"cuts must be >= 1, got {list(cuts)}; local is always tried")
        if trial_steps < 1:
            raise PlanError(f"trial_steps must be >= 1, got {trial_steps}; the paper measures 50 to 100")
        self.name = "fastflow-every" if cuts == "every" else "fastflow"
        self._cuts = cuts if cuts is None or cuts == "every" else tuple(dict.fromkeys(cuts))
        self._published = published
        self.trial_steps = trial_steps

    def next_trial(self, trials: Sequence[Trial], facts: Facts) -> Plan | None:
        """The plan to measure next, or None when `decide` knows enough.

        The local pipeline comes first, then each candidate on every sample, then the best one at its share. At
        most 2 + the number of candidates; each plan's `reason` says which one it is.

        Args:
            trials: what was measured so far, in any order.
            facts: `rates.gpu_samples_s` is what counts here.

        Raises:
            PlanError: a cut of the constructor lies past `facts.max_cut`.
        """
        candidates = self._candidates(facts)
        if not candidates or facts.samples == 0:
            return None
        local = _find(trials, FILE)
        if local is None:
            return uniform_plan(self.name, facts.samples, FILE, "trial of the local pipeline")
        if facts.rates.gpu_samples_s / local.samples_s <= BOTTLENECK_RATIO:
            return None
        for choice in candidates:
            if _find(trials, choice) is None:
                return uniform_plan(self.name, facts.samples, choice, f"trial of {choice} on every sample")
        best = self._best(trials, facts)
        if best is None or best.share in (0.0, 1.0) or _find_check(trials, best.choice) is not None or self._published:
            return None
        return self._mix(facts, best, f"check of {best.choice} on {percent(best.share)} of the samples")

    def decide(self, trials: Sequence[Trial], facts: Facts) -> Plan:
        """The plan that the trials support; nothing is offloaded unless the check trial, if made, beat the local one.

        Args:
            trials: what was measured, in any order.
            facts: `rates.gpu_samples_s` is what counts here.

        Raises:
            PlanError: a cut of the constructor lies past `facts.max_cut`.
        """
        local = _find(trials, FILE)
        if not self._candidates(facts) or facts.samples == 0:
            return self._nothing(facts, "there is nothing to offload")
        if local is None:
            return self._nothing(facts, "no trial has been run")
        ratio = facts.rates.gpu_samples_s / local.samples_s
        if ratio <= BOTTLENECK_RATIO:
            return self._nothing(facts, f"{_room(ratio)}, not more than {BOTTLENECK_RATIO} times")
        best = self._best(trials, facts)
        if best is None or best.share == 0.0:
            return self._nothing(facts, "no candidate promises more than the local pipeline")
        where = f"{best.choice} on {percent(best.share)} of the samples"
        if self._published:
            return self._mix(facts, best, f"{_room(ratio)}; {where}, not checked by a trial{facts.caveats()}")
        check = _find(trials, best.choice) if best.share == 1.0 else _find_check(trials, best.choice)
        if check is None:
            return self._nothing(facts, f"{best.choice} has not been checked on its share of the samples")
        gain = check.samples_s / local.samples_s
        if gain < MIN_GAIN:
            return self._nothing(
                facts, f"{best.choice} ran {gain:.2f} times as fast as the local pipeline when checked"
            )
        reason = f"{_room(ratio)}; {where} ran {gain:.2f} times as fast as the local one{facts.caveats()}"
        return self._mix(facts, best, reason)

    def plan(self, facts: Facts) -> Plan:
        """The plan to expect without trials: their results are predicted from the table, if it has the candidates.

        Raises:
            PlanError: a cut of the constructor lies past `facts.max_cut`.
        """
        if facts.table is None:
            return self._nothing(facts, "there are neither trials nor a profile yet")
        missing = [str(choice) for choice in self._candidates(facts) if facts.table.index(choice) is None]
        if missing:
            return self._nothing(facts, f"the profile has no {', '.join(missing)}")
        trials: list[Trial] = []
        plan = self.next_trial(trials, facts)
        while plan is not None:
            trials.append(_predicted_trial(facts.table, facts, plan))
            plan = self.next_trial(trials, facts)
        return self.decide(trials, facts)

    def _candidates(self, facts: Facts) -> tuple[Choice, ...]:
        if self._cuts == "every":
            return tuple(choice_at(facts, cut) for cut in range(1, facts.max_cut + 1))
        cuts = self._cuts if self._cuts is not None else tuple({facts.max_cut} - {0})
        if any(cut > facts.max_cut for cut in cuts):
            raise PlanError(f"cuts must be <= max_cut = {facts.max_cut}, got {list(cuts)}; the agent cannot go further")
        return tuple(choice_at(facts, cut) for cut in cuts)

    def _best(self, trials: Sequence[Trial], facts: Facts) -> _Offer | None:
        """The candidate that promises most; of equal ones the one that offloads least."""
        local = _find(trials, FILE)
        remotes = [_find(trials, choice) for choice in self._candidates(facts)]
        offer = _published_offer if self._published else _offer
        offers = [offer(local, remote, facts) for remote in remotes if local is not None and remote is not None]
        return max(offers, key=lambda offer: (offer.samples_s, -offer.share), default=None)

    def _mix(self, facts: Facts, offer: _Offer, reason: str) -> Plan:
        chosen = spread(facts.samples, offer.share).astype(np.uint8)
        predicted = None
        table = facts.table
        column = None if table is None else table.index(offer.choice)
        if table is not None and column is not None:
            taken = np.where(table.has(column), chosen * np.uint8(column), np.uint8(0))
            predicted = epoch_work(table, taken).time(facts.samples, facts.rates)
        return Plan(self.name, (FILE, offer.choice), chosen, reason, predicted)

    def _nothing(self, facts: Facts, why: str) -> Plan:
        return same_for_all(self.name, facts, FILE, f"{why}: nothing is offloaded")


def _room(ratio: float) -> str:
    """Return the factor by which the GPU could be faster, in words."""
    if math.isinf(ratio):
        return "the training step is not known to limit"
    return f"the training step could take {ratio:.2f} times what the local pipeline gives"


def _find(trials: Sequence[Trial], choice: Choice) -> Trial | None:
    """The latest trial of the whole data set: local for `FILE`, else every sample offloaded by `choice`."""
    share = 0.0 if choice == FILE else 1.0
    return next((trial for trial in reversed(trials) if trial.share == share and trial.choice == choice), None)


def _find_check(trials: Sequence[Trial], choice: Choice) -> Trial | None:
    """The latest trial of `choice` on a share of the samples."""
    return next((trial for trial in reversed(trials) if trial.choice == choice and 0 < trial.share < 1), None)


def _offer(local: Trial, remote: Trial, facts: Facts) -> _Offer:
    """Return the amount to offload (FastFlow, section "How much data to offload").

    A remote stream of r samples/s costs r * OCycle of loader CPU, where r local samples had cost r * PCycle. So the
    local pipeline delivers L' = L - r * OCycle / PCycle at the same time. Let r = R, the measured remote rate. While L'
    + R stays below the GPU's rate G, the share is R / (L' + R). Otherwise r only has to be so large that L' + r = G.
    This gives r = (G - L) / (1 - OCycle / PCycle) and the share r / G = 1 - L' / G.
    """
    gpu, here, there = facts.rates.gpu_samples_s, local.samples_s, remote.samples_s
    pcycle, ocycle = local.loader_cpu_s_per_sample, remote.loader_cpu_s_per_sample
    overhead = ocycle / pcycle if pcycle > 0 else 0.0
    still_here = max(0.0, here - there * overhead)
    together = still_here + there
    if together <= gpu:
        share = there / together
    elif overhead < 1:
        share = min(1.0, (gpu - here) / (1 - overhead) / gpu)
        together = gpu
    else:
        share = 1.0
        together = gpu
    if together <= here:
        share = 0.0
        together = here
    return _Offer(remote.choice, round(share * facts.samples) / facts.samples, together)


def _published_offer(local: Trial, remote: Trial, facts: Facts) -> _Offer:
    """Return the share and the figure of merit that FastFlow's own code computes.

    If both together stay below the GPU's rate G, the share is R / (L + R). Otherwise D = (G - L) * (1 + OCycle /
    PCycle) samples/s are to be offloaded. D is averaged with R if the local pipeline is the faster one; else R is taken
    if it is more. Candidates are compared by R + L * (1 - OCycle / PCycle).
    """
    gpu, here, there = facts.rates.gpu_samples_s, local.samples_s, remote.samples_s
    pcycle, ocycle = local.loader_cpu_s_per_sample, remote.loader_cpu_s_per_sample
    overhead = ocycle / pcycle if pcycle > 0 else 0.0
    if here + there < gpu:
        share = there / (here + there)
    else:
        enough = (gpu - here) * (1 + overhead)
        offloaded = (there + enough) / 2 if here > there else max(there, enough)
        share = min(1.0, offloaded / gpu)
    return _Offer(remote.choice, round(share * facts.samples) / facts.samples, there + here * (1 - overhead))


def _predicted_trial(table: ChoiceTable, facts: Facts, plan: Plan) -> Trial:
    """Return the trial that the cost model predicts under `plan`."""
    columns = np.array([table.index(choice) for choice in plan.choices], dtype=np.uint8)
    chosen = columns[plan.chosen]
    for column in set(columns.tolist()) - {0}:
        chosen[(chosen == column) & ~table.has(column)] = 0
    work = epoch_work(table, chosen)
    seconds = work.time(facts.samples, facts.rates).seconds
    samples_s = facts.samples / max(seconds, facts.samples * 1e-12)  # every rate may be infinite
    return Trial.of(plan, samples_s, work.loader_s / facts.samples)
