"""Who the agents are by a Ray cluster: a real HTTP server that answers as Ray's head does, and as it does not."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from sophon_loader.errors import ConfigError
from sophon_loader.routes import ray_actors
from sophon_loader.routes.named import names_roster, parse_roster, roster_of
from sophon_loader.routes.ray_actors import RayActors
from sophon_loader.wire.actor import ACTOR_CLASS, actor_text, parse_actor
from tests.support.agents import until
from tests.support.ray_head import Answer, Head, actor, listing


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Head]:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Head()
    yield made
    made.close()


def roster_at(head: Head, behind: str = "imagenet/train", **more: Any) -> RayActors:
    return RayActors(f"ray://{head.place}/{behind}", **{"answer_s": 2.0, **more})


def addresses(roster: RayActors) -> list[str]:
    return [str(one.address) for one in roster.look()]


def test_its_agents(head: Head) -> None:
    roster = roster_at(head)
    assert addresses(roster) == ["tcp://a:5555/imagenet/train", "tcp://b:1/imagenet/train"]
    assert [one.exports for one in roster.look()] == [("imagenet",), ("imagenet", "other")]
    assert roster.trouble == "" and not roster.is_looking
    path, headers = head.asked[0]
    asked = parse_qsl(urlsplit(path).query)
    assert path.startswith("/api/v0/actors?detail=1&limit=1000&")
    assert [value for name, value in asked if name == "filter_values"] == [ACTOR_CLASS, "ALIVE"]
    assert [value for name, value in asked if name == "filter_predicates"] == ["=", "="]
    assert "Authorization" not in headers


def test_others_are_left_out(head: Head) -> None:
    """Whatever the head says of its filters."""
    good = actor("tcp://a:5555", "imagenet")
    head.answer = head.lists(
        {**good, "state": "RESTARTING", "repr_name": "tcp://c:1 x"},
        {**good, "class_name": "Other", "repr_name": "tcp://c:1 x"},
        *({**good, "repr_name": text} for text in ("", "ipc://x", "tcp://a;b:1", "tcp://c", None, 3, "x tcp://c:1")),
        {},
        "actor",
        None,
        good,
    )
    assert addresses(roster_at(head)) == ["tcp://a:5555/imagenet/train"]


def test_no_agent(head: Head) -> None:
    roster = roster_at(head)
    roster.look()
    head.answer = head.lists()
    assert addresses(roster) == [] and roster.trouble == f"no agent of 'imagenet' is alive on {head.place}"


@pytest.mark.parametrize("origin", ["variable", "named file", "usual file"])
def test_the_token(head: Head, origin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / ".ray" / "auth_token"
    path.parent.mkdir()
    path.write_text("an older one\n" if origin != "usual file" else "secret\n")
    if origin == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    elif origin == "named file":
        (tmp_path / "token").write_text("secret\n")
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert len(addresses(roster_at(head))) == 2
    assert head.asked[0][1]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", ["sec\nret", "sec ret", "sécret"])
def test_a_token_that_is_none_is_not_sent_and_not_told(head: Head, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    roster = roster_at(head)
    assert addresses(roster) == [] and head.asked == []
    assert "RAY_AUTH_TOKEN holds what cannot be a token" in roster.trouble and "ret" not in roster.trouble


def test_a_token_file_that_is_named_must_be_there(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    roster = roster_at(head)
    assert addresses(roster) == [] and "/nowhere/token: No such file" in roster.trouble and head.asked == []


def test_a_token_is_wanted(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    head.answer = head.says(b"Unauthorized", 401)
    roster = roster_at(head)
    assert addresses(roster) == []
    assert "answers 401, and wants another token than none; put its token into RAY_AUTH_TOKEN" in roster.trouble
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    roster.look()
    assert "another token than the one shown" in roster.trouble and "secret" not in roster.trouble


def test_no_redirect_is_followed(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is for this host."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    other = Head()
    try:
        head.answer = head.says(b"", 302, Location=f"http://{other.place}/")
        roster = roster_at(head)
        assert addresses(roster) == [] and "it answers 302" in roster.trouble and other.asked == []
    finally:
        other.close()


GARBAGE = [
    b"",
    b"<html>",
    b"[" * 100_000,
    b"{}",
    b"[]",
    b'{"data": {"result": {"result": {}}}}',
    b'{"data": null}',
    b"\xff",
]


@pytest.mark.parametrize("body", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_takes_nobody_away(head: Head, body: bytes) -> None:
    roster = roster_at(head)
    known, good = addresses(roster), head.answer
    head.answer = head.says(body)
    assert addresses(roster) == known and "its answer is none of Ray's state API" in roster.trouble
    head.answer = good
    assert addresses(roster) == known and roster.trouble == ""


def huge(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:  # until whoever asked hangs up
        handler.wfile.write(b" " * (1 << 20))


def byte_by_byte(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def headers_byte_by_byte(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.05)


def silent(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(1)


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    handler.wfile.write(listing())


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (huge, "its answer has more than 16 MiB"),
        (byte_by_byte, "its answer was not whole within 0.3 s"),
        (headers_byte_by_byte, "its answer was not whole within 0.3 s"),
        (silent, "within 0.3 s"),
        (hangs_up, "its answer was cut off"),
        (Head.says(b"", 404), "it answers 404; is this the port of Ray's dashboard"),
        (Head.says(b"", 500), "it answers 500"),
    ],
)
def test_bad_answers_take_nobody_away(head: Head, answer: Answer, trouble: str) -> None:
    roster = roster_at(head, answer_s=0.3)
    known, good = addresses(roster), head.answer
    head.answer = answer
    assert addresses(roster) == known and trouble in roster.trouble
    head.answer = good
    assert addresses(roster) == known and roster.trouble == ""


def test_nobody_waits(head: Head) -> None:
    head.answer = silent
    roster = roster_at(head, wait_s=0.0, answer_s=0.5)
    begun_s = time.monotonic()
    assert addresses(roster) == [] and roster.is_looking and time.monotonic() - begun_s < 0.3
    head.answer = head.lists(actor("tcp://a:5555"))
    until(lambda: addresses(roster), "it is asked anew", 5.0)


def test_nobody_listens(head: Head) -> None:
    roster = roster_at(head)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    roster = RayActors(f"ray://{place}/x")
    assert addresses(roster) == [] and roster.trouble.endswith("Connection refused")


def test_https_where_it_is_written(head: Head) -> None:
    """A server that speaks plain HTTP is not asked in that."""
    roster = RayActors(f"rays://{head.place}/x", answer_s=2.0)
    assert addresses(roster) == [] and head.asked == [] and "does not list its agents" in roster.trouble


@pytest.mark.parametrize("believed", [True, False])
def test_https(head: Head, believed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With a certificate of its own, which this host believes or not; the token goes to no other."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    made = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out certificate -days 2 -subj /CN=head"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made.split(), *names], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    head.server.socket = context.wrap_socket(head.server.socket, server_side=True)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    if believed:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
    roster = RayActors(f"rays://{head.place}/x", answer_s=5.0)
    if believed:
        assert len(addresses(roster)) == 2 and roster.trouble == ""
    else:
        assert addresses(roster) == [] and head.asked == []
        assert "its certificate is not believed: self" in roster.trouble


@pytest.mark.parametrize("text", ["ray://head/x", "ray://head:8265", "ray:///x", "rays://head:0/x", "ray://h:8265/"])
def test_a_text_of_another_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"Ray's head, the port of its dashboard and an export.*write rays?://HEAD:8"):
        parse_roster(text)


def test_it_is_a_source_of_the_roster() -> None:
    address = parse_roster("ray://head:8265/imagenet/train/")
    assert names_roster(address) and str(address) == "ray://head:8265/imagenet/train"
    assert isinstance(roster_of(address), ray_actors.RayActors)


def test_the_actor_s_text() -> None:
    assert parse_actor(actor_text("tcp://[::1]:5", ["x", "y"])) == ("tcp://[::1]:5", ("x", "y"))
    assert parse_actor("tcp://a:1") == ("tcp://a:1", ())
    assert parse_actor("tcp://a:1  x") is None and parse_actor("") is None
