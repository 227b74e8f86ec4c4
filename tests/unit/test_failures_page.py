"""What the pages on failures and limits say is what the code does: defaults, limits, exceptions, texts and files."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from sophon_loader import errors
from sophon_loader.client import patience, requests
from sophon_loader.client.options import OffloadOptions
from sophon_loader.fleet import shared_route
from sophon_loader.routes import standing
from sophon_loader.wire import limits
from storage_agent.clients import frontend
from storage_agent.host.agent_settings import AgentSettings

ROOT = Path(__file__).parents[2]
FAILURES, AGENT, LIMITS_PAGE = (
    (ROOT / "docs" / name).read_text() for name in ("failures.md", "failures-agent.md", "limits.md")
)
PAGES = FAILURES + AGENT + LIMITS_PAGE
NOT_OURS = {"ValueError", "ConnectionError", "FileNotFoundError", "PermissionError", "OSError", "RuntimeError",
            "IndexError", "TypeError", "OffloadWarning"}  # fmt: skip
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def section(page: str, heading: str) -> str:
    """What stands below a heading, up to the next one of its rank, with its line breaks as spaces outside of tables."""
    return page.split(f"## {heading}\n")[1].split("\n## ")[0]


def in_one_line(text: str) -> str:
    """A text whose lines were broken to fit the page."""
    return re.sub(r"\s+", " ", text)


def rows(heading: str) -> dict[str, list[str]]:
    """All tables below a heading of docs/limits.md: first cell -> the others."""
    lines = [line for line in section(LIMITS_PAGE, heading).splitlines() if line[:2] == "| "]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        cells[0]: cells[1:] for cells in found if cells[0] != "---" and cells[-1] not in ("where", "what it bounds")
    }


def number(text: str) -> float:
    """The first number of a cell, in the unit that follows it."""
    found = re.match(r"(?:about )?([\d .]*\d)(?: (KiB|MiB|GiB))?", text)
    assert found, text
    return float(found[1].replace(" ", "")) * UNITS[found[2] or ""]


@pytest.mark.parametrize("name", [one.strip("`") for one in rows("Time-outs") if one.startswith("`")])
def test_every_default_is_that_of_the_option(name: str) -> None:
    said, default = rows("Time-outs")[f"`{name}`"][0], getattr(OffloadOptions(), name)
    assert said == str(default) if isinstance(default, bool) else number(said) == default


def test_every_time_out_is_on_the_page() -> None:
    times = {f"`{one.name}`" for one in fields(OffloadOptions) if one.name.endswith("_s")}
    assert times <= set(rows("Time-outs"))


LIMITS = {
    "payload of a message": limits.MAX_PAYLOAD_NBYTES,
    "one text field": limits.MAX_TEXT_LENGTH,
    "listing, unpacked; with the members that a `RemoteFiles` asks for": limits.MAX_LISTING_NBYTES,
    "ops": limits.MAX_OPS,
    "times samples are requested again while none comes": patience.MAX_RESENDS,
    "times a pipeline is registered again": requests.MAX_REGISTRATIONS,
    "pause of an agent that is missing, or was given up": standing.FIRST_PAUSE_S,
    "unanswered requests per connection": AgentSettings.max_outstanding,
    "incoming messages waiting per connection": frontend.MAX_WAITING_MESSAGES,
    "pipelines waiting to be built": limits.MAX_REGISTERING,
    "keys of one question for sizes": limits.MAX_KEYS,
    "length of a key": limits.MAX_KEY_NBYTES,
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_that_of_the_code(what: str) -> None:
    assert number(rows("Limits")[what][0]) == LIMITS[what]


def test_the_text_has_the_numbers_of_the_code() -> None:
    text, limits_text = in_one_line(section(AGENT, "The agent, seen from a loader worker")), in_one_line(LIMITS_PAGE)
    options = OffloadOptions()
    longest_s = options.resend_after_s * (2 ** (patience.MAX_RESENDS + 1) - 1)
    assert f"for {shared_route.LOST_TIMES} `resend_after_s` and {shared_route.LOST_SHARE * 100:g} % of the time" in text
    assert f"a pause of {requests.PAUSE_S:g} s" in text and f"up to {requests.MAX_PAUSE_S:g} s until" in text
    assert f"registered again {requests.MAX_REGISTRATIONS} times" in text
    assert f"files alone, for {requests.FILES_ONLY_S:g} s" in text
    assert (
        f"left alone for {standing.FIRST_PAUSE_S:g} s" in text
        and f"then every {standing.MAX_PAUSE_S:g} s. Once" in text
    )
    begins = in_one_line(section(AGENT, "An agent that is missing when a loader begins"))
    assert f"`missing_wait_s` ({options.missing_wait_s:g} s)" in begins
    assert f"{standing.FIRST_PAUSE_S:g} s after a trial, then 2 s and every {standing.MAX_PAUSE_S:g} s" in begins
    assert (
        f"after {shared_route.LOST_TIMES * options.resend_after_s:g} s where the files are mounted here" in limits_text
    )
    assert f"else after {longest_s:g} s" in limits_text


def test_every_file_that_holds_a_limit_exists() -> None:
    for what, cells in rows("Limits").items():
        for name in re.findall(r"`([\w/.]+)`", cells[-1]):
            places = [ROOT / name, ROOT / "sophon_loader" / name, ROOT / "storage_agent" / name]
            assert any(place.exists() for place in places), f"{what}: {name}"


def test_every_exception_exists() -> None:
    named = set(
        re.findall(r"`([A-Z]\w+(?:Error|Busy|Unreachable|Mismatch|Export|Missing|Unreadable|Warning|Message))`", PAGES)
    )
    assert {"AgentUnreachable", "ConfigError", "SampleMissing"} <= named
    assert {one for one in named - NOT_OURS if not hasattr(errors, one)} == set()


SHOWN = [one for one in re.findall(r"`([^`]*)`", in_one_line(PAGES)) if " must " in one and "<name>" not in one]
_A_VALUE = re.compile(r"\.\.\.|\[|\]|tcp://|\b\d+\b|'\w+'|, got|\bs(?=[;,])")


@pytest.mark.parametrize("shown", SHOWN)
def test_every_error_that_is_shown_is_one_of_the_code(shown: str) -> None:
    """What stands for a value, "..." and figures, may be anything there."""
    pieces = [piece.strip(" ,;'()") for piece in _A_VALUE.split(shown)]
    assert any(pieces) and all(piece in _words_of_the_code() for piece in pieces if len(piece) > 3)


@cache
def _words_of_the_code() -> str:
    """All texts of both packages, with the values in them left out."""
    found = []
    for path in (path for package in ("sophon_loader", "storage_agent") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return in_one_line(" ".join(found)).replace("`", "")


@pytest.mark.parametrize("page", [FAILURES, AGENT, LIMITS_PAGE], ids=["failures", "failures-agent", "limits"])
def test_a_page_can_be_read_at_one_sitting(page: str) -> None:
    lines = page.splitlines()
    assert len(lines) <= 250 and max(map(len, lines)) <= 120
