"""Counters of this process's loaders for Prometheus: one port, with the loaders as labels.

A request reads values that are there already. A loader does nothing for it within an epoch.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from sophon_loader.epoch.account import Account
from sophon_loader.errors import warn_user
from sophon_loader.host.scraping import ScrapePort, exposition
from sophon_loader.measures.counters import NO_TOTALS, Totals
from sophon_loader.ranks.seeding import rank_of_all
from sophon_loader.report.report import Report

HOST = "127.0.0.1"
_PREFIX = "sophon_loader"
_COUNTERS = {
    "epochs": ("ended", "Epochs of which a batch has come."),
    "seconds": ("seconds", "Time for which epochs ran."),
    "waiting_seconds": ("awaited_s", "Part of it for which the training loop waited for batches."),
    "samples": ("totals.samples", "Samples that were delivered."),
    "file_bytes": ("totals.file_bytes", "Size of the samples' files."),
    "agent_read_bytes": ("totals.read_bytes", "Size of the files that the agent read for this loader."),
    "wire_bytes": ("totals.wire_bytes", "Bytes that came from the agent."),
    "offloaded_samples": ("totals.offloaded", "Samples that had ops run at the agent."),
    "cpu_seconds": ("totals.loader_cpu_s", "CPU time of the loader's workers."),
    "agent_cpu_seconds": ("totals.agent_cpu_s", "CPU time that the agent spent on this loader, as it says."),
    "worker_waiting_seconds": (
        "totals.waited_s",
        "Time for which workers waited for the agent, all together.",
    ),
    "worker_busy_seconds": ("totals.busy_s", "Time for which workers were at work on samples, all together."),
    "fallbacks": ("totals.fallbacks", "Samples read on this host, because nothing usable came from the agent."),
    "retries": ("totals.retries", "Samples requested more than once."),
    "degraded_samples": ("totals.degraded", "Samples that came less prepared than requested."),
    "corrupt_messages": ("totals.corrupt", "Messages that were damaged on their way."),
    "malformed_messages": ("totals.malformed", "Messages of the agent that break the protocol, or cannot be read."),
    "verified_samples": ("totals.verified", "Samples that were computed on this host too, and were equal."),
    "fused_samples": ("totals.fused", "Samples whose file was decoded by C of our own."),
}
"""Name without prefix and `_total` -> (attribute of `AllEpochs`, help)."""
_GAUGES = {"epoch": "Number of the epoch.", "workers": "Worker processes."}
"""Name without prefix, equal to the report's field -> help."""
_KNOWN_LATER = {
    "wanted_agent_cores": "Cores of agents that the loader could use.",
    "wanted_agents": "The same in agents like those that it has.",
}
"""Fields that may be None -> help, named as in `_GAUGES`."""


@dataclass(frozen=True)
class AllEpochs:
    """The epochs of a loader so far.

    Args:
        ended: number of epochs before the running one.
        seconds, awaited_s, totals: of those epochs.
        account: of the running one.
    """

    ended: int = 0
    seconds: float = 0.0
    awaited_s: float = 0.0
    totals: Totals = NO_TOTALS
    account: Account | None = None

    def report(self) -> Report | None:
        """Return the running epoch's report, once a batch has arrived."""
        return None if self.account is None or self.account.now is None else self.account.report()

    def and_now(self, last: Report | None, account: Account | None = None) -> AllEpochs:
        """Return the epochs with the running one among those that have ended.

        Args:
            last: its report.
            account: of the next one; None for none.
        """
        if last is None:
            return AllEpochs(self.ended, self.seconds, self.awaited_s, self.totals, account)
        seconds, awaited_s = self.seconds + last.seconds, self.awaited_s + last.awaited_s
        return AllEpochs(self.ended + 1, seconds, awaited_s, self.totals.plus(last.totals), account)


