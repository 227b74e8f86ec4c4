"""Messages as frozen dataclasses, with the fields in the order of the wire; fields.py has their types.

`VERSION` is the protocol version that gave a kind its present fields, and is sent with it. So a release that knows more
kinds still speaks with an older one.

`docs/wire.md` is the specification; `tests/unit/wire/test_specification.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from sophon_loader.wire.fields import (
    Cores,
    FileSize,
    KeySize,
    Natural,
    PackedHeader,
    Positive,
    Prices,
    Seconds,
    Stage,
    Times,
)
from sophon_loader.wire.version import HANDSHAKE


class Failure:
    """Kinds of failure that `Failed` and `Refused` carry."""

    VERSION = "version"
    MALFORMED = "malformed"
    CORRUPT = "corrupt"
    TOO_LONG = "too-long"
    UNKNOWN_EXPORT = "unknown-export"
    UNKNOWN_PIPELINE = "unknown-pipeline"
    BAD_PIPELINE = "bad-pipeline"
    BAD_PROGRAM = "bad-program"
    BUSY = "busy"
    STOPPING = "stopping"
    MISSING = "missing"
    OUTSIDE_EXPORT = "outside-export"
    UNREADABLE = "unreadable"


CHEAPEST = "*"
"""Value of an item's `encoding` that asks for the cheapest choice at the request's prices, up to the item's cut."""


class Item(NamedTuple):
    """One wanted sample of a Fetch.

    Args:
        id: the loader's own number of the request.
        sample: the sample's index.
        occurrence: number of earlier occurrences of that index in the iteration.
        key: path of the file in the export.
    """

    id: Natural
    sample: Natural
    occurrence: Natural
    cut: Stage
    encoding: str
    key: str


class ProgramItem(NamedTuple):
    """One wanted value of a FetchPrograms: the result of a program on one file.

    Args:
        id: the loader's own number of the request.
        cut: number of a segment of the program's kind, 0 for the file; with the encoding `CHEAPEST` the last segment
            that the loader accepts.
        key: path of the file in the export.
        nbytes: size of the file for which the program's numbers were drawn.
        program: packed by `programs.Program.pack`, with an empty key.
    """

    id: Natural
    cut: Stage
    encoding: str
    key: str
    nbytes: FileSize
    program: bytes


class Offer(NamedTuple):
    """A choice that the agent considered for a sample, with its estimated costs.

    Args:
        nbytes: size of the payload.
        agent_s: CPU seconds at the agent, without reading and upkeep.
        rest_s: CPU seconds of the loader's part as if the agent ran it: only the loader knows how the two compare.
    """

    cut: Stage
    encoding: str
    nbytes: Natural
    agent_s: Seconds
    rest_s: Seconds


@dataclass(frozen=True)
class Hello:
    """Loader: opens the connection with the protocol versions that it speaks."""

    KIND: ClassVar[int] = 1
    VERSION: ClassVar[int] = HANDSHAKE
    versions: list[int]
    software: str


@dataclass(frozen=True)
class Welcome:
    """Agent: the chosen version and the agent's abilities.

    `instance` changes when the agent restarts. `software` maps the libraries that make pixels to their versions.
    `max_outstanding` is the allowed number of unanswered samples per loader connection.
    """

    KIND: ClassVar[int] = 2
    VERSION: ClassVar[int] = HANDSHAKE
    version: Positive
    instance: str
    exports: list[str]
    encodings: list[str]
    software: dict[str, str]
    cores: Cores
    max_outstanding: Positive


@dataclass(frozen=True)
class Refused:
    """Agent: refuses the connection, with the reason."""

    KIND: ClassVar[int] = 3
    VERSION: ClassVar[int] = HANDSHAKE
    failure: str
    text: str


@dataclass(frozen=True)
class Register:
    """Loader: a pipeline and the loader's software (payload frame), named by their content hash."""

    KIND: ClassVar[int] = 4
    VERSION: ClassVar[int] = 4
    digest: str


@dataclass(frozen=True)
class Registered:
    """Agent: number of leading ops of a pipeline that it can run (1 = Decode alone; 0 = none, its software differs)."""

    KIND: ClassVar[int] = 5
    VERSION: ClassVar[int] = 4
    digest: str
    ops: Stage


