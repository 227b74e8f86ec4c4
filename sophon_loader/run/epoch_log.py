"""Writes a run's epochs to its log: when a batch is delivered, at least a second after the last line. There is no
thread, and a loader without a log does none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sophon_loader import __version__
from sophon_loader.device.step_clock import StepClock
from sophon_loader.epoch.epoch import Epoch, Observer
from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.ranks.seeding import rank_of_all
from sophon_loader.report.page import FAULTS
from sophon_loader.report.report import Report
from sophon_loader.report.run_log import RunLog

EVERY_S = 1.0
REPORT_EVERY_S = 30.0
"""Seconds between two whole reports, of an epoch that runs or is given up. Writing one takes up to 40 ms."""


def log_report(run_log: RunLog, report: Report, *, ended: bool) -> None:
    """Write a whole report to a log.

    Args:
        run_log: the log.
        report: of an epoch, or of a loader whose epochs are a plain DataLoader's.
        ended: True if the epoch has delivered its last batch.
    """
    told = report.told()
    facts = {"ended": ended, "title": told.title, "rows": told.rows, "values": dict(told.values)}
    run_log.write("report", facts, rank_of_all()[0])


class LoggedEpoch:
    """Forwards an epoch's events to the engine, and writes them to the log.

    Args:
        engine: drives the epoch.
        epoch: that has begun.
        run_log: of the loader.
        report: returns the epoch's current report.
        about: the loader, in a few words.
    """

    def __init__(
        self, engine: Observer, epoch: Epoch, run_log: RunLog, report: Callable[[], Report], about: str
    ) -> None:
        self._engine, self._epoch, self._log, self._report = engine, epoch, run_log, report
        self._rank = rank_of_all()[0]
        self._totals, self._seconds, self._awaited_s, self._delivered = NO_TOTALS, 0.0, 0.0, 0
        self._due_s, self._report_due_s = EVERY_S, EVERY_S
        facts = {"epoch": epoch.number, "loader": about, "rank": self._rank, "sophon_loader": __version__}
        self._log.write("begin", facts, self._rank)

    @property
    def step_clock(self) -> StepClock:
        return self._engine.step_clock

    def wanted(self) -> None:
        self._engine.wanted()

    def progressed(self, epoch: Epoch, seconds: float) -> None:
        self._engine.progressed(epoch, seconds)
        if seconds >= self._due_s:
            self._second(seconds)

    def delivered(self, epoch: Epoch, seconds: float, samples: int) -> None:
        self._engine.delivered(epoch, seconds, samples)

    def turned_over(self, epoch: Epoch) -> None:
        self._engine.turned_over(epoch)

    def finished(self, epoch: Epoch) -> None:
        self._engine.finished(epoch)
        self._second(epoch.account.moment.seconds)
        self._whole(ended=True)

    def _second(self, seconds: float) -> None:
        epoch, totals, found = self._epoch, self._epoch.account.moment.totals, self._epoch.account.findings
        passed = totals.since(self._totals)
        facts: dict[str, Any] = {
            "epoch": epoch.number,
            "seconds": round(seconds, 3),
            "for_s": round(seconds - self._seconds, 3),
            "samples": epoch.delivered - self._delivered,
            "waited_s": round(epoch.awaited_s - self._awaited_s, 3),
            "wire_bytes": passed.wire_bytes,
            "read_bytes": passed.read_bytes,
            "choices": passed.encodings,
            "workers_waited_s": round(passed.waited_s, 3),
            "workers_busy_s": round(passed.busy_s, 3),
            "loader_cpu_s": round(passed.loader_cpu_s, 3),
            "agent_cpu_s": round(passed.agent_cpu_s, 3),
            "limits": {name: round(share, 3) for name, share in found.limits.items()},
        }
        if found.throughput:
            facts["without_samples_s"] = round(min(found.throughput.values()), 3)
        faults = {name: count for name in FAULTS if (count := getattr(passed, name))}
        if faults:
            facts["faults"] = faults
        self._log.write("second", facts, self._rank)
        self._totals, self._seconds = totals, seconds
        self._awaited_s, self._delivered = epoch.awaited_s, epoch.delivered
        self._due_s = seconds + EVERY_S
        if seconds >= self._report_due_s and not epoch.learnt:
            self._report_due_s = seconds + REPORT_EVERY_S
            self._whole(ended=False)

    def _whole(self, *, ended: bool) -> None:
        log_report(self._log, self._report(), ended=ended)
