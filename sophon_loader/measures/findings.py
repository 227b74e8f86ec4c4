"""What the loader has measured, planned with and concluded, all of one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from sophon_loader.measures.verdict import Verdict
from sophon_loader.wire.wanted_cores import WantedCores


@dataclass(frozen=True)
class Findings:
    """What the loader has measured, planned with and concluded, all of one moment; `Report` says what each is.

    `verdict` holds what takes some milliseconds to work out, and is worked out where a report is made.
    `wanted` is that of some seconds ago, which is told to a fleet.

    `auto` has new ones whenever it revises its prices, the other policies where they plan and at the end of a pass.
    """

    plan_reason: str = ""
    predicted_seconds: float | None = None
    bottleneck: str | None = None
    rates: dict[str, float] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    verdict: Verdict | None = None
    wanted: WantedCores | None = None

    def would_bring(self) -> dict[str, float]:
        """Empty where it is not known what limits."""
        return dict(self.verdict.would_bring) if self.verdict is not None and self.limits else {}

    def weighed(self) -> dict[str, dict[str, float]]:
        """Empty while no choice has been weighed."""
        return {} if self.verdict is None else self.verdict.weighed()

    def wanted_now(self) -> WantedCores | None:
        """Of the moment of all the others, where a fleet is told any."""
        if self.wanted is None or self.verdict is None or self.verdict.wanted_cores is None:
            return None
        return WantedCores(self.verdict.wanted_cores, self.wanted.per_agent)
