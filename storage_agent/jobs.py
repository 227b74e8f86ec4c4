"""One wanted sample inside the agent, and the answers that need no op."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from functools import cached_property

import msgpack

from sophon_loader.encodings.encoding import Encoded, Payload
from sophon_loader.errors import SophonError
from sophon_loader.wire.failures import failure_of
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import Failed, Item, Listing, Registered, Sample, Sizes
from storage_agent.store import Store


@dataclass(frozen=True)
class Job:
    """A sample that `client` (ZeroMQ routing id) wants, with what its Fetch said for all of its samples.

    `allowed` are the encodings that the loader accepts and this agent has, `received_s` is when it came, `upkeep_s`
    what a sample lately cost the agent beside reading, ops and encoding.
    """

    client: bytes
    export: str
    digest: str
    seed: int
    epoch: int
    keep_info: bool
    dry: bool
    allowed: list[str]
    received_s: float
    upkeep_s: float
    item: Item

    def to_bytes(self) -> bytes:
        """For the way between broker and worker."""
        packed: bytes = msgpack.packb(list(vars(self).values()), unicode_errors="surrogateescape")
        return packed

    @staticmethod
    def from_bytes(data: Payload) -> Job:
        """The inverse of `to_bytes`."""
        *fields, item = msgpack.unpackb(data, unicode_errors="surrogateescape")
        return Job(*(*fields, Item(*item)))


@dataclass(frozen=True)
class Answer:
    """What goes back to a client."""

    message: Sample | Failed | Registered | Listing | Sizes
    payload: Payload | None = None

    @cached_property
    def header(self) -> bytes:
        """The header frame.

        Raises:
            MessageTooLong: the message has no room in one.
        """
        return pack(self.message)

    @property
    def kind(self) -> str:
        """The encoding of a sample, else the message's name."""
        return self.message.encoding if isinstance(self.message, Sample) else type(self.message).__name__

    @property
    def cpu_s(self) -> float:
        """CPU seconds of reading, ops and encoding."""
        return sum(self.message.op_s) if isinstance(self.message, Sample) else 0.0

    def frames(self) -> list[Payload]:
        """[kind and CPU seconds for the broker, header, payload]."""
        frames: list[Payload] = [msgpack.packb((self.kind, self.cpu_s)), self.header]
        return frames if self.payload is None else [*frames, self.payload]


@dataclass(frozen=True)
class FileRead:
    """The file of a job, the CPU seconds of reading it, and the seconds that the job had waited before."""

    data: bytes
    cpu_s: float
    queued_s: float


def read_file(store: Store, job: Job) -> FileRead | Answer:
    """The file of a job, or the answer that says why it cannot be had."""
    started, queued_s = time.thread_time(), time.monotonic() - job.received_s
    try:
        data = store.read(job.export, job.item.key)
    except SophonError as error:
        return refuse(error, [job.item.id])
    return FileRead(data, time.thread_time() - started, queued_s)


def answer_file(store: Store, job: Job, note: str = "") -> Answer:
    """The file of a job at stage 0, or why it cannot be had; `note` tells why the cut is earlier than asked."""
    read = read_file(store, job)
    return read if isinstance(read, Answer) else file_answer(job, read, note)


def file_answer(job: Job, read: FileRead, note: str) -> Answer:
    """The file that was read, as it is."""
    return sample_answer(job, Encoded("file", {}, read.data), 0, len(read.data), [read.cpu_s], read.queued_s, note)


def sample_answer(
    job: Job, encoded: Encoded, cut: int, file_nbytes: int, op_s: list[float], queued_s: float, note: str
) -> Answer:
    """The answer of a job that went well; a dry one leaves the payload behind."""
    meta, payload = encoded.meta, encoded.payload
    if job.dry:
        meta, payload = {**encoded.meta, "nbytes": len(encoded.payload)}, b""
    sample = Sample(job.item.id, cut, encoded.encoding, meta, file_nbytes, op_s, job.upkeep_s, queued_s, note)
    return Answer(sample, payload)


def answer_listing(store: Store, export: str, prefix: str) -> Answer:
    """The image files of an export, class by class."""
    try:
        tree = store.tree(export, prefix)
    except SophonError as error:
        return refuse(error)
    files = msgpack.packb([names for _, names in tree], unicode_errors="surrogateescape")
    return Answer(Listing([name for name, _ in tree]), zlib.compress(files, 1))


def answer_sizes(store: Store, export: str, keys: list[str]) -> Answer:
    """The sizes of some files, and where the export lies."""
    try:
        return Answer(Sizes(store.root(export), [store.size(export, key) for key in keys]))
    except SophonError as error:
        return refuse(error)


def refuse(error: SophonError, ids: list[int] | None = None) -> Answer:
    """The failure of requests whose files cannot be had."""
    return Answer(Failed(failure_of(error), str(error), ids or []))
