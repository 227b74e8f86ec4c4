"""The progress of an iteration."""

from __future__ import annotations

from dataclasses import dataclass

from sophon_loader.measures.counters import NO_TOTALS, Totals


@dataclass(frozen=True)
class Moment:
    """The progress of an iteration, or the difference between two moments of it.

    Args:
        seconds: since the iteration began.
        totals: counts since then.
        awaited_s: part of `seconds` for which the training waited for batches.
        stepped: samples whose training steps have ended. Workers are ahead of them, by batches.
    """

    seconds: float
    totals: Totals
    awaited_s: float
    stepped: int

    def with_what_passed(self, before: Moment, after: Moment) -> Moment:
        """Return the sum of this and the difference between two moments of an iteration.

        Args:
            before, after: the two moments.
        """
        passed = after.totals.since(before.totals)
        return Moment(
            self.seconds + after.seconds - before.seconds,
            self.totals.scalars_with(passed),
            self.awaited_s + after.awaited_s - before.awaited_s,
            self.stepped + after.stepped - before.stepped,
        )


NOTHING_PASSED = Moment(0.0, NO_TOTALS, 0.0, 0)
