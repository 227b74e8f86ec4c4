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
from multiprocessing.process import BaseProcess

import msgpack
import torch

from sophon_loader.encodings.encoding import Encoded, Payload
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import encode, encodings, used_at
from sophon_loader.errors import EncodingError, PipelineError
from sophon_loader.pipeline.catalogue import load_ops
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.pushdown import PartOfFile, part_of, run_from_file
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.pipeline.registration import Registration
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from sophon_loader.wire.messages import Failed, Failure, Registered
from storage_agent.answers import Answer, file_answer, read_file, sample_answer
from storage_agent.jobs import Job
from storage_agent.settings import Settings
from storage_agent.stores import Exports, open_exports
from storage_agent.upkeep import Upkeep
from storage_agent.workers import words
from storage_agent.workers.channel import Channel

_NOTE_LIMIT = 2000
"""Characters of the beginning, and as many of the end, of a traceback that goes to a loader."""


class Learnt:
    """The pipelines that the broker has taught this worker, each built when it is first needed.

    The broker decides how many there are, and which is forgotten.

    Example:
        >>> learnt = Learnt()
        >>> learnt.learn(content_hash(registration), registration)
        >>> learnt.built(content_hash(registration)).reach
        3
    """

    def __init__(self) -> None:
        self._known: dict[str, bytes | Registration] = {}

    def learn(self, digest: str, registration: bytes) -> None:
        """Keep a registration.

        Args:
            digest: the name by which jobs will call for it.
            registration: see `pipeline/registration.py`.
        """
        self._known[digest] = registration

    def forget(self, digest: str) -> None:
        """Drop it."""
        self._known.pop(digest, None)

    def built(self, digest: str) -> Registration:
        """The pipeline of that digest.

        Raises:
            PipelineError: it cannot be built, or has not been learnt.
        """
        known = self._known.get(digest)
        if known is None:
            raise PipelineError(f"pipeline must have been sent to this worker, got {digest!r}")
        if isinstance(known, bytes):
            known = self._known[digest] = Registration.from_bytes(known)
        return known


def main(settings: Settings, broker: Channel) -> None:
    """Body of a worker process; returns when the channel is closed, ends at once when the broker dies.

    Args:
        settings: the agent's.
        broker: the channel to it.
    """
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
            broker.send([words.BROKEN, text.encode("utf-8", "backslashreplace")])
        return
    with contextlib.suppress(Exception):  # a broken one of another package shows with the first sample
        encodings()  # loaded here, because the first sample's CPU seconds are measured
    try:
        broker.send([words.READY])
    except OSError:  # it has stopped in the meantime
        return
    _serve(broker, open_exports(settings))


def _serve(broker: Channel, exports: Exports) -> None:
    upkeep, learnt = Upkeep(), Learnt()
    while True:
        try:
            frames = broker.receive()
        except (EOFError, OSError):  # it has stopped, or is gone
            return
        assert frames is not None, "this end of the channel waits"
        word, *said = frames
        if word == words.LEARN:
            learnt.learn(_digest(said[0]), bytes(said[1]))
            continue
        if word == words.FORGET:
            learnt.forget(_digest(said[0]))
            continue
        if word == words.REGISTER:
            message = [words.REGISTERED, *_counted(register(learnt, _digest(said[0])))]
        else:
            job = Job.from_frames(said[0], said[1], upkeep.per_sample_s)
            answer = answer_job(exports, job, learnt)
            upkeep.count(answer.cpu_s)
            message = [words.ANSWER, *_counted(answer)]
        try:
            broker.send(message)
        except OSError:
            return


def _digest(frame: memoryview) -> str:
    return bytes(frame).decode()


def _counted(answer: Answer) -> list[Payload]:
    """The answer's frames behind what the broker counts."""
    return [msgpack.packb((answer.kind, answer.cpu_s)), *answer.frames()]


def register(learnt: Learnt, digest: str) -> Answer:
    """Whether, and how far, a pipeline can be run here.

    Args:
        learnt: the pipelines of this worker.
        digest: of one of them.
    """
    try:
        return Answer(Registered(digest, learnt.built(digest).reach))
    except PipelineError as error:
        return Answer(Failed(Failure.BAD_PIPELINE, str(error)[:_NOTE_LIMIT], digest=digest))


