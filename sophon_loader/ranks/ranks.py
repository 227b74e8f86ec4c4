"""Exchange of small messages between the ranks of a job, about one loader.

Messages go through the store of their process group. Collectives are not used: ranks may iterate over loaders in
different orders (for example if only rank 0 validates), and a collective would then never end.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import reduce
from typing import Any, TypeVar

import msgpack
from torch import distributed

from sophon_loader.errors import ConfigError
from sophon_loader.measures.counters import Totals
from sophon_loader.ranks.seeding import rank_of_all
from sophon_loader.report.agents import AgentShare, summed_shares
from sophon_loader.report.report import Report

REPORTS_WAIT_S = 30.0
"""Seconds that `report(all_ranks=True)` waits for the other ranks."""
_LOOK_EVERY_S = 0.02
_DROPPED = b"-"
_Found = TypeVar("_Found")
_met: Counter[str] = Counter()


class Ranks:
    """The ranks that iterate over the same loader as this process.

    Args:
        about: describes the loader in a few words. If several loaders have the same description, the n-th one at a rank
            belongs to the n-th one at the other ranks.

    Attributes:
        rank: number of this process.
        others: numbers of all other ranks.
        gone: True once the store has disappeared, because the rank that holds it has ended. It does not come back.

    Example:
        >>> ranks = Ranks("ImageFolder of 1281167")
        >>> ranks.put("report", b"...")
        >>> found = ranks.gather(lambda rank: ranks.take(rank, "report"), wait_s=30.0)
    """

    def __init__(self, about: str) -> None:
        self.rank, count = rank_of_all()
        self.others = [rank for rank in range(count) if rank != self.rank]
        self.gone = False
        _met[about] += 1
        self._about = f"sophon_loader {about} {_met[about]}"

    def put(self, what: str, data: bytes) -> None:
        """Publish a message to the other ranks, replacing this rank's earlier one of the same name.

        Does nothing if the store is gone.

        Args:
            what: name of the message.
            data: its content.
        """
        with self._noticing():
            _store().set(self._name(self.rank, what), data)

    def take(self, rank: int, what: str) -> bytes | None:
        """Return the newest message that a rank has published; None without one, or if the store is gone.

        Does not wait.

        Args:
            rank: number of the publisher.
            what: name of the message.
        """
        name = self._name(rank, what)
        with self._noticing():
            store = _store()
            told = bytes(store.get(name)) if store.check([name]) else _DROPPED
            return None if told == _DROPPED else told
        return None

    def drop(self, what: str) -> None:
        """Withdraw this rank's message. Its name stays in the store, since a rank that reads it at this moment would
        otherwise wait for it."""
        self.put(what, _DROPPED)

    def gather(self, look: Callable[[int], _Found | None], wait_s: float) -> dict[int, _Found]:
        """Collect a result from each other rank; ranks without one in time are missing from the returned dict.

        Args:
            look: returns a rank's result, or None to be called again later.
            wait_s: seconds to wait for all ranks together; waiting ends early if the store is gone.

        Returns:
            The results by rank.
        """
        found: dict[int, _Found] = {}
        end_s = time.monotonic() + wait_s
        while True:
            for rank in self.others:
                one = look(rank) if rank not in found else None
                if one is not None:
                    found[rank] = one
            if len(found) == len(self.others) or self.gone or time.monotonic() >= end_s:
                return found
            time.sleep(_LOOK_EVERY_S)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError:
            self.gone = True

    def _name(self, rank: int, what: str) -> str:
        return f"{self._about} {what} {rank}"


class ToldReports:
    """Reports that ranks exchange: at the end of each epoch, and when one of them asks for all.

    Args:
        ranks: the ranks of the loader.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._asked = 0

    def tell(self, iteration: int, report: Report, *, ended: bool = True) -> None:
        """Publish this rank's report to the others.

        Args:
            iteration: serial number of the iteration over the loader.
            report: report on that iteration.
            ended: True if the iteration has delivered its last batch.
        """
        told = {"iteration": iteration, "ended": ended, "asked": self._asked, "report": asdict(report)}
        self._ranks.put("report", msgpack.packb(told))

    def summed(self, iteration: int, report: Report, *, ended: bool) -> Report:
        """Return the sum of all ranks' reports.

        A rank that publishes no report within `REPORTS_WAIT_S` is left out, and a note says so.

        Args:
            iteration, report, ended: this rank's, as for `tell`.
        """
        self._asked += 1
        self.tell(iteration, report, ended=ended)

        def look(rank: int) -> Report | None:
            packed = self._ranks.take(rank, "report")
            if packed is None:
                return None
            told = msgpack.unpackb(packed, strict_map_key=False)
            if told["iteration"] == iteration and not told["ended"] and (ended or told["asked"] < self._asked):
                return None
            return _report(told["report"]) if told["iteration"] >= iteration else None

        found = self._ranks.gather(look, REPORTS_WAIT_S)
        notes = [f"rank {rank} reports epoch {one.epoch}" for rank, one in found.items() if one.epoch != report.epoch]
        silent = [str(rank) for rank in self._ranks.others if rank not in found]
        if silent and self._ranks.gone:
            notes.append(
                f"the sum is without ranks {', '.join(silent)}, because the process that holds the ranks' store (rank "
                "0, unless torchrun does) has ended; have all ranks ask before a barrier, or rank 0 alone ask"
            )
        elif silent:
            notes.append(
                f"the sum is without ranks {', '.join(silent)}, which told nothing of this epoch within "
                f"{REPORTS_WAIT_S:g} s; before its end a rank tells only if it calls report(all_ranks=True) too"
            )
        whole = summed([report, *found.values()])
        return replace(whole, notes=(*whole.notes, *notes))


