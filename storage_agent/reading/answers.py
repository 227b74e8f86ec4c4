"""Answers to loaders, and the making of those that need no op."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgpack

from sophon_loader.encodings.encoding import Encoded, Payload
from sophon_loader.errors import SophonError
from sophon_loader.wire.failures import failure_of
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import (
    AskHeaders,
    AskSizes,
    ExportQuestion,
    Failed,
    Headers,
    Listing,
    Offer,
    Registered,
    Sample,
    Sizes,
)
from sophon_loader.wire.samples import SamplesAsked, samples_asked
from storage_agent.jobs.jobs import Job
from storage_agent.reading.flat_samples import Samples
from storage_agent.reading.headers import headers_at
from storage_agent.reading.listing import classes_of, images_below
from storage_agent.stores import Exports
from storage_agent.stores.store import Store


@dataclass(frozen=True)
class Answer:
    """A message for a client, with its payload.

    Args:
        message: the header.
        payload: the frame after it, if the message has one.

    Example:
        >>> Answer(Failed(Failure.MISSING, "file must exist", [7])).kind
        'Failed'
    """

    message: Sample | Failed | Registered | Listing | Sizes | Headers
    payload: Payload | None = None

    @cached_property
    def header(self) -> bytes:
        """The packed header frame.

        Raises:
            MessageTooLong: the message exceeds a frame's limit.
        """
        return pack(self.message, b"" if self.payload is None else self.payload)

    @property
    def kind(self) -> str:
        """Encoding of a sample; for other messages, the name of their class."""
        return self.message.encoding if isinstance(self.message, Sample) else type(self.message).__name__

    @property
    def cpu_s(self) -> float:
        """CPU seconds of reading, ops and encoding."""
        return sum(self.message.op_s) if isinstance(self.message, Sample) else 0.0

    def frames(self) -> list[Payload]:
        """Return [header, payload] for the loader."""
        return [self.header] if self.payload is None else [self.header, self.payload]


@dataclass(frozen=True)
class FileRead:
    """File of a job, with times in seconds: CPU and wall clock of reading it, and the job's wait before that."""

    data: bytes
    cpu_s: float
    queued_s: float
    wall_s: float = 0.0


def read_file(exports: Exports, job: Job) -> FileRead | Answer:
    """Read the file of a job; return the refusal if it cannot be served.

    Args:
        exports: exports of the agent.
        job: the sample.
    """
    cpu_s, now_s = time.thread_time(), time.monotonic()
    try:
        data = exports[job.fetch.export].read(job.item.key)
    except SophonError as error:
        return refuse(error, [job.item.id])
    queued_s, wall_s = now_s - job.fetch.received_s, time.monotonic() - now_s
    if exports.is_far(job.fetch.export):
        wall_s = 0.0  # many are fetched at once, so a slow one does not show that the store is busy
    return FileRead(data, time.thread_time() - cpu_s, queued_s, wall_s)


def answer_file(exports: Exports, job: Job, note: str = "") -> Answer:
    """Return the answer with a job's file at stage 0, or the refusal if it cannot be served.

    Args:
        exports: exports of the agent.
        job: the sample.
        note: reason why the cut is earlier than requested; "" if it is not.
    """
    read = read_file(exports, job)
    return read if isinstance(read, Answer) else file_answer(job, read, note)


def file_answer(job: Job, read: FileRead, note: str) -> Answer:
    """Return the answer with the unchanged file.

    Args:
        job: the sample.
        read: its file.
        note: reason why the cut is earlier than requested; "" if it is not.
    """
    encoded = Encoded("file", {}, read.data)
    return sample_answer(job, read, encoded, cut=0, op_s=[read.cpu_s], note=note)


