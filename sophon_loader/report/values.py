"""Values of an epoch's report; `report.py` makes a table of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sophon_loader.decide.words import NOTHING
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import used_at
from sophon_loader.figures import size
from sophon_loader.measures.counters import NO_TOTALS, Totals
from sophon_loader.report.advice import ReportVerdict, sent_more, verdict_of
from sophon_loader.report.agents import AgentShare


@dataclass(frozen=True)
class ReportValues:
    """The values of a `Report`, which never change.

    Args:
        policy: name of the policy.
        why_not: reason why nothing was offloaded, or nothing on some of several ranks; "" otherwise.
        plan_reason: reason for the policy's plan.
        notes: facts for the user, for example ops that stay at the loader, or versions that differ.
        epoch: number of the epoch; None before the first batch.
        seconds: time since the epoch began, or its whole time.
        bottleneck: the resource that limits by the loader's model, on which `verdict` has the last word: "gpu" (the
            training step), "wire" (the network), "loader-cpu", "agent-cpu" or "agent-disk". Under `auto` it is
            known while the epoch runs, else at its end. None before that, and before the loader has seen 20
            training steps; `limits` and `would_bring` are then empty.
        rates: rates that plans are made with: samples/s, bytes/s and cores. A rate that is not known to limit
            is left out.
        throughput: SOPHON's stage 1: samples/s that `gpu`, `io` (files over the network) and `cpu` (the
            loader's) could reach, each by itself and without offloading; unknown ones are left out.
        limits: by resource, the share of the time for which it is busy; the busiest first. Under `auto` the
            network is left out until something has waited for it.
        would_bring: by resource, the factor in samples/s that twice of it would bring, by the cost model;
            `cache` is listed if it has room for a part of the samples.
        weighed: by choice, its mean cost over recent samples: bytes on the network, CPU seconds at the agent, and CPU
            seconds left to the loader. "pixels@2" is the value after two ops, as it is.
        predicted_seconds: the cost model's estimate; None if costs were not known.
        wanted_agent_cores: number of agent cores that the loader could use, by the cost model: the fewest with
            which an epoch is nearly as short as with any number. 0 if no agent is useful. None if unknown, under
            every policy but `auto`, and with a local agent.
        wanted_agents: the same as a number of agents, each with the mean number of cores of those in use.
        totals: the counters.
        passes: number of times that this iteration has delivered as many samples as the dataset has, and went on.
            At each pass the loader learns and plans again; `bottleneck` is that of the last pass,
            `predicted_seconds` of one.
        ranks: number of ranks that this is the sum of. Counters are sums, and so are rates that all ranks know (cores
            that ranks of one host share count once per rank). Times are those of the slowest rank. `limits`,
            `would_bring` and `weighed` are means.
        workers: number of the loader's workers at the end; 0 where the main process loads.
        group_bytes: bytes sent by groups of agents since the loader was made, or its transforms have changed.
            "rack-1 from rack-2" is what ranks of rack-1 got from agents of rack-2. Empty without groups.
        agents: share and state of each agent, if a loader has several.
        agent_address: the user's address of the agent, or name of several; "local" for the loader's own, "" for
            none.
        awaited_s: part of `seconds` for which the training loop has waited for batches.
        judged: True if the loader has seen enough training steps for a verdict.
        unit: what the counters count: "sample", or "picture" where the user's own code makes the samples and the
            agent is asked for their pictures.
    """

    policy: str
    why_not: str = ""
    plan_reason: str = ""
    notes: tuple[str, ...] = ()
    epoch: int | None = None
    seconds: float = 0.0
    bottleneck: str | None = None
    rates: dict[str, float] = field(default_factory=dict)
    throughput: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    would_bring: dict[str, float] = field(default_factory=dict)
    weighed: dict[str, dict[str, float]] = field(default_factory=dict)
    predicted_seconds: float | None = None
    wanted_agent_cores: float | None = None
    wanted_agents: float | None = None
    totals: Totals = NO_TOTALS
    passes: int = 0
    ranks: int = 1
    workers: int = 0
    awaited_s: float = 0.0
    judged: bool = False
    group_bytes: dict[str, int] = field(default_factory=dict)
    agents: tuple[AgentShare, ...] = ()
    agent_address: str = ""
    unit: str = "sample"

    @property
    def prepared(self) -> int:
        """Number of samples or pictures (`unit`) for which the agent ran ops, cut a part out of the file, or wrote it
        in fewer bytes."""
        return sum(count for encoding, count in self.totals.encodings.items() if encoding != "file")

    @property
    def offloading(self) -> bool:
        """True if the agent worked on any sample of this epoch."""
        return self.prepared > 0

    @property
    def summary(self) -> str:
        """One line on the samples that were offloaded, or the reason why none was."""
        totals = self.totals
        if not self.offloading:
            return f"nothing offloaded: {self.why_not}"
        sent, files = size(totals.wire_bytes), size(totals.read_bytes)
        text = f"{self.prepared} of {totals.samples} {self.unit}s {_prepared(totals)}; "
        if sent_more(totals.wire_bytes, totals.read_bytes):
            text += f"{sent} sent for files of {files}, which is more, and spares the loader's CPU"
        else:
            text += f"{sent} sent instead of {files}"
        if totals.fallbacks:
            text += f"; {totals.fallbacks} files read on this host instead"
        return f"{text}; {self.why_not}" if self.why_not else text

    @property
    def why_this_plan(self) -> str:
        """`plan_reason`; a plan that offloads nothing by now says so where samples of this epoch were offloaded."""
        head, nothing, tail = self.plan_reason.partition(NOTHING)
        if not (nothing and self.offloading):
            return self.plan_reason
        return f"{head}{nothing} now, after {self.prepared} of {self.totals.samples} {self.unit}s were{tail}"

    @property
    def verdict(self) -> str:
        """The limiting resource, by how much it limits, and remedies, in sentences; "" if unknown."""
        return self.decided.sentences

    @property
    def decided(self) -> ReportVerdict:
        """`verdict` in its parts."""
        return verdict_of(self._values())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; times in seconds, sizes in bytes, `rates` in samples/s or bytes/s; None if unmeasured."""
        values = self._values()
        return {**values, "verdict": verdict_of(values).sentences}

    def _values(self) -> dict[str, Any]:
        totals = self.totals
        return {
            "summary": self.summary,
            "epoch": self.epoch,
            "policy": self.policy,
            "offloading": self.offloading,
            "seconds": self.seconds,
            "awaited_s": self.awaited_s,
            "samples": totals.samples,
            "unit": self.unit,
            "passes": self.passes,
            "ranks": self.ranks,
            "workers": self.workers,
            "bottleneck": self.bottleneck,
            "limits": dict(self.limits),
            "would_bring": dict(self.would_bring),
            "weighed": {choice: dict(means) for choice, means in self.weighed.items()},
            "rates": dict(self.rates),
            "throughput": dict(self.throughput),
            "file_bytes": totals.file_bytes,
            "wire_bytes": totals.wire_bytes,
            "read_bytes": totals.read_bytes,
            "choices": dict(totals.encodings),
            "cuts": dict(totals.cuts),
            "loader_cpu_s": totals.loader_cpu_s,
            "agent_cpu_s": totals.agent_cpu_s,
            "agent_upkeep_s": totals.upkeep_s,
            "retries": totals.retries,
            "fallbacks": totals.fallbacks,
            "corrupt": totals.corrupt,
            "malformed": totals.malformed,
            "verified": totals.verified,
            "degraded": totals.degraded,
            "fused": totals.fused,
            "unfused": totals.unfused,
            "cached": totals.cached,
            "predicted_seconds": self.predicted_seconds,
            "wanted_agent_cores": self.wanted_agent_cores,
            "wanted_agents": self.wanted_agents,
            "group_bytes": dict(self.group_bytes),
            "agents": [asdict(one) for one in self.agents],
            "agent_address": self.agent_address,
            "plan_reason": self.why_this_plan,
            "notes": list(self.notes),
        }


def _prepared(totals: Totals) -> str:
    """Return what the agent did with the samples that it did not send as files, with counts if they differ."""
    sent = {encoding: count for encoding, count in totals.encodings.items() if encoding != "file"}
    preprocessed = sum(count for cut, count in totals.cuts.items() if cut)
    cut_out = sum(count for encoding, count in sent.items() if used_at(encoding) is UsedAt.FIRST_REGION)
    done = {
        "preprocessed": preprocessed,
        "cut out of the file": cut_out,
        "compressed": sum(sent.values()) - preprocessed - cut_out,
    }
    told = {how: count for how, count in done.items() if count > 0}
    if len(told) == 1:
        return f"{next(iter(told))} at the agent"
    return f"prepared at the agent ({', '.join(f'{count} {how}' for how, count in told.items())})"
