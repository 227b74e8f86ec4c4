"""Every message, as a frozen dataclass whose fields are, in order, the fields on the wire; fields.py has their types.

`VERSION` is the protocol version that a kind has had its fields since, which is stamped on it. So a release that knows
more kinds goes on speaking with one that does not.

`docs/wire.md` is the specification; `tests/unit/wire/test_specification.py` holds the two together.
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
    """The kinds of failure that `Failed` and `Refused` carry."""

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
"""Stands in an item's `encoding` for whatever is cheapest at the request's prices, at any cut up to the item's."""


class Item(NamedTuple):
    """One wanted sample of a Fetch.

    `id` is the loader's own number of the request, `sample` the sample's index, and `occurrence` how often the
    iteration has met that index before: 0 for the first time. `key` is the file's path in the export.
    """

    id: Natural
    sample: Natural
    occurrence: Natural
    cut: Stage
    encoding: str
    key: str


class ProgramItem(NamedTuple):
    """One wanted value of a FetchPrograms: what a program makes of one file.

    `id` is the loader's own number of the request, `key` the file's path in the export and `nbytes` the size of the
    file that the numbers were drawn for. `cut` is the number of a segment of the program's kind, 0 for the file; with
    the encoding `CHEAPEST` the furthest one that the loader accepts.
    `program` is packed (see `programs.Program.pack`); its own key is empty.
    """

    id: Natural
    cut: Stage
    encoding: str
    key: str
    nbytes: FileSize
    program: bytes


class Offer(NamedTuple):
    """A choice that the agent weighed for a sample, and what it takes by the agent's estimate.

    `nbytes` is the payload's size, `agent_s` are CPU seconds at the agent beside reading and upkeep, `rest_s` those of
    what is left to the loader, as if they were the agent's: only the loader knows how the two compare.
    """

    cut: Stage
    encoding: str
    nbytes: Natural
    agent_s: Seconds
    rest_s: Seconds


@dataclass(frozen=True)
class Hello:
    """Loader: opens the conversation with the protocol versions it speaks."""

    KIND: ClassVar[int] = 1
    VERSION: ClassVar[int] = HANDSHAKE
    versions: list[int]
    software: str


@dataclass(frozen=True)
class Welcome:
    """Agent: the chosen version, and what it offers.

    `instance` changes when the agent restarts. `software` maps the names of the libraries that make pixels to
    their versions. `max_outstanding` is the number of unanswered samples one loader connection may have.
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
    """Agent: no conversation is possible; says why."""

    KIND: ClassVar[int] = 3
    VERSION: ClassVar[int] = HANDSHAKE
    failure: str
    text: str


@dataclass(frozen=True)
class Register:
    """Loader: a pipeline and the loader's software (payload frame) under their content hash."""

    KIND: ClassVar[int] = 4
    VERSION: ClassVar[int] = 4
    digest: str


@dataclass(frozen=True)
class Registered:
    """Agent: how many leading ops of that pipeline it can run (1 = Decode alone, 0 = none, its software is another)."""

    KIND: ClassVar[int] = 5
    VERSION: ClassVar[int] = 4
    digest: str
    ops: Stage


@dataclass(frozen=True)
class Fetch:
    """Loader: asks for samples. The agent may answer each with an earlier cut or another encoding that is allowed.

    `dry` asks for costs only: everything is done, but the payload stays behind, and `meta` holds its `nbytes` too.
    `allowed` names the encodings that the loader accepts; it always accepts `file`, named or not. `prices` are for
    items whose encoding is `CHEAPEST`: of a byte that crosses the wire, of a CPU second at the agent, and of one that
    is left to the loader (in the agent's seconds, see `Offer`); only their proportions count. Behind them stands the
    `per_worker` for which they were worked out, 0 for none: with far fewer cores than that, the agent sends files.
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
        """Asks for whole files, for which the agent needs neither a pipeline nor random numbers.

        Args:
            export: name of the export.
            keys: of the files in it, by the id that each answer shall have.
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

    `file_nbytes` is the size of the file. `op_s` holds CPU seconds: reading, then each op up to the cut, then
    encoding (reading alone at cut 0). `upkeep_s` are the CPU seconds per sample that the agent has lately spent on
    anything else, `queued_s` the seconds that this one waited for a worker. `note` says why the cut is earlier than
    asked, or why the file is whole ("" otherwise). `read_s` and `work_s` are seconds by the clock on the wall: of
    reading, and of ops and encoding. `cores` are those that this loader can count on among those who ask now, and
    `per_worker` those that the agent has for each of its worker processes, all at work. `offers` is what the agent
    chose from, if it chose; it is left out of most answers.
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
    """Agent: requests that it cannot serve, by their ids (none: the message as a whole)."""

    KIND: ClassVar[int] = 8
    VERSION: ClassVar[int] = 4
    failure: str
    text: str
    ids: list[Natural] = field(default_factory=list)
    digest: str = ""


