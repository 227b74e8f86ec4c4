"""One agent under 100 000 programs of two clients, most of them sound, many hostile, and a third client that is served.

What an agent must take is known from the checks of this process; every fiftieth answer is compared by its pixels.
"""

from __future__ import annotations

import io
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from bench.fairness import memory_of
from sophon_loader.encodings.encoding import Payload
from sophon_loader.encodings.registry import decode
from sophon_loader.kinds.image.execute import execute, image_at
from sophon_loader.kinds.image.header import header_of, pack
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.kinds.image.source import PictureFile, StepsOnPicture
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Limits, Program, Step
from sophon_loader.wire.limits import MAX_HEADERS
from sophon_loader.wire.messages import (
    NO_FILE,
    OUTSIDE,
    AskHeaders,
    Failed,
    Fetch,
    FetchPrograms,
    Headers,
    Message,
    ProgramItem,
    Sample,
)
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.workers.program_answers import limits_of
from tests.support.agents import Agent, Client
from tests.support.drawn_programs import UNSEEN, DrawnPrograms, DrawnRequest
from tests.support.picture_files import SOUND, file_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

PROGRAMS = 100_000
QUESTIONS = 2000
COMPARED_EVERY = 50
BESIDE_S, ANSWERED_S = 0.1, 2.0
"""How often the third client asks for a file, and within what time it must get it."""
WARM_SHARE = 0.2
"""Share of the programs before the agent's memory is first looked at: encoders and costs are loaded by then."""
MAX_GROWTH = 1.1
LARGE = "large.jpg"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    found = {f"{kind}.bin": file_of(kind) for kind in SOUND} | {"notes.txt": b"no picture"}
    found |= {f"{n}.jpg": file_of("jpeg 4:2:0", 60 + 40 * n, 300 - 30 * n, seed=n) for n in range(8)}
    large = io.BytesIO()
    Image.effect_noise((2000, 1500), 60).convert("RGB").save(large, "JPEG")
    return {**found, LARGE: large.getvalue()}


