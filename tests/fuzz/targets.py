"""What reads bytes that another host has sent: each target takes any bytes, and fails with documented errors alone.

A target is a function of bytes that returns or raises nothing; what it raises is a finding. Its seeds are inputs that
reach the far ends of what it reads.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgpack
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.encodings.encoding import Payload
from sophon_loader.encodings.registry import decode, encodings
from sophon_loader.errors import EncodingError, PipelineError, VersionMismatch, WireError
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.registration import Registration, registration_of
from sophon_loader.pipeline.software import software
from sophon_loader.programs.program import Limits, Program
from sophon_loader.wire.entry import AgentEntry, is_endpoint
from sophon_loader.wire.frames import SEAL_NBYTES, content_hash, pack, seal, unpack
from sophon_loader.wire.messages import Fetch, Hello, Item, Listing, Message, Ping, Register, Sample
from sophon_loader.wire.version import VERSIONS
from storage_agent.broker import instructions as do
from storage_agent.broker.desk import Desk, Load
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import Registrations
from tests.fuzz import archives, programs_on_files
from tests.support.encoding_examples import ACCEPTED
from tests.support.pictures import train_transform
from tests.support.program_examples import REFUSED, SIZE, TAKEN, TOO_MUCH, see_it_runs_as_said, taken

MAX_NBYTES = 4096
"""Of a seed: what is longer is left out, so that what is kept stays small."""
SEPARATOR = b"\xc1\xc1"
"""Between two frames of an input; msgpack has no use for these bytes."""


@dataclass(frozen=True)
class Target:
    """Something to be fed any bytes.

    Args:
        name: of its folder of kept inputs.
        run: takes the bytes.
        seeds: inputs to begin with.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]


# --- headers ----------------------------------------------------------------------------------------------------------


def _header(data: bytes) -> None:
    """As it is, and under a seal: what a host could send that means harm, or has an error of its own."""
    for frame in (data, seal(data)):
        try:
            message = unpack(frame)
        except (WireError, VersionMismatch):
            continue
        again = pack(message)
        assert pack(unpack(again)) == again, "what has been read can be written, and read again"


def _row(message: Message) -> bytes:
    """A header without its seal."""
    packed = pack(message)
    return packed if isinstance(message, Hello) else packed[:-SEAL_NBYTES]


def _messages() -> Iterator[tuple[Message, bytes | None]]:
    registration = registration_of(chain_of(train_transform()), software())
    digest = content_hash(registration)
    yield Hello([1, *VERSIONS], "a loader"), None
    yield Ping(), None
    yield Register(digest), registration
    items = [Item(number, 2**40, 1, number, "*" if number else "file", "class/é.jpg") for number in range(3)]
    yield Fetch("d", digest, -1, 2, True, True, ["file", "webp"], items, [1.0, 0.0, 2.5, 0.25]), None
    yield Fetch.of_files("d", {7: "a.jpg"}), None


def _header_seeds() -> Iterator[bytes]:
    for message, _ in _messages():
        yield _row(message)
    yield _row(Sample(1, 2, "webp", {"size": [1, 2]}, 10, [0.0, 1.5], 0.0, 0.0, "note"))


# --- what loaders send ------------------------------------------------------------------------------------------------


def _desk(data: bytes) -> None:
    admission: Admission[Job] = Admission(8, 8)
    desk = Desk("1", ["d"], ["file", "webp"], admission, Registrations())
    load = Load(room=2, building=0, upkeep_s=0.0)
    for number, part in enumerate(data.split(SEPARATOR * 2)):
        row, *payload = part.split(SEPARATOR)
        for header in (row, seal(row, b"".join(payload))):
            for one in desk.receive(b"client", [header, *payload], load, now_s=float(number)):
                assert isinstance(one, do.Instruction), one
    assert 0 <= admission.outstanding <= 8
    desk.gone(b"client")


def _desk_seeds() -> Iterator[bytes]:
    sent = [SEPARATOR.join([_row(message), *([] if body is None else [body])]) for message, body in _messages()]
    yield from sent
    yield (SEPARATOR * 2).join(sent)
    yield SEPARATOR.join([b"", b"", b""])


# --- pipelines --------------------------------------------------------------------------------------------------------


def _registration(data: bytes) -> None:
    with suppress(PipelineError):
        served = Registration.from_bytes(data)
        assert 0 <= served.reach <= len(served.chain)


