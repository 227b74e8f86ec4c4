"""A real agent that is asked by programs: no pipeline is registered, and nothing is drawn there."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import __version__
from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.encodings.registry import decode
from sophon_loader.kinds.image.execute import execute, image_at
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.kinds.image.source import PictureFile, StepsOnPicture, source_of
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Program, Step
from sophon_loader.wire.messages import Failed, FetchPrograms, Hello, ProgramItem, Sample, Welcome
from sophon_loader.wire.version import VERSIONS
from tests.support.agents import Agent, Client, StartAgent
from tests.support.program_examples import NO_PICTURES, REFUSED, TOO_MUCH


@pytest.fixture(scope="module")
def served(start_agent: StartAgent, image_tree: Path) -> Iterator[Agent]:
    one = start_agent().ready()
    yield one
    assert one.end() == 0
    assert "Traceback" not in one.errors(), "nothing that a client does may show as a traceback of the agent"


@pytest.fixture
def client(served: Agent) -> Client:
    return served.client()


def _asked(items: Sequence[ProgramItem]) -> FetchPrograms:
    allowed = [*encoding_names(), ANY_PART]
    return FetchPrograms("d", keep_info=False, dry=False, allowed=allowed, items=list(items), pixels_by=pixels_by())


def _drawn(data: bytes, rng: random.Random) -> Program | None:
    source = source_of(data)
    if source is None:
        return None
    width, height, _ = source.shape
    left, top = rng.randrange(width // 2), rng.randrange(height // 2)
    crop: Step = ("crop", left, top, rng.randint(left + 1, width), rng.randint(top + 1, height))
    return Program("image", "", tuple(source.shape), (crop, ("resize", 24, 24, 2, None, None), ("transpose", 0)))


def test_programs_give_what_they_give_here(client: Client, image_tree: Path) -> None:
    rng = random.Random(0)
    files = {str(path.relative_to(image_tree)): path.read_bytes() for path in sorted(image_tree.rglob("*.jpg"))}
    programs = {key: program for key, data in files.items() if (program := _drawn(data, rng)) is not None}
    assert len(programs) > 5
    items = [
        ProgramItem(3 * n + place, cut, encoding, key, len(files[key]), program.pack())
        for n, (key, program) in enumerate(programs.items())
        for place, (cut, encoding) in enumerate([(0, "roi-jpeg"), (2, "pixels"), (3, "webp")])
    ]
    client.send(_asked(items))
    by_id, keys, parts = {item.id: item for item in items}, [*programs], 0
    for _ in items:
        sample, payload = client.receive()
        assert isinstance(sample, Sample) and sample.note == "", sample
        item, key = by_id.pop(sample.id), keys[sample.id // 3]
        assert sample.cut == item.cut and sample.file_nbytes == len(files[key])
        if sample.cut:
            value = decode(sample.encoding, sample.meta, payload)
            rest = execute(programs[key], value, start=SEGMENTS[sample.cut])
            assert rest.tobytes() == execute(programs[key], files[key]).tobytes()
        else:
            parts += sample.encoding == "roi-jpeg"
            assert len(payload) <= len(files[key])
    assert parts > len(programs) / 2


def test_hostile_programs_are_refused_and_harm_nobody(client: Client, image_tree: Path) -> None:
    path = min(image_tree.rglob("*.jpg"))
    key, size = str(path.relative_to(image_tree)), path.stat().st_size
    packed = []
    shown: list[tuple[Any, Any]] = [((40, 30, "RGB"), (step,)) for steps in REFUSED.values() for step in steps]
    for made_for, steps in [*shown, *TOO_MUCH.values(), *((one, ()) for one in NO_PICTURES)]:
        try:
            packed.append(Program("image", "", made_for, steps).pack())
        except (OverflowError, ValueError, UnicodeEncodeError):  # what msgpack cannot write cannot come
            continue
    assert len(packed) > 300
    for at in range(0, len(packed), 64):
        items = [ProgramItem(n, 2, "pixels", key, size, one) for n, one in enumerate(packed[at : at + 64])]
        client.send(_asked(items))
        for _ in items:
            failed, _ = client.receive()
            assert isinstance(failed, Failed) and failed.failure == "bad-program", failed
    source = source_of(path.read_bytes())
    assert source is not None
    good = Program("image", "", tuple(source.shape), (("crop", 0, 0, 8, 8),)).pack()
    assert isinstance(client.ask(_asked([ProgramItem(1, 2, "pixels", key, size, good)])), Sample)


def test_both_ends_agree_on_the_newest_version(client: Client) -> None:
    welcome = client.ask(Hello(list(VERSIONS), f"sophon_loader {__version__}"))
    assert isinstance(welcome, Welcome) and welcome.version == VERSIONS[-1]


def test_the_agent_chooses_at_prices(client: Client, image_tree: Path) -> None:
    rng = random.Random(1)
    files = {str(path.relative_to(image_tree)): path.read_bytes() for path in sorted(image_tree.rglob("*.jpg"))}
    found: dict[str, Counter[str]] = {"crop": Counter(), "part": Counter(), "file": Counter()}
    prices = {"crop": [0.0, 0.0, 1.0, 0.0], "part": [1.0, 1e3, 0.0, 0.0], "file": [0.0, 1.0, 0.0, 0.0]}
    allowed = {"crop": ["file", "pixels"], "part": ["file", "roi-jpeg", ANY_PART], "file": [*encoding_names()]}
    for cheapest in (*["crop"] * 6, "part", "part", "file"):  # what nobody has tried yet is not chosen
        keys = [key for key in sorted(files) for _ in range(64 // len(files) + 1)][:64]
        drawn = [(key, program) for key in keys if (program := _drawn(files[key], rng)) is not None]
        items = [
            ProgramItem(id, 3, "*", key, len(files[key]), program.pack()) for id, (key, program) in enumerate(drawn)
        ]
        client.send(replace(_asked(items), prices=prices[cheapest], allowed=allowed[cheapest]))
        for _ in items:
            sample, payload = client.receive()
            assert isinstance(sample, Sample) and sample.note == "" and sample.encoding in allowed[cheapest]
            key, program = drawn[sample.id]
            wanted, value = execute(program, files[key]), decode(sample.encoding, sample.meta, payload)
            if isinstance(value, PartOfFile):
                begun = StepsOnPicture(PictureFile(value.data, Shape(*program.made_for), part=value), program.steps)
                assert image_at(begun, "8-bit").tobytes() == wanted.tobytes()
            else:
                assert execute(program, value, start=SEGMENTS[sample.cut]).tobytes() == wanted.tobytes()
            found[cheapest][f"{sample.cut} {sample.encoding}"] += 1
    assert found["crop"]["3 pixels"] > 32 and found["part"]["0 roi-jpeg"] > 32 and found["file"]["0 file"] == 64, found


def test_a_choice_without_prices_is_refused(client: Client) -> None:
    failed = client.failed(_asked([ProgramItem(1, 2, "*", "x", 1, b"")]))
    assert (failed.failure, failed.ids) == ("malformed", [1])
