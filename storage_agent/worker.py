"""A worker process: runs the ops of one sample at a time. Imported first by the forkserver, for its imports.

Speaks to the broker over one channel: says READY once, then answers each job it is sent.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import replace
from functools import lru_cache
from multiprocessing.process import BaseProcess

import torch

from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import encode, encodings, used_at
from sophon_loader.errors import EncodingError, PipelineError
from sophon_loader.pipeline.catalogue import load_ops
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.pushdown import PartOfFile, part_of, run_from_file
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.pipeline.registration import Registration
from sophon_loader.wire.frames import content_hash
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from sophon_loader.wire.messages import Failed, Failure, Registered
from storage_agent import worker_protocol as protocol
from storage_agent.channel import Channel
from storage_agent.jobs import Answer, Job, file_answer, read_file, sample_answer
from storage_agent.settings import Settings
from storage_agent.store import Store
from storage_agent.upkeep import Upkeep

_NOTE_LIMIT = 2000


def main(settings: Settings, broker: Channel) -> None:
    """Body of a worker process; returns when the channel is closed, ends at once when the broker dies."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; the broker decides
        signal.signal(number, signal.SIG_IGN)
    _end_with_parent()
    torch.set_num_threads(1)
    what = "the ops of installed packages"
    try:
        load_ops()
        for what in settings.ops:
            importlib.import_module(what)
    except Exception as error:  # the boundary to user code
        text = f"cannot import {what}: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # it has ended, as another worker has said so before
            broker.send([protocol.BROKEN, text.encode("utf-8", "backslashreplace")])
        return
    with contextlib.suppress(Exception):  # a broken one of another package shows with the first sample
        encodings()  # loaded here, because the first sample's CPU seconds are measured
    try:
        broker.send([protocol.READY])
    except OSError:  # it has stopped in the meantime
        return
    _serve(broker, Store(settings.exports, settings.max_file_nbytes))


def _serve(broker: Channel, store: Store) -> None:
    upkeep = Upkeep()
    while True:
        try:
            frames = broker.receive()
        except (EOFError, OSError):  # it has stopped, or is gone
            return
        assert frames is not None, "this end of the channel waits"
        if frames[0] == protocol.REGISTER:
            said, answer = protocol.REGISTERED, register(bytes(frames[1]))
        else:
            job = Job.from_bytes(frames[1])
            job = replace(job, upkeep_s=job.upkeep_s + upkeep.per_sample_s)
            said, answer = protocol.ANSWER, answer_job(store, job, bytes(frames[2]))
            upkeep.count(answer.cpu_s)
        message = [said, *answer.frames()]
        try:
            broker.send(message)
        except OSError:
            return


def register(registration: bytes) -> Answer:
    """Whether, and how far, a pipeline can be run here."""
    digest = content_hash(registration)
    try:
        return Answer(Registered(digest, _pipeline(registration).reach))
    except PipelineError as error:
        return Answer(Failed(Failure.BAD_PIPELINE, str(error)[:_NOTE_LIMIT], digest=digest))


def answer_job(store: Store, job: Job, registration: bytes) -> Answer:
    """Run a job. If an op or the encoding fails, the file goes out and the loader meets the failure itself."""
    read = read_file(store, job)
    if isinstance(read, Answer):
        return read
    op_s = [read.cpu_s]
    try:
        pipeline = _pipeline(registration)
        cut = min(job.item.cut, pipeline.reach)
        encoded = _run(job, read.data, pipeline.chain, cut, op_s)
        short = cut < job.item.cut or (_cuts_the_file(job) and len(pipeline.chain) < 2)
        note = pipeline.why if short else ""
        answer = sample_answer(job, encoded, cut, len(read.data), op_s, read.queued_s, note)
        _ = answer.header  # too long when an encoding writes a great deal of meta
    except Exception as error:  # the boundary to user code
        return file_answer(job, read, _note_of(error))
    return answer


def _run(job: Job, data: bytes, chain: Chain, cut: int, op_s: list[float]) -> Encoded:
    """The value at the cut; appends the seconds of each op and of encoding to `op_s`."""
    draw = Draw(job.seed, job.epoch, job.item.sample, job.item.occurrence)
    last = time.thread_time()

    def after(stage: int, value: object) -> None:
        nonlocal last
        now = time.thread_time()
        op_s.append(now - last)
        last = now

    if cut > 0:
        value = run_from_file(chain, data, cut, draw, keep_info=job.keep_info, after=after)
    else:
        value = _part_or_file(job, data, chain, draw)
    last = time.thread_time() if cut > 0 else last
    name = job.item.encoding if cut > 0 or value is not data else "file"
    encoded = encode(value, name, keep_info=job.keep_info, allowed=job.allowed)
    if len(encoded.payload) > MAX_PAYLOAD_NBYTES:
        raise EncodingError(f"value at cut {cut} must be at most {MAX_PAYLOAD_NBYTES} bytes")
    op_s.append(time.thread_time() - last)
    return encoded


def _part_or_file(job: Job, data: bytes, chain: Chain, draw: Draw) -> PartOfFile | bytes:
    """The part of the file that will be read, or the file where it cannot be cut or is looked at whole."""
    if not _cuts_the_file(job) or job.keep_info:
        return data
    part = part_of(data, chain, draw)
    return part if isinstance(part, PartOfFile) else data


def _cuts_the_file(job: Job) -> bool:
    return used_at(job.item.encoding) is UsedAt.FIRST_REGION


def _note_of(error: Exception) -> str:
    # An encoding's text says it all, and may come with every sample.
    shown = traceback.format_exception_only if isinstance(error, EncodingError) else traceback.format_exception
    text = "".join(shown(error))
    if len(text) > 2 * _NOTE_LIMIT:
        text = f"{text[:_NOTE_LIMIT]} ... {text[-_NOTE_LIMIT:]}"
    return f"{type(error).__name__} at the agent:\n{text}"


@lru_cache(maxsize=64)
def _pipeline(registration: bytes) -> Registration:
    return Registration.from_bytes(registration)


def _end_with_parent() -> None:
    """Leave no orphan when the broker is killed: its death closes the pipe that `parent_process` watches."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        watcher = threading.Thread(target=_exit_after, args=(parent,), name="watch-parent", daemon=True)
        watcher.start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