@dataclass(frozen=True)
class Fetch:
    """Loader: requests samples. The agent may answer each at an earlier cut or in another allowed encoding.

    Args:
        dry: True to get costs only. The agent does everything, but keeps the payload and adds its `nbytes` to `meta`.
        allowed: encodings that the loader accepts; it always accepts `file`.
        prices: for items whose encoding is `CHEAPEST`. They are those of a byte on the wire, of a CPU second at the
            agent, and of one left to the loader (in the agent's seconds, see `Offer`). Only their proportions count.
            The fourth entry is the `per_worker` for which they were computed, 0 for none: with far fewer cores the
            agent sends files.
    """

    KIND: ClassVar[int] = 6
    VERSION: ClassVar[int] = 4
    export: str
    digest: str
    seed: int
    epoch: int
    keep_info: bool
    dry: bool
    allowed: list[str]
    items: list[Item]
    prices: Prices = field(default_factory=list)

    @staticmethod
    def of_files(export: str, keys: Mapping[int, str]) -> Fetch:
        """Return a request for whole files, which needs neither a pipeline nor random numbers at the agent.

        Args:
            export: name of the export.
            keys: the files' keys by the id of each answer.
        """
        return Fetch(
            export=export,
            digest="",
            seed=0,
            epoch=0,
            keep_info=False,
            dry=False,
            allowed=["file"],
            items=[Item(id, sample=0, occurrence=0, cut=0, encoding="file", key=key) for id, key in keys.items()],
        )


@dataclass(frozen=True)
class Sample:
    """Agent: one sample; its payload frame is the value at stage `cut` in `encoding`.

    Args:
        file_nbytes: size of the file.
        op_s: CPU seconds of reading, of each op up to the cut, of encoding; at cut 0 of reading alone.
        upkeep_s: recent mean per sample of the agent's other CPU seconds.
        queued_s: seconds that this sample waited for a worker.
        note: reason why the cut is earlier than requested, or why the file is whole; "" otherwise.
        read_s, work_s: wall-clock seconds of reading, and of ops and encoding.
        cores: those that this loader can count on, given the other loaders that ask now.
        per_worker: the agent's cores for each of its worker processes, all busy.
        offers: the choices, if the agent chose; most answers omit them.
    """

    KIND: ClassVar[int] = 7
    VERSION: ClassVar[int] = 4
    id: Natural
    cut: Stage
    encoding: str
    meta: dict[str, Any]
    file_nbytes: FileSize
    op_s: Times
    upkeep_s: Seconds
    queued_s: Seconds
    note: str
    read_s: Seconds = 0.0
    work_s: Seconds = 0.0
    cores: Cores = 1.0
    per_worker: Cores = 1.0
    offers: list[Offer] = field(default_factory=list)


@dataclass(frozen=True)
class Failed:
    """Agent: the ids of requests that it cannot serve (no ids: the message as a whole)."""

    KIND: ClassVar[int] = 8
    VERSION: ClassVar[int] = 4
    failure: str
    text: str
    ids: list[Natural] = field(default_factory=list)
    digest: str = ""


@dataclass(frozen=True)
class Ping:
    """Loader: asks for a sign of life."""

    KIND: ClassVar[int] = 9
    VERSION: ClassVar[int] = 4


@dataclass(frozen=True)
class Pong:
    """Agent: a sign of life of `instance`."""

    KIND: ClassVar[int] = 10
    VERSION: ClassVar[int] = 4
    instance: str


@dataclass(frozen=True)
class AskStatus:
    """Anyone: asks for the agent's numbers."""

    KIND: ClassVar[int] = 11
    VERSION: ClassVar[int] = 4


AT_WORK = "yours_at_work"
"""Key in `Status.values` for the number of the asking connection's samples that wait for a worker or are in one. Both
have time limits there. A stuck agent, or one of an older release, counts no samples."""


@dataclass(frozen=True)
class Status:
    """Agent: numbers about itself for people (see `sophon-agent status`), and `AT_WORK` for loaders."""

    KIND: ClassVar[int] = 12
    VERSION: ClassVar[int] = 4
    values: dict[str, Any]

    @property
    def is_at_work(self) -> bool:
        """True if the agent counts a sample of the connection that asked."""
        count = self.values.get(AT_WORK)
        return type(count) is int and count > 0


