"""Entries of agents: whatever a file holds, it is an entry or refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.errors import MalformedMessage
from sophon_loader.wire.entry import MAX_ENTRY_NBYTES, AgentEntry, host_and_port, is_endpoint

GOOD = {"addresses": ["tcp://a:1"], "instance": "x", "exports": ["d"]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(("text", "whether"), [
    ("tcp://a:1", True), ("tcp://file-server_7.example.com:65535", True), ("tcp://127.0.0.1:5555", True),
    ("tcp://[::1]:5555", True), ("tcp://[fe80::1%eth0]:5555", True),
    ("tcp://a:0", False), ("tcp://a:65536", False), ("tcp://a", False), ("tcp://:5", False), ("tcp://*:5", False),
    ("tcp://a:5/d", False), ("tcp://a:5;b:6", False), ("tcp://eth0;b:6", False), ("tcp://user@a:5", False),
    ("ipc:///tmp/x", False), ("inproc://x", False), ("udp://a:5", False), ("file:///a:5", False),
    ("tcp://::1:5", False), (" tcp://a:1", False), ("tcp://a:1\n", False), ("tcp://a b:1", False),
    ("tcp://\x00:1", False),
    ("tcp://-a:1", False), ("tcp://a:\u0661", False), ("tcp://" + "a" * 300 + ":1", False),
])  # fmt: skip
def test_what_is_an_endpoint(text: str, whether: bool) -> None:
    assert is_endpoint(text) is whether


@pytest.mark.parametrize(("text", "parts"), [
    ("a", ("a", None)), ("a:5", ("a", 5)), ("[::1]", ("[::1]", None)), ("[::1]:7", ("[::1]", 7)),
    ("", None), ("a:", None), ("a:0", None), ("a:65536", None), ("::1", None), ("tcp://a:5", None), ("a/b", None),
    ("a:5:6", None), ("*", None), ("a b", None),
])  # fmt: skip
def test_host_and_port(text: str, parts: tuple[str, int | None] | None) -> None:
    assert host_and_port(text) == parts


def test_what_is_written_is_read() -> None:
    entry = AgentEntry(["tcp://a:1", "tcp://[::1]:2"], "5f0c", ["imagenet", "caf\u00e9"])
    assert AgentEntry.parse(entry.text()) == entry == AgentEntry.parse(entry.text().encode())
    assert entry.text().isascii() and entry.text().count("\n") == 1
    assert AgentEntry.parse(json.dumps({**GOOD, "of a later release": [1]})) == AgentEntry(["tcp://a:1"], "x", ["d"])


@pytest.mark.parametrize("wrong", [
    {"addresses": []}, {"addresses": None}, {"addresses": "tcp://a:1"}, {"addresses": [["tcp://a:1"]]},
    {"addresses": ["tcp://a:1", "ipc:///x"]}, {"addresses": ["tcp://a:1"] * 17}, {"exports": {}}, {"exports": [1]},
    {"exports": [""]}, {"exports": ["x" * 1000]}, {"exports": ["x"] * 4097}, {"instance": 1}, {"instance": "x" * 256},
    {"instance": None},
])  # fmt: skip
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    assert AgentEntry.parse(json.dumps(GOOD)).instance == "x"
    with pytest.raises(MalformedMessage):
        AgentEntry.parse(json.dumps({**GOOD, **wrong}))


@pytest.mark.parametrize("text", [
    b"", b"{", b"null", b"[]", b"1", b"\xff\xfe", b"\x00" * 50, b"[" * 60_000, b'{"a":' * 10_000, b"1" * 5000,
    b" " * (MAX_ENTRY_NBYTES + 1),
], ids=range(11))  # fmt: skip
def test_other_files_are_refused(text: bytes) -> None:
    with pytest.raises(MalformedMessage):
        AgentEntry.parse(text)


@given(st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()) | st.fixed_dictionaries(
    {}, optional={name: JSON | st.just(good) for name, good in GOOD.items()}
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_it_holds(text: bytes) -> None:
    try:
        entry = AgentEntry.parse(text)
    except MalformedMessage:
        return
    assert entry.addresses and all(map(is_endpoint, entry.addresses)) and AgentEntry.parse(entry.text()) == entry
