"""A worker process: runs the ops of one sample at a time. Imported first by the forkserver, for its imports.

Speaks to the broker over one channel: says READY once, then answers each job it is sent.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.process import BaseProcess

import msgpack
import torch

from sophon_loader.encodings.encoding import Encoded, Payload
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import encode, encodings, used_at
from sophon_loader.errors import EncodingError, PipelineError, TooManyPixels
from sophon_loader.pipeline.catalogue import load_ops
from sophon_loader.pipeline.chain import Chain, Located
from sophon_loader.pipeline.pushdown import PartOfFile, part_of, run_from_file
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.pipeline.registration import Registration
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from sophon_loader.wire.messages import CHEAPEST, Failed, Failure, Offer, Registered, Sample
from storage_agent.answers import Answer, file_answer, read_file, sample_answer
from storage_agent.jobs import Job
from storage_agent.settings import Settings
from storage_agent.stores import Exports, open_exports
from storage_agent.upkeep import Upkeep
from storage_agent.workers import words
from storage_agent.workers.channel import Channel
from storage_agent.workers.choosing import Appraiser, Prices, cheapest, unproven
from storage_agent.workers.memory import Memory
from storage_agent.workers.trials import Picture, look_at, tried

OFFERED_EVERY = 8
"""Of the samples whose choice was left to the agent, one in so many tells what it was chosen from: 8 choices are 300
bytes, which are a thousandth of the traffic then."""
OFFERED_FIRST = 32
"""So many of the first ones of a connection all do, since a loader that has just begun knows nothing."""
TRIED_FROM_CORES = 0.06
"""Cores of a worker from which on samples are tried: of fewer, one trial would use up several periods of a quota."""
_LOOK_EVERY = 16
"""Samples after which a worker looks how much memory it has taken; it does so whenever one has failed."""
_NOTE_LIMIT = 2000
"""Characters of the beginning, and as many of the end, of a traceback that goes to a loader."""


class Learnt:
    """The pipelines that the broker has taught this worker, each built when it is first needed.

    The broker decides how many there are, and which is forgotten.

    Args:
        max_px: that an image may have behind an op, see `Chain`.

    Example:
        >>> learnt = Learnt()
        >>> learnt.learn(content_hash(registration), registration)
        >>> learnt.built(content_hash(registration)).reach
        3
    """

    def __init__(self, max_px: float = math.inf) -> None:
        self._max_px = max_px
        self._known: dict[str, bytes | Registration] = {}
        self._appraisers: dict[str, Appraiser] = {}

    def learn(self, digest: str, registration: bytes) -> None:
        """Keep a registration.

        Args:
            digest: the name by which jobs will call for it.
            registration: see `pipeline/registration.py`.
        """
        self._known[digest] = registration

    def forget(self, digest: str) -> None:
        """Drop it, and what its samples were found to take."""
        self._known.pop(digest, None)
        self._appraisers.pop(digest, None)

    def built(self, digest: str) -> Registration:
        """The pipeline of that digest.

        Raises:
            PipelineError: it cannot be built, or has not been learnt.
        """
        known = self._known.get(digest)
        if known is None:
            raise PipelineError(f"pipeline must have been sent to this worker, got {digest!r}")
        if isinstance(known, bytes):
            known = self._known[digest] = Registration.from_bytes(known, self._max_px)
        return known

    def appraiser(self, digest: str) -> Appraiser:
        """Who knows what the choices of that pipeline's samples take.

        Raises:
            PipelineError: see `built`.
        """
        if digest not in self._appraisers:
            pipeline = self.built(digest)
            self._appraisers[digest] = Appraiser(pipeline.chain, pipeline.reach)
        return self._appraisers[digest]


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
    os.nice(settings.nice)
    memory = Memory(settings.worker_nbytes)
    try:
        broker.send([words.READY])
    except OSError:  # it has stopped in the meantime
        return
    _serve(broker, open_exports(settings), Learnt(settings.max_px), memory)


def _serve(broker: Channel, exports: Exports, learnt: Learnt, memory: Memory) -> None:
    upkeep = Upkeep()
    for count in itertools.count(1):
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
            done = answer_job(exports, job, learnt)
            message = [words.ANSWER, *_counted(done.answer)]
        try:
            broker.send(message)
        except OSError:
            return
        if word == words.JOB:
            upkeep.count(done.answer.cpu_s + try_out(job, done, learnt))
        if (word != words.JOB or done.failed or count % _LOOK_EVERY == 0) and memory.short:
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


@dataclass(frozen=True)
class Done:
    """A job's answer, and what a trial of its sample would need.

    Args:
        answer: for the loader.
        data: the file, if the choice was left to this worker.
        picture: what was told of it.
        failed: whether an op or the encoding did.
    """

    answer: Answer
    data: bytes = b""
    picture: Picture | None = None
    failed: bool = False


def answer_job(exports: Exports, job: Job, learnt: Learnt) -> Done:
    """Run a job. If an op or the encoding fails, the file goes out and the loader meets the failure itself.

    Args:
        exports: the agent's.
        job: the sample.
        learnt: the pipelines of this worker, the job's among them.
    """
    read = read_file(exports, job)
    if isinstance(read, Answer):
        return Done(read)
    picture: Picture | None = None
    offers: list[Offer] = []
    op_s, since_s = [read.cpu_s], time.monotonic()
    try:
        pipeline = learnt.built(job.fetch.digest)
        if job.item.encoding == CHEAPEST:
            picture = look_at(read.data, pipeline.chain, _draw(job))
            cut, encoding, offers = _choice(job, learnt, picture)
        else:
            cut, encoding = min(job.item.cut, pipeline.reach), job.item.encoding
        run = _at_cut if cut > 0 else _at_file
        located = None if picture is None else picture.located
        encoded = run(job, read.data, pipeline.chain, cut, encoding, op_s, located)
        short = picture is None and (cut < job.item.cut or (_cuts_the_file(encoding) and len(pipeline.chain) < 2))
        note, work_s = pipeline.why if short else "", time.monotonic() - since_s
        told = offers if job.item.id <= OFFERED_FIRST or job.item.id % OFFERED_EVERY == 0 else ()
        answer = sample_answer(job, read, encoded, cut=cut, op_s=op_s, note=note, work_s=work_s, offers=told)
        _ = answer.header  # too long when an encoding writes a great deal of meta
    except Exception as error:  # the boundary to user code
        # Of its own choice nobody need know that no allowed encoding takes the value, or that it would be too large:
        # nothing was asked for.
        chosen = picture is not None and isinstance(error, (EncodingError, TooManyPixels))
        return Done(file_answer(job, read, "" if chosen else _note_of(error)), failed=True)
    return Done(answer, read.data, picture)


def _choice(job: Job, learnt: Learnt, picture: Picture) -> tuple[int, str, list[Offer]]:
    """The cut and the encoding that are cheapest for a sample, and what they were taken from."""
    fetch, appraiser = job.fetch, learnt.appraiser(job.fetch.digest)
    offers = appraiser.offers(picture, fetch.allowed, furthest=job.item.cut, keep_info=fetch.keep_info)
    if not offers:
        return *unproven(picture, fetch.allowed, keep_info=fetch.keep_info), []
    taken = cheapest(offers, Prices(*fetch.prices))
    return taken.cut, taken.encoding, offers


def try_out(job: Job, done: Done, learnt: Learnt) -> float:
    """Learn from a job that has been answered, and take its sample through the whole pipeline, if it is time for that.

    Args:
        job: the sample.
        done: what came of it.
        learnt: the pipelines of this worker.

    Returns:
        CPU seconds that a trial took.
    """
    if done.picture is None:
        return 0.0
    appraiser = learnt.appraiser(job.fetch.digest)
    sample = done.answer.message
    if isinstance(sample, Sample) and done.answer.payload:  # not of a dry run
        nbytes = len(done.answer.payload)
        appraiser.saw(done.picture, sample.cut, sample.encoding, nbytes, sample.op_s[-1])
    if job.fetch.per_worker < TRIED_FROM_CORES or not appraiser.due():
        return 0.0
    since_s = time.thread_time()
    chain, names = learnt.built(job.fetch.digest).chain, appraiser.names(job.fetch.allowed)
    try:
        trial = tried(done.data, done.picture, chain, _draw(job), names, keep_info=job.fetch.keep_info)
    except Exception:  # the boundary to user code; whoever runs that op for the loader says so
        appraiser.failed()
    else:
        appraiser.learn(trial)
    return time.thread_time() - since_s


def _at_cut(
    job: Job, data: bytes, chain: Chain, cut: int, encoding: str, op_s: list[float], located: Located | None
) -> Encoded:
    """The value at a cut above 0; appends the seconds of each op and of encoding to `op_s`."""
    last = time.thread_time()

    def after(stage: int, value: object) -> None:
        nonlocal last
        now = time.thread_time()
        op_s.append(now - last)
        last = now

    keep_info = job.fetch.keep_info
    value = run_from_file(chain, data, cut, _draw(job), keep_info=keep_info, after=after, located=located)
    return _encoded(job, value, encoding, cut, op_s, time.thread_time())


def _at_file(
    job: Job, data: bytes, chain: Chain, cut: int, encoding: str, op_s: list[float], located: Located | None
) -> Encoded:
    """The part of the file that will be read, or the whole in other words; the file as it is where that cannot be had.

    Appends the seconds of all together to `op_s`, unless the file goes out as it is because that is cheapest.
    """
    if encoding == "file":
        return Encoded("file", {}, data)
    since_s = time.thread_time()
    if _cuts_the_file(encoding):
        # Who looks at an image's info must be sent the whole.
        part = None if job.fetch.keep_info else part_of(data, chain, _draw(job), located=located)
        if isinstance(part, PartOfFile):
            return _encoded(job, part, encoding, cut, op_s, since_s)
    elif used_at(encoding) is UsedAt.FILE and encodings()[encoding].accepts(data):
        return _encoded(job, data, encoding, cut, op_s, since_s)
    return _encoded(job, data, "file", cut, op_s, since_s)


def _cuts_the_file(encoding: str) -> bool:
    return used_at(encoding) is UsedAt.FIRST_REGION


def _encoded(job: Job, value: object, encoding: str, cut: int, op_s: list[float], since_s: float) -> Encoded:
    encoded = encode(value, encoding, keep_info=job.fetch.keep_info, allowed=job.fetch.allowed)
    if len(encoded.payload) > MAX_PAYLOAD_NBYTES:
        raise EncodingError(f"value at cut {cut} must be at most {MAX_PAYLOAD_NBYTES} bytes")
    op_s.append(time.thread_time() - since_s)
    return encoded


def _draw(job: Job) -> Draw:
    return Draw(job.fetch.seed, job.fetch.epoch, job.item.sample, job.item.occurrence)


def _note_of(error: Exception) -> str:
    # These texts say it all, and may come with every sample.
    says_all = isinstance(error, (EncodingError, TooManyPixels))
    shown = traceback.format_exception_only if says_all else traceback.format_exception
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