@dataclass(frozen=True)
class Ping:
    """Loader: are you there?"""

    KIND: ClassVar[int] = 9
    VERSION: ClassVar[int] = 4


@dataclass(frozen=True)
class Pong:
    """Agent: yes, I am `instance`."""

    KIND: ClassVar[int] = 10
    VERSION: ClassVar[int] = 4
    instance: str


@dataclass(frozen=True)
class AskStatus:
    """Anyone: how are you?"""

    KIND: ClassVar[int] = 11
    VERSION: ClassVar[int] = 4


AT_WORK = "yours_at_work"
"""Names, in `Status.values`, how many samples of the connection that asks wait for a worker or are at one; each has a
limit of time there. An agent that is stuck, or of an older release, does not count any."""


@dataclass(frozen=True)
class Status:
    """Agent: numbers about itself, for people (see `sophon-agent status`), and `AT_WORK` for loaders."""

    KIND: ClassVar[int] = 12
    VERSION: ClassVar[int] = 4
    values: dict[str, Any]

    @property
    def is_at_work(self) -> bool:
        """Whether it counts a sample of the connection that has asked."""
        count = self.values.get(AT_WORK)
        return type(count) is int and count > 0


@dataclass(frozen=True)
class AskListing:
    """Loader: the files of `export` below `prefix` as an ImageFolder tree, or samples (see `wire/samples.py`)."""

    KIND: ClassVar[int] = 13
    VERSION: ClassVar[int] = 4
    export: str
    prefix: str


@dataclass(frozen=True)
class Listing:
    """Agent: class names in order; payload frame: zlib of msgpack [[file names below the class], ...]."""

    KIND: ClassVar[int] = 14
    VERSION: ClassVar[int] = 4
    classes: list[str]


@dataclass(frozen=True)
class AskSizes:
    """Loader: the sizes of some files, to see that both ends mean the same data."""

    KIND: ClassVar[int] = 15
    VERSION: ClassVar[int] = 4
    export: str
    keys: list[str]


NO_FILE = -1
"""Stands in `Sizes` for the size of a file that is not there."""
OUTSIDE = -2
"""Stands in `Sizes` for the size of a file that is outside the export."""


@dataclass(frozen=True)
class Sizes:
    """Agent: bytes per key in the order asked; `root` is the export's.

    `NO_FILE` where there is no such file, `OUTSIDE` where the key, or the link that it is, leaves the export.
    """

    KIND: ClassVar[int] = 16
    VERSION: ClassVar[int] = 4
    root: str
    nbytes: list[KeySize]


@dataclass(frozen=True)
class FetchPrograms:
    """Loader: asks for what programs make of files. The agent may answer each at an earlier segment.

    `keep_info`, `dry`, `allowed` and `prices` are those of `Fetch`. The answers are `Sample`s, whose `cut` is a segment
    and whose `op_s` holds CPU seconds of reading, of the program's steps and of encoding. The `rest_s` of an `Offer`
    counts what is left of the program alone, because what the loader does behind it is the same for every choice. A
    program that the agent does not take, or that was drawn for another file than the one that is there, is `Failed`.
    `pixels_by` is the software that makes pixels at the loader, as `pipeline.software.pixels_by` names it: an agent
    whose own is another one sends files and parts of files alone.
    """

    KIND: ClassVar[int] = 17
    VERSION: ClassVar[int] = 5
    digest: ClassVar[str] = ""
    seed: ClassVar[int] = 0
    epoch: ClassVar[int] = 0
    """These three are what a `Fetch` says, and programs have none of; they do not cross the wire."""
    export: str
    keep_info: bool
    dry: bool
    allowed: list[str]
    items: list[ProgramItem]
    prices: Prices = field(default_factory=list)
    pixels_by: str = ""


@dataclass(frozen=True)
class AskHeaders:
    """Loader: the headers of some files, from which it draws what their samples do to them.

    `id` is the loader's own number of the question; a `Failed` that answers it has it in `ids`.
    """

    KIND: ClassVar[int] = 18
    VERSION: ClassVar[int] = 5
    id: Natural
    export: str
    keys: list[str]


@dataclass(frozen=True)
class Headers:
    """Agent: the size and the packed header of each file, in the order asked.

    `nbytes` are those of `Sizes`. A header is b"" where the agent cannot tell it: there is no such file, it cannot be
    read, or it is none of which the agent reads headers itself.
    """

    KIND: ClassVar[int] = 19
    VERSION: ClassVar[int] = 5
    id: Natural
    nbytes: list[KeySize]
    headers: list[PackedHeader]


ExportQuestion = AskListing | AskSizes | AskHeaders
"""What an agent answers by a look into an export."""

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
"""What loaders send; everything else comes from agents."""
