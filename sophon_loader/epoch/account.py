"""The facts on a running epoch. Only this module makes a report from them."""

from __future__ import annotations

from typing import Any

from sophon_loader.measures.findings import Findings
from sophon_loader.measures.moment import NOTHING_PASSED, Moment
from sophon_loader.report.report import Report


class Account:
    """The facts on an epoch. The iterating thread writes them. Any thread may make the report, since each part is
    replaced as a whole.

    Args:
        policy: name of the policy.
        number: of the epoch.
        why_not: reason why nothing was offloaded.
        notes: notes for the user.

    Attributes:
        now: the progress; None before the first batch.
        findings: the newest ones.
        passes: number of complete passes over the data.
        workers: number of workers that load.

    Example:
        >>> account = Account("auto", 3)
        >>> account.report().epoch is None
        True
    """

    def __init__(self, policy: str, number: int, why_not: str = "", notes: tuple[str, ...] = ()) -> None:
        self.policy = policy
        self.number = number
        self.why_not = why_not
        self.notes = notes
        self.now: Moment | None = None
        self.findings = Findings()
        self.passes = 0
        self.workers = 0

    @property
    def moment(self) -> Moment:
        """The progress; zeros before the first batch."""
        return self.now or NOTHING_PASSED

    def report(self, **described: Any) -> Report:
        """Make the report of this moment, which does not change afterwards.

        Args:
            described: fields that only the caller knows; its `notes` follow the account's own.
        """
        now, found = self.now, self.findings
        moment, wanted = now or NOTHING_PASSED, found.wanted_now()
        values: dict[str, Any] = {
            "why_not": self.why_not,
            "plan_reason": found.plan_reason,
            "epoch": None if now is None else self.number,
            "seconds": moment.seconds,
            "awaited_s": moment.awaited_s,
            "totals": moment.totals,
            "bottleneck": found.bottleneck,
            "rates": dict(found.rates),
            "throughput": dict(found.throughput),
            "limits": dict(found.limits),
            "would_bring": found.would_bring(),
            "weighed": found.weighed(),
            "predicted_seconds": found.predicted_seconds,
            "wanted_agent_cores": None if wanted is None else wanted.cores,
            "wanted_agents": None if wanted is None else wanted.agents,
            "passes": self.passes,
            "workers": self.workers,
        }
        return Report(self.policy, **{**values, **described, "notes": (*self.notes, *described.get("notes", ()))})
