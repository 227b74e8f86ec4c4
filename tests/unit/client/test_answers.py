"""What a loader makes of an agent that breaks docs/wire.md: an error, or the sample had another way, and counted."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.client import connection as connection_module
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Session, Terms
from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.encodings.catalogue import ANY_PART
from sophon_loader.errors import AgentUnreachable, MalformedMessage
from sophon_loader.pipeline.randomness import Draw, Seed, op_seed
from sophon_loader.pipeline.software import software
from sophon_loader.wire.frames import pack, unpack
from sophon_loader.wire.messages import (
    AT_WORK,
    AskListing,
    AskSizes,
    AskStatus,
    Fetch,
    Hello,
    Listing,
    Message,
    Ping,
    Pong,
    Register,
    Registered,
    Sample,
    Sizes,
    Status,
    Welcome,
)
from sophon_loader.wire.version import VERSIONS
from tests.support.agents import until
from tests.support.loaders import said, sample_message, samples_of
from tests.support.pictures import folder, make_tree

Frames = list[bytes]
KEYS = ["a", "b", "c"]
WAIT_S = 10.0


def _frames(message: Message, payload: bytes) -> Frames:
    return [pack(message, payload), payload]


class Liar:
    """An agent that answers every message with what `answer` makes of it."""

    def __init__(self) -> None:
        self.heard: list[Message] = []
        self.answer: Callable[[Any], Frames] = lambda message: []
        self.copies = 1
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # as the agent's
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = Address.parse(f"tcp://127.0.0.1:{port}/d")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            if self._socket.poll(20):
                client, header, *_ = self._socket.recv_multipart()
                self.heard.append(unpack(header))
                for _ in range(self.copies):
                    self._socket.send_multipart([client, *self.answer(self.heard[-1])])

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def liar() -> Iterator[Liar]:
    one = Liar()
    yield one
    one.end()


@pytest.fixture
def connection(liar: Liar) -> Iterator[Connection]:
    one = Connection(liar.address, window=1)
    yield one
    one.close()


# --- questions ------------------------------------------------------------------------------------------------


def test_a_second_answer_to_a_question_is_none_to_the_next(liar: Liar, connection: Connection) -> None:
    """As where the connection was made while the first Hello waited, which is then said twice, and heard twice."""
    liar.copies = 2
    liar.answer = lambda message: [
        pack(
            Welcome(VERSIONS[-1], "i", ["d"], ["file"], {}, 1.0, 64)
            if isinstance(message, Hello)
            else Registered(message.digest, 3)
            if isinstance(message, Register)
            else Sizes("/data", [1, 2, 3])
        )
    ]
    connection.greet(WAIT_S)
    assert connection.sizes(KEYS, WAIT_S).nbytes == [1, 2, 3]
    assert connection.register(b"a pipeline", WAIT_S) == 3


def test_an_answer_to_no_question_is_told(liar: Liar, connection: Connection) -> None:
    liar.answer = lambda _: [pack(Registered("00", 3))]
    with pytest.raises(MalformedMessage, match="answer must fit the question, got Registered"):
        connection.sizes(KEYS, WAIT_S)


def test_what_was_asked_again_gets_no_answer_to_what_was_asked_before(liar: Liar, connection: Connection) -> None:
    """Answers have no numbers, so a second one to the first question would be one to other keys."""
    counts = iter(range(100))
    liar.answer = lambda _: [pack(Sizes("/data", [next(counts)] * 3))]
    connection._begin(AskSizes("d", KEYS), None)
    connection._put()  # the connection was lost, and came back
    assert (connection._answered(WAIT_S) or [None])[0] == Sizes("/data", [0, 0, 0])
    until(lambda: sum(isinstance(one, AskSizes) for one in liar.heard) == 2, "both have come")
    assert connection.sizes(KEYS, WAIT_S).nbytes == [2, 2, 2]


@pytest.mark.parametrize("at_work", [True, False])
def test_a_file_is_waited_for_while_the_agent_is_at_work_on_it(
    liar: Liar, at_work: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_LOOK_S", 0.05)
    words = iter(range(12))  # one each 0.05 s: twice as long as a file is waited for
    sample = replace(sample_message(1), cut=0, encoding="file", file_nbytes=4)

    def answer(message: Message) -> Frames:
        if not isinstance(message, AskStatus):
            return [pack(Pong("i"))]
        return [pack(Status({AT_WORK: int(at_work)}))] if next(words, None) is not None else _frames(sample, b"file")

    liar.answer = answer
    options = OffloadOptions(heartbeat_s=0.05, dead_after_s=2.0)
    with closing(Connection(liar.address, window=1, options=options)) as connection:
        if at_work:
            assert connection.file("a", 0.3) == b"file"
        else:
            with pytest.raises(AgentUnreachable, match=r"got nothing within 0\.3 s"):
                connection.file("a", 0.3)


@pytest.mark.parametrize("nbytes", [[], [1], [1, 2], [1, 2, 3, 4], [1] * 9999], ids=len)
def test_sizes_of_other_keys_than_asked(liar: Liar, connection: Connection, nbytes: list[int]) -> None:
    liar.answer = lambda _: [pack(Sizes("/data", nbytes))]
    with pytest.raises(
        MalformedMessage, match=rf"Sizes\.nbytes must have one entry .* 3 keys, got {len(nbytes)} from tcp"
    ):
        connection.sizes(KEYS, WAIT_S)


def test_sizes_that_fit(liar: Liar, connection: Connection) -> None:
    liar.answer = lambda _: [pack(Sizes("/data", [5, -1, -2]))]
    assert connection.sizes(KEYS, WAIT_S).nbytes == [5, -1, -2]


@pytest.mark.parametrize("nbytes", [-3, -(1 << 63), 1 << 63])
def test_sizes_that_are_none(liar: Liar, connection: Connection, nbytes: int) -> None:
    liar.answer = lambda _: [pack(Sizes("/data", [1, 2, nbytes]))]
    with pytest.raises(MalformedMessage, match=rf"Sizes\.nbytes\[2\] must be an integer from -2 to .*, got {nbytes}"):
        connection.sizes(KEYS, WAIT_S)


@pytest.mark.parametrize("files", [
    [], [["x.jpg"]], [["x.jpg"], [], []], None, 5, "ab", {"a": [], "b": []}, ["x", "y"], [["x"], "y"], [["x"], [5]],
    [["x"], [b"y"]], [["x"], None], [["x"], [["y"]]], {}, {b"": 1},
], ids=repr)  # fmt: skip
def test_a_listing_that_does_not_fit_its_classes(liar: Liar, connection: Connection, files: Any) -> None:
    liar.answer = lambda _: _frames(Listing(["a", "b"]), zlib.compress(msgpack.packb(files)))
    with pytest.raises(
        MalformedMessage, match=r"listing must have a list of names for each of its 2 classes, got .*tcp"
    ):
        connection.listing(WAIT_S).tree()


@pytest.mark.parametrize("packed", [b"", b"\xc1", b"\x92\x90", b"\x92\x90\x90\x90", b"\x81\x90\x01", b"\x91" * 2000])
@pytest.mark.parametrize("compressed", [True, False])
def test_a_listing_that_is_none(liar: Liar, connection: Connection, packed: bytes, compressed: bool) -> None:
    liar.answer = lambda _: _frames(Listing(["a", "b"]), zlib.compress(packed) if compressed else packed)
    with pytest.raises(MalformedMessage, match="listing must be readable"):
        connection.listing(WAIT_S).tree()


def test_a_listing_that_fits(liar: Liar, connection: Connection) -> None:
    liar.answer = lambda _: _frames(Listing(["a", "b"]), zlib.compress(msgpack.packb([["x.jpg"], []])))
    assert connection.listing(WAIT_S).tree() == [("a", ["x.jpg"]), ("b", [])]


@pytest.mark.parametrize("changes", [{"cut": 1}, {"encoding": "pixels"}, {"encoding": "pixels", "cut": 1}], ids=repr)
def test_a_file_that_is_something_else(liar: Liar, connection: Connection, changes: dict[str, Any]) -> None:
    liar.answer = lambda fetch: _frames(replace(_sample(fetch), **changes), b"x")
    with pytest.raises(MalformedMessage, match="answer must fit the question"):
        connection.file("x.jpg", WAIT_S)
    liar.answer = lambda fetch: _frames(_sample(fetch), b"x")
    assert connection.file("x.jpg", WAIT_S) == b"x"
    assert isinstance(liar.heard[0], Fetch) and liar.heard[0].allowed == ["file"]


# --- samples --------------------------------------------------------------------------------------------------


def _sample(fetch: Fetch, encoding: str = "file", cut: int = 0, nbytes: int = 1) -> Sample:
    return Sample(fetch.items[0].id, cut, encoding, {}, nbytes, [0.0], 0.0, 0.0, "")


def _replies(liar: Liar, wanted: Wanted, seed: int = 0, epoch: int = 0) -> list[Reply]:
    """What a session gets that accepts files, `webp` and `pixels`."""
    options = OffloadOptions(dead_after_s=WAIT_S)
    session = Session(Terms(liar.address, options, "i", (b"",), (False,), Seed(seed), ("file", "webp", "pixels")))
    batch = BatchId(1, epoch, 0)
    try:
        session.want(batch, [wanted])
        return [session.next(batch) for _ in range(session.missing(batch))]
    finally:
        session.close()


@pytest.mark.parametrize(
    "encoding", ["array", "roi-jpeg", "jxl", "", "WEBP", "of-a-later-release", "x" * 60_000], ids=lambda e: e[:9]
)
def test_an_encoding_that_was_not_allowed(liar: Liar, encoding: str) -> None:
    liar.answer = lambda fetch: _frames(_sample(fetch, encoding, 1), b"x")
    rule = r"must answer in an allowed encoding, one of \['file', 'pixels', 'webp'\], got .{2,60} from tcp"
    (reply,) = _replies(liar, Wanted(0, 3, 1, "webp", "x.jpg"))
    assert re.search(rule, reply.unusable) and len(reply.unusable) < 300
    assert reply.sample is None and not reply.payload


@pytest.mark.parametrize("encoding", ["file", "webp", "pixels"])
def test_an_encoding_that_was_allowed(liar: Liar, encoding: str) -> None:
    liar.answer = lambda fetch: _frames(_sample(fetch, encoding, 1), b"x")
    (reply,) = _replies(liar, Wanted(0, 3, 1, "webp", "x.jpg"))
    assert reply.sample is not None and reply.sample.encoding == encoding
    (fetch,) = liar.heard
    assert isinstance(fetch, Fetch) and fetch.allowed == ["file", "webp", "pixels", ANY_PART]


@pytest.mark.parametrize("occurrence", [0, 1, 7])
@pytest.mark.parametrize("seed", [0, -1, -(1 << 63) - 5, (1 << 64) + 3, 1 << 200])
def test_what_random_numbers_depend_on_is_asked_with(liar: Liar, seed: int, occurrence: int) -> None:
    liar.answer = lambda fetch: _frames(_sample(fetch), b"x")
    _replies(liar, Wanted(0, 3, 1, "webp", "x.jpg", occurrence), seed=seed, epoch=seed)
    (fetch,) = liar.heard
    assert isinstance(fetch, Fetch)
    (item,) = fetch.items
    assert (item.sample, item.occurrence) == (3, occurrence)
    there = Draw(fetch.seed, fetch.epoch, item.sample, item.occurrence)
    assert op_seed(there, 2) == op_seed(Draw(seed, seed, 3, occurrence), 2)


def test_a_sample_of_absurd_numbers(liar: Liar) -> None:
    liar.answer = lambda fetch: _frames(replace(_sample(fetch), op_s=[float("nan")]), b"x")
    (reply,) = _replies(liar, Wanted(0, 3, 1, "webp", "x.jpg"))
    assert reply.unusable == "Sample.op_s[0] must be a number from 0 to 1e+09, got nan"


# --- a whole loader -------------------------------------------------------------------------------------------


def _polite(root: Path, sample: Callable[[Fetch], Frames]) -> Callable[[Any], Frames]:
    """The answers of an agent that does all well but for its samples."""

    def answer(message: Any) -> Frames:
        if isinstance(message, Hello):
            offered = ["file", "pixels", "array"]
            return [pack(Welcome(VERSIONS[-1], "i", ["d"], offered, dict(software()), 1.0, 64))]
        if isinstance(message, AskSizes):
            return [pack(Sizes(str(root), [(root / key).stat().st_size for key in message.keys]))]
        if isinstance(message, AskListing):
            classes = folder(root).classes
            names = [
                sorted(str(one.relative_to(root / name)) for one in (root / name).rglob("*.*")) for name in classes
            ]
            return _frames(Listing(classes), zlib.compress(msgpack.packb(names)))
        if isinstance(message, Register):
            return [pack(Registered(message.digest, 2))]
        if isinstance(message, Ping):
            return [pack(Pong("i"))]
        assert isinstance(message, Fetch)
        return sample(message)

    return answer


BROKEN = pytest.mark.parametrize(("changes", "rule"), [
    ({"cut": 3}, "must run at most 2 ops, got 3"), ({"encoding": "webp"}, "an allowed encoding"),
    ({"meta": {}}, "must send 'pixels' as docs/wire.md describes it"),
    ({"meta": {"mode": "RGB", "size": [1 << 40, 1 << 40]}}, "must send 'pixels' as docs/wire.md describes it"),
    ({"meta": {"mode": "RGB", "size": [-1, float("nan")]}}, "must send 'pixels' as docs/wire.md describes it"),
    ({"cut": 65}, "Sample.cut must be an integer from 0 to 64, got 65"),
])  # fmt: skip
GOOD: dict[str, Any] = {"cut": 2, "encoding": "pixels", "meta": {"mode": "RGB", "size": [1, 1]}}


def _breaking(root: Path, changes: dict[str, Any]) -> Callable[[Any], Frames]:
    """The answers of an agent whose samples break a rule, and whose files are sound."""

    def sample(fetch: Fetch) -> Frames:
        (item,) = fetch.items
        if item.encoding == "file":
            return _frames(_sample(fetch), (root / item.key).read_bytes())
        return _frames(replace(_sample(fetch), **(GOOD | changes)), b"xyz")

    return _polite(root, sample)


@BROKEN
@pytest.mark.filterwarnings("ignore:the agent at .* sends nothing usable")
def test_a_sample_that_breaks_the_rules_is_had_another_way(
    liar: Liar, tmp_path: Path, changes: dict[str, Any], rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_tree(tmp_path, 4)
    arguments: dict[str, Any] = {"batch_size": 1, "policy": "resize-off", "seed": 3}
    plain = samples_of(OffloadingDataLoader(folder(root), **arguments))
    liar.answer = _breaking(root, changes)
    loader = OffloadingDataLoader(folder(root), agent=str(liar.address), **arguments)
    try:
        assert samples_of(loader) == plain
        report = loader.report().as_dict()
    finally:
        loader.close()
    assert (report["malformed"], report["fallbacks"], report["corrupt"], report["samples"]) == (4, 4, 0, 4)
    assert len([one for one in caplog.messages if rule in one]) == 4
    assert not [one for one in liar.heard if isinstance(one, Fetch) and one.items[0].encoding == "file"]


@BROKEN
def test_the_same_where_the_files_are_not_here(liar: Liar, tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    """The agent is asked for the file as it is; if that is of no use either, the error says both."""
    root = make_tree(tmp_path, 4)
    arguments: dict[str, Any] = {"batch_size": 1, "policy": "resize-off", "seed": 3}
    plain = samples_of(OffloadingDataLoader(folder(root), **arguments))
    liar.answer = _breaking(root, changes)
    remote = RemoteImageFolder(str(liar.address), folder(root).transform)
    loader = OffloadingDataLoader(remote, agent=str(liar.address), **arguments)
    try:
        assert samples_of(loader) == plain
        report = loader.report().as_dict()
        assert (report["malformed"], report["fallbacks"], report["samples"]) == (4, 0, 4)
        liar.answer = _polite(root, lambda fetch: _frames(replace(_sample(fetch), **(GOOD | changes)), b"xyz"))
        with pytest.raises(MalformedMessage) as caught:
            next(iter(loader))
    finally:
        loader.close()
    assert rule in said(caught.value)
    assert re.search("answer must fit the question|Sample.cut must be", str(caught.value)), "that is about the file"


def test_a_sample_that_keeps_the_rules(liar: Liar, tmp_path: Path) -> None:
    root = make_tree(tmp_path, 4)

    def sample(fetch: Fetch) -> Frames:
        return _frames(replace(_sample(fetch, nbytes=(root / fetch.items[0].key).stat().st_size), **GOOD), b"xyz")

    liar.answer = _polite(root, sample)
    agent, options = str(liar.address), OffloadOptions(verify=0)  # its pixels are none of the picture
    loader = OffloadingDataLoader(folder(root), batch_size=1, agent=agent, policy="resize-off", seed=3, options=options)
    try:
        next(iter(loader))
        assert loader.report().as_dict()["malformed"] == 0
    finally:
        loader.close()
