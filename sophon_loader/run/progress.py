"""A line on the terminal while an epoch runs: rate, bytes on the network, savings, and the resource that limits."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from tqdm import tqdm

from sophon_loader.epoch.epoch import EpochIterator
from sophon_loader.figures import per_second, percent, size
from sophon_loader.measures.counters import Totals
from sophon_loader.ranks.seeding import rank_of_all
from sophon_loader.report.advice import sent_more, sent_share
from sophon_loader.report.agents import lost_now
from sophon_loader.report.report import Report
from sophon_loader.torch_internals.iterator_wrapper import Around
from sophon_loader.torch_internals.untraced import untraced

EVERY_S = 1.0
"""Seconds between two updates of the line. Rates are those since the last one, so they are current."""
_FORM = "{desc}: {percentage:3.0f}%|{bar:10}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
_ENDLESS = "{desc}: {n_fmt} batches [{elapsed}{postfix}]"


class ProgressLine(Around):
    """Yields the batches of an epoch, and writes the line.

    Args:
        batches: of an epoch that has just begun.
        bar: of tqdm, that counts batches.
    """

    def __init__(self, batches: EpochIterator, bar: Any) -> None:
        super().__init__(batches)
        self._bar = bar
        self._shown_s = time.perf_counter()
        self._seconds, self._totals = 0.0, batches.epoch.account.moment.totals

    @untraced
    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._bar.close()
            raise
        self._bar.n += 1
        now_s = time.perf_counter()
        if now_s - self._shown_s >= EVERY_S:
            self._shown_s = now_s
            self._show(self._batches.epoch.account.report())
        return batch

    def _show(self, report: Report) -> None:
        totals, seconds = report.totals, report.seconds
        self._bar.set_postfix_str(told(report, totals.since(self._totals), seconds - self._seconds), refresh=False)
        self._bar.refresh()
        self._seconds, self._totals = seconds, totals


def told(report: Report, recent: Totals, seconds: float) -> str:
    """Return the text of the line.

    Args:
        report: of the epoch so far.
        recent: counts of the last `seconds`.
        seconds: since the last line.
    """
    parts = [per_second(recent.samples / seconds), f"{size(recent.wire_bytes / seconds)}/s"] if seconds > 0 else []
    share = sent_share(report.totals.wire_bytes, report.totals.read_bytes)
    if share is not None:
        more = sent_more(report.totals.wire_bytes, report.totals.read_bytes)
        parts.append(f"{more} more than the files sent" if more else f"{percent(max(0.0, 1 - share))} saved")
    if lost := lost_now([asdict(one) for one in report.agents]):
        parts.append(lost)
    verdict = report.decided
    if verdict.knows:
        parts.append(f"{verdict.short[:1].lower()}{verdict.short[1:]}")
    return ", ".join(parts)


def with_progress(batches: Any) -> Any:
    """Return an epoch's batches, with the line where tqdm shows one: on a terminal, at rank 0.

    Args:
        batches: iterator of a loader; a plain DataLoader counts nothing, so it has no line.
    """
    if not isinstance(batches, EpochIterator) or rank_of_all()[0]:
        return batches
    try:
        total: int | None = len(batches)
    except TypeError:
        total = None
    form = _ENDLESS if total is None else _FORM
    bar = tqdm(total=total, desc="epoch", bar_format=form, leave=False, disable=None)
    return batches if bar.disable else ProgressLine(batches, bar)
