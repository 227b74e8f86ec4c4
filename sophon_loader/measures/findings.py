"""The loader's measurements, plan and conclusions at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from sophon_loader.measures.verdict import Verdict
from sophon_loader.wire.wanted_cores import WantedCores


@dataclass(frozen=True)
class Findings:
    """The loader's measurements, plan and conclusions at one moment; `Report` describes the fields.

    `verdict` holds figures that take some milliseconds to compute, so they are computed when a report is made. `wanted`
    is some seconds old, and is what a fleet is asked for.

    `auto` makes new findings whenever it revises its prices. The other policies make them when they plan, and at the
    end of a pass.
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
        """Return the speed-ups by `Verdict.would_bring`; empty if the limiting resource is not known."""
        return dict(self.verdict.would_bring) if self.verdict is not None and self.limits else {}

    def weighed(self) -> dict[str, dict[str, float]]:
        """Return the costs by `Verdict.weighed`; empty before any choice was weighed."""
        return {} if self.verdict is None else self.verdict.weighed()

    def wanted_now(self) -> WantedCores | None:
        """Return the wanted cores at the moment of the other findings; None if no fleet is asked for cores."""
        if self.wanted is None or self.verdict is None or self.verdict.wanted_cores is None:
            return None
        return WantedCores(self.verdict.wanted_cores, self.wanted.per_agent)
