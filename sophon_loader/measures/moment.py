"""How far an iteration has come."""

from __future__ import annotations

from dataclasses import dataclass

from sophon_loader.measures.counters import NO_TOTALS, Totals


@dataclass(frozen=True)
class Moment:
    """How far an iteration has come, or what passed between two such moments.

    Args:
        seconds: since it began.
        totals: counted since then.
        awaited_s: of these, seconds for which the training waited for batches.
        stepped: samples whose training steps have ended. Workers run ahead of them, by batches.
    """

    seconds: float
    totals: Totals
    awaited_s: float
    stepped: int

    def with_what_passed(self, before: Moment, after: Moment) -> Moment:
        """This, and what passed from one moment of an iteration to another."""
        passed = after.totals.since(before.totals)
        return Moment(
            self.seconds + after.seconds - before.seconds,
            self.totals.scalars_with(passed),
            self.awaited_s + after.awaited_s - before.awaited_s,
            self.stepped + after.stepped - before.stepped,
        )


NOTHING_PASSED = Moment(0.0, NO_TOTALS, 0.0, 0)
