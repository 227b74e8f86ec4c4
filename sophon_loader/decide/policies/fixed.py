"""The baselines: every sample takes the same choice.

`no-off` offloads nothing, `all-off` everything the agent can do, `resize-off` up to the first crop or resize (No-Off,
All-Off and Resize-Off of SOPHON, HotStorage '24, experiment setup). They need no profile.
"""

from __future__ import annotations

from sophon_loader.decide.facts import FILE, Facts
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policies.common import choice_at, same_for_all
from sophon_loader.figures import counted


class NoOff:
    """Offload nothing."""

    name = "no-off"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        """Every sample crosses the wire as its file."""
        return same_for_all(self.name, facts, FILE, "this policy offloads nothing")


class AllOff:
    """Offload every op that the agent can run."""

    name = "all-off"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        """Every sample is cut at `facts.max_cut`."""
        if facts.max_cut == 0:
            return same_for_all(self.name, facts, FILE, "the agent can run none of the ops: nothing is offloaded")
        why = f"the agent runs the first {counted(facts.max_cut, 'op')} of every sample"
        return same_for_all(self.name, facts, choice_at(facts, facts.max_cut), why)


class ResizeOff:
    """Offload up to the first crop or resize."""

    name = "resize-off"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        """Every sample is cut at `facts.resize_cut`; without one, or out of reach, nothing is offloaded."""
        cut = facts.resize_cut
        if cut is None:
            return same_for_all(self.name, facts, FILE, "no op crops or resizes: nothing is offloaded")
        if cut > facts.max_cut:
            why = f"the agent can run {counted(facts.max_cut, 'op')}, and the resize is op {cut}: nothing is offloaded"
            return same_for_all(self.name, facts, FILE, why)
        why = f"the agent runs the first {counted(cut, 'op')} of every sample, up to the resize"
        return same_for_all(self.name, facts, choice_at(facts, cut), why)
