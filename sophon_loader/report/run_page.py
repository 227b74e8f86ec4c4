"""Page of a run's log: the verdict of its newest report, and curves over time."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from sophon_loader.figures import counted, duration, number, percent, size
from sophon_loader.report.advice import sent_more, sent_share, verdict_of
from sophon_loader.report.agents import lost_now
from sophon_loader.report.course import Course, EpochCourse
from sophon_loader.report.markup import asset, table
from sophon_loader.report.page import faults_of, page_of

MOST_POINTS = 1200
"""Maximum number of points of a curve; more than a screen has columns. Neighbours are added, so peaks stay visible."""
SHORT_S = 0.5
"""Minimum length of a point, in seconds; shorter ones are added to their neighbours."""
MOST_FAULTS = 100
"""Maximum number of rows in the table of faults."""
MOST_CHOICES = 5
"""Maximum number of choices that have a curve."""


def run_page(course: Course) -> str:
    """Return the page of a log.

    Args:
        course: the run.

    Raises:
        ConfigError: the log has no second of training.
    """
    reports = [one.told for one in course.epochs if one.told is not None]
    told = course.told  # which may be of an epoch before an agent was lost
    told = replace(told, values={**told.values, "agents": reports[-1].values.get("agents", [])})
    faults: Counter[str] = Counter()
    for epoch in course.epochs:
        faults.update(epoch.faults())
    plots = _plots(course)
    figures = "".join(
        f'<figure><h2>{escape(one["title"])}</h2><div class="plot"></div>'
        f"<figcaption>{escape(one['caption'])}</figcaption></figure>"
        for one in plots["plots"]
    )
    hint = (
        "<noscript><p>The curves need JavaScript; the tables below say what they show, epoch by epoch.</p></noscript>"
    )
    unreadable = f'<p class="dim">{counted(course.unreadable, "line")} of the log could not be read.</p>'
    parts = (
        f'<style>{asset("uplot.css")}</style><div class="plots">{figures}</div>{hint}' if len(plots["x"]) > 1 else "",
        _epochs(course.epochs),
        _faults(course.epochs),
        unreadable if course.unreadable else "",
    )
    return page_of(told, "".join(parts), _scripts(plots), faults)


def _scripts(plots: dict[str, Any]) -> str:
    if len(plots["x"]) < 2:
        return ""
    data = json.dumps(plots, separators=(",", ":"))
    for mark in "<>&":  # within a script element nothing is escaped as in text
        data = data.replace(mark, f"\\u{ord(mark):04x}")
    return (
        f"<details><summary>uPlot draws the curves</summary><pre>{escape(asset('uplot.LICENSE.txt'))}</pre></details>"
        f'<script type="application/json" id="course">{data}</script>'
        f"<script>{asset('uplot.js')}</script><script>{asset('page.js')}</script>"
    )


# --- curves -------------------------------------------------------------------------------------------------------


def _plots(course: Course) -> dict[str, Any]:
    """Return the data for the script: the time of each point, curves, and marks."""
    bins = list(_binned([one for epoch in course.epochs for one in _whole_seconds(epoch)]))
    x, begins, marks, passed = [], [], [], 0.0
    for epoch in course.epochs:
        begins.append((round(passed, 2), f"epoch {epoch.number}"))
        for one in epoch.seconds:
            passed += one["for_s"]
            if one.get("faults"):
                marks.append((round(passed, 2), ", ".join(faults_of(one["faults"]))))
    at = 0.0
    for one in bins:
        at += one["for_s"]
        x.append(round(at, 2))
    return {"x": x, "begins": begins, "marks": marks[: 5 * MOST_FAULTS], "plots": list(_curves(bins))}


def _whole_seconds(epoch: EpochCourse) -> Iterator[dict[str, Any]]:
    """Yield an epoch's seconds, the last short one merged with the one before: its rate alone would mean nothing."""
    seconds = epoch.seconds
    if len(seconds) > 1 and seconds[-1]["for_s"] < SHORT_S:
        yield from seconds[:-2]
        yield _added(seconds[-2:])
    else:
        yield from seconds


