"""What is decided about a loader's message, without a socket or a clock."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest

from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES
from sophon_loader.wire.frames import SEAL_NBYTES, content_hash, pack, seal
from sophon_loader.wire.limits import (
    MAX_HEADERS,
    MAX_KEYS,
    MAX_PIPELINES,
    MAX_REGISTERING,
    MAX_REGISTRATION_NBYTES,
    MAX_REQUEST_NBYTES,
    MAX_TEXT_LENGTH,
)
from sophon_loader.wire.messages import (
    CHEAPEST,
    MESSAGES,
    AskHeaders,
    AskListing,
    AskSizes,
    AskStatus,
    Failed,
    Fetch,
    FetchPrograms,
    Hello,
    Item,
    Message,
    Ping,
    Pong,
    ProgramItem,
    Refused,
    Register,
)
from sophon_loader.wire.version import VERSIONS
from storage_agent.broker.desk import ACTIVE_S, Desk, Load
from storage_agent.broker.instructions import (
    Build,
    Greet,
    Instruction,
    Log,
    LookUp,
    Queue,
    Read,
    Refuse,
    Tell,
    TellStatus,
)
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import LEAST_NBYTES, MAX_TOTAL_NBYTES, Registrations
from tests.unit.agent.requests import ids, job
from tests.unit.wire.strategies import example

C = b"client"
ENCODINGS = ("file", "pixels", "webp")
ODD = "\U000e0001" * MAX_TEXT_LENGTH


class Counter:
    """A desk, and what it shares with the rest of the agent."""

    def __init__(self, max_outstanding: int = 100, max_queued: int = 100) -> None:
        self.admission: Admission[Job] = Admission(max_outstanding, max_queued)
        self.pipelines = Registrations()
        self.desk = Desk("an instance", ["d", "e"], ENCODINGS, self.admission, self.pipelines)

    def says(
        self, message: Message, *payload: bytes, client: bytes = C, now_s: float = 7.5, **load: Any
    ) -> list[Instruction]:
        """What the desk makes of a message."""
        return self.frames(pack(message, *payload[:1]), *payload, client=client, now_s=now_s, **load)

    def frames(self, *frames: bytes, client: bytes = C, now_s: float = 7.5, **load: Any) -> list[Instruction]:
        usual: dict[str, Any] = {"room": 4, "building": 0, "upkeep_s": 0.25}
        return self.desk.receive(client, frames, Load(**(usual | load)), now_s=now_s)

    def refused(self, message: Message, *payload: bytes, **load: Any) -> Failed | Refused:
        """The refusal of a message."""
        (refusal,) = self.says(message, *payload, **load)
        assert isinstance(refusal, Refuse) and refusal.client == C, refusal
        return refusal.message


@pytest.fixture
def counter() -> Counter:
    return Counter()


def _fetch(*items: tuple[int, str], digest: str = "", export: str = "d", **changed: Any) -> Fetch:
    """Ask for samples at (cut, encoding), with ids from 0 on."""
    asked = [Item(n, n, 0, cut, encoding, f"{n}.jpg") for n, (cut, encoding) in enumerate(items)]
    whole: dict[str, Any] = {
        "seed": 5,
        "epoch": 3,
        "keep_info": True,
        "dry": False,
        "allowed": ["webp", "pixels", "png"],
    }
    return Fetch(export, digest, items=asked, **(whole | changed))


def _register(counter: Counter, registration: bytes = b"a registration") -> str:
    digest = content_hash(registration)
    (build,) = counter.says(Register(digest), registration)
    assert build == Build(C, digest, registration)
    return digest


# --- what a client may see ------------------------------------------------------------------------------------


def test_an_export_that_a_client_may_not_see_is_not_there_for_it(counter: Counter) -> None:
    def says(message: Message) -> Instruction:
        load = Load(room=4, building=0, upkeep_s=0.25)
        return counter.desk.receive(C, [pack(message)], load, now_s=7.5, exports=["e"])[0]

    assert says(Hello(list(VERSIONS), "a guest")) == Greet(C, VERSIONS[-1], ["e"])
    assert says(AskStatus()) == TellStatus(C, ["e"])
    for export, text in (("d", "got 'd'"), ("never", "got 'never'")):
        questions = AskListing(export, ""), AskSizes(export, ["x"]), AskHeaders(7, export, ["x"])
        for question in (*questions, _fetch((0, "file"), export=export)):
            refusal = says(question)
            assert isinstance(refusal, Refuse) and isinstance(refusal.message, Failed)
            said = refusal.message.failure, refusal.message.text
            assert said == ("unknown-export", f"export must be one of ['e'], {text}")
    assert isinstance(says(AskListing("e", "")), LookUp) and isinstance(says(_fetch((0, "file"), export="e")), Read)


# --- which connections are loaders' --------------------------------------------------------------------------------


LOADERS_SAY = [
    Hello(list(VERSIONS), "x"), _fetch((0, "file")), AskListing("d", ""), AskSizes("d", ["x"]),
    AskHeaders(1, "d", ["x"]),
]  # fmt: skip
OTHERS_SAY = [Ping(), AskStatus(), Hello([99], "of the future")]


@pytest.mark.parametrize("message", LOADERS_SAY + OTHERS_SAY, ids=lambda one: type(one).__name__)
def test_a_loader_is_who_greets_or_asks_for_data(counter: Counter, message: Message) -> None:
    counter.says(message)
    is_one = message in LOADERS_SAY
    assert counter.desk.is_loader(C) == is_one and counter.desk.loaders == is_one
    counter.desk.gone(C)
    assert counter.desk.loaders == 0 and not counter.desk.is_loader(C)


# --- greeting -------------------------------------------------------------------------------------------------


def test_a_loader_is_greeted_in_the_newest_version_of_both(counter: Counter) -> None:
    done = counter.says(Hello([7, 1, *VERSIONS], "a test"))
    assert done == [Greet(C, VERSIONS[-1], ["d", "e"]), Log("loader joined", C, details={"software": "a test"})]
    assert counter.desk.loaders == 1


@pytest.mark.parametrize("offered", [[], [99], [VERSIONS[0] - 1], [VERSIONS[-1] + 1]])
def test_a_loader_of_another_version_is_refused(counter: Counter, offered: list[int]) -> None:
    refusal = counter.refused(Hello(offered, "of the future"))
    assert isinstance(refusal, Refused) and refusal.failure == "version"
    assert str(offered) in refusal.text and "same release" in refusal.text and counter.desk.loaders == 0


def test_a_loader_that_speaks_too_many_versions(counter: Counter) -> None:
    assert len(counter.refused(Hello(list(range(1000, 16_000)), "talkative")).text) < 1000


@pytest.mark.parametrize("version", [VERSIONS[0] - 1, VERSIONS[-1] + 1])
def test_a_message_of_another_version_is_refused(counter: Counter, version: int) -> None:
    (refusal,) = counter.frames(msgpack.packb([version, Ping.KIND]))
    assert isinstance(refusal, Refuse) and isinstance(refusal.message, Refused)
    assert refusal.message.failure == "version"


def test_a_loader_that_goes_is_counted_once(counter: Counter) -> None:
    counter.says(Hello(list(VERSIONS), "a test"))
    counter.says(_fetch((0, "file"), (0, "file")))
    assert counter.desk.gone(b"someone who only asked for the status") == 0 and counter.desk.loaders == 1
    assert counter.desk.gone(C) == 2 and counter.desk.loaders == 0


def test_signs_of_life(counter: Counter) -> None:
    assert counter.says(Ping()) == [Tell(C, Pong("an instance"))]
    assert counter.says(AskStatus()) == [TellStatus(C, ["d", "e"])]


# --- messages that are none -----------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [
    [], [seal(b"")], [seal(b"hello")], [seal(b"\xc1")], [seal(msgpack.packb([VERSIONS[-1], 200]))],
    [seal(msgpack.packb([Fetch.VERSION, Fetch.KIND, "d"]))],
    [pack(Ping()), b"payload"], [pack(Ping()), b"a", b"b"], [pack(Ping()), b"", b"", b""],
    [pack(Register("x"))], [pack(Register("x")), b"a", b"b"],
    [pack(_fetch((0, "file"))), b"payload"], [seal(b""), pack(Ping())],
    [seal(msgpack.packb([Ping.VERSION, Ping.KIND, 1]))],
    [pack(_fetch((65, "file")))], [pack(Fetch("d", "", 0, 0, False, False, [], [Item(-1, 0, 0, 0, "file", "x")]))],
    [seal(bytes([0x93, Fetch.VERSION, Fetch.KIND]) + b"\x91" * 1015 + b"\x01")],
])  # fmt: skip
def test_malformed_messages(counter: Counter, frames: list[bytes]) -> None:
    (refusal,) = counter.frames(*frames)
    assert isinstance(refusal, Refuse) and isinstance(refusal.message, Failed)
    assert (refusal.message.failure, refusal.message.ids) == ("malformed", []) and 0 < len(refusal.message.text) < 1000


@pytest.mark.parametrize("frames", [
    [b""], [b"hello"], [b"\xc1"], [msgpack.packb([VERSIONS[-1], 9])], [pack(Ping())[:-1]], [pack(Ping()) + b"\0"],
    [pack(Register("x"), b"registration"), b"registrati0n"], [b"", pack(Ping())],
])  # fmt: skip
def test_messages_that_were_damaged_on_their_way(counter: Counter, frames: list[bytes]) -> None:
    (refusal,) = counter.frames(*frames)
    assert isinstance(refusal, Refuse) and isinstance(refusal.message, Failed)
    assert (refusal.message.failure, refusal.message.ids, refusal.message.digest) == ("corrupt", [], "")
    assert 0 < len(refusal.message.text) < 1000 and counter.admission.outstanding == 0


def test_any_bytes_at_all(counter: Counter) -> None:
    rng = random.Random(5)
    bare = [pack(example(cls)) for cls in MESSAGES]
    for _ in range(3000):
        header = bytearray(rng.choice(bare))
        for _ in range(rng.randint(0, 3)):
            header[rng.randrange(len(header))] = rng.randrange(256)
        payloads = [rng.randbytes(3) for _ in range(rng.randint(0, 2))]
        sealed = seal(bytes(header[:-SEAL_NBYTES]), b"".join(payloads)) if rng.random() < 0.8 else bytes(header)
        for one in counter.frames(sealed, *payloads):
            if isinstance(one, (Tell, Refuse)):
                pack(one.message)
        counter.admission.finish(C, 100)


def test_a_message_over_the_limit(counter: Counter) -> None:
    (refusal,) = counter.frames(bytes(MAX_REQUEST_NBYTES + 1))
    assert isinstance(refusal, Refuse) and refusal.message.failure == "too-long"


FROM_LOADERS = {
    "Hello", "Register", "Fetch", "FetchPrograms", "Ping", "AskStatus", "AskListing", "AskSizes", "AskHeaders",
}  # fmt: skip


@pytest.mark.parametrize("cls", [cls for cls in MESSAGES if cls.__name__ not in FROM_LOADERS])
def test_what_only_an_agent_says_is_refused(counter: Counter, cls: type[Message]) -> None:
    payload = [b"x"] if cls.__name__ in ("Sample", "Listing") else []
    refusal = counter.refused(example(cls), *payload)
    assert refusal.failure == "malformed" and cls.__name__ in refusal.text


# --- pipelines ------------------------------------------------------------------------------------------------


def test_a_pipeline_is_kept_and_handed_on(counter: Counter) -> None:
    digest = _register(counter)
    assert counter.pipelines.get(digest) == b"a registration" and counter.admission.outstanding == 1


@pytest.mark.parametrize(("digest", "registration"), [
    ("0" * 32, b"x"), (content_hash(bytes(MAX_REGISTRATION_NBYTES + 1)), bytes(MAX_REGISTRATION_NBYTES + 1)),
])  # fmt: skip
def test_a_pipeline_that_is_not_what_it_says_or_too_large(counter: Counter, digest: str, registration: bytes) -> None:
    refusal = counter.refused(Register(digest), registration)
    assert isinstance(refusal, Failed) and (refusal.failure, refusal.digest) == ("bad-pipeline", digest)
    assert len(counter.pipelines) == 0 and counter.admission.outstanding == 0


def test_a_pipeline_as_large_as_it_may_be(counter: Counter) -> None:
    _register(counter, bytes(MAX_REGISTRATION_NBYTES))


def test_too_many_pipelines_to_build(counter: Counter) -> None:
    registration = b"one more"
    digest = content_hash(registration)
    assert len(counter.says(Register(digest), registration, building=MAX_REGISTERING - 1)) == 1
    refusal = counter.refused(Register(digest), registration, building=MAX_REGISTERING)
    assert refusal == Failed(
        "busy", f"at most {MAX_REGISTERING} pipelines may wait to be built, got as many; ask again later", digest=digest
    )
    assert counter.admission.outstanding == 1


def test_the_oldest_pipelines_are_forgotten(counter: Counter) -> None:
    digests = [_register(counter, b"%d" % n) for n in range(3)]
    _register(counter, b"0")  # the newest again
    for n in range(3, MAX_PIPELINES + 1):
        counter.admission.finish(C)
        _register(counter, b"%d" % n)
    assert len(counter.pipelines) == MAX_PIPELINES
    assert [digest in counter.pipelines for digest in digests] == [True, False, True]
    refusal = counter.refused(_fetch((2, "pixels"), digest=digests[1]))
    assert isinstance(refusal, Failed) and refusal.failure == "unknown-pipeline"


def test_a_pipeline_that_is_used_is_not_the_oldest(counter: Counter) -> None:
    digest = _register(counter, b"in use")
    for n in range(MAX_PIPELINES + 1):
        counter.admission.finish(C)
        _register(counter, b"%d" % n)
        counter.says(_fetch((2, "pixels"), digest=digest))
        counter.admission.finish(C)
    assert digest in counter.pipelines and len(counter.pipelines) == MAX_PIPELINES


def test_all_pipelines_together_have_a_limit() -> None:
    pipelines = Registrations()
    large = bytes(MAX_TOTAL_NBYTES // 4)
    for n in range(6):
        pipelines.keep(C, f"{n}", large)
    pipelines.keep(C, "5", large)  # which counts once
    assert [f"{n}" in pipelines for n in range(6)] == [False, False, True, True, True, True]
    pipelines.keep(C, "small", b"x")
    assert "2" not in pipelines and len(pipelines) == 4


def test_a_client_that_registers_many_displaces_none_of_others() -> None:
    pipelines = Registrations()
    pipelines.keep(C, "mine", b"registration")
    pipelines.keep(C, "another of mine", b"registration")
    for n in range(3 * MAX_PIPELINES):
        attacker = b"attacker %d" % (n // (2 * MAX_PIPELINES))  # which comes back under another name
        pipelines.keep(attacker, f"{n}", b"registration")
        if n % 3 == 0:
            pipelines.keep(attacker, "mine", b"registration")  # whoever sends it later, it stays its first client's
    assert len(pipelines) == MAX_PIPELINES
    assert "mine" in pipelines and "another of mine" in pipelines


def test_the_newest_pipeline_is_kept_however_large() -> None:
    pipelines = Registrations()
    for n in range(MAX_PIPELINES):
        pipelines.keep(b"%d" % n, f"{n}", b"registration")
    pipelines.keep(C, "large", bytes(4 * LEAST_NBYTES))
    assert "large" in pipelines and len(pipelines) == MAX_PIPELINES - 3


# --- samples --------------------------------------------------------------------------------------------------


def test_files_are_read_and_work_is_queued(counter: Counter) -> None:
    digest = _register(counter)
    read, queue = counter.says(_fetch((0, "file"), (2, "pixels"), (0, "webp"), (0, "file"), (1, "file"), digest=digest))
    assert isinstance(read, Read) and isinstance(queue, Queue)
    assert (ids(list(read.jobs)), read.note, ids(list(queue.jobs))) == ([0, 3], "", [1, 2, 4])
    header = queue.jobs[0].fetch
    assert header is read.jobs[0].fetch, "one for all samples of a Fetch"
    assert (header.client, header.export, header.digest, header.seed, header.epoch) == (C, "d", digest, 5, 3)
    assert (header.keep_info, header.dry, header.received_s, header.upkeep_s) == (True, False, 7.5, 0.25)
    assert header.allowed == ["pixels", "webp"], "what the loader accepts and the agent has"
    assert counter.admission.outstanding == 1 + 5


def test_a_worker_is_told_whether_the_loader_reads_pillow_s_classes_in_info(counter: Counter) -> None:
    allowed = ["pixels", INFO_CLASSES, ANY_PART]
    (queue,) = counter.says(_fetch((2, "pixels"), digest=_register(counter), allowed=allowed))
    assert isinstance(queue, Queue) and queue.jobs[0].fetch.allowed == allowed


def test_a_request_for_nothing(counter: Counter) -> None:
    assert counter.says(_fetch()) == [] and counter.admission.outstanding == 0


def test_files_need_no_pipeline_and_work_does(counter: Counter) -> None:
    assert [type(one) for one in counter.says(_fetch((0, "file"), digest="0" * 32))] == [Read]
    for item in ((1, "file"), (0, "webp")):
        refusal = counter.refused(_fetch((0, "file"), item, digest="0" * 32))
        assert isinstance(refusal, Failed) and refusal.failure == "unknown-pipeline"
        assert (refusal.ids, refusal.digest) == ([0, 1], "0" * 32) and "0" * 12 in refusal.text
    assert counter.admission.outstanding == 1


def test_an_unknown_export(counter: Counter) -> None:
    refusal = counter.refused(_fetch((0, "file"), export="none"))
    assert isinstance(refusal, Failed) and (refusal.failure, refusal.ids) == ("unknown-export", [0])
    assert "['d', 'e']" in refusal.text and "'none'" in refusal.text


@pytest.mark.parametrize("message", [
    Fetch(ODD, "", 0, 0, False, False, [], [Item(1, 0, 0, 0, "file", "x")]),
    Fetch("d", ODD, 0, 0, False, False, [], [Item(1, 0, 0, 1, "file", "x")]),
    Fetch("d", "", 0, 0, False, False, [ODD], [Item(1, 0, 0, 0, ODD, ODD)]),
    Fetch("d", ODD, 0, 0, False, False, [], [Item((1 << 64) - n, 0, 0, 1, "", "") for n in range(1, 2000)]),
    Register(ODD),
], ids=lambda message: type(message).__name__)  # fmt: skip
def test_the_refusal_of_long_names_is_short_itself(counter: Counter, message: Message) -> None:
    refusal = counter.refused(message, *([b"x"] if isinstance(message, Register) else []))
    assert len(refusal.text) < 2000 and len(pack(refusal)) <= MAX_REQUEST_NBYTES


@pytest.mark.parametrize(("waiting", "room", "queued"), [(0, 4, 7), (0, 0, 3), (2, 0, 1), (3, 0, 1), (3, 2, 3)])
def test_what_no_worker_will_have_time_for_goes_out_as_files(waiting: int, room: int, queued: int) -> None:
    counter = Counter(max_queued=3)
    digest = _register(counter)
    for n in range(waiting):
        counter.admission.op_turns.push(b"other", job(n))
    for n in range(3):  # the other queue is full, which is nothing to this one
        counter.admission.turns.push(b"other", job(n))
    done = counter.says(_fetch(*[(2, "pixels")] * 10, digest=digest), op_room=room)
    got = [(type(one), ids(list(one.jobs))) for one in done if isinstance(one, (Queue, Read))]
    wanted = [(Queue, list(range(queued))), (Read, list(range(queued, 10)))]
    assert got == [(kind, numbers) for kind, numbers in wanted if numbers]
    assert isinstance(done[-1], Read) and done[-1].note == "the agent is busy: 3 samples are waiting for a worker"


# --- prices ---------------------------------------------------------------------------------------------------


def test_prices_reach_the_jobs_of_a_choice_that_is_left_open(counter: Counter) -> None:
    digest = _register(counter)
    read, queue = counter.says(
        _fetch((2, CHEAPEST), (0, "file"), (0, CHEAPEST), digest=digest, prices=[1.0, 0.5, 0.0, 0.0])
    )
    assert isinstance(read, Read) and isinstance(queue, Queue)
    assert (ids(list(read.jobs)), ids(list(queue.jobs))) == ([1], [0, 2]), "also where nothing but the file may be cut"
    assert queue.jobs[0].fetch.prices == [1.0, 0.5, 0.0, 0.0]
    assert [(one.item.cut, one.item.encoding) for one in queue.jobs] == [(2, CHEAPEST), (0, CHEAPEST)]


@pytest.mark.parametrize("prices", [[], [1.0], [1.0, 2.0, 3.0]])
def test_a_choice_that_is_left_open_needs_three_prices(counter: Counter, prices: list[float]) -> None:
    digest = _register(counter)
    refusal = counter.refused(_fetch((0, "file"), (2, CHEAPEST), digest=digest, prices=prices))
    assert isinstance(refusal, Failed) and (refusal.failure, refusal.ids) == ("malformed", [0, 1])
    assert str(prices) in refusal.text and counter.admission.outstanding == 1
    assert len(counter.says(_fetch((2, "pixels"), digest=digest, prices=prices))) == 1, "other items need none"


def test_a_choice_that_is_left_open_needs_a_pipeline(counter: Counter) -> None:
    assert counter.refused(_fetch((0, CHEAPEST), prices=[1.0] * 4)).failure == "unknown-pipeline"


@pytest.mark.parametrize(("prices", "meant"), [([], 0), ([1.0] * 3, 0), ([1.0] * 4, 1), ([1.0, 1.0, 1.0, 8.0], 2)])
def test_a_program_s_choice_that_is_left_open_needs_prices_of_this_time(
    counter: Counter, prices: list[float], meant: int
) -> None:
    """And no pipeline. Too few are refused; those of an agent with many more cores get the file."""
    items = [ProgramItem(0, 3, CHEAPEST, "0.jpg", 9, b"")]
    asked = FetchPrograms("d", keep_info=False, dry=False, allowed=["pixels"], items=items, prices=prices)
    (done,) = counter.says(asked)
    if isinstance(done, Refuse):
        assert meant == 0 and isinstance(done.message, Failed) and done.message.failure == "malformed"
    else:
        assert isinstance(done, Queue if meant == 1 else Read) and done.jobs[0].fetch.prices == prices


@pytest.mark.parametrize(("meant", "there", "outdated"), [
    (1.0, 0.2, True), (1.0, 0.25, False), (1.0, 8.0, False), (0.01, 0.01, False), (0.01, 1.0, False), (0.0, 0.1, False),
])  # fmt: skip
def test_prices_of_another_time_are_answered_with_files(
    counter: Counter, meant: float, there: float, outdated: bool
) -> None:
    """They were worked out for an agent that had four times as many cores; a loader that has named the cut wants it."""
    digest = _register(counter)
    asked = _fetch((2, CHEAPEST), (2, "pixels"), (0, "file"), digest=digest, prices=[1.0, 1.0, 1.0, meant])
    read, queue = counter.says(asked, per_worker=there)
    assert isinstance(read, Read) and isinstance(queue, Queue)
    assert (ids(list(read.jobs)), ids(list(queue.jobs))) == (([0, 2], [1]) if outdated else ([2], [0, 1]))
    assert read.note == "", "no fault of anybody's"
    assert {one.fetch.per_worker for one in [*read.jobs, *queue.jobs]} == {there}


# --- the agent's cores ----------------------------------------------------------------------------------------


def _told_cores(counter: Counter, client: bytes, now_s: float, cores: float = 6.0) -> float:
    """The cores that a connection can count on, as it is told when it asks."""
    digest = content_hash(b"a registration")
    if digest not in counter.pipelines:
        _register(counter)
    (queue,) = counter.says(
        _fetch((2, CHEAPEST), digest=digest, prices=[1.0] * 4), client=client, now_s=now_s, cores=cores
    )
    assert isinstance(queue, Queue)
    return queue.jobs[0].fetch.cores


def test_connections_that_ask_now_share_the_cores(counter: Counter) -> None:
    assert _told_cores(counter, b"a", 10.0) == 6.0
    assert _told_cores(counter, b"b", 10.1) == 3.0
    assert _told_cores(counter, b"a", 10.2) == 3.0, "whoever asks often counts once"
    assert _told_cores(counter, b"c", 10.3) == 2.0
    assert _told_cores(counter, b"c", 10.3, cores=0.3) == pytest.approx(0.1), "those that there are now"


def test_who_is_silent_for_some_time_has_no_share(counter: Counter) -> None:
    _told_cores(counter, b"a", 10.0)
    _told_cores(counter, b"b", 10.0 + ACTIVE_S / 2)
    assert _told_cores(counter, b"c", 10.0 + ACTIVE_S) == 2.0, "a is just about still there"
    assert _told_cores(counter, b"c", 10.01 + ACTIVE_S) == 3.0
    assert _told_cores(counter, b"b", 100.0) == 6.0
    assert _told_cores(counter, b"a", 100.1) == 3.0, "back again"


def test_who_has_gone_has_no_share(counter: Counter) -> None:
    for client in (b"a", b"b"):
        counter.says(Hello(list(VERSIONS), "a test"), client=client)
        _told_cores(counter, client, 10.0)
    counter.desk.gone(b"a")
    counter.desk.gone(b"someone who never asked")
    assert _told_cores(counter, b"b", 10.0) == 6.0


def test_only_requests_for_work_count_as_asking(counter: Counter) -> None:
    questions = AskListing("d", ""), AskSizes("d", ["x"]), AskHeaders(1, "d", ["x"])
    for message in (Hello(list(VERSIONS), "x"), Ping(), AskStatus(), *questions):
        counter.says(message, client=b"looks on")
    counter.refused(_fetch((0, "file"), export="none"))
    (read,) = counter.says(_fetch((0, "file")), client=b"only wants files", cores=6.0)
    assert isinstance(read, Read) and read.jobs[0].fetch.cores == 6.0
    assert _told_cores(counter, b"a", 7.5) == 6.0
    (read,) = counter.says(_fetch((0, "file")), client=b"only wants files", cores=6.0)
    assert isinstance(read, Read) and read.jobs[0].fetch.cores == 6.0, "what it would share with one that works"


# --- limits of one client -------------------------------------------------------------------------------------


def test_too_much_at_once() -> None:
    counter = Counter(max_outstanding=3)
    refusal = counter.refused(_fetch(*[(0, "file")] * 4))
    assert (refusal.failure, refusal.ids) == ("busy", [0, 1, 2, 3])
    assert refusal.text.startswith("a loader connection must have at most 3 unanswered requests, ")
    assert counter.admission.outstanding == 0
    assert len(counter.says(_fetch(*[(0, "file")] * 3))) == 1
    assert counter.refused(_fetch((0, "file"))).failure == "busy"
    assert len(counter.says(_fetch((0, "file")), client=b"other")) == 1


def test_every_kind_of_request_counts() -> None:
    counter = Counter(max_outstanding=5)
    _register(counter)
    for question in (AskListing("d", ""), AskSizes("d", ["x"] * MAX_KEYS), AskHeaders(1, "d", ["x"] * MAX_HEADERS)):
        assert counter.says(question) == [LookUp(C, question)]
    assert len(counter.says(_fetch((0, "file")))) == 1
    for message in (AskListing("d", ""), AskSizes("d", []), AskHeaders(1, "d", []), _fetch((0, "file"))):
        assert counter.refused(message).failure == "busy"
    refusal = counter.refused(Register(content_hash(b"x")), b"x")
    assert isinstance(refusal, Failed) and (refusal.failure, refusal.digest) == ("busy", content_hash(b"x"))
    assert content_hash(b"x") not in counter.pipelines
    assert counter.says(Ping()) and counter.says(AskStatus()), "signs of life do not"


@pytest.mark.parametrize(("question", "most", "ids"), [
    (AskSizes("d", ["x"] * (MAX_KEYS + 1)), MAX_KEYS, []),
    (AskHeaders(7, "d", ["x"] * (MAX_HEADERS + 1)), MAX_HEADERS, [7]),
], ids=["sizes", "headers"])  # fmt: skip
def test_too_many_keys(counter: Counter, question: Message, most: int, ids: list[int]) -> None:
    refusal = counter.refused(question)
    assert isinstance(refusal, Failed) and refusal.ids == ids
    assert refusal.failure == "too-long" and str(most) in refusal.text and counter.admission.outstanding == 0


# --- stopping -------------------------------------------------------------------------------------------------


def test_an_agent_that_stops_takes_no_requests_and_gives_signs_of_life(counter: Counter) -> None:
    digest = _register(counter)
    counter.desk.stop()
    for message, payload in (
        (_fetch((0, "file")), []),
        (_fetch((2, "pixels"), digest=digest), []),
        (AskListing("d", ""), []),
        (AskSizes("d", []), []),
        (AskHeaders(1, "d", []), []),
        (Register(digest), [b"a registration"]),
    ):
        assert counter.refused(message, *payload, building=MAX_REGISTERING).failure == "stopping"
    assert counter.admission.outstanding == 1
    assert counter.says(Ping()) == [Tell(C, Pong("an instance"))]
    assert isinstance(counter.says(Hello(list(VERSIONS), "late"))[0], Greet)
