"""What the agent's own host tells of keys."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

import pytest

from sophon_loader.keys import token_name
from storage_agent.clients.key_files import KeyFolder
from storage_agent.command.this_host import how_to_copy, is_this_host, token_here

ME = getpass.getuser()


@pytest.mark.parametrize(
    ("endpoint", "copy", "address"),
    [
        ("tcp://0.0.0.0:5555", f"scp -p {ME}@fileserver:'/k e/first'", "tcp://fileserver:5555"),
        ("tcp://[::]:5555", f"scp -p {ME}@fileserver:'/k e/first'", "tcp://fileserver:5555"),
        ("tcp://203.0.113.5:5555", f"scp -p {ME}@203.0.113.5:'/k e/first'", "tcp://203.0.113.5:5555"),
        ("tcp://127.0.0.1:4711", "cp -p '/k e/first'", "tcp://127.0.0.1:4711"),
        ("ipc:///run/agent", "cp -p '/k e/first'", "ipc:///run/agent"),
    ],
)
def test_the_lines_name_what_the_loader_looks_up(
    endpoint: str, copy: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "fileserver")
    lines = how_to_copy(Path("/k e/first"), endpoint).splitlines()
    assert lines[1].split() == ["mkdir", "-p", "-m", "700", "~/.config/sophon/keys"]
    assert lines[2].strip() == f"{copy} ~/.config/sophon/keys/{token_name(address)}"
    assert f"loaders then write {address}/EXPORT" in lines[3]


def test_a_port_that_is_only_the_usual_one_is_said_to_be() -> None:
    *_, last = how_to_copy(Path("/k/first"), "tcp://*:5555", port_known=False).splitlines()
    assert "5555 is the agent's port unless its --bind says another" in last
    assert "--bind" not in how_to_copy(Path("/k/first"), "tcp://*:5555")


def test_a_user_without_a_name_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container an agent may run as a number that stands in no list of users."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    assert "\n  scp -p 203.0.113.5:/keys/first ~" in how_to_copy(Path("/keys/first"), "tcp://203.0.113.5:5555")


def test_which_addresses_are_of_this_host() -> None:
    assert is_this_host("tcp://127.0.0.1:1") and is_this_host("tcp://localhost:1") and is_this_host("ipc:///run/x")
    for other in ("tcp://203.0.113.5:1", "tcp://no.such.host.invalid:1", "tcp://x", "udp://127.0.0.1:1", ""):
        assert not is_this_host(other)


def test_a_token_of_this_hosts_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert token_here("tcp://127.0.0.1:1") is None and not KeyFolder.usual().exists(), "a question makes no folder"
    keys = KeyFolder(KeyFolder.usual())
    keys.add("a-guest", ["photos"])
    first = keys.add("z-all")
    found = token_here("tcp://127.0.0.1:1")
    assert found is not None and found.text() == first.read_text().strip(), "of all exports, if there is one"
    assert token_here("tcp://203.0.113.5:1") is None, "it is shown to no other host"
    first.unlink()
    assert token_here("tcp://127.0.0.1:1") is not None
    keys.path.chmod(0o755)
    assert token_here("tcp://127.0.0.1:1") is None