def _registration_seeds() -> Iterator[bytes]:
    for transform in (
        train_transform(),
        v1.Compose([v1.Resize((3, 4), antialias=False), v1.CenterCrop(2), v1.RandomRotation(10), v1.PILToTensor()]),
        v2.Compose([v2.RandomResizedCrop(3, scale=(0.5, 1.0)), v2.ToImage(), v2.Normalize([0.5], [0.5])]),
        v2.Compose([v2.RandomApply([v2.Grayscale(3)], p=0.3), v2.RandomHorizontalFlip()]),
    ):
        yield registration_of(chain_of(transform), software())


# --- programs ---------------------------------------------------------------------------------------------------------

FEW = Limits(px=2000, work=2e7, nbytes=1e6)


def _program(data: bytes) -> None:
    program = taken(data, FEW)
    if program is not None:
        see_it_runs_as_said(program)


def _program_seeds() -> Iterator[bytes]:
    for one in TAKEN:
        yield Program("image", "f", one.before, (one.step,)).pack()
    for made_for, steps in TOO_MUCH.values():
        yield Program("image", "f", made_for, steps[:4]).pack()
    for several in REFUSED.values():
        with suppress(OverflowError):  # an int that no packed program can have
            yield msgpack.packb(["image", "f", (*SIZE, "RGB"), several[-3:], ""], unicode_errors="surrogateescape")


# --- encodings --------------------------------------------------------------------------------------------------------


def _decoder(name: str) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        packed, _, payload = data.partition(SEPARATOR)
        try:
            meta = msgpack.unpackb(packed, strict_map_key=False, unicode_errors="surrogateescape")
        except (ValueError, TypeError, msgpack.UnpackException):
            return
        if isinstance(meta, dict):
            with suppress(EncodingError):
                decode(name, meta, memoryview(payload))

    return run


def _decoder_seeds(name: str) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for make in list(ACCEPTED[name].values())[:12]:
            value = make()
            if encodings()[name].accepts(value):
                found = encodings()[name].encode(value)
                yield msgpack.packb(found.meta, unicode_errors="surrogateescape") + SEPARATOR + bytes(found.payload)

    return seeds


# --- listings ---------------------------------------------------------------------------------------------------------


class _Told(Connection):
    """A connection to an agent that answers with this listing."""

    def __init__(self, classes: list[str], payload: bytes) -> None:
        self.address = Address.parse("tcp://127.0.0.1:9/d")
        self._told = Listing(classes), payload

    def _ask(self, *_: Any) -> tuple[Message, Payload]:
        return self._told


def _listing(data: bytes) -> None:
    """The bytes are what the payload unpacks to, or, behind a separator, the payload itself."""
    packed, separator, payload = data.partition(SEPARATOR)
    with suppress(WireError):
        for name, files in _Told(["a", "b"], payload if separator else zlib.compress(packed, 1)).listing(1.0).tree():
            assert isinstance(name, str) and all(isinstance(file, str) for file in files)


def _entry(data: bytes) -> None:
    with suppress(WireError):
        found = AgentEntry.parse(data)
        assert all(map(is_endpoint, found.addresses))
        assert AgentEntry.parse(found.text()) == found


def _entry_seeds() -> Iterator[bytes]:
    yield AgentEntry(["tcp://fileserver:5555", "tcp://[fe80::1%eth0]:1"], "5f0c", ["imagenet", "é"]).text().encode()
    yield b'{"addresses": ["tcp://a:1"], "exports": [], "later": {"deep": [[1e999, null]]}}'
    yield '{"addresses": ["tcp://a:1"], "instance": "\\ud800", "exports": ["x"]}'.encode("utf-16")


def _listing_seeds() -> Iterator[bytes]:
    packed = msgpack.packb([["1.jpg", "é.png"], ["deeper/3.jpg"]])
    yield packed
    yield SEPARATOR + zlib.compress(packed)
    yield msgpack.packb([["\udcff"], []], unicode_errors="surrogateescape")


@cache
def targets() -> dict[str, Target]:
    """All of them, by name."""
    found = [
        Target("header", _header, _header_seeds),
        Target("desk", _desk, _desk_seeds),
        Target("registration", _registration, _registration_seeds),
        Target("listing", _listing, _listing_seeds),
        Target("entry", _entry, _entry_seeds),
        Target("program", _program, _program_seeds),
        Target("program-on-file", programs_on_files.run_on_file, programs_on_files.seeds),
        Target("tar", archives.run_tar, archives.tar_seeds),
        Target("zip", archives.run_zip, archives.zip_seeds),
        Target("mds", archives.run_mds, archives.mds_seeds),
        Target("archive-index", archives.run_index, archives.index_seeds),
        *(Target(name, _decoder(name), _decoder_seeds(name)) for name in encodings()),
    ]
    return {target.name: target for target in found}
