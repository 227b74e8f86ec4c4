"""docs/wire.md and the code say the same: a change of one alone fails here."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest

from sophon_loader.encodings.catalogue import CATALOGUE
from sophon_loader.encodings.registry import encode, encodings
from sophon_loader.kinds.image.header import PACKED_NBYTES
from sophon_loader.pipeline import chain
from sophon_loader.wire import failures, frames, limits, messages, version
from sophon_loader.wire import fields as types
from sophon_loader.wire.messages import CHEAPEST, MESSAGES, WITH_PAYLOAD, Failure, Item, Offer, ProgramItem
from storage_agent.broker import desk
from storage_agent.jobs import registrations
from tests.support.encoding_examples import ACCEPTED

TEXT = (Path(__file__).parents[3] / "docs" / "wire.md").read_text()
NAMED: dict[str, Any] = {name: hint for name, hint in vars(types).items() if get_origin(hint) is Annotated}
"""The types that have a limit, by name."""
FROM_AGENT = re.compile(r"^Agent:")


def _table(heading: str) -> list[list[str]]:
    """The cells of the rows of the first table under a heading, the head row excluded."""
    section = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    body = next(part for part in section if part.startswith(heading + "\n"))
    rows = re.search(r"(?:^\|.*\n)+", body, flags=re.MULTILINE)
    assert rows is not None
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.group().splitlines()]
    assert {len(row) for row in split} == {len(split[0])}
    return split[2:]


def test_messages() -> None:
    written = [
        (int(kind), name, int(since), sender, tuple(re.findall(r"`(\w+): ([^`]+)`", row)), payload == "yes")
        for kind, name, since, sender, row, payload in _table("Messages")
    ]
    coded = [
        (
            cls.KIND,
            cls.__name__,
            cls.VERSION,
            "agent" if FROM_AGENT.match(cls.__doc__ or "") else "loader",
            tuple((field.name, str(field.type)) for field in fields(cls)),
            cls in WITH_PAYLOAD,
        )
        for cls in MESSAGES
    ]
    assert written == coded


def test_every_message_class_is_listed() -> None:
    classes = {value for value in vars(messages).values() if isinstance(value, type) and hasattr(value, "KIND")}
    assert classes == set(MESSAGES)
    assert len({cls.KIND for cls in MESSAGES}) == len(MESSAGES)


@pytest.mark.parametrize("row_type", [Item, ProgramItem, Offer])
def test_rows(row_type: type[Item | ProgramItem | Offer]) -> None:
    cell = next(row[1] for row in _table("Framing") if row[0] == f"`{row_type.__name__}`")
    hints = {name: hint.__forward_arg__ for name, hint in row_type.__annotations__.items()}
    assert re.findall(r"`(\w+): (\w+)`", cell) == list(hints.items())
    assert f"array of the {['', '', '', '', '', 'five', 'six', 'seven'][len(hints)]} fields" in cell


def test_types() -> None:
    written = {re.sub(r"\[.*", "", row[0].strip("`")) for row in _table("Framing")}
    used = {name for cls in MESSAGES for field in fields(cls) for name in re.findall(r"\w+", str(field.type))}
    used |= {
        hint.__forward_arg__ for row_type in (Item, ProgramItem, Offer) for hint in row_type.__annotations__.values()
    }
    used |= {inner for row in _table("Framing") for inner in re.findall(r"^array of at most \d+ `(\w+)`$", row[1])}
    assert used | {"float"} == written | {"Any"}, "float is what Seconds, Cores and Price are"
    assert set(NAMED) <= used


def _number(text: str) -> float:
    base, _, rest = text.partition("^")
    exponent, _, less = rest.partition("-") if not rest.startswith("-") else (rest, "", "")
    power = abs(int(base)) ** int(exponent or 1)
    return (-power if base.startswith("-") else power) - int(less or 0)


def test_the_limits_of_types() -> None:
    cells = {row[0].strip("`"): row[1] for row in _table("Framing")}
    for name, hint in NAMED.items():
        base, limit = get_args(hint)
        if isinstance(limit, types.AtMost):
            entries, inner = re.findall(r"^array of at most (\d+) `(\w+)`$", cells[name])[0]
            assert int(entries) == limit.entries and NAMED[inner] == get_args(base)[0]
            continue
        if isinstance(limit, types.NoneOr):
            assert cells[name] == f"`bytes`, none or {limit.nbytes}" and limit.nbytes == PACKED_NBYTES
            continue
        kind, least, most = re.findall(r"^`(int|float)` from (\S+) to ([^\s:]+)", cells[name])[0]
        assert kind == base.__name__ and (_number(least), _number(most)) == (limit.least, limit.most), name


def test_the_choice_that_is_left_to_the_agent() -> None:
    assert f"whose encoding is `{CHEAPEST}` leaves the choice to the agent" in re.sub(r"\s+", " ", TEXT)
    assert CHEAPEST not in encodings(), "a name that no encoding may have"


def test_versions() -> None:
    written = {name: [int(n) for n in values.split(",")] for name, values, _ in _table("Versions")}
    assert written == {"HANDSHAKE": [version.HANDSHAKE], "VERSIONS": list(version.VERSIONS)}
    assert {cls.VERSION for cls in MESSAGES} == {version.HANDSHAKE, *version.VERSIONS}
    assert TEXT.splitlines()[2].startswith(f"Version {version.VERSIONS[-1]},")


def test_failures() -> None:
    written = [row[0] for row in _table("Failures")]
    assert written == [value for name, value in vars(Failure).items() if name.isupper()]
    unknown = {"unknown-pipeline", "stopping"}  # which a loader deals with itself
    assert set(failures._ERRORS) == set(written) - unknown


def test_limits() -> None:
    written = {name: int(value) for name, value, _ in _table("Limits")}
    stated = {name: value for name, value in vars(limits).items() if name.startswith("MAX_")}
    del stated["MAX_UINT"]  # stands with the types
    assert written == stated
    assert limits.MAX_DESCRIPTION_NBYTES < limits.MAX_REGISTRATION_NBYTES
    for module in (
        frames,
        chain,
        desk,
        registrations,
    ):  # which keep to them, and have none of their own that wire.md omits
        own = {name for name in vars(module) if name.startswith("MAX_")} - {"MAX_TOTAL_NBYTES"}
        assert all(getattr(module, name) == stated[name] for name in own)


def test_encodings() -> None:
    written = {row[0]: set(re.findall(r"`(\w+)`", row[2])) for row in _table("Encodings")}
    assert set(written) == {line.name for line in CATALOGUE}
    optional = {"array": {"format", "canvas", "clamping", "swapped"}}
    for name in set(written) & set(encodings()):
        for make in ACCEPTED[name].values():
            meta = set(encode(make(), name).meta)
            assert written[name] <= meta <= written[name] | optional.get(name, set())


@pytest.mark.parametrize("word", ["swapped", "format", "canvas", "clamping", "info", "nbytes", "part"])
def test_every_other_field_of_a_meta_is_named(word: str) -> None:
    assert f"`{word}" in TEXT
