"""Agents with keys: who is let in, for what, and that nobody else gets anywhere."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq

from sophon_loader import KeyRefused, OffloadOptions, RemoteImageFolder
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.errors import AgentUnreachable, UnknownExport
from sophon_loader.keys import Token, file_of
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import AskListing, AskStatus, Failed, Hello, Ping, Pong
from sophon_loader.wire.version import VERSIONS
from storage_agent.clients.key_files import KeyFolder
from storage_agent.command.status import ask_status
from tests.support.agents import EXPORT, WAIT_S, Agent, agent_for, run_command, until
from tests.support.loaders import QUICK, MakeLoader, run_epoch, samples_of
from tests.support.pictures import eval_transform

FILES = 24
LOADER = {"batch_size": 4, "seed": 5}
NULL_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
"""Of ZMTP, by a client without a key."""
SHORT_S = 1.5
"""How long a loader that must not be let in waits for an answer."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFolder:
    """Of the agent: `gpu` is let in for all exports, `guest` for one."""
    made = KeyFolder(tmp_path_factory.mktemp("agent") / "keys")
    made.add("gpu")
    made.add("guest", ["above"])
    return made


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory: pytest.TempPathFactory) -> KeyFolder:
    """Of another agent."""
    made = KeyFolder(tmp_path_factory.mktemp("other") / "keys")
    made.add("gpu")
    return made


@pytest.fixture(scope="module")
def guarded(root: Path, keys: KeyFolder) -> Iterator[Agent]:
    """An agent with keys."""
    with agent_for({EXPORT: root, "above": root.parent}, "--keys", str(keys.path)) as running:
        yield running


def options(keys: KeyFolder, name: str = "gpu", **changed: Any) -> OffloadOptions:
    """Of a loader with that key."""
    return OffloadOptions(**{**vars(QUICK), "key": str(keys.token_file(name)), **changed})


@contextlib.contextmanager
def connected(agent: Agent, keys: KeyFolder, name: str = "gpu", export: str = EXPORT) -> Iterator[Connection]:
    address = Address.parse(agent.address(export)).with_key(str(keys.token_file(name)))
    connection = Connection(address, window=8)
    try:
        yield connection
    finally:
        connection.close()


def _pong(connection: Connection, wait_s: float = WAIT_S) -> bool:
    connection.send(Ping())
    received = connection.receive(wait_s)
    return received is not None and isinstance(received[0], Pong)


# --- who is let in --------------------------------------------------------------------------------------------


def test_every_connection_of_a_loader_uses_the_key(make: MakeLoader, guarded: Agent, keys: KeyFolder) -> None:
    """Of its main process, of its workers, of measuring the wire and of the dry runs; the samples are the same."""
    loader = make(agent=guarded.address(), policy="sophon", num_workers=1, options=options(keys))
    loader.set_epoch(0)
    first = samples_of(loader)
    loader.set_epoch(0)
    assert samples_of(loader) == first == run_epoch(make(agent=None))
    report = loader.report().as_dict()
    assert report["rates"]["wire_bytes_s"] and report["wire_bytes"] and report["fallbacks"] == 0


def test_workers_that_are_spawned_have_the_key(make: MakeLoader, guarded: Agent, keys: KeyFolder) -> None:
    how = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = make(agent=guarded.address(), policy="all-off", options=options(keys), **how)
    assert len(run_epoch(loader)) == FILES and loader.report().as_dict()["fallbacks"] == 0