class CountedEpochs:
    """Sums over all epochs of a loader's engine. Another thread may read `so_far` at any time: it is replaced as a
    whole, once an epoch."""

    def __init__(self) -> None:
        self.so_far = AllEpochs()

    def begin(self, account: Account) -> None:
        """Begin an epoch.

        Args:
            account: of the epoch.
        """
        self.so_far = self.so_far.and_now(self.so_far.report(), account)


class Exporter:
    """The loaders that are exported at one port; only weak references to them are kept.

    Each has the smallest number that is free when it is added. So a loader that is made again for each epoch keeps its
    number, and there are as many labels as there are loaders at a time.
    """

    def __init__(self) -> None:
        self._counted: dict[int, weakref.ref[CountedEpochs]] = {}

    def add(self, counted: CountedEpochs) -> None:
        """Export a loader from now on; nothing changes if it is exported already."""
        there = {number: one for number, one in self._counted.items() if one() is not None}
        if all(one() is not counted for one in there.values()):
            number = next(number for number in range(len(there) + 1) if number not in there)
            there[number] = weakref.ref(counted)
        self._counted = there  # exchanged as a whole: the port's thread reads it

    def page(self) -> bytes:
        """Return the page that Prometheus reads."""
        return exposition(self._families)

    def _families(self) -> Iterator[Any]:
        refs = sorted(self._counted.items())
        found = [(str(number), counted.so_far) for number, one in refs if (counted := one()) is not None]
        return families_of(found)


def families_of(loaders: list[tuple[str, AllEpochs]]) -> Iterator[Any]:
    """Yield the families of prometheus_client for some loaders, each by its label."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    told = [(label, epochs, epochs.report()) for label, epochs in loaders]  # once: epochs go on meanwhile
    now = [(label, epochs.and_now(report)) for label, epochs, report in told]
    begun = [(label, report) for label, _, report in told if report is not None]
    for name, (place, text) in _COUNTERS.items():
        counter = CounterMetricFamily(f"{_PREFIX}_{name}", text, labels=["loader"])
        for label, epochs in now:
            counter.add_metric([label], attrgetter(place)(epochs))
        yield counter
    text = "Samples by the form in which they came."
    encoded = CounterMetricFamily(f"{_PREFIX}_encoded_samples", text, labels=["loader", "encoding"])
    for label, epochs in now:
        for encoding, count in epochs.totals.encodings.items():
            encoded.add_metric([label, encoding], count)
    yield encoded
    for name, text in (_GAUGES | _KNOWN_LATER).items():
        gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["loader"])
        for label, report in begun:
            if (value := getattr(report, name)) is not None:
                gauge.add_metric([label], value)
        yield gauge
    text = "Share of the time for which a resource is busy."
    busy = GaugeMetricFamily(f"{_PREFIX}_busy_ratio", text, labels=["loader", "resource"])
    for label, report in begun:
        for resource, share in report.limits.items():
            busy.add_metric([label, resource], share)
    yield busy


_EXPORTERS: dict[int, Exporter] = {}
"""Exporters of this process, by the port that the options name."""
_PORTS: list[ScrapePort] = []
os.register_at_fork(after_in_child=_EXPORTERS.clear)
os.register_at_fork(after_in_child=_PORTS.clear)


def exporter_at(port: int) -> Exporter:
    """Return the exporter for the port that the options name. The first call opens it, and warns if that fails.

    Args:
        port: of local rank 0; each further rank of this host has the next one.
    """
    found = _EXPORTERS.get(port)
    if found is not None:
        return found
    exporter = _EXPORTERS[port] = Exporter()
    own = port + _local_rank()
    try:
        _PORTS.append(ScrapePort(HOST, own, exporter.page))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        warn_user(
            f"No metrics are told, because nothing can listen at {HOST}:{own}: {why}. Training goes on; choose another "
            f"metrics_port than {port}, or end the program that listens there."
        )
    return exporter


def _local_rank() -> int:
    """Return this process's number on its host, as torchrun sets it; else its number among all ranks."""
    told = os.environ.get("LOCAL_RANK", "")
    return int(told) if told.isdigit() else rank_of_all()[0]
