"""Trial windows for policies that decide by trying plans out, as FastFlow does."""

from __future__ import annotations

from collections.abc import Callable

from sophon_loader.decide.facts import Facts
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policy import Trial, TryingPolicy


class TrialRunner:
    """Takes a trying policy through its windows, batch by batch, over as many epochs as that takes.

    Example:
        >>> trials = TrialRunner(FastFlow(), current_facts, lag=4)
        >>> trials.delivered(seconds=0.2, samples=64, loader_cpu_s=0.19, loaded=64)

    Args:
        policy: is asked for a plan when it begins and whenever a window is full.
        facts: returns the facts as they are known now.
        lag: batches that were asked for before a new plan was set, and so do not count for it.

    Attributes:
        done: whether the policy has seen enough.
    """

    def __init__(self, policy: TryingPolicy, facts: Callable[[], Facts], lag: int) -> None:
        self._policy = policy
        self._facts = facts
        self._lag = lag
        self._trials: list[Trial] = []
        self._plan = policy.next_trial(self._trials, facts())
        self.done = self._plan is None
        self._reset()

    @property
    def plan(self) -> Plan:
        """The plan to follow now."""
        if self._plan is None:
            return self._policy.decide(self._trials, self._facts())
        return self._plan

    def delivered(self, seconds: float, samples: int, loader_cpu_s: float, loaded: int) -> Plan | None:
        """A batch has come.

        Args:
            seconds: after the one before, in the same epoch.
            samples: in the batch.
            loader_cpu_s: CPU seconds of the loader's workers since the one before.
            loaded: samples that they finished in these.

        Returns:
            A new plan to follow if the window is full, else None.
        """
        if self.done or self._plan is None:
            return None
        self._batches += 1
        if self._batches <= self._lag:
            return None
        self._seconds += seconds
        self._samples += samples
        self._loader_cpu_s += loader_cpu_s
        self._loaded += loaded
        if self._batches < self._lag + self._policy.trial_steps:
            return None
        cpu_s_per_sample = self._loader_cpu_s / max(1, self._loaded)
        self._trials.append(Trial.of(self._plan, self._samples / max(self._seconds, 1e-9), cpu_s_per_sample))
        self._plan = self._policy.next_trial(self._trials, self._facts())
        self.done = self._plan is None
        self._reset()
        return self.plan

    def _reset(self) -> None:
        self._batches = self._samples = self._loaded = 0
        self._seconds = self._loader_cpu_s = 0.0
