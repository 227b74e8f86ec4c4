"""Where an agent stands: drawn events against a model that keeps their whole history."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sophon_loader.routes.standing import FIRST_PAUSE_S, MAX_PAUSE_S, Route, Standing

MOVES = {
    ("starting", "answered"): "ready",
    ("gone", "answered"): "back",
    ("ready", "given up"): "gone",
    ("back", "given up"): "gone",
    ("starting", "refused"): "useless",
    ("ready", "refused"): "useless",
    ("gone", "refused"): "useless",
    ("back", "refused"): "useless",
}
"""All there are; any other event leaves it where it is."""


class Routes(RuleBasedStateMachine):
    """The model: a table of moves, the failures since the pauses began anew, and the last event of each kind."""

    @initialize(standing=st.sampled_from(Standing))
    def begin(self, standing: Standing) -> None:
        self.now_s = 1000.0
        self.route = Route(standing, self.now_s)
        self.model = standing.value
        self.failures = 0
        self.left_alone_at_s = self.now_s
        self.on_trial = False
        self.served_since_s = -1e9
        self.latest_s = MAX_PAUSE_S

    def pause_s(self, failures: int) -> float:
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**failures)

    def moved(self, event: str) -> bool:
        before, self.model = self.model, MOVES.get((self.model, event), self.model)
        return before != self.model

    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.route.due(self.now_s))
    @rule()
    def a_trial_begins(self) -> None:
        assert self.model in ("starting", "gone") and not self.on_trial
        self.route.trial_begins()
        self.on_trial = True

    @precondition(lambda self: self.on_trial)
    @rule(spent_s=st.sampled_from([0.0, 0.0, 0.01, 3.0]))
    def a_trial_fails(self, spent_s: float) -> None:
        self.route.failed(self.now_s, "silence", spent_s)
        self.on_trial = False
        self.left_alone_at_s = self.now_s + max(self.pause_s(self.failures), 20 * spent_s)
        self.latest_s = max(self.latest_s, 20 * spent_s)
        self.failures += 1
        assert self.route.why == "silence"

    @rule()
    def it_answers(self) -> None:
        self.route.answered(self.now_s)
        if self.moved("answered"):
            self.on_trial, self.served_since_s = False, self.now_s
            assert not self.route.why

    @rule()
    def it_is_given_up(self) -> None:
        self.route.given_up(self.now_s, "no samples")
        if self.moved("given up"):
            if self.now_s - self.served_since_s > self.pause_s(self.failures):
                self.failures = 0
            self.left_alone_at_s = self.now_s + self.pause_s(self.failures)
            self.failures += 1

    @rule()
    def it_refuses(self) -> None:
        self.route.refused("another key")
        if self.moved("refused"):
            self.on_trial = False
            assert self.route.why == "another key"

    @invariant()
    def it_stands_where_the_model_does(self) -> None:
        if not hasattr(self, "route"):
            return
        assert self.route.standing.value == self.model
        assert self.route.serves == (self.model in ("ready", "back"))
        assert self.route.awaited == (self.model in ("starting", "gone"))
        awaited = self.route.awaited and not self.on_trial
        assert self.route.due(self.now_s) == (awaited and self.now_s >= self.left_alone_at_s)

    @invariant()
    def it_is_not_stuck(self) -> None:
        """What may serve later is tried within the longest pause, or twenty times what a trial has taken."""
        if hasattr(self, "route") and self.route.awaited and not self.on_trial:
            assert self.route.due(self.now_s + self.latest_s)


TestRoutes: Any = Routes.TestCase


def test_the_pauses_between_trials() -> None:
    route, now_s, pauses = Route(Standing.STARTING, 0.0), 0.0, []
    for _ in range(5):
        route.trial_begins()
        route.failed(now_s, "silence")
        began_s = now_s
        while not route.due(now_s):
            now_s += 0.5
        pauses.append(now_s - began_s)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]
