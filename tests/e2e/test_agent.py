"""A real agent process, asked over its socket. It must answer everything, and nothing may harm it."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader import __version__
from sophon_loader.encodings.registry import decode, encodings
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.wire.frames import SEAL_NBYTES, pack, seal, unpack
from sophon_loader.wire.limits import MAX_HEADER_NBYTES, MAX_REQUEST_NBYTES, MAX_TEXT_LENGTH
from sophon_loader.wire.messages import (
    MESSAGES,
    AskListing,
    AskSizes,
    AskStatus,
    Failed,
    Hello,
    Listing,
    Ping,
    Pong,
    Refused,
    Sample,
    Sizes,
    Welcome,
)
from sophon_loader.wire.version import VERSIONS
from storage_agent.command import status_table
from tests.support.agent_ops import Fail, Gate, Invert
from tests.support.agents import ROOT, Agent, Client, StartAgent, agent_for, fetch, until
from tests.support.encoding_examples import difference
from tests.support.loaders import MakeLoader
from tests.unit.wire.strategies import example

TRANSFORM = v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32)])


@pytest.fixture(scope="module")
def served(start_agent: StartAgent, image_tree: Path) -> Iterator[Agent]:
    before = _files(image_tree)
    one = start_agent("--ops", "tests.support.agent_ops").ready()
    yield one
    assert one.end() == 0
    assert "Traceback" not in one.errors(), "nothing that a client does may show as a traceback of the agent"
    one.assert_gone()
    assert _files(image_tree) == before, "no file is harmed"


def _files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def client(served: Agent) -> Client:
    return served.client()


@pytest.fixture(scope="module")
def keys(image_tree: Path) -> list[str]:
    return [os.path.relpath(path, image_tree) for path, _ in ImageFolder(image_tree).samples]


def _alive(served: Agent) -> None:
    """A new client is served, by the same process."""
    status = served.client().status()
    assert status["pid"] == served.pid and status["workers"] == 2


# --- the ordinary way -----------------------------------------------------------------------------------------


def test_welcome(served: Agent, client: Client) -> None:
    welcome = client.ask(Hello([7, 1, VERSIONS[-1]], "a test"))
    assert isinstance(welcome, Welcome)
    assert (welcome.version, welcome.exports, welcome.max_outstanding) == (VERSIONS[-1], ["d"], 1024)
    assert sorted(welcome.encodings) == sorted(encodings()) and 0 < welcome.cores <= 2
    assert welcome.software["torch"] == torch.__version__.split("+")[0]
    assert client.ask(Ping()) == Pong(welcome.instance)


@pytest.mark.parametrize("encoding", ["pixels", "array", "webp", "file", "of-a-later-release"])
def test_values_at_every_cut(client: Client, keys: list[str], image_tree: Path, encoding: str) -> None:
    chain = chain_of(TRANSFORM)
    digest = client.register(chain)
    for cut in range(len(chain) + 1):
        client.send(fetch(keys[:5], cut, digest, encoding=encoding))
        for _ in range(5):
            sample, payload = client.receive()
            assert isinstance(sample, Sample) and (sample.cut, sample.note) == (cut, "")
            data = (image_tree / keys[sample.id]).read_bytes()
            with chain.isolated():
                wanted = chain.run(data, 0, cut, Draw(1, 0, sample.id))
            assert difference(wanted, decode(sample.encoding, sample.meta, payload)) == ""
            assert sample.file_nbytes == len(data)


def test_a_users_op(client: Client, keys: list[str], image_tree: Path) -> None:
    digest = client.register(chain_of(Invert()))
    client.send(fetch(keys[:1], 2, digest, encoding="pixels"))
    sample, payload = client.receive()
    assert isinstance(sample, Sample) and sample.cut == 2
    image = Image.open(image_tree / keys[0]).convert("RGB")
    assert difference(Invert()(image), decode(sample.encoding, sample.meta, payload)) == ""


def test_an_op_that_fails(client: Client, keys: list[str], image_tree: Path) -> None:
    digest = client.register(chain_of(Fail()))
    client.send(fetch(keys[:1], 2, digest))
    sample, payload = client.receive()
    assert isinstance(sample, Sample) and (sample.cut, sample.encoding) == (0, "file")
    assert "this op always fails" in sample.note and "tests.Fail" in sample.note
    assert payload == (image_tree / keys[0]).read_bytes()


def test_an_answer_leaves_when_it_is_ready(client: Client, keys: list[str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = client.register(chain_of(Gate(str(gate))))
    quick = client.register(chain_of(v2.CenterCrop(8)))
    client.send(fetch(keys[:1], 2, slow))
    client.send(fetch(keys[1:9], 2, quick, first=100))
    client.send(fetch(keys[9:12], 0, first=200))
    # One quick sample may wait behind the slow one: a worker has one in hand and one on its way.
    before = client.samples(10)
    assert 0 not in before and {200, 201, 202} <= set(before)
    gate.touch()
    assert 0 in client.samples(2)


def test_what_is_asked_for_again_before_it_is_made_is_made_once(
    client: Client, keys: list[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    slow = client.register(chain_of(Gate(str(gate))))
    for _ in range(3):
        client.send(fetch(keys[:8], 2, slow))
    assert isinstance(client.ask(Ping()), Pong), "all have been read"
    gate.touch()
    assert set(client.samples(8)) == set(range(8))
    client.send(fetch(keys[:1], 2, slow, first=100))
    assert set(client.samples(1)) == {100}


def test_listing(client: Client, image_tree: Path) -> None:
    client.send(AskListing("d", ""))
    listing, payload = client.receive()
    assert isinstance(listing, Listing)
    folder = ImageFolder(image_tree)
    files = msgpack.unpackb(zlib.decompress(payload))
    listed = [f"{name}/{file}" for name, names in zip(listing.classes, files, strict=True) for file in names]
    assert listing.classes == folder.classes
    assert listed == [os.path.relpath(path, image_tree) for path, _ in folder.samples]
    assert client.failed(AskListing("d", "none")).failure == "missing"
    assert client.failed(AskListing("d", "..")).failure == "outside-export"
    assert client.failed(AskListing("none", "")).failure == "unknown-export"


def test_sizes(client: Client, keys: list[str], image_tree: Path) -> None:
    asked = [*keys[:3], "none.jpg", "../x", "class_0", str(image_tree / keys[0])]
    wanted = [(image_tree / key).stat().st_size for key in keys[:3]] + [-1, -2, -1, -2]
    assert client.ask(AskSizes("d", asked)) == Sizes(str(image_tree.resolve()), wanted)
    assert client.failed(AskSizes("none", asked)).failure == "unknown-export"


# --- refusals -------------------------------------------------------------------------------------------------


def test_an_unknown_pipeline(client: Client, keys: list[str]) -> None:
    failed = client.failed(fetch(keys[:2], 1, "0" * 32, first=5))
    assert (failed.failure, failed.ids, failed.digest) == ("unknown-pipeline", [5, 6], "0" * 32)
    client.send(fetch(keys[:2], 0, "0" * 32))
    client.samples(2)


@pytest.mark.parametrize(("key", "failure"), [
    ("../secret", "outside-export"), ("/etc/passwd", "outside-export"), ("", "outside-export"),
    ("a\0b", "outside-export"),
    ("none.jpg", "missing"), ("class_0", "unreadable"), ("x" * MAX_TEXT_LENGTH, "missing"), ("\udcff", "missing"),
])  # fmt: skip
def test_a_file_that_cannot_be_had(client: Client, key: str, failure: str) -> None:
    digest = client.register(chain_of(None))
    for cut in (0, 1):
        failed = client.failed(fetch([key], cut, digest, first=9))
        assert (failed.failure, failed.ids) == (failure, [9])


# --- what breaks the protocol ---------------------------------------------------------------------------------


def test_messages_over_the_limit(served: Agent) -> None:
    client = served.client()
    for nbytes in (MAX_REQUEST_NBYTES + 1, MAX_HEADER_NBYTES):
        client.socket.send(bytes(nbytes))
        answer, _ = client.receive()
        assert isinstance(answer, Failed) and answer.failure == "too-long"
    client.socket.send(bytes(10 * MAX_HEADER_NBYTES))  # the socket library hangs up on this one
    _alive(served)


def test_a_stream_of_mutated_messages(served: Agent, client: Client) -> None:
    rng = random.Random(5)
    bare = [pack(example(cls)) for cls in MESSAGES]
    for _ in range(600):
        header = bytearray(rng.choice(bare))
        for _ in range(rng.randint(0, 3)):
            header[rng.randrange(len(header))] = rng.randrange(256)
        payloads = [rng.randbytes(3) for _ in range(rng.randint(0, 2))]
        sealed = seal(bytes(header[:-SEAL_NBYTES]), b"".join(payloads)) if rng.random() < 0.8 else bytes(header)
        client.socket.send_multipart([sealed, *payloads])
    client.send(Hello(list(VERSIONS), "still there?"))
    while not isinstance(client.receive()[0], Welcome):
        pass
    _alive(served)


def test_bytes_that_are_no_zeromq(served: Agent) -> None:
    host, port = served.endpoint.removeprefix("tcp://").split(":")
    for said in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xff" * 4096, b""):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(said)
    _alive(served)


# --- sophon-agent serve ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "rule"), [
    ("", "must be NAME=FOLDER with a folder, got 'd='"),
    ("tests", "must be an absolute folder, or begin with ./; got 'tests'"),
    ("./none", "must be an existing folder, got "), ("{empty}", "must be a folder with something in it, got "),
])  # fmt: skip
def test_a_folder_that_is_none_is_never_served(folder: str, rule: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "storage_agent", "serve", "--bind", "tcp://127.0.0.1:0"]
    command += ["--export", f"d={folder.format(empty=tmp_path)}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"sophon-agent: export 'd' {rule}") and done.stderr.count("\n") == 1


def test_a_relative_folder_is_served_and_said_in_full(image_tree: Path, tmp_path: Path) -> None:
    relative = Path(os.path.relpath(image_tree, ROOT))  # where the tests' agents run
    one = Agent({"d": relative}, log=tmp_path / "stderr")
    assert relative.parts[0] == ".." and one.announcement.exports == {"d": str(image_tree.resolve())}
    assert one.end() == 0


# --- sophon-agent status --------------------------------------------------------------------------------------


def _status(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "storage_agent", "status", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_status_as_json(served: Agent) -> None:
    shown = _status(served.endpoint, "--json")
    assert (shown.returncode, shown.stderr) == (0, "")
    values = json.loads(shown.stdout)
    assert (values["pid"], values["workers"], values["version"]) == (served.pid, 2, __version__)
    assert len(values["worker_pids"]) == 2 and set(values["exports"]) == {"d"}


def test_status_as_a_table(served: Agent) -> None:
    shown = _status(f"{served.endpoint}/d/class_0")
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in ("serves", "workers", "2 of 2 ready", "as pixels", "sent", "MB", "Mbit/s", "running for"):
        assert (text in shown.stdout) == (text != "Mbit/s"), "a limit that there is not is left out"
    assert set(served.status()) == status_table.NAMES


def test_a_loader_whose_workers_say_no_hello_is_connected(agent: Agent, make: MakeLoader) -> None:
    until(lambda: agent.status()["loaders"] == 0, "earlier tests' connections are closed")
    batches = iter(make(num_workers=1, policy="all-off"))
    next(batches)
    until(lambda: agent.status()["loaders"] == 1, "its worker is counted")


def test_status_of_nobody() -> None:
    with socket.socket() as taken:  # a port on which nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        shown = _status(address, "--timeout-s", "0.3")
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.count("\n") == 1 and "got nothing within 0.3 s" in shown.stderr and address in shown.stderr


@pytest.mark.parametrize("address", ["", "nonsense", "tcp://", "tcp://x", "tcp://127.0.0.1:99999", "udp://x:1"])
def test_status_of_an_address_that_is_none(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    from storage_agent.__main__ import main

    assert main(["status", address, "--timeout-s", "0.2"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("sophon-agent: ")


def test_status_shows_any_folder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from storage_agent.command import status

    folder = "/data/[red]" + os.fsdecode(b"\xff")
    monkeypatch.setattr(status, "ask_status", lambda *a: {"exports": {"d": folder}, "limit_mbit": None})
    for as_json in (True, False):
        status.show("tcp://x:1", as_json=as_json, timeout_s=1.0)
        shown = capsys.readouterr().out
        shown.encode()
        assert "/data/[red]" in shown and "udcff" in shown


# --- the log --------------------------------------------------------------------------------------------------


def test_what_is_logged(start_agent: StartAgent, keys: list[str]) -> None:
    one = start_agent("--log-json", "--ops", "tests.support.agent_ops", workers=1).ready()
    client = one.client()
    client.ask(Hello(list(VERSIONS), "a test"))
    digest = client.register(chain_of(None))
    client.failed(fetch(keys[:1], 1, "0" * 32))
    client.failed(fetch(["none.jpg"], 0))
    client.failed(fetch(["none.jpg"], 1, digest))
    assert isinstance(client.ask(Hello([99], "of the future")), Refused)
    status = client.status()
    assert status["refusals"] == {"missing": 2, "version": 1} and status["loaders"] == 1
    client.close()
    until(lambda: one.status()["loaders"] == 0, "a closed connection is noticed")
    assert "loader left" not in one.errors(), "its host has another connection, and its workers may come"
    assert one.end() == 0
    lines = [json.loads(line) for line in one.errors().splitlines()]
    told = [(line["level"], line["event"], line.get("reason", "")) for line in lines]
    assert told == [
        ("info", "agent started", ""), ("info", "loader joined", ""), ("info", "pipeline registered", ""),
        ("info", "pipeline requested", ""), ("warning", "request refused", "missing"),
        ("warning", "request refused", "missing"), ("warning", "request refused", "version"),
        ("info", "agent stopping", ""), ("info", "agent stopped", ""),
    ]  # fmt: skip
    started, joined, registered = lines[:3]
    assert (started["address"], started["exports"]) == (one.endpoint, one.announcement.exports)
    assert started["pid"] == one.pid and joined["software"] == "a test" and registered["digest"] == digest
    assert joined["loader"] == "127.0.0.1" and joined["connection"]
    assert {(line["loader"], line["connection"]) for line in lines[1:7]} == {("127.0.0.1", joined["connection"])}
    assert lines[-1]["unanswered"] == 0


def test_a_quiet_agent(start_agent: StartAgent) -> None:
    one = start_agent("--log-level", "warning", workers=1)
    one.client().ask(Hello(list(VERSIONS), "a test"))
    assert one.end() == 0 and one.errors() == ""


def test_a_peer_that_speaks_an_older_zeromq(served: Agent) -> None:
    """It has no metadata, by which the agent knows whose connection was closed; it is served all the same."""
    host, port = served.endpoint.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"\xff" + bytes(7) + b"\x01\x7f" + b"\x01" + b"\x05" + b"\x00\x00")  # ZMTP 2.0, DEALER, no name
        message = pack(Ping())
        raw.sendall(bytes([0, len(message)]) + message)
        heard = b""
        while len(heard) < 16 or len(heard) < 16 + heard[15]:
            chunk = raw.recv(100)
            assert chunk, heard
            heard += chunk
    assert isinstance(unpack(heard[16:]), Pong)
    _alive(served)


# --- the process ----------------------------------------------------------------------------------------------


def test_the_broker_has_loaded_neither_torch_nor_numpy(image_tree: Path) -> None:
    """They would cost it hundreds of megabytes and seconds of its start; only its workers need them."""
    with agent_for(image_tree, warm=False) as agent:
        mapped = Path(f"/proc/{agent.ready().pid}/maps").read_text()
    assert "_zmq" in mapped, "this is how an extension module shows"
    assert not [line for line in mapped.splitlines() if "torch" in line or "numpy" in line]


def test_torch_is_loaded_when_a_pipeline_comes_and_not_by_workers_of_programs(
    image_tree: Path, keys: list[str]
) -> None:
    def with_torch() -> set[int]:
        mapped = {one.pid: Path(f"/proc/{one.pid}/maps").read_text() for one in agent.descendants()}
        return {pid for pid, maps in mapped.items() if "libtorch" in maps}

    with agent_for({"d": image_tree}, warm=False) as agent:
        client = agent.ready().client()
        assert with_torch() == set() and client.status()["op_worker_pids"] == []
        client.send(fetch(keys[:1], 2, client.register(chain_of(v2.CenterCrop(9)))))
        assert client.samples(1)[0].cut == 2
        status = client.status()
        (pid,) = status["op_worker_pids"]
        assert pid in with_torch() and not with_torch() & set(status["worker_pids"])


def test_the_first_message_may_be_any(served: Agent) -> None:
    assert served.client().ask(AskStatus())