def test_a_key_in_the_usual_place_need_not_be_named(
    guarded: Agent, keys: KeyFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make: MakeLoader
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    token = file_of(guarded.endpoint)
    assert token is not None
    token.parent.mkdir(parents=True)
    keys.token_file("gpu").rename(token)
    try:
        remote = RemoteImageFolder(guarded.address(), eval_transform())
        assert remote.address.token is not None and remote.address.token.origin == f"the file {token}"
        assert (
            len(run_epoch(make(remote, guarded.address(), num_workers=1)))
            == len(run_epoch(make(remote, None)))
            == FILES
        )
        assert remote[0][0].shape == (3, 48, 48)
    finally:
        token.rename(keys.token_file("gpu"))


def test_the_status_is_for_who_has_a_key(guarded: Agent, keys: KeyFolder) -> None:
    key = str(keys.token_file("gpu"))
    assert ask_status(guarded.endpoint, WAIT_S, key)["keys"] is True
    assert run_command("status", guarded.endpoint, "--json", "--key", key).returncode == 0
    assert run_command("status", guarded.endpoint, "--json", "--keys", str(keys.path)).returncode == 0
    nowhere = keys.path.parent / "no such folder"
    wrong = run_command("status", guarded.endpoint, "--keys", str(nowhere))
    assert wrong.returncode != 0 and "--keys must be the folder that the agent serves with" in wrong.stderr
    assert not nowhere.exists(), "a question makes no folder"
    refused = run_command("status", guarded.endpoint, "--timeout-s", str(SHORT_S))
    assert refused.returncode == 1 and "got one that asks for a key" in refused.stderr
    assert "An agent with keys answers only who shows one: none was shown" in refused.stderr


# --- who is not -----------------------------------------------------------------------------------------------


def test_a_loader_without_a_key(make: MakeLoader, guarded: Agent) -> None:
    loader = make(agent=guarded.address(), options=OffloadOptions(connect_timeout_s=SHORT_S))
    with pytest.raises((KeyRefused, AgentUnreachable)) as error:  # the agent may hang up before it can be understood
        next(iter(loader))
    text = str(error.value)
    assert f"sophon-agent key add NAME` makes) to {file_of(guarded.endpoint)} on this host" in text
    assert "OffloadOptions(key=...)" in text and ("has keys, got none" in text or "closed at once" in text)


def test_a_loader_with_the_key_of_another_agent(make: MakeLoader, guarded: Agent, other_keys: KeyFolder) -> None:
    loader = make(agent=guarded.address(), options=options(other_keys, connect_timeout_s=SHORT_S))
    with pytest.raises(
        KeyRefused, match=rf"key must belong to the agent at {guarded.endpoint}, got the file .*another agent"
    ):
        next(iter(loader))


def test_a_loader_with_a_key_speaks_to_no_agent_without(make: MakeLoader, agent: Agent, keys: KeyFolder) -> None:
    """It does not fall back to plain text."""
    loader = make(options=options(keys, connect_timeout_s=SHORT_S))
    with pytest.raises(
        KeyRefused, match=r"the agent serves without keys: .* with a key the loader never connects unencrypted"
    ):
        next(iter(loader))


def test_a_key_that_the_agent_does_not_know(guarded: Agent, keys: KeyFolder, make: MakeLoader) -> None:
    text = keys.add("brief").read_text()
    keys.remove("brief")
    loader = make(agent=guarded.address(), options=OffloadOptions(key=text, connect_timeout_s=SHORT_S))
    with pytest.raises(KeyRefused, match="got the text of key, which was never added") as error:
        next(iter(loader))
    assert text.strip() not in str(error.value)


def _greeting(mechanism: bytes) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f\x03\x00" + mechanism.ljust(20, b"\0") + bytes(32)


def _ready() -> bytes:
    body = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    return b"\x04" + bytes([len(body)]) + body


ASK = pack(AskStatus())
SENT = b"\0" + bytes([len(ASK)]) + ASK
STRANGERS = {
    "ZMTP 3, NULL": [_greeting(b"NULL") + _ready(), SENT],
    "ZMTP 3, PLAIN": [_greeting(b"PLAIN") + b"\x04\x0a\x05HELLO\x01a\x01b", _ready(), SENT],
    "ZMTP 3, CURVE by name": [_greeting(b"CURVE") + _ready(), SENT],
    "ZMTP 3, CURVE, a long hello": [_greeting(b"CURVE") + b"\x06" + struct.pack(">Q", 1 << 40) + b"\x05HELLO"],
    "ZMTP 2": [b"\xff" + bytes(8) + b"\x7f\x01\x05\0\0", SENT],
    "ZMTP 1": [b"\x01\0", bytes([len(ASK) + 1]) + b"\0" + ASK],
    "a browser": [b"GET / HTTP/1.1\r\nHost: agent\r\n\r\n"],
    "noise": [bytes(range(255, 0, -1)) * 40],
    "nothing": [],
}
"""What comes in by a port that others reach; none of it may be taken for a message (pyzmq's issue 657)."""


def _heard(agent: Agent, pieces: list[bytes], last_words: bytes) -> bytes:
    """What the agent says to these, up to some words or the end of the connection."""
    host, port = agent.endpoint.removeprefix("tcp://").split(":")
    heard = b""
    with socket.create_connection((host, int(port)), WAIT_S) as one, contextlib.suppress(ConnectionError):
        for piece in pieces:
            one.sendall(piece)
            time.sleep(0.1)  # a message must come after the end of the handshake
        if not last_words:
            with contextlib.suppress(OSError):  # closed already
                one.shutdown(socket.SHUT_WR)
        while (not last_words or last_words not in heard) and (chunk := one.recv(1 << 16)):
            heard += chunk
    return heard


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_told_nothing(guarded: Agent, keys: KeyFolder, said: list[bytes]) -> None:
    heard = _heard(guarded, said, b"")
    assert len(heard) <= 64 + 200 and b"instance" not in heard, "no more than a greeting and a command"
    with connected(guarded, keys) as connection:
        assert _pong(connection)


@pytest.mark.parametrize("said", ["ZMTP 3, NULL", "ZMTP 2", "ZMTP 1"])
def test_the_same_is_understood_where_there_are_no_keys(agent: Agent, said: str) -> None:
    """So the strangers say what an agent would answer."""
    assert b"instance" in _heard(agent, STRANGERS[said], b"instance")


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
def test_libraries_that_offer_less_are_refused(guarded: Agent, mechanism: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as one:
        one.linger = 0
        if mechanism == "PLAIN":
            one.plain_username, one.plain_password = b"a", b"b"
        one.connect(guarded.endpoint)
        one.send(ASK)
        assert not one.poll(int(1000 * SHORT_S))


def test_a_crowd_at_the_door_keeps_nobody_out(guarded: Agent, keys: KeyFolder, make: MakeLoader) -> None:
    """Connections that say nothing, that say it slowly, and that come and go, while an epoch runs."""
    host, port = guarded.endpoint.removeprefix("tcp://").split(":")
    expected = run_epoch(make(agent=None))
    loader = make(agent=guarded.address(), policy="all-off", num_workers=1, options=options(keys))
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection((host, int(port)), WAIT_S)) for _ in range(120)]
        found = []
        for number, batch in enumerate(loader):
            found.append(batch)
            for one in crowd[number::4]:
                with contextlib.suppress(OSError):
                    one.sendall(_greeting(b"CURVE")[number : number + 1])  # a byte of it
            for _ in range(20):
                socket.create_connection((host, int(port)), WAIT_S).close()
        assert samples_of(found) == expected
    assert loader.report().as_dict()["fallbacks"] == 0


