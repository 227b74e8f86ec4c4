"""docs/wire.md and the code say the same: a change of one alone fails here."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

from sophon_loader.encodings.catalogue import CATALOGUE
from sophon_loader.encodings.registry import encode, encodings
from sophon_loader.pipeline import chain
from sophon_loader.wire import failures, frames, limits, messages, version
from sophon_loader.wire import fields as types
from sophon_loader.wire.messages import MESSAGES, WITH_PAYLOAD, Failure, Item
from storage_agent import desk, pipelines
from tests.support.encoding_examples import ACCEPTED

TEXT = (Path(__file__).parents[3] / "docs" / "wire.md").read_text()
NAMED: dict[Any, str] = {
    getattr(types, name): name for name in vars(types) if get_origin(vars(types)[name]) is Annotated
}
"""The names of the types that have a limit."""
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
        (int(kind), name, sender, tuple(re.findall(r"`(\w+): ([^`]+)`", row)), payload == "yes")
        for kind, name, sender, row, payload in _table("Messages")
    ]
    coded = [
        (
            cls.KIND,
            cls.__name__,
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


def test_items() -> None:
    cell = next(row[1] for row in _table("Framing") if row[0] == "`Item`")
    hints = get_type_hints(Item, include_extras=True)
    assert re.findall(r"`(\w+): (\w+)`", cell) == [
        (name, NAMED.get(hint) or hint.__name__) for name, hint in hints.items()
    ]
    assert f"array of the {['', '', '', '', '', 'five', 'six', 'seven'][len(hints)]} fields" in cell


def test_types() -> None:
    written = {re.sub(r"\[.*", "", row[0].strip("`")) for row in _table("Framing")}
    used = {name for cls in MESSAGES for field in fields(cls) for name in re.findall(r"\w+", str(field.type))}
    assert used | {"float"} == written | {"Any"}, "float is what Seconds and Cores are"
    assert set(NAMED.values()) <= used


def _number(text: str) -> float:
    base, _, rest = text.partition("^")
    exponent, _, less = rest.partition("-") if not rest.startswith("-") else (rest, "", "")
    power = abs(int(base)) ** int(exponent or 1)
    return (-power if base.startswith("-") else power) - int(less or 0)


def test_the_limits_of_types() -> None:
    cells = {row[0].strip("`"): row[1] for row in _table("Framing")}
    for hint, name in NAMED.items():
        base, limit = get_args(hint)
        if isinstance(limit, types.AtMost):
            entries, inner = re.findall(r"^array of at most (\d+) `(\w+)`$", cells[name])[0]
            assert (int(entries), inner) == (limit.entries, NAMED[get_args(base)[0]])
            continue
        kind, least, most = re.findall(r"^`(int|float)` from (\S+) to ([^\s:]+)", cells[name])[0]
        assert kind == base.__name__ and (_number(least), _number(most)) == (limit.least, limit.most), name


def test_versions() -> None:
    written = {name: [int(n) for n in values.split(",")] for name, values, _ in _table("Versions")}
    assert written == {"HANDSHAKE": [version.HANDSHAKE], "VERSIONS": list(version.VERSIONS)}
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
    for module in (frames, chain, desk, pipelines):  # which keep to them, and have none of their own that wire.md omits
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
