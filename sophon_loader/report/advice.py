"""Sentences about a report: the resource that limits, by how much, and remedies; they need no link. Pure.

Only this module decides them; table, page, values and the line on the terminal render them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sophon_loader.decide.words import capitalised, resource, what_limits, what_more_brings
from sophon_loader.figures import percent
from sophon_loader.report.agents import GAIN, IN_USE, LEFT, REFUSED

HARDLY, MUCH = 0.05, 0.25
"""Shares of the time that the training spends waiting. Below `HARDLY` the training itself limits, even if the model
names another resource. Above `MUCH` a verdict needs the model to name another resource."""
GONE = 0.5
"""Share of the samples read on this host instead, from which on the agent counts as gone."""
_PERCENT = 0.01
_NOT_ENOUGH_FOR = " to say what limits"
_NOT_ENOUGH = f"Not enough data{_NOT_ENOUGH_FOR}"
_AGENT_CORES = "Give the agent more cores: it then compresses and prepares more."
_CODECS = "Install the compressing encodings on both hosts: pip install 'sophon_loader[codecs]'."
_OF_CODECS = ("lepton", "jxl", "jpegls", "htj2k")
"""Parts of the names of encodings that need those packages."""
_FREE = {
    "loader-cpu": (
        'Let the loader choose the number of its workers: num_workers="auto".',
        'Move the last ops to the GPU: tail="device".',
    ),
}
"""Remedies by resource that cost nothing."""
_MORE = {
    "gpu": "Nothing needs to be done about loading: it keeps up. Only a faster training step or GPU helps.",
    "wire": "Use a faster network, or smaller crops.",
    "loader-cpu": "Use a host with more cores for the training.",
    "agent-cpu": _AGENT_CORES,
    "agent-disk": "Use a faster disk at the agent: no offloading helps there.",
}
"""Remedies by resource that give more of it."""


@dataclass(frozen=True)
class ReportVerdict:
    """Verdict on a report.

    Args:
        heading: the resource that limits.
        lead: by how much it limits.
        advice: remedies. First those that relieve the limiting resource at no cost, then purchases, by their gain.
        holds: True if the loader's model describes what happened, so that its figures can be shown next to the verdict.
        would_bring: the report's, the limiting resource first, then by gain; None if the training does not wait for the
            resource that the model names.
        knows: True if a verdict is known.
        compare: advice to compare with plain loading, if that could have been faster; else "". It is in `advice` as
            well.
    """

    heading: str
    lead: str
    advice: tuple[str, ...]
    holds: bool = True
    would_bring: Mapping[str, float] | None = None
    knows: bool = True
    compare: str = ""

    @property
    def short(self) -> str:
        """The heading, short enough for a cell of a table."""
        return self.heading.removesuffix(_NOT_ENOUGH_FOR)

    @property
    def limits(self) -> str:
        """The limiting resource and by how much it limits, in sentences; "" if unknown."""
        return f"{self.heading}. {self.lead}".strip() if self.knows else ""

    @property
    def helps(self) -> str:
        """The best remedy, in a sentence; "" if unknown."""
        if self.would_bring is not None:
            return " ".join(filter(None, (self.compare, what_more_brings(self.would_bring))))
        return self.advice[0] if self.knows else ""

    @property
    def sentences(self) -> str:
        """`limits`, then `helps`."""
        return " ".join(filter(None, (self.limits, self.helps)))


def is_gone(samples: float, fallbacks: float) -> bool:
    """Return True if so many samples were read on this host that facts about the agent are out of date."""
    return samples > 0 and fallbacks >= GONE * samples


def verdict_of(values: Mapping[str, Any]) -> ReportVerdict:
    """Return the verdict. The training's own wait decides; the loader's model names the reason.

    Args:
        values: values of a report, by the names of `Report.as_dict()`.
    """
    samples, fallbacks, first = values["samples"], values.get("fallbacks", 0), values.get("bottleneck")
    limits = values["limits"] or ({} if first is None else {first: 1.0})
    if is_gone(samples, fallbacks):
        what = "pictures" if values.get("unit") == "picture" else "samples"
        lead = f"{fallbacks:,} of {samples:,} {what} were read on this host instead, so what limits is not known."
        return ReportVerdict("The agent sends nothing usable", lead, (_ask_agent(values),), holds=False)
    if not limits:
        lead = "A verdict takes 20 training steps with an agent."
        return ReportVerdict(_NOT_ENOUGH, lead, ("Train on until it is known what limits.",), knows=False)
    first = next(iter(limits))
    waited = min(1.0, values.get("awaited_s", 0.0) / values["seconds"]) if values["seconds"] else 0.0
    wait = f"The training waited for batches {percent(waited)} of the time."
    if first != "gpu" and waited < HARDLY:
        return ReportVerdict("The training step limits", f"{wait} Next is {resource(first)}.", (_MORE["gpu"],))
    if first == "gpu" and waited > MUCH:
        lead = (
            f"{wait} By the loader's estimate the training step limits, so much of that wait was for workers to start, "
            "or for something else on this host."
        )
        return ReportVerdict(_NOT_ENOUGH, lead, ("Train longer, and look at a later epoch.",))
    compare = _compare(values)
    by_how_much = capitalised(what_limits(limits).partition("; ")[2])
    return ReportVerdict(
        f"{capitalised(resource(first))} limits",
        f"{wait} {by_how_much}".strip(),
        (*([compare] if compare else []), *_advice(first, values)),
        would_bring=dict(sorted(values["would_bring"].items(), key=lambda one: (one[0] != first, -one[1]))),
        compare=compare,
    )


def sent_share(wire_bytes: float, read_bytes: float) -> float | None:
    """Return bytes sent, as a share of the files that the agent read for them; None if it sent none.

    Files read on this host are in neither: they did not cross the network from an agent, so they save nothing.
    """
    return wire_bytes / read_bytes if wire_bytes and read_bytes else None


def sent_more(wire_bytes: float, read_bytes: float) -> str:
    """Return the share by which more bytes were sent than the files have: "88 %"; "" if no more were sent.

    Less than a percent reads as equal.
    """
    share = sent_share(wire_bytes, read_bytes)
    return "" if share is None or share < 1 + _PERCENT else percent(share - 1)


def times_without(values: Mapping[str, Any]) -> float | None:
    """Return samples/s as a multiple of the estimated rate without offloading; None if unknown."""
    known, seconds = values["throughput"].values(), values["seconds"]
    return values["samples"] / seconds / min(known) if known and seconds and values["samples"] else None


def told_times(values: Mapping[str, Any], verdict: ReportVerdict) -> str:
    """Return a sentence on `times_without`, "" if unknown; it does not blame offloading for other causes."""
    times = times_without(values)
    assert times is not None, "the caller has looked"
    text = f"{times:.2g} times as many as could come without offloading, by the loader's estimate."
    if times >= 1 - HARDLY:
        return text
    if not values["offloading"]:
        return f"{text} Nothing was offloaded, so the difference is the start of workers, or something else here."
    if verdict.would_bring is None:
        return f"{text} The training hardly waits, so offloading or not makes little difference."
    return f"{text} {verdict.compare}"


def _compare(values: Mapping[str, Any]) -> str:
    times = times_without(values)
    if times is None or times >= 1 - HARDLY or not values["offloading"]:
        return ""
    return (
        'If the next epoch is no faster, compare one under policy="no-off": by the loader\'s estimate '
        f"{percent(1 / times - 1)} more samples per second could come without offloading."
    )


def _advice(first: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    if first not in ("wire", "loader-cpu"):
        return (_MORE[first],) if first in _MORE else ()
    told, bought, brings = list(_FREE.get(first, ())), [first], values["would_bring"]
    choices = (*values["weighed"], *values.get("choices", ()))
    if first == "wire" and not any(codec in name for name in choices for codec in _OF_CODECS):
        told.append(_CODECS)
    if not values["offloading"]:
        why_not = values["summary"].partition(": ")[2] or values["summary"]
        told.insert(0 if first == "wire" else len(told), f"See why nothing is offloaded: {why_not}.")
    if brings.get("agent-cpu", 1.0) >= GAIN:
        bought.append("agent-cpu")
    if told:  # else what limits is to come first
        bought.sort(key=lambda name: -brings.get(name, 1.0))
    return (*told, *(_MORE[name] for name in bought))


def _ask_agent(values: Mapping[str, Any]) -> str:
    """Return the remedy for agents that send nothing: ask one that does not answer, or else any."""
    agents = [one for one in values.get("agents", ()) if one["state"] not in (LEFT, REFUSED)]
    agents.sort(key=lambda one: one["state"] == IN_USE)
    given = [*(one["agent"] for one in agents), values.get("agent_address", "")]
    known = [address for address in given if address.startswith("tcp://")]
    text = "See that the agent runs, and what it says"
    return f"{text}: sophon-agent status {'/'.join(known[0].split('/')[:3])}." if known else f"{text} in its log."