# --- for what -------------------------------------------------------------------------------------------------


def test_a_key_shows_only_its_exports(guarded: Agent, keys: KeyFolder, root: Path, make: MakeLoader) -> None:
    with connected(guarded, keys, "guest", "above") as guest, connected(guarded, keys) as gpu:
        assert guest.greet(WAIT_S).exports == ["above"] and gpu.greet(WAIT_S).exports == ["above", EXPORT]
        guest.send(AskListing(EXPORT, ""))
        answer = guest.receive(WAIT_S)
        assert answer is not None and isinstance(answer[0], Failed) and answer[0].failure == "unknown-export"
    assert set(ask_status(guarded.endpoint, WAIT_S, str(keys.token_file("guest")))["exports"]) == {"above"}
    with pytest.raises(UnknownExport, match=r"export must be one of \['above'\]"):
        next(iter(make(agent=guarded.address(), options=options(keys, "guest"))))
    loader = make(agent=guarded.address(f"above/{root.name}"), policy="all-off", options=options(keys, "guest"))
    assert len(run_epoch(loader)) == FILES


def test_keys_come_and_go_without_a_restart(guarded: Agent, keys: KeyFolder) -> None:
    """A connection of a key that is removed is answered no more, not even what it asked before."""
    keys.add("passing")
    with connected(guarded, keys) as stays, connected(guarded, keys, "passing") as passing:
        assert _pong(passing) and _pong(stays)
        assert run_command("key", "remove", "passing", "--keys", str(keys.path)).returncode == 0
        until(lambda: not _pong(passing, 0.2), "the agent notices")
        assert _pong(stays)
        passing.send(Hello(list(VERSIONS), "a test"))
        assert passing.receive(0.5) is None
    added = run_command("key", "add", "passing", "--export", EXPORT, "--keys", str(keys.path))
    assert added.returncode == 0 and str(keys.token_file("passing")) in added.stderr
    assert f"passing  {EXPORT}" in run_command("key", "list", "--keys", str(keys.path)).stdout
    with connected(guarded, keys, "passing") as again:
        assert until(lambda: _pong(again), "the new key is let in")
    keys.remove("passing")