def answer_job(exports: Exports, job: Job, learnt: Learnt) -> Answer:
    """Run a job. If an op or the encoding fails, the file goes out and the loader meets the failure itself.

    Args:
        exports: the agent's.
        job: the sample.
        learnt: the pipelines of this worker, the job's among them.
    """
    read = read_file(exports, job)
    if isinstance(read, Answer):
        return read
    op_s = [read.cpu_s]
    try:
        pipeline = learnt.built(job.fetch.digest)
        cut = min(job.item.cut, pipeline.reach)
        run = _at_cut if cut > 0 else _at_file
        encoded = run(job, read.data, pipeline.chain, cut, op_s)
        short = cut < job.item.cut or (_cuts_the_file(job) and len(pipeline.chain) < 2)
        note = pipeline.why if short else ""
        answer = sample_answer(job, read, encoded, cut=cut, op_s=op_s, note=note)
        _ = answer.header  # too long when an encoding writes a great deal of meta
    except Exception as error:  # the boundary to user code
        return file_answer(job, read, _note_of(error))
    return answer


def _at_cut(job: Job, data: bytes, chain: Chain, cut: int, op_s: list[float]) -> Encoded:
    """The value at a cut above 0; appends the seconds of each op and of encoding to `op_s`."""
    last = time.thread_time()

    def after(stage: int, value: object) -> None:
        nonlocal last
        now = time.thread_time()
        op_s.append(now - last)
        last = now

    value = run_from_file(chain, data, cut, _draw(job), keep_info=job.fetch.keep_info, after=after)
    return _encoded(job, value, job.item.encoding, cut, op_s, time.thread_time())


def _at_file(job: Job, data: bytes, chain: Chain, cut: int, op_s: list[float]) -> Encoded:
    """The part of the file that will be read, or the whole in other words; the file as it is where that cannot be had.

    Appends the seconds of all together to `op_s`.
    """
    since_s = time.thread_time()
    encoding = job.item.encoding
    if _cuts_the_file(job):
        # Who looks at an image's info must be sent the whole.
        part = None if job.fetch.keep_info else part_of(data, chain, _draw(job))
        if isinstance(part, PartOfFile):
            return _encoded(job, part, encoding, cut, op_s, since_s)
    elif used_at(encoding) is UsedAt.FILE and encodings()[encoding].accepts(data):
        return _encoded(job, data, encoding, cut, op_s, since_s)
    return _encoded(job, data, "file", cut, op_s, since_s)


def _cuts_the_file(job: Job) -> bool:
    return used_at(job.item.encoding) is UsedAt.FIRST_REGION


def _encoded(job: Job, value: object, encoding: str, cut: int, op_s: list[float], since_s: float) -> Encoded:
    encoded = encode(value, encoding, keep_info=job.fetch.keep_info, allowed=job.fetch.allowed)
    if len(encoded.payload) > MAX_PAYLOAD_NBYTES:
        raise EncodingError(f"value at cut {cut} must be at most {MAX_PAYLOAD_NBYTES} bytes")
    op_s.append(time.thread_time() - since_s)
    return encoded


def _draw(job: Job) -> Draw:
    return Draw(job.fetch.seed, job.fetch.epoch, job.item.sample, job.item.occurrence)


def _note_of(error: Exception) -> str:
    # An encoding's text says it all, and may come with every sample.
    shown = traceback.format_exception_only if isinstance(error, EncodingError) else traceback.format_exception
    text = "".join(shown(error))
    if len(text) > 2 * _NOTE_LIMIT:
        text = f"{text[:_NOTE_LIMIT]} ... {text[-_NOTE_LIMIT:]}"
    return f"{type(error).__name__} at the agent:\n{text}"


def _end_with_parent() -> None:
    """Leave no orphan when the broker is killed: its death closes the pipe that `parent_process` watches."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        watcher = threading.Thread(target=_exit_after, args=(parent,), name="watch-parent", daemon=True)
        watcher.start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
