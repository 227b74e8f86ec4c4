"""A report as flat numbers, for the logger of the training: TensorBoard, W&B, MLflow."""

from __future__ import annotations

from sophon_loader.report.advice import sent_share
from sophon_loader.report.values import ReportValues

COUNTERS = ("fallbacks", "retries", "degraded", "corrupt", "malformed", "verified")
"""Counters that are always logged, 0 too: a curve that is missing looks like one that was not logged."""


def scalars_of(report: ReportValues) -> dict[str, float]:
    """Return name -> number. Unknown values, and divisions by 0, are left out.

    Args:
        report: of an epoch; empty before the first batch, and for a plain DataLoader.
    """
    totals, seconds = report.totals, report.seconds
    if report.epoch is None:
        return {}
    told: dict[str, float] = {"epoch": report.epoch, "seconds": seconds, "samples": totals.samples}
    if seconds:
        told |= {
            "samples_per_s": totals.samples / seconds,
            "wire_mb_per_s": totals.wire_bytes / 1e6 / seconds,
            "waiting_share": report.awaited_s / seconds,
        }
    share = sent_share(totals.wire_bytes, totals.read_bytes)
    if share is not None:
        told["saved_share"] = 1 - share
    if totals.samples:
        told |= {
            "offloaded_share": report.prepared / totals.samples,
            "loader_cpu_ms_per_sample": 1e3 * totals.loader_cpu_s / totals.samples,
            "agent_cpu_ms_per_sample": 1e3 * totals.agent_cpu_s / totals.samples,
        }
    told |= {name: getattr(totals, name) for name in COUNTERS}
    told["workers"] = report.workers
    if report.predicted_seconds is not None:
        told["predicted_seconds"] = report.predicted_seconds
    for name, wanted in (("wanted_agent_cores", report.wanted_agent_cores), ("wanted_agents", report.wanted_agents)):
        if wanted is not None:
            told[name] = wanted
    told |= {f"busy/{resource}": share for resource, share in report.limits.items()}
    return {name: float(value) for name, value in told.items()}
