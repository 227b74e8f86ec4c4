"""Page of a report: one HTML file without network, other files, or scripts for its text."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sophon_loader import __version__
from sophon_loader.decide.words import LEAST_GAIN, RESOURCES, capitalised, doubled, resource, what_more_brings
from sophon_loader.figures import counted, number, percent, size
from sophon_loader.report.advice import ReportVerdict, sent_more, sent_share, told_times, verdict_of
from sophon_loader.report.agents import agents_of_use, losses
from sophon_loader.report.markup import asset, bars, card, figure, filled, listed, sentence, table

FAULTS = {
    "fallbacks": ("file", "read on this host instead"),
    "retries": ("sample", "requested more than once"),
    "degraded": ("sample", "less prepared than requested"),
    "corrupt": ("message", "damaged on the way"),
    "malformed": ("message", "against the protocol"),
}
"""Fault, by its name in `Report.as_dict()` -> (noun of the things concerned, what happened to them)."""
_WORDS = (
    '<p class="dim"><b>Loader</b>: the part of the training program that gets samples and prepares them. '
    "<b>Agent</b>: a program near the files that prepares samples for it. <b>Offloading</b>: having an agent prepare "
    "them.</p>"
)
"""Definitions of the page's words, for readers who are new to them."""


@dataclass(frozen=True)
class PlainReport:
    """A report as plain data, which a log can hold.

    Args:
        title: heading of its table.
        rows: rows of its table.
        values: its `as_dict()`.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    values: Mapping[str, Any]


def page_of(told: PlainReport, course: str = "", scripts: str = "", faults: Mapping[str, int] | None = None) -> str:
    """Return the page of a report.

    Args:
        told: the report.
        course: HTML on how the run went, between the verdict and the details.
        scripts: HTML at the end.
        faults: number of each fault in the whole run; None if only the report is known.
    """
    verdict = verdict_of(told.values)
    lead = f'<p class="lead">{escape(verdict.lead)}</p><p class="dim">{escape(told.title)}</p>'
    header = f"<header><h1>{escape(verdict.heading)}</h1>{lead}{_WORDS}</header>"
    body = [
        header,
        _cards(told.values, verdict, faults),
        course,
        _agents(told.values),
        _weighed(told.values),
        _details(told),
    ]
    footer = f"Made by sophon_loader {__version__} on {time.strftime('%Y-%m-%d at %H:%M %Z')}."
    return filled(
        "page.html",
        heading=escape(verdict.heading),
        css=asset("page.css"),
        body="\n".join(body),
        footer=escape(footer),
        scripts=scripts,
    )


def faults_of(counts: Mapping[str, Any]) -> list[str]:
    """Return a text for each fault, with its number."""
    return [f"{counted(counts[name], noun)} {what}" for name, (noun, what) in FAULTS.items() if counts.get(name)]


def _cards(values: Mapping[str, Any], verdict: ReportVerdict, faults: Mapping[str, int] | None) -> str:
    cards = [  # the style sheet lays five of them out
        _to_do(values, verdict),
        _faults(values, faults),
        _speed(values, verdict),
        _busy(values, verdict),
        _saved(values, verdict),
    ]
    return f'<div class="cards">{"".join(cards)}</div>'


def _speed(values: Mapping[str, Any], verdict: ReportVerdict) -> str:
    what = "Pictures" if values.get("unit") == "picture" else "Samples"  # a log of an earlier release has no unit
    title, seconds, samples = f"{what} per second", values["seconds"], values["samples"]
    if not (seconds and samples):
        return card(title, figure("Not enough data"), sentence("No batch has been delivered yet."))
    ours = samples / seconds
    known = values["throughput"].values()
    if not known or not verdict.holds:
        return card(title, figure(number(ours)), sentence("How many would come without offloading is not known."))
    without = min(known)
    both = bars([("this epoch", ours, number(ours)), ("without offloading", without, number(without))])
    return card(title, figure(number(ours)), both, sentence(told_times(values, verdict)))


def _saved(values: Mapping[str, Any], verdict: ReportVerdict) -> str:
    title, wire, whole = "Bytes saved on the network", values["wire_bytes"], values["read_bytes"]
    if not values["file_bytes"]:
        return card(title, figure("Not enough data"), sentence("No file has been counted yet."))
    share = sent_share(wire, whole)
    if share is None:
        here = (
            f"Files of {size(values['file_bytes'])} were read on this host; nothing crossed the network from an agent."
        )
        return card(title, figure("No agent used" if verdict.holds else "Nothing"), sentence(here))
    more = sent_more(wire, whole)
    saved = f"None: {more} more were sent" if more else f"{size(max(0, whole - wire))} ({percent(max(0.0, 1 - share))})"
    both = bars([("sent", wire, size(wire)), ("files", whole, size(whole))])
    return card(title, figure(saved), both, sentence(f"{capitalised(values['summary'])}."))


def _to_do(values: Mapping[str, Any], verdict: ReportVerdict) -> str:
    gains = (verdict.would_bring or {}).items()
    told = [(doubled(name), times - 1, f"+{percent(times - 1)}") for name, times in gains]
    bought = [one for one in told if one[1] >= LEAST_GAIN]
    if bought:
        drawn = sentence("More samples per second, by the loader's estimate, with") + bars(bought, whole=1.0)
    else:
        drawn = sentence(what_more_brings(verdict.would_bring or {}))
    return card("What to do", listed(verdict.advice), drawn)


def _busy(values: Mapping[str, Any], verdict: ReportVerdict) -> str:
    title = "How busy each resource is"
    limits = values["limits"]
    if not verdict.holds:
        return card(title, figure("Not known"), sentence("The loader's estimates are from before the agent failed."))
    if not limits:
        return card(title, figure("Not enough data"))
    unseen = [name for name in RESOURCES if name not in limits]
    shares = {**limits, **dict.fromkeys(unseen, 0.0)}
    rows = [(resource(name), share, percent(share)) for name, share in shares.items()]
    told = "Share of the time, by the loader's estimate."
    if "wire" in unseen:
        told += " The network has no share: nothing has waited for it."
    if verdict.would_bring is None and rows[0][0] != resource("gpu"):
        told += f" The training hardly waits for {rows[0][0]}, so the training step limits all the same."
    return card(title, bars(rows), sentence(told))


def _faults(values: Mapping[str, Any], counts: Mapping[str, int] | None) -> str:
    faults = [*losses(values.get("agents", ())), *faults_of(values if counts is None else counts)]
    sound = sentence("Faults cost time; they lose and change no sample.")
    none = sentence("There was no fault.")
    return card("Was anything lost?", figure("Nothing"), sound, listed(faults) if faults else none)


def _agents(values: Mapping[str, Any]) -> str:
    agents = values.get("agents", ())
    states = [one["state"] for one in agents]
    wanted = values.get("wanted_agent_cores"), values.get("wanted_agents")
    of_use = sentence(agents_of_use(*wanted, states, values["would_bring"]))
    if not agents:
        return card("Agents", of_use) if of_use else ""
    groups, lacking = any(one["group"] for one in agents), any(one["lacks"] for one in agents)
    whole = sum(one["wire_bytes"] for one in agents) or 1
    head = ("agent", "group", "samples", "sent", "of all", "lacks at least", "state")
    shown = (True, groups, True, True, True, lacking, True)
    rows = [
        (
            one["agent"],
            one["group"] or "-",
            f"{one['samples']:,}",
            size(one["wire_bytes"]),
            percent(one["wire_bytes"] / whole),
            counted(one["lacks"], "sample"),
            f"{one['state']}: {one['why']}" if one["why"] else one["state"],
        )
        for one in agents
    ]
    cells = [tuple(itertools.compress(row, shown)) for row in (head, *rows)]
    caption = "Since the loader was made, or its transforms have changed."
    return (
        f"<section><h2>Agents side by side</h2>{of_use}{table(cells[0], cells[1:], 'numbers words')}"
        f'<p class="dim">{caption}</p></section>'
    )


def _weighed(values: Mapping[str, Any]) -> str:
    if not values["weighed"]:
        return ""
    cells = [
        (choice, size(mean["wire_bytes"]), f"{1000 * mean['agent_s']:.2g} ms", f"{1000 * mean['loader_s']:.2g} ms")
        for choice, mean in sorted(values["weighed"].items(), key=lambda one: one[1]["wire_bytes"])
    ]
    head = ("form of a sample", "bytes", "agent's CPU", "loader's CPU")
    caption = "Means over recent samples. “pixels@2” is the value after two ops, as it is."
    return f'<section><h2>What a sample costs</h2>{table(head, cells)}<p class="dim">{caption}</p></section>'


def _details(told: PlainReport) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td></tr>' for what, value in told.rows)
    return f'<section><h2>Details</h2><table class="rows"><tbody>{rows}</tbody></table></section>'