def summed(reports: Sequence[Report]) -> Report:
    """Combine the reports of several ranks.

    Counters are added, as are the rates that all ranks know and the agents that ranks could use. Times are those of the
    slowest rank. `limits`, `would_bring` and `weighed` are means over the ranks that have them.

    Args:
        reports: this rank's report first; policy, epoch and reason are taken from it.
    """
    own = reports[0]
    limits = _falling(_means(one.limits for one in reports))
    predicted = [one.predicted_seconds for one in reports if one.predicted_seconds is not None]
    held_up = Counter(one.bottleneck for one in reports if one.bottleneck is not None)
    choices = {choice for one in reports for choice in one.weighed}
    return replace(
        own,
        ranks=len(reports),
        why_not=_why_not(reports),
        notes=tuple(dict.fromkeys(note for one in reports for note in one.notes)),
        seconds=max(one.seconds for one in reports),
        awaited_s=max(one.awaited_s for one in reports),
        bottleneck=next(iter(limits), None) or next((name for name, _ in held_up.most_common(1)), None),
        rates=_summed_rates([one.rates for one in reports]),
        throughput=_summed_rates([one.throughput for one in reports]),
        limits=limits,
        would_bring=_means(one.would_bring for one in reports),
        weighed={
            choice: _means(one.weighed[choice] for one in reports if choice in one.weighed)
            for choice in sorted(choices)
        },
        wanted_agent_cores=_sum_of_known(one.wanted_agent_cores for one in reports),
        wanted_agents=_sum_of_known(one.wanted_agents for one in reports),
        predicted_seconds=max(predicted) if len(predicted) == len(reports) else None,
        totals=reduce(Totals.plus, (one.totals for one in reports)),
        passes=max(one.passes for one in reports),
        workers=sum(one.workers for one in reports),
        judged=all(one.judged for one in reports),
        agents=summed_shares(one.agents for one in reports),
        group_bytes=dict(sum((Counter(one.group_bytes) for one in reports), Counter())),
    )


def _why_not(reports: Sequence[Report]) -> str:
    """Reasons why ranks did not offload, as one text; "" if all ranks offloaded."""
    idle = [one for one in reports if not one.offloading]
    reasons = "; ".join(dict.fromkeys(one.why_not for one in idle))
    return f"nothing on {len(idle)} of {len(reports)} ranks: {reasons}" if 0 < len(idle) < len(reports) else reasons


def _summed_rates(rates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Sum of each rate that all ranks know; for a share, the mean."""
    of_all = [name for name in rates[0] if all(name in one for one in rates)]
    sums = {name: sum(one[name] for one in rates) for name in of_all}
    return {name: value / len(rates) if name.endswith("_share") else value for name, value in sums.items()}


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _means(values: Iterable[dict[str, float]]) -> dict[str, float]:
    """Mean of each name's value over the ranks that have it."""
    found: dict[str, list[float]] = {}
    for one in values:
        for name, value in one.items():
            found.setdefault(name, []).append(value)
    return {name: sum(some) / len(some) for name, some in found.items()}


def _falling(values: dict[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _report(told: dict[str, Any]) -> Report:
    agents = tuple(AgentShare(**one) for one in told["agents"])
    return Report(**{**told, "notes": tuple(told["notes"]), "totals": Totals(**told["totals"]), "agents": agents})


def needs_group() -> None:
    """Check that there are other ranks to ask.

    Raises:
        ConfigError: `torch.distributed` is not initialised.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ConfigError(
            "all_ranks must be False while torch.distributed is not initialised, got True; call report() between "
            "init_process_group() and destroy_process_group(), or leave all_ranks out for this process's report"
        )


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()
