"""Rows of a report's table, in the order of a user's questions: what happened, what limits, remedies, details.

Empty values and 0 have no row. Programs read `Report.as_dict()` instead, whose names and values stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from sophon_loader.decide.words import resource
from sophon_loader.device.step_clock import VERDICT_STEPS
from sophon_loader.figures import counted, duration, number, per_second, percent, size
from sophon_loader.report.advice import sent_more, sent_share
from sophon_loader.report.agents import agents_of_use, losses
from sophon_loader.report.values import ReportValues

if TYPE_CHECKING:
    from sophon_loader.measures.counters import Totals


def title(report: ReportValues) -> str:
    """Return the heading of the table."""
    epoch = "" if report.epoch is None else f"epoch {report.epoch}, "
    ranks = "" if report.ranks == 1 else f", sum of {report.ranks} ranks"
    return f"{epoch}policy {report.policy}{ranks}"


def rows_of(report: ReportValues) -> list[tuple[str, str]]:
    """Return the rows that are not empty, as (name, value).

    Args:
        report: of an epoch.
    """
    return [(what, value) for what, value in _rows(report) if value]


def _rows(report: ReportValues) -> Iterator[tuple[str, str]]:
    totals = report.totals
    predicted, verdict = report.predicted_seconds, report.decided
    yield "result", report.summary
    yield f"{report.unit}s", _samples(report)
    yield "predicted time", "" if predicted is None else duration(predicted) + (" per pass" if report.passes else "")
    yield "what limits", verdict.limits or _too_soon(report)
    yield "what would help", verdict.helps
    states = [one.state for one in report.agents]
    yield "agents of use", agents_of_use(report.wanted_agent_cores, report.wanted_agents, states, report.would_bring)
    yield "why this plan", report.why_this_plan
    yield "speeds", _speeds(report.rates)
    yield "without offloading", _throughput(report.throughput)
    yield "sent", _sent(totals)
    yield "sent by groups", ", ".join(f"{pair}: {size(nbytes)}" for pair, nbytes in report.group_bytes.items())
    yield "sent as", _sent_as(totals)
    yield "from the cache", _cached(totals)
    yield "ops at the agent", _cuts(totals.cuts, report.unit)
    yield "decoded here", _decoded(report)
    yield "CPU time", _cpu_time(totals)
    lost = losses([asdict(one) for one in report.agents])
    yield "problems", "\n".join([*lost, *_problems(totals, report.unit)])
    yield "checked", _verified(totals.verified)
    yield "ranks", _ranks(report.ranks)
    yield "notes", "\n".join(report.notes)


def _samples(report: ReportValues) -> str:
    count, seconds = report.totals.samples, report.seconds
    if not count:
        return ""
    text = f"{count:,} in {duration(seconds)}, {number(count / seconds)} per second" if seconds else f"{count:,}"
    if report.workers:
        text += f"; {counted(report.workers, 'loader worker')}"
    if report.passes:
        text += f"; {counted(report.passes, 'pass', 'passes')} over the dataset complete"
    return text


def _too_soon(report: ReportValues) -> str:
    """Return the reason why there is no verdict yet, if speeds are measured and only training steps are missing."""
    waiting = report.totals.samples and report.rates and not report.judged
    return f"not known yet: it takes {VERDICT_STEPS} training steps" if waiting else ""


def _speeds(rates: Mapping[str, float]) -> str:
    """Return the speeds that a plan is made with, each in its unit."""
    told: dict[str, Callable[[float], str]] = {
        "wire_bytes_s": lambda value: f"network {size(value)}/s",
        "loader_cores": lambda value: f"loader {counted(value, 'core')}",
        "agent_cores": lambda value: f"agent {counted(value, 'core')}",
        "gpu_samples_s": lambda value: f"training step {per_second(value)}",
        "disk_samples_s": lambda value: f"agent's disk {per_second(value)}",
        "gpu_busy_share": lambda value: f"GPU busy {percent(value)} of the time",
    }
    others = [f"{name.replace('_', ' ')} {number(value)}" for name, value in rates.items() if name not in told]
    return ", ".join([write(rates[name]) for name, write in told.items() if name in rates] + others)


def _throughput(samples_s: Mapping[str, float]) -> str:
    """Return the samples/s that each part could reach by itself."""
    first, *others = [name for name in ("io", "cpu", "gpu") if name in samples_s] or [""]
    if not first:
        return ""
    rest = "".join(f", {number(samples_s[name])} by {resource(name)}" for name in others)
    return f"at most {per_second(samples_s[first])} by {resource(first)}{rest}"


def _sent(totals: Totals) -> str:
    if not totals.file_bytes:
        return ""
    share = sent_share(totals.wire_bytes, totals.read_bytes)
    if share is None:
        return f"nothing: files of {size(totals.file_bytes)} were read on this host"
    text = f"{size(totals.wire_bytes)} for files of {size(totals.read_bytes)} ({percent(share)})"
    here = totals.file_bytes - totals.read_bytes if totals.fallbacks or totals.cached else 0
    if here > 0:
        text += f"; files of {size(here)} were read on this host"
    if more := sent_more(totals.wire_bytes, totals.read_bytes):
        text += f": {more} more than the files have, because prepared samples can be larger; it spares the loader's CPU"
    return text


def _cached(totals: Totals) -> str:
    share = percent(totals.cached / totals.samples) if totals.samples else ""
    return f"{counted(totals.cached, 'sample')} ({share}), on this host" if totals.cached else ""


def _sent_as(totals: Totals) -> str:
    """Return the number of samples by encoding, falling; "" if all samples are files."""
    if not set(totals.encodings) - {"file"}:
        return ""
    falling = sorted(totals.encodings.items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {name}" for name, count in falling)


def _cuts(cuts: Mapping[int, int], unit: str) -> str:
    """Return the number of samples or pictures by number of ops at the agent; "" if no op ran there."""
    if not set(cuts) - {0}:
        return ""
    told = {0: "none", 1: "decoding alone"}
    parts = [f"{told.get(cut, cut)} for {counted(count, unit)}" for cut, count in sorted(cuts.items())]
    return ", ".join(parts) + (" (decoding is the first)" if max(cuts) > 1 else "")


def _cpu_time(totals: Totals) -> str:
    spent = {"loader": totals.loader_cpu_s, "agent": totals.agent_cpu_s}
    text = ", ".join(f"{where} {duration(seconds)}" for where, seconds in spent.items() if seconds)
    if totals.upkeep_s:
        text += f" ({duration(totals.upkeep_s)} of it besides reading, ops and encoding)"
    return text


def _decoded(report: ReportValues) -> str:
    """Return the number of pictures decoded by our C and by Pillow; "" if our C was switched off."""
    totals = report.totals
    text = f"{counted(totals.fused, 'picture')} by C of our own" if totals.fused else ""
    if totals.unfused:
        which = (
            ", whose files are not baseline JPEG, or damaged" if totals.fused else ", since our C takes none of them"
        )
        if report.unit == "picture" or not totals.samples:  # of a dataset of any class, whose notes tell more
            which = ""
        text += f"{', ' if text else ''}{counted(totals.unfused, 'picture')} by Pillow{which}"
    return text


def _problems(totals: Totals, unit: str) -> Iterator[str]:
    if totals.fallbacks:
        yield f"{counted(totals.fallbacks, 'file')} read on this host, because the agent sent nothing usable"
    if totals.retries:
        yield f"{counted(totals.retries, unit)} requested more than once"
    if totals.degraded:
        yield f"{counted(totals.degraded, unit)} came less prepared than requested"
    if totals.corrupt:
        yield f"{counted(totals.corrupt, 'message')} damaged on the way"
    if totals.malformed:
        yield f"{counted(totals.malformed, 'message')} from the agent unreadable, or against the protocol"


def _verified(count: int) -> str:
    return f"{counted(count, 'sample')} computed on this host too: equal" if count else ""


def _ranks(count: int) -> str:
    if count == 1:
        return ""
    return f"{count}; counts and speeds are sums, times those of the slowest rank, shares of time are means"
