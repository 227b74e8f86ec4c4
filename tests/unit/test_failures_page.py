"""docs/failures.md says what the code does: defaults, limits, exceptions and files are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sophon_loader import errors
from sophon_loader.client import connection, patience, requests
from sophon_loader.client.options import OffloadOptions
from sophon_loader.main import revival
from sophon_loader.wire import limits
from sophon_loader.workers import absence
from storage_agent import frontend
from storage_agent.settings import Settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "failures.md").read_text()
NOT_OURS = {"ValueError", "ConnectionError", "FileNotFoundError", "PermissionError", "OSError", "RuntimeError",
            "IndexError", "OffloadWarning"}  # fmt: skip
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def rows(heading: str) -> dict[str, list[str]]:
    """The table below a heading: first cell -> the others."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:2] == "| "]
    return {cells[0]: cells[1:] for cells in found[2:]}


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
    "listing, unpacked": connection.MAX_LISTING_NBYTES,
    "ops": limits.MAX_OPS,
    "times samples are asked for again while none comes": patience.MAX_RESENDS,
    "times a pipeline is registered again": requests.MAX_REGISTRATIONS,
    "pause of an agent that was given up": revival.FIRST_PAUSE_S,
    "unanswered requests per connection": Settings.max_outstanding,
    "incoming messages waiting per connection": frontend.MAX_WAITING_MESSAGES,
    "pipelines waiting to be built": limits.MAX_REGISTERING,
    "keys of one question for sizes": limits.MAX_KEYS,
    "length of a key": limits.MAX_KEY_NBYTES,
}


@pytest.mark.parametrize("what", LIMITS)
def test_a_limit_is_that_of_the_code(what: str) -> None:
    assert number(rows("Limits")[what][0]) == LIMITS[what]


def test_the_text_has_the_numbers_of_the_code() -> None:
    table = " ".join(" ".join([key, *cells]) for key, cells in rows("The agent, seen from a loader worker").items())
    options = OffloadOptions()
    doubled = [patience.MAX_RESENDS, options.resend_after_s * (2 ** (patience.MAX_RESENDS + 1) - 1)]
    assert f"for {absence.LOST_TIMES} `resend_after_s` and {absence.LOST_SHARE * 100:g} % of the time" in table
    assert f"a pause of {requests.PAUSE_S:g} s" in table and f"up to {requests.MAX_PAUSE_S:g} s until" in table
    assert f"registered again {requests.MAX_REGISTRATIONS} times" in table
    assert f"files alone, for {requests.FILES_ONLY_S:g} s" in table
    assert f"left alone for {revival.FIRST_PAUSE_S:g} s" in table and f"up to {revival.MAX_PAUSE_S:g} s. Once" in table
    assert f"after {absence.LOST_TIMES * options.resend_after_s:g} s where the files are mounted here" in PAGE
    assert f"else after {doubled[1]:g} s" in PAGE


def test_every_file_that_holds_a_limit_exists() -> None:
    for what, cells in rows("Limits").items():
        for name in re.findall(r"`([\w/.]+)`", cells[-1]):
            places = [ROOT / name, ROOT / "sophon_loader" / name, ROOT / "storage_agent" / name]
            assert any(place.exists() for place in places), f"{what}: {name}"


def test_every_exception_exists() -> None:
    named = set(
        re.findall(r"`([A-Z]\w+(?:Error|Busy|Unreachable|Mismatch|Export|Missing|Unreadable|Warning|Message))`", PAGE)
    )
    assert {"AgentUnreachable", "ConfigError", "SampleMissing"} <= named
    assert {one for one in named - NOT_OURS if not hasattr(errors, one)} == set()
