"""Pieces of HTML that pages are made of. Every text that is not markup goes through `escape`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

_PLACE = re.compile(r"\{\{(\w+)\}\}")


def asset(name: str) -> str:
    """Return the text of a file that pages are made from."""
    return (files("sophon_loader.report") / "assets" / name).read_text(encoding="utf-8")


def filled(template: str, **parts: str) -> str:
    """Return a template with its places filled in, in one pass: a part cannot contain places.

    Args:
        template: name of its file.
        parts: HTML, by the name of its place; a place without one stays empty.
    """
    return _PLACE.sub(lambda found: parts.get(found[1], ""), asset(template))


def card(title: str, *parts: str) -> str:
    """Return a box with a heading."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def figure(text: str) -> str:
    """Return the first line of a box."""
    return f'<p class="figure">{escape(text)}</p>'


def sentence(text: str) -> str:
    """Return a paragraph; "" if the text is empty."""
    return f"<p>{escape(text)}</p>" if text else ""


def listed(items: Iterable[str]) -> str:
    """Return a list."""
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in items)}</ul>"


def bars(rows: Sequence[tuple[str, float, str]], whole: float = 0.0) -> str:
    """Return bars with their names and figures. The longest takes all the room, and the first is highlighted.

    Args:
        rows: name, value, and the value as text.
        whole: the value of a bar that takes all the room, if no bar is larger.
    """
    longest = max([whole, *(value for _, value, _ in rows)]) or 1.0
    cells = []
    for place, (name, value, told) in enumerate(rows):
        kind = "fill first" if place == 0 else "fill"
        bar = f'<span class="{kind}" style="width:{100 * max(0.0, value) / longest:.1f}%"></span>'
        cells.append(f'<span>{escape(name)}</span><span class="track">{bar}</span><span>{escape(told)}</span>')
    return f'<div class="bars">{"".join(cells)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    """Return a table whose first column names its rows.

    Args:
        head: names of the columns.
        rows: of the table.
        kind: "numbers"; with " words" if the last column is text, and " times" if the first one is dates with times.
    """
    top = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(one)}</td>" for one in rest)}</tr>'
        for first, *rest in rows
    )
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll" tabindex="0">{whole}</div>'