@pytest.fixture(scope="module")
def agent(files: Mapping[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    folder = tmp_path_factory.mktemp("served")
    for key, data in files.items():
        (folder / key).write_bytes(data)
    # On a busy machine the programs at the limits take longer than the usual 30 s, and would end their worker.
    one = Agent({"d": folder}, "--job-seconds", "300", workers=2, log=tmp_path_factory.mktemp("log") / "stderr").ready()
    yield one
    one.end()


def _limits() -> Limits:
    return limits_of(AgentSettings({"d": "/"}, bind="tcp://127.0.0.1:1", workers=2))


class ProgramClient:
    """Sends drawn programs, one request after the other, and sees that each answer is one that may come.

    Args:
        agent: to ask.
        files: that it serves.
        seed: of what is drawn.
    """

    def __init__(self, agent: Agent, files: Mapping[str, bytes], seed: int) -> None:
        small = {key: data for key, data in files.items() if key != LARGE}
        self._client, self._files = agent.client(), files
        self._drawn, self._rng = DrawnPrograms(small, _limits(), seed), random.Random(seed)
        self.counts = Counter[str]()

    def send(self, programs: int) -> None:
        """Send at least this many, and wait for all answers."""
        until = self.counts["programs"] + programs
        while self.counts["programs"] < until:
            most = 1024 if self._rng.random() < 0.005 else 64
            request = self._drawn.request(most)
            self.counts["programs"] += len(request.message.items)
            self._client.send(request.message)
            if request.is_malformed:
                failed, _ = self._client.receive(300.0)
                assert isinstance(failed, Failed) and failed.failure == "malformed" and failed.text, failed
                self.counts["malformed"] += len(request.message.items)
            else:
                self._see_answers(request)

    def _see_answers(self, request: DrawnRequest) -> None:
        waiting = {item.id: (item, runs) for item, runs in zip(request.message.items, request.runs, strict=True)}
        while waiting:
            answer, payload = self._client.receive(300.0)
            if isinstance(answer, Failed):
                (number,) = answer.ids
                item, runs = waiting.pop(number)
                assert answer.failure == "bad-program" and 0 < len(answer.text) < 2000 and runs is None, (answer, item)
                self.counts["refused"] += 1
                continue
            assert isinstance(answer, Sample), answer
            item, runs = waiting.pop(answer.id)
            self._see_sample(answer, payload, item, runs, request.message)

    def _see_sample(
        self, sample: Sample, payload: Payload, item: ProgramItem, runs: Program | None, message: FetchPrograms
    ) -> None:
        is_file = (sample.cut, sample.encoding) == (0, "file")
        assert runs is not None or (is_file and "busy" in sample.note), (sample, item)
        assert sample.cut <= item.cut and sample.encoding in ("file", *message.allowed), (sample, item)
        assert sample.file_nbytes == len(self._files[item.key]) and bool(payload) is not message.dry
        if sample.note:
            why = [word for word in ("busy", "EncodingError") if word in sample.note]
            assert why and is_file, (sample, item)  # else a step has failed that was taken
            self.counts[f"file: {why[0]}"] += 1
        elif is_file:
            assert message.dry or payload == self._files[item.key]
            self.counts["file"] += 1
        else:
            self.counts["made"] += 1
            if self.counts["made"] % COMPARED_EVERY == 0 and not message.dry:
                assert runs is not None and runs is not UNSEEN
                self._compare(runs, decode(sample.encoding, sample.meta, payload), sample.cut, self._files[item.key])
                self.counts["compared"] += 1

    def _compare(self, program: Program, value: object, cut: int, data: bytes) -> None:
        if isinstance(value, (bytes, memoryview)):
            assert bytes(value) == data
            return
        if isinstance(value, PartOfFile):
            begun = StepsOnPicture(PictureFile(value.data, Shape(*program.made_for), part=value), program.steps)
            found = image_at(begun, "8-bit")
        else:
            found = execute(program, value, start=SEGMENTS[cut])
        wanted = execute(program, data)
        assert (found.size, found.mode, found.tobytes()) == (wanted.size, wanted.mode, wanted.tobytes()), program


def _waits(client: Client, key: str, over: threading.Event) -> list[float]:
    """Ask for a file again and again; seconds until each came."""
    waits_s: list[float] = []
    while not over.wait(BESIDE_S):
        since_s = time.monotonic()
        client.send(Fetch.of_files("d", {len(waits_s): key}))
        sample, _ = client.receive()
        assert isinstance(sample, Sample) and sample.id == len(waits_s), sample
        waits_s.append(time.monotonic() - since_s)
    return waits_s


def _at_the_limits(agent: Agent, files: Mapping[str, bytes]) -> list[Message]:
    """Answers to programs on the large picture with nearly as much work, or as many px, as an agent takes."""
    wide: tuple[Step, ...] = (
        ("convert", "L"),
        ("filter", "rank", 15, 112),
        ("filter", "rank", 11, 60),
        ("crop", 0, 0, 9, 9),
    )
    huge: tuple[Step, ...] = ("resize", 7990, 7990, 3, None, None), ("resize", 9, 9, 0, None, None)
    packed = [Program("image", "", (2000, 1500, "RGB"), steps).pack() for steps in (wide, huge)]
    items = [ProgramItem(n, 3, "pixels", LARGE, len(files[LARGE]), one) for n, one in enumerate(packed)]
    client = agent.client()
    client.send(FetchPrograms("d", False, False, ["pixels"], items, pixels_by=pixels_by()))
    return [client.receive(300.0)[0] for _ in items]


def test_an_agent_outlives_100_000_programs(agent: Agent, files: Mapping[str, bytes]) -> None:
    clients = [ProgramClient(agent, files, seed) for seed in (1, 2)]
    beside, over, since_s = agent.client(), threading.Event(), time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        waits = threads.submit(_waits, beside, "3.jpg", over)

        def send(programs: int) -> list[Message]:
            sent = [threads.submit(one.send, programs // len(clients)) for one in clients]
            answers = _at_the_limits(agent, files)
            for one in sent:
                one.result()
            return answers

        try:
            limits = send(int(PROGRAMS * WARM_SHARE))
            before_mb = memory_of(agent.pid)
            limits += send(PROGRAMS - int(PROGRAMS * WARM_SHARE))
        finally:
            over.set()
        waits_s = waits.result()
    memory_mb, took_s = memory_of(agent.pid), time.monotonic() - since_s
    counts = sum((one.counts for one in clients), Counter[str]())
    print(f"{took_s:.0f} s, {dict(counts)}; memory {before_mb:.0f} -> {memory_mb:.0f} MB")
    print(f"{len(waits_s)} files beside, longest wait {max(waits_s):.2f} s; at the limits {limits}")
    assert counts["programs"] >= PROGRAMS and counts["refused"] > PROGRAMS / 5 and counts["made"] > PROGRAMS / 5
    assert counts["compared"] > PROGRAMS / 500
    assert all(isinstance(one, Sample) and one.note == "" for one in limits)
    assert max(waits_s) < ANSWERED_S
    assert memory_mb < MAX_GROWTH * before_mb
    assert agent.status()["worker_deaths"] == 0


def test_headers_are_told_whatever_is_asked(agent: Agent, files: Mapping[str, bytes]) -> None:
    headers = {key: b"" if (found := header_of(data)) is None else pack(found) for key, data in files.items()}
    known = {key: (len(data), headers[key]) for key, data in files.items()}
    known |= {
        "none.jpg": (NO_FILE, b""),
        "x" * 300: (NO_FILE, b""),
        "y/" * 3000: (NO_FILE, b""),
        "é\udcff": (NO_FILE, b""),
    }
    known |= {one: (OUTSIDE, b"") for one in ("", "../notes.txt", "/etc/passwd", "a/../notes.txt", "a\0b")}
    rng, client = random.Random(1), agent.client()
    for number in range(QUESTIONS):
        most = MAX_HEADERS if number % 100 == 0 else 40
        keys = rng.choices([*known], k=rng.choice([0, 1, most, rng.randint(0, most)]))
        if rng.random() < 0.1 and keys:
            keys = keys[:1] * len(keys)
        refused = {0: "unknown-export", 25: "too-long"}.get(number % 50, "")
        if refused == "too-long":
            keys = ["notes.txt"] * (MAX_HEADERS + 1)
        answer = client.ask(AskHeaders(number, "none such" if refused == "unknown-export" else "d", keys))
        if refused:
            assert isinstance(answer, Failed) and (answer.failure, answer.ids) == (refused, [number])
            continue
        assert answer == Headers(number, [known[key][0] for key in keys], [known[key][1] for key in keys])


def test_the_agent_ends_well(agent: Agent) -> None:
    assert agent.end() == 0
    assert "Traceback" not in agent.errors()
