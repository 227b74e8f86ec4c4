"""A report as one HTML file that needs nothing else: no network, no other file, and no script for what it says."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from sophon_loader import __version__
from sophon_loader.decide.words import capitalised, resource, what_limits
from sophon_loader.figures import number, percent, size
from sophon_loader.report.advice import what_to_do

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_FAULTS = {
    "fallbacks": "files read on this host instead",
    "retries": "samples requested more than once",
    "degraded": "samples less prepared than requested",
    "corrupt": "messages damaged on the way",
    "malformed": "messages against the protocol",
}
"""By the names of `Report.as_dict()`."""


@dataclass(frozen=True)
class Told:
    """A report as plain data, which a log can hold.

    Args:
        title: above its table.
        rows: of its table.
        values: its `as_dict()`.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    values: Mapping[str, Any]


def page_of(told: Told) -> str:
    """The page of a report.

    Args:
        told: the report.
    """
    body = [_header(told), _cards(told.values), _weighed(told.values), _details(told)]
    heading = escape(heading_of(told.values))
    footer = f"Made by sophon_loader {__version__} on {time.strftime('%Y-%m-%d at %H:%M %Z')}."
    return filled("page.html", heading=heading, css=asset("page.css"), body="\n".join(body), footer=escape(footer))


def asset(name: str) -> str:
    """The text of a file that the page is made from."""
    return (files("sophon_loader.report") / "assets" / name).read_text(encoding="utf-8")


def filled(template: str, **parts: str) -> str:
    """A template with its places filled in, in one pass: what stands in a part is no place.

    Args:
        template: name of its file.
        parts: HTML, by the name of its place; a place without one stays empty.
    """
    return _PLACE.sub(lambda found: parts.get(found[1], ""), asset(template))


def heading_of(values: Mapping[str, Any]) -> str:
    """What the page says first."""
    first = _bottleneck(values)
    return f"{capitalised(resource(first))} limits" if first else "Not enough data to say what limits"


def faults_of(values: Mapping[str, Any]) -> list[str]:
    """What went wrong on the way, with how often."""
    return [f"{values[name]:,} {what}" for name, what in _FAULTS.items() if values.get(name)]


def _bottleneck(values: Mapping[str, Any]) -> str:
    return str(next(iter(values.get("limits", {})), "") or values.get("bottleneck") or "")


def _header(told: Told) -> str:
    values = told.values
    by_how_much = what_limits(values["limits"]).partition("; ")[2] if values["limits"] else ""
    if not _bottleneck(values):
        by_how_much = "A verdict takes 20 training steps with an agent."
    lead = f'<p class="lead">{escape(capitalised(by_how_much))}</p>' if by_how_much else ""
    return f'<header><h1>{escape(heading_of(values))}</h1>{lead}<p class="dim">{escape(told.title)}</p></header>'


def _cards(values: Mapping[str, Any]) -> str:
    cards = [_speed(values), _saved(values), _to_do(values), _busy(values), _faults(values)]
    return f'<div class="cards">{"".join(cards)}</div>'


def _card(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _figure(text: str) -> str:
    return f'<p class="figure">{escape(text)}</p>'


def _text(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""


def _list(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in items)}</ul>"


def _bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """Bars with their names and figures, the longest of them as long as there is room; the first one stands out."""
    longest = max((value for _, value, _ in rows), default=0.0) or 1.0
    cells = []
    for place, (name, value, figure) in enumerate(rows):
        kind = "fill first" if place == 0 else "fill"
        bar = f'<span class="{kind}" style="width:{100 * value / longest:.1f}%"></span>'
        cells.append(f'<span>{escape(name)}</span><span class="track">{bar}</span><span>{escape(figure)}</span>')
    return f'<div class="bars">{"".join(cells)}</div>'


def _speed(values: Mapping[str, Any]) -> str:
    seconds, samples = values["seconds"], values["samples"]
    if not (seconds and samples):
        return _card("Samples per second", _figure("Not enough data"), _text("No batch has been delivered yet."))
    ours = samples / seconds
    known = values["throughput"].values()
    if not known:
        unknown = "What not offloading would give is not known."
        return _card("Samples per second", _figure(number(ours)), _text(unknown))
    without = min(known)
    bars = _bars([("now", ours, number(ours)), ("without offloading", without, number(without))])
    told = f"{ours / without:.2g} times what not offloading would give at most, by what was measured."
    return _card("Samples per second", _figure(number(ours)), bars, _text(told))


def _saved(values: Mapping[str, Any]) -> str:
    wire, whole = values["wire_bytes"], values["file_bytes"]
    if not whole:
        return _card("Bytes saved on the network", _figure("Not enough data"), _text("No file has been counted yet."))
    if not wire:
        here = f"Files of {size(whole)} were read on this host; nothing crossed the network from an agent."
        return _card("Bytes saved on the network", _figure("No agent used"), _text(here))
    saved = _figure(f"{size(max(0, whole - wire))} ({percent(max(0.0, 1 - wire / whole))})")
    bars = _bars([("sent", wire, size(wire)), ("files", whole, size(whole))])
    return _card("Bytes saved on the network", saved, bars, _text(f"{capitalised(values['summary'])}."))


def _to_do(values: Mapping[str, Any]) -> str:
    why_not = "" if values["offloading"] else values["summary"].partition(": ")[2]
    advice = what_to_do(values["limits"], values["would_bring"], why_not)
    gains = sorted(values["would_bring"].items(), key=lambda one: -one[1])
    bars = _bars([(f"twice {resource(name)}", times - 1, f"+{percent(times - 1)}") for name, times in gains])
    bought = _text("Samples per second with twice of each, by the model:") + bars if gains else ""
    if not advice:
        advice = ["Train on until it is known what limits."]
    return _card("What to do", _list(advice), bought)


def _busy(values: Mapping[str, Any]) -> str:
    rows = [(resource(name), share, percent(share)) for name, share in values["limits"].items()]
    if not rows:
        return _card("How busy each resource is", _figure("Not enough data"))
    return _card("How busy each resource is", _bars(rows), _text("Share of the time, by the loader's model."))


def _faults(values: Mapping[str, Any]) -> str:
    faults = faults_of(values)
    sound = _text("No sample is lost or changed by a fault: it costs time.")
    if not faults:
        return _card("Was anything lost?", _figure("Nothing"), sound)
    return _card("Was anything lost?", _figure("Nothing"), sound, _list(faults))


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


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    """A table whose first column names its rows.

    Args:
        head: names of the columns.
        rows: of the table.
        kind: "numbers", or "numbers words" if the last column is text.
    """
    top = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(one)}</td>" for one in rest)}</tr>'
        for first, *rest in rows
    )
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{whole}</div>'


def _details(told: Told) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(what)}</th><td>{escape(value)}</td></tr>' for what, value in told.rows)
    return f'<section><h2>Details</h2><table class="rows"><tbody>{rows}</tbody></table></section>'
