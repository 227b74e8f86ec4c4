"""Trial windows for policies that decide by trying plans out, as FastFlow does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sophon_loader.decide.facts import Facts
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policy import Trial, TryingPolicy

PATIENCE = 3.0
"""Factor to the first window's seconds after which a later one ends, after any number of steps: a candidate that makes
the traffic grow tenfold is soon known to."""
ALIKE = 1.3
"""Factor to a kept rate, up or down, within which it still counts as the same job: FastFlow's own threshold."""


@dataclass(frozen=True)
class KeptTrials:
    """Trials of an earlier run.

    Args:
        trials: all of them, oldest first.
        gpu_samples_s: of the training step then; inf if it never limits.
    """

    trials: tuple[Trial, ...]
    gpu_samples_s: float

    def describes(self, trial: Trial, gpu_samples_s: float) -> bool:
        """Return True if a current window is of the same job.

        Args:
            trial: the window.
            gpu_samples_s: of the training step now. A rate far above all that was tried limits nothing, so such rates
                are all alike.
        """
        same = [one for one in self.trials if (one.choice, one.share) == (trial.choice, trial.share)]
        if same and not _alike(same[-1].samples_s, trial.samples_s):
            return False
        most = ALIKE * max(one.samples_s for one in self.trials)
        return _alike(min(self.gpu_samples_s, most), min(gpu_samples_s, most))


def _alike(one: float, other: float) -> bool:
    return max(one, other) <= ALIKE * min(one, other)


class TrialRunner:
    """Takes a trying policy through its windows, batch by batch, over as many epochs as that takes.

    With trials of an earlier run the plan that they support is followed from the first batch on. A window of it shows
    if this still is the same job. If two in a row do not (the first may include the start of workers), all trials are
    repeated.

    Example:
        >>> trials = TrialRunner(FastFlow(), current_facts, lag=4)
        >>> trials.delivered(seconds=0.2, samples=64, loader_cpu_s=0.19, loaded=64)

    Args:
        policy: is asked for a plan when it begins and whenever a window is full.
        facts: returns the current facts.
        lag: number of batches that were requested before a new plan was set, and so do not count for it.
        kept: of an earlier run; None, or too little for the policy to decide, and it begins from nothing.
        warm: number of further batches that do not count at the very first: workers that have just started are slow.

    Attributes:
        done: True if the policy has seen enough.
        tried_steps: number of batches used to try plans out.
    """

    def __init__(
        self,
        policy: TryingPolicy,
        facts: Callable[[], Facts],
        lag: int,
        kept: KeptTrials | None = None,
        warm: int = 0,
    ) -> None:
        self._policy = policy
        self._facts = facts
        self._lag = lag
        self._trials: list[Trial] = []
        self._kept: KeptTrials | None = None
        self._doubted = False
        self._patience_s = math.inf
        self.tried_steps = 0
        self._plan = self._supported(kept) or policy.next_trial(self._trials, facts())
        self.done = self._plan is None
        self._reset()
        self._batches = -warm

    def _supported(self, kept: KeptTrials | None) -> Plan | None:
        """Return the plan that trials of an earlier run support, if they are enough; they are then on probation."""
        if kept is None:
            return None
        facts = self._facts()
        facts = replace(facts, rates=replace(facts.rates, gpu_samples_s=kept.gpu_samples_s))
        if self._policy.next_trial(kept.trials, facts) is not None:
            return None
        self._kept = kept
        return self._policy.decide(kept.trials, facts)

    @property
    def plan(self) -> Plan:
        """Return the plan to follow now."""
        if self._plan is None:
            return self._policy.decide(self._trials, self._facts())
        return self._plan

    @property
    def found(self) -> KeptTrials | None:
        """Return the trials for a later run; None before all are done, or with nothing to try."""
        if not (self.done and self._trials):
            return None
        return KeptTrials(tuple(self._trials), self._facts().rates.gpu_samples_s)

    def delivered(self, seconds: float, samples: int, loader_cpu_s: float, loaded: int) -> Plan | None:
        """Add a batch.

        Args:
            seconds: after the one before, in the same epoch.
            samples: number of samples in the batch.
            loader_cpu_s: CPU seconds of the loader's workers since the one before.
            loaded: number of samples that they finished in these.

        Returns:
            A new plan to follow if the window is full, else None.
        """
        if self.done or self._plan is None:
            return None
        self._batches += 1
        self.tried_steps += self._kept is None
        if self._batches <= self._lag:
            return None
        self._seconds += seconds
        self._samples += samples
        self._loader_cpu_s += loader_cpu_s
        self._loaded += loaded
        if self._batches < self._lag + self._policy.trial_steps and self._seconds < self._patience_s:
            return None
        cpu_s_per_sample = self._loader_cpu_s / max(1, self._loaded)
        trial = Trial.of(self._plan, self._samples / max(self._seconds, 1e-9), cpu_s_per_sample)
        kept = self._kept
        if kept is None:
            self._patience_s = min(self._patience_s, PATIENCE * self._seconds)
            self._trials.append(trial)
        elif kept.describes(trial, self._facts().rates.gpu_samples_s):
            self._trials, self._plan, self.done = list(kept.trials), None, True
            return None
        elif not self._doubted:
            self._doubted = True
            self._reset()
            return None
        self._kept = None
        self._plan = self._policy.next_trial(self._trials, self._facts())
        self.done = self._plan is None
        self._reset()
        return self.plan

    def _reset(self) -> None:
        self._batches = self._samples = self._loaded = 0
        self._seconds = self._loader_cpu_s = 0.0