def test_who_is_refused_is_logged_with_its_address_and_counted(
    root: Path, keys: KeyFolder, other_keys: KeyFolder, tmp_path: Path
) -> None:
    """Without a key, with another agent's, and with one that is not let in, however ZeroMQ notices."""
    agent = Agent({EXPORT: root}, "--end-with-stdin", "--keys", str(keys.path), log=tmp_path / "log")
    try:
        late = keys.add("late")
        token = Token.parse(late.read_text())
        keys.remove("late")
        address = Address.parse(agent.address())
        others = Token.parse(other_keys.token_file("gpu").read_text())
        with socket.create_connection(("127.0.0.1", int(agent.endpoint.rpartition(":")[2]))) as bare:
            with connected(agent, keys) as let_in:
                assert _pong(let_in), "so that the agent has seen both"
            bare.sendall(NULL_GREETING)
            port = bare.getsockname()[1]
            until(lambda: f"address=127.0.0.1:{port} " in agent.errors(), "it is logged")
        for n, one in enumerate((others, token), start=1):
            connection = Connection(replace(address, token=one), window=1)
            with pytest.raises(KeyRefused):
                connection.greet(SHORT_S / 3)
            connection.close()
            until(lambda n=n: agent.errors().count("key refused") > n, "it is logged")
        lines = [line for line in agent.errors().splitlines() if "key refused" in line]
        assert all("another agent" in line for line in lines[:2]) and "is not let in" in lines[-1]
        with connected(agent, keys) as let_in:
            let_in.send(AskStatus())
            received = let_in.receive(WAIT_S)
        assert received is not None and received[0].values["keys_refused"] == len(lines)
    finally:
        agent.end()


# --- by default -----------------------------------------------------------------------------------------------


def test_an_agent_that_others_reach_makes_keys(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    token = tmp_path / "sophon" / "agent" / "tokens" / "first"
    log = tmp_path / "log"
    agent = Agent({EXPORT: root}, "--end-with-stdin", "--bind", "tcp://0.0.0.0:0", log=log)
    try:
        address = f"tcp://127.0.0.1:{agent.endpoint.rpartition(':')[2]}/{EXPORT}"
        until(lambda: "write tcp://" in agent.errors(), "it says how to copy the token")
        assert f"token={token}" in agent.errors()
        # The two lines, for a loader on this host and with `scp` as `cp`, put it where the loader looks for it.
        home, name = tmp_path / "home", f"127.0.0.1:{agent.endpoint.rpartition(':')[2]}"
        home.mkdir()
        lines = [line.strip() for line in agent.errors().splitlines() if line.startswith("  ")]
        script = 'scp() { cp "$1" "${2#*:}" "$3"; }\n' + "\n".join(lines)
        subprocess.run(["bash", "-c", script], check=True, env={**os.environ, "HOME": str(home)})
        copied = home / ".config/sophon/keys" / f"{socket.gethostname()}:{name.rpartition(':')[2]}"
        assert copied.read_text() == token.read_text() and copied.stat().st_mode & 0o777 == 0o600
        assert copied.parent.stat().st_mode & 0o777 == 0o700
        told = run_command("status", f"tcp://{name}", "--json")
        assert told.returncode == 0, "on the agent's own host no key need be given"
        assert json.loads(told.stdout)["keys_refused"] == 0 and "key refused" not in agent.errors()
        assert token.read_text().strip() not in agent.errors(), "the secret stands in no log"
        assert len(RemoteImageFolder(address, options=OffloadOptions(**{**vars(QUICK), "key": str(token)}))) == FILES
        with pytest.raises((KeyRefused, AgentUnreachable)):
            RemoteImageFolder(address, options=OffloadOptions(connect_timeout_s=SHORT_S))
    finally:
        agent.end()


def test_an_agent_without_keys_says_so(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent({EXPORT: root}, "--end-with-stdin", "--bind", "tcp://0.0.0.0:0", "--insecure", log=tmp_path / "log")
    try:
        assert "insecure" in agent.errors() and "anyone who reaches this agent may read all exports" in agent.errors()
        address = f"tcp://127.0.0.1:{agent.endpoint.rpartition(':')[2]}/{EXPORT}"
        assert len(RemoteImageFolder(address, options=QUICK)) == FILES
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        key = str(KeyFolder(KeyFolder.usual()).add("of-another-agent-on-this-host"))
        assert ask_status(address, WAIT_S)["keys"] is False
        with pytest.raises(AgentUnreachable, match=r"key must be left out, because the agent at tcp://.* has none"):
            ask_status(address, WAIT_S, key)
    finally:
        agent.end()