def sample_answer(
    job: Job,
    read: FileRead,
    encoded: Encoded,
    *,
    cut: int,
    op_s: list[float],
    note: str,
    work_s: float = 0.0,
    offers: Sequence[Offer] = (),
) -> Answer:
    """Return the answer of a successful job, without the payload if it is dry.

    Args:
        job: the sample.
        read: its file.
        encoded: the value at the cut.
        cut: stage of that value.
        op_s: CPU seconds of reading, of each op up to the cut, and of encoding (reading alone at cut 0).
        note: reason why the cut is earlier than requested, or the file is whole; "" otherwise.
        work_s: wall-clock seconds of ops and encoding.
        offers: choices that the agent considered, for the loader to see.
    """
    meta, payload = encoded.meta, encoded.payload
    if job.fetch.dry:
        meta, payload = {**encoded.meta, "nbytes": len(encoded.payload)}, b""
    sample = Sample(
        id=job.item.id,
        cut=cut,
        encoding=encoded.encoding,
        meta=meta,
        file_nbytes=len(read.data),
        op_s=op_s,
        upkeep_s=job.fetch.upkeep_s + job.own_upkeep_s,
        queued_s=read.queued_s,
        note=note,
        read_s=read.wall_s,
        work_s=work_s,
        cores=job.fetch.cores,
        per_worker=job.fetch.per_worker,
        offers=list(offers),
    )
    return Answer(sample, payload)


def answer_question(exports: Exports, question: ExportQuestion) -> Iterator[Answer | None]:
    """Answer a question about an export in small steps: yields None until the last step, then the answer or refusal.

    Args:
        exports: exports of the agent.
        question: asks for a folder's image files by class, for samples, or for the sizes or headers of some files.
    """
    try:
        store = exports[question.export]
        if isinstance(question, AskSizes):
            sizes = []
            for key in question.keys:
                sizes.append(store.size(key))
                yield None
            yield Answer(Sizes(store.describe(), sizes))
            return
        if isinstance(question, AskHeaders):
            yield from _headers(store, question)
            return
        asked = samples_asked(question.prefix)
        yield from _listing(store, question.prefix) if asked is None else _listing_of_samples(store, asked)
    except SophonError as error:
        yield refuse(error, [question.id] if isinstance(question, AskHeaders) else None)


def _headers(store: Store, question: AskHeaders) -> Iterator[Answer | None]:
    nbytes, headers = [], []
    for size, header in headers_at(store, question.keys):
        nbytes.append(size)
        headers.append(header)
        yield None
    yield Answer(Headers(question.id, nbytes, headers))


def _listing(store: Store, prefix: str) -> Iterator[Answer | None]:
    classes = classes_of(store, prefix)
    squeezed, packer = zlib.compressobj(1), msgpack.Packer(unicode_errors="surrogateescape")
    payload = squeezed.compress(packer.pack_array_header(len(classes)))
    for folder in classes.values():
        names: list[str] = []
        for found in images_below(store, folder):
            names += found
            yield None
        payload += squeezed.compress(packer.pack(names))
        yield None
    yield Answer(Listing(list(classes)), payload + squeezed.flush())


def _listing_of_samples(store: Store, asked: SamplesAsked) -> Iterator[Answer | None]:
    samples = Samples(store, asked)
    yield from samples.find()
    squeezed, packer = zlib.compressobj(1), msgpack.Packer(unicode_errors="surrogateescape")
    payload = squeezed.compress(packer.pack_array_header(len(samples.folders)))
    for position in range(len(samples.folders)):
        count, packed = 0, bytearray()
        for cells in samples.of(position):
            count += len(cells)
            for cell in cells:
                packed += packer.pack(cell)
            yield None
        payload += squeezed.compress(packer.pack_array_header(count)) + squeezed.compress(packed)
        yield None
    yield Answer(Listing(samples.folders), payload + squeezed.flush())


def refuse(error: SophonError, ids: list[int] | None = None) -> Answer:
    """Return the failure of requests that cannot be served.

    Args:
        error: the reason; its class must be in the table of `wire/failures.py`.
        ids: ids of the samples concerned; None if the message as a whole fails.
    """
    return Answer(Failed(failure_of(error), str(error), ids or []))