def _binned(seconds: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    step = -(-len(seconds) // MOST_POINTS) or 1
    for first in range(0, len(seconds), step):
        sums = _added(seconds[first : first + step])
        if sums["for_s"] > 0:
            yield sums


def _added(some: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return neighbouring seconds as one: counts are added, other numbers averaged."""
    sums: dict[str, Any] = {"choices": {}}
    for one in some:
        for name, count in one["choices"].items():
            sums["choices"][name] = sums["choices"].get(name, 0) + count
        for name, value in one.items():
            if isinstance(value, (int, float)):
                sums[name] = sums.get(name, 0) + value
    without = [one["without_samples_s"] for one in some if one.get("without_samples_s") is not None]
    sums["without_samples_s"] = sum(without) / len(without) if without else None
    return sums


def _curves(bins: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    def rates(name: str, scale: float = 1.0) -> list[float | None]:
        return [_short(one.get(name, 0) / scale / one["for_s"]) for one in bins]

    yield {
        "title": "Samples per second",
        "caption": "What the training got, and what it would get at most if nothing was offloaded. ▼ marks a fault.",
        "series": [
            {"name": "now", "values": rates("samples")},
            {"name": "without offloading", "values": [_short(one["without_samples_s"]) for one in bins]},
        ],
    }
    workers = [(one.get("workers_waited_s", 0), one.get("workers_busy_s", 0)) for one in bins]
    yield {
        "title": "Who waits",
        "caption": "Percent of the time for which the training waits for batches, and workers for the agent's replies.",
        "most": 100,
        "series": [
            {"name": "training", "values": [_short(100 * min(1, one["waited_s"] / one["for_s"])) for one in bins]},
            {"name": "workers", "values": [_short(100 * wait / (wait + busy or 1)) for wait, busy in workers]},
        ],
    }
    yield {
        "title": "Network, MB/s",
        "caption": "What the agent sent, and the files that it read for that.",
        "series": [
            {"name": "sent", "values": rates("wire_bytes", 1e6)},
            {"name": "files", "values": rates("read_bytes", 1e6)},
        ],
    }
    yield {
        "title": "Choices, samples per second",
        "caption": "A choice is the form in which a sample comes: “file” is the file as it is, and all others are what "
        "the agent has prepared.",
        "series": list(_choices(bins)),
    }


def _choices(bins: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    sums: dict[str, int] = {}
    for one in bins:
        for name, count in one["choices"].items():
            sums[name] = sums.get(name, 0) + count
    names = sorted(sums, key=lambda name: -sums[name])
    for name in names[:MOST_CHOICES]:
        yield {"name": name, "values": [_short(one["choices"].get(name, 0) / one["for_s"]) for one in bins]}
    if rest := names[MOST_CHOICES:]:
        values = [_short(sum(one["choices"].get(name, 0) for name in rest) / one["for_s"]) for one in bins]
        yield {"name": "others", "values": values}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


# --- tables -------------------------------------------------------------------------------------------------------


def _epochs(epochs: Sequence[EpochCourse]) -> str:
    rows = [_epoch_row(one) for one in epochs if one.seconds]
    head = ("epoch", "samples", "time", "samples/s", "training waited", "sent", "saved", "what limits, and faults")
    return f"<section><h2>Epochs side by side</h2>{table(head, rows, 'numbers words')}</section>" if rows else ""


def _epoch_row(epoch: EpochCourse) -> tuple[str, ...]:
    seconds, samples = epoch.total("for_s"), epoch.total("samples")
    wire = epoch.total("wire_bytes")
    read = epoch.total("read_bytes")
    share, more = sent_share(wire, read), sent_more(wire, read)
    agents = [] if epoch.told is None else epoch.told.values.get("agents", [])
    said = [
        "Not enough data" if epoch.told is None else verdict_of(epoch.told.values).short,
        *faults_of(epoch.faults()),
        *filter(None, [lost_now(agents)]),
    ]
    return (
        f"{epoch.number}" if epoch.ended else f"{epoch.number} (not ended)",
        f"{samples:,.0f}",
        duration(seconds),
        number(samples / seconds) if seconds else "-",
        percent(min(1.0, epoch.total("waited_s") / seconds)) if seconds else "-",
        size(wire),
        f"none: {more} more" if more else "-" if share is None else percent(max(0.0, 1 - share)),
        "; ".join(said),
    )


def _faults(epochs: Sequence[EpochCourse]) -> str:
    found = [(epoch, one) for epoch in epochs for one in epoch.seconds if one.get("faults")]
    rows = [(one["time"], epoch.number, one["seconds"], ", ".join(faults_of(one["faults"]))) for epoch, one in found]
    left = len(rows) - MOST_FAULTS
    rows = sorted([*rows[:MOST_FAULTS], *_lost_agents(epochs)])
    if not rows:
        return ""
    cells = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)), f"{number}", duration(into_s), what)
        for at, number, into_s, what in rows
    ]
    more = f'<p class="dim">And {counted(left, "second")} more with faults.</p>' if left > 0 else ""
    head = ("when", "epoch", "into it", "what happened")
    return f"<section><h2>Faults</h2>{table(head, cells, 'numbers words times')}{more}</section>"


def _lost_agents(epochs: Sequence[EpochCourse]) -> Iterator[tuple[float, int, float, str]]:
    """Yield (time, epoch, seconds into it, text on how often) of each agent's last loss in an epoch.

    Later reports repeat a loss, so it counts in the epoch in which it happened: after the last second of the one
    before.
    """
    after, counted_before = 0.0, Counter[str]()
    for epoch in (one for one in epochs if one.seconds):
        first, until = epoch.seconds[0], epoch.seconds[-1]["time"]
        before, after = after, max(after, until)
        for one in [] if epoch.told is None else epoch.told.values.get("agents", []):
            at = one.get("lost_at", 0.0)
            if before < at and (at <= after or epoch is epochs[-1]):
                into_s = max(0.0, at - first["time"] + first["seconds"])
                times = one.get("losses", 1) - counted_before[one["agent"]]
                counted_before[one["agent"]] = one.get("losses", 1)
                often = f" ({times} times; this was the last)" if times > 1 else ""
                yield at, epoch.number, into_s, f"agent lost: {one['agent']}{often}"