@dataclass(frozen=True)
class AskListing:
    """Loader: asks for the files of `export` below `prefix`, as an ImageFolder tree or as samples (see
    `wire/samples.py`)."""

    KIND: ClassVar[int] = 13
    VERSION: ClassVar[int] = 4
    export: str
    prefix: str


@dataclass(frozen=True)
class Listing:
    """Agent: class names in order. The payload frame is zlib of msgpack [[file names below the class], ...]."""

    KIND: ClassVar[int] = 14
    VERSION: ClassVar[int] = 4
    classes: list[str]


@dataclass(frozen=True)
class AskSizes:
    """Loader: asks for the sizes of some files, to check that both ends mean the same data."""

    KIND: ClassVar[int] = 15
    VERSION: ClassVar[int] = 4
    export: str
    keys: list[str]


NO_FILE = -1
"""Size in `Sizes` of a file that does not exist."""
OUTSIDE = -2
"""Size in `Sizes` of a file outside the export."""


@dataclass(frozen=True)
class Sizes:
    """Agent: sizes in bytes, in the order of the request's keys; `root` is the export's.

    A size is `NO_FILE` if the file does not exist, and `OUTSIDE` if the key, or the link behind it, leaves the export.
    """

    KIND: ClassVar[int] = 16
    VERSION: ClassVar[int] = 4
    root: str
    nbytes: list[KeySize]


@dataclass(frozen=True)
class FetchPrograms:
    """Loader: requests results of programs on files. The agent may answer each at an earlier segment.

    Fields as in `Fetch`, and `pixels_by`: the software that makes pixels at the loader, as
    `pipeline.software.pixels_by` names it. An agent with other software only sends files and parts of files. The
    answers are `Sample`s: `cut` is a segment, and `op_s` holds CPU seconds of reading, of the program's steps and of
    encoding. The `rest_s` of an `Offer` counts the rest of the program alone: the loader's later work is the same for
    every choice. The answer is `Failed` if the agent refuses the program, or if the file is not the one for which it
    was drawn.
    """

    KIND: ClassVar[int] = 17
    VERSION: ClassVar[int] = 5
    digest: ClassVar[str] = ""
    seed: ClassVar[int] = 0
    epoch: ClassVar[int] = 0
    """Fields of a `Fetch` that programs do not need; they are not sent."""
    export: str
    keep_info: bool
    dry: bool
    allowed: list[str]
    items: list[ProgramItem]
    prices: Prices = field(default_factory=list)
    pixels_by: str = ""


@dataclass(frozen=True)
class AskHeaders:
    """Loader: asks for the headers of some files, from which it draws the samples' steps.

    `id` is the loader's own number of the question; a `Failed` answer lists it in `ids`.
    """

    KIND: ClassVar[int] = 18
    VERSION: ClassVar[int] = 5
    id: Natural
    export: str
    keys: list[str]


@dataclass(frozen=True)
class Headers:
    """Agent: the sizes and packed headers of the files, in the order of the request's keys.

    `nbytes` are as in `Sizes`. A header is b"" if the file does not exist, cannot be read, or has a type whose headers
    the agent does not read.
    """

    KIND: ClassVar[int] = 19
    VERSION: ClassVar[int] = 5
    id: Natural
    nbytes: list[KeySize]
    headers: list[PackedHeader]


ExportQuestion = AskListing | AskSizes | AskHeaders
"""Questions that an agent answers by looking into an export."""

Message = (
    Hello
    | Welcome
    | Refused
    | Register
    | Registered
    | Fetch
    | Sample
    | Failed
    | Ping
    | Pong
    | AskStatus
    | Status
    | AskListing
    | Listing
    | AskSizes
    | Sizes
    | FetchPrograms
    | AskHeaders
    | Headers
)

MESSAGES: tuple[type[Message], ...] = (
    Hello,
    Welcome,
    Refused,
    Register,
    Registered,
    Fetch,
    Sample,
    Failed,
    Ping,
    Pong,
    AskStatus,
    Status,
    AskListing,
    Listing,
    AskSizes,
    Sizes,
    FetchPrograms,
    AskHeaders,
    Headers,
)
WITH_PAYLOAD = (Register, Sample, Listing)
REQUESTS = (Hello, Register, Fetch, Ping, AskStatus, AskListing, AskSizes, FetchPrograms, AskHeaders)
"""Messages that loaders send; agents send the others."""
