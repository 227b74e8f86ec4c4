"""What a worker answers to one job of a pipeline: reads the file, chooses where that is left to it, runs the ops,
encodes.

In two steps, so that some jobs can be looked at one after the other before the first of them is made.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace

import torch
from PIL import Image

from sophon_loader.encodings.catalogue import ANY_PART
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.info import MoreThanPixels, info_of
from sophon_loader.encodings.registry import encodings, used_at
from sophon_loader.errors import EncodingError, PipelineError, TooManyPixels
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.described import Begun, begin_on_file, run_from_file
from sophon_loader.pipeline.op_catalogue import load_ops
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.pipeline.registration import Registration, see_opened_alike
from sophon_loader.wire.messages import CHEAPEST, Failed, Failure, Item, Registered
from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer, file_answer, read_file, sample_answer
from storage_agent.stores import Exports
from storage_agent.workers.agent_choice import Chosen, Done, Tried, choose, cuts_the_file, learn_from, told_of
from storage_agent.workers.appraiser import Appraiser
from storage_agent.workers.job_outcomes import NOTE_LIMIT, encoded_at, note_of
from storage_agent.workers.prepared_job import Prepared
from storage_agent.workers.trials import KnownPicture, SampleTrial, Stages, looked_at


def load() -> None:
    """Have this process run ops, those of installed packages too; torch runs each in one thread.

    Raises:
        Exception: of a package whose ops cannot be imported.
    """
    torch.set_num_threads(1)
    load_ops()


class BuiltPipelines:
    """The pipelines that the broker has taught this worker, each built when it is first needed.

    The broker decides how many there are, and which is forgotten.

    Args:
        max_px: that an image may have behind an op, see `Chain`.

    Attributes:
        doubtful: digests of those whose latest picture had an `info` that does not travel.

    Example:
        >>> learnt = BuiltPipelines()
        >>> learnt.learn(content_hash(registration), registration)
        >>> learnt.built(content_hash(registration)).reach
        3
    """

    def __init__(self, max_px: float = math.inf) -> None:
        self._max_px = max_px
        self._known: dict[str, bytes | Registration] = {}
        self._appraisers: dict[str, Appraiser] = {}
        self.doubtful: set[str] = set()

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
        self.doubtful.discard(digest)

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
            self._appraisers[digest] = Appraiser(len(pipeline.chain), pipeline.reach, pipeline.chain.resize_cut)
        return self._appraisers[digest]

    def hear(self, digest: str, trial: SampleTrial) -> None:
        """Another worker has tried a sample.

        Args:
            digest: of the pipeline, which this one has been taught.
            trial: what it found.
        """
        with contextlib.suppress(PipelineError):  # whoever has a job for it will see
            self.appraiser(digest).learn(trial)

    def register(self, digest: str) -> Answer:
        """Whether, and how far, a pipeline can be run here.

        Args:
            digest: of one of them.
        """
        try:
            return Answer(Registered(digest, self.built(digest).reach))
        except PipelineError as error:
            return Answer(Failed(Failure.BAD_PIPELINE, str(error)[:NOTE_LIMIT], digest=digest))

    def prepare(self, exports: Exports, job: Job) -> Prepared:
        """Read a job's file, and choose if that is left to this worker.

        Args:
            exports: the agent's.
            job: the sample.
        """
        read = read_file(exports, job)
        choice = Chosen(job.item.cut, job.item.encoding)
        if isinstance(read, Answer):
            return Prepared(job, read, choice)
        picture, error, since_s = None, None, time.monotonic()
        try:
            pipeline = self.built(job.fetch.digest)
            see_opened_alike(read.data, pipeline.left)
            if choice.encoding == CHEAPEST:
                picture = look_at(read.data, pipeline.chain, _draw(job))
                choice = choose(job, self.appraiser(job.fetch.digest), picture)
            else:
                choice = choice._replace(cut=min(choice.cut, pipeline.reach))
        except Exception as failed:  # the boundary to user code
            error = failed
        now_s = time.monotonic()
        return Prepared(job, read, choice, picture, error, now_s - since_s, now_s)

    def answer(self, prepared: Prepared) -> Done:
        """Run a job. If an op or the encoding fails, the file goes out and the loader meets the failure itself.

        Args:
            prepared: the job.
        """
        job, read, picture = prepared.job, prepared.read, prepared.picture
        if isinstance(read, Answer):
            return Done(read)
        cut, encoding, offers, _ = prepared.choice
        since_s = time.monotonic()
        read = replace(read, queued_s=read.queued_s + since_s - prepared.ready_s)
        op_s = [read.cpu_s]
        try:
            if prepared.error is not None:
                raise prepared.error
            pipeline = self.built(job.fetch.digest)
            run = _at_cut if cut > 0 else _at_file
            begun = picture.begun if picture is not None and isinstance(picture.begun, Begun) else None
            doubtful = job.fetch.digest in self.doubtful
            encoded = run(job, read.data, pipeline.chain, cut, encoding, op_s, begun, doubtful=doubtful)
            self.doubtful.discard(job.fetch.digest)
            short = picture is None and (cut < job.item.cut or (cuts_the_file(encoding) and len(pipeline.chain) < 2))
            note, work_s = pipeline.why if short else "", prepared.looked_s + time.monotonic() - since_s
            told = told_of(job, offers)
            made = sample_answer(job, read, encoded, cut=cut, op_s=op_s, note=note, work_s=work_s, offers=told)
            _ = made.header  # too long when an encoding writes a great deal of meta
        except Exception as error:  # the boundary to user code
            # Of its own choice nobody need know that no allowed encoding takes the value, or that it would be too
            # large: nothing was asked for. What keeps pictures from crossing, whose ops run in vain, can be changed.
            chosen = picture is not None and isinstance(error, (EncodingError, TooManyPixels))
            chosen = chosen and not isinstance(error, MoreThanPixels)
            if isinstance(error, MoreThanPixels):
                self.doubtful.add(job.fetch.digest)
            return Done(file_answer(job, read, "" if chosen else note_of(error, job.item.key)), failed=True)
        return Done(made, read.data, picture)

    def try_out(self, job: Job, done: Done) -> Tried:
        """Learn from a job that has been answered, and run its sample through the whole pipeline if a trial is due.

        Args:
            job: the sample.
            done: what came of it.
        """
        if done.picture is None:
            return Tried()
        appraiser, digest = self.appraiser(job.fetch.digest), job.fetch.digest
        return learn_from(job, done, appraiser, lambda: stages_of(self.built(digest).chain, _draw(job)))


def look_at(data: bytes, chain: Chain, draw: Draw) -> KnownPicture:
    """What can be told of a file without decoding it.

    Args:
        data: the file.
        chain: its pipeline.
        draw: decides what the pipeline reads.
    """
    return looked_at(data, begin_on_file(chain, data, draw))


def stages_of(chain: Chain, draw: Draw) -> Stages:
    """Those of a pipeline, for one sample.

    Args:
        chain: the pipeline.
        draw: of the sample.
    """
    return Stages(lambda data, after: chain.run(data, 0, len(chain), draw, after=after), chain.resize_cut)


def _at_cut(
    job: Job,
    data: bytes,
    chain: Chain,
    cut: int,
    encoding: str,
    op_s: list[float],
    begun: Begun | None,
    *,
    doubtful: bool,
) -> Encoded:
    """The value at a cut above 0; appends the seconds of each op and of encoding to `op_s`.

    Where it is doubtful whether the picture's `info` travels, that is looked at before any op runs in vain.
    """
    last, looks = time.thread_time(), doubtful and cut <= chain.image_stages

    def after(stage: int, value: object) -> None:
        nonlocal last
        now = time.thread_time()
        op_s.append(now - last)
        last = now
        if stage == 1 and looks and isinstance(value, Image.Image):
            info_of(value, job.fetch.allowed)

    value = run_from_file(chain, data, cut, _draw(job), after=after, begun=begun)
    return encoded_at(job, value, encoding, cut, op_s, time.thread_time())


def _at_file(
    job: Job,
    data: bytes,
    chain: Chain,
    cut: int,
    encoding: str,
    op_s: list[float],
    begun: Begun | None,
    *,
    doubtful: bool,
) -> Encoded:
    """The part of the file that will be read, or the whole in other words; the file as it is where that cannot be had.

    Appends the seconds of all together to `op_s`, unless the file goes out as it is because that is cheapest.
    """
    if encoding == "file":
        return Encoded("file", {}, data)
    since_s = time.thread_time()
    if cuts_the_file(encoding):
        if ANY_PART in job.fetch.allowed:
            begun = begun or begin_on_file(chain, data, _draw(job))
            part = None if begun is None else begun.part(keep_metadata=job.fetch.keep_info)
            if begun is not None and isinstance(part, PartOfFile):
                begun.source.let_pillow_warn()  # the loader will not see the whole header
                return encoded_at(job, part, encoding, cut, op_s, since_s)
    elif used_at(encoding) is UsedAt.FILE and encodings()[encoding].accepts(data):
        return encoded_at(job, data, encoding, cut, op_s, since_s)
    return encoded_at(job, data, "file", cut, op_s, since_s)


def _draw(job: Job) -> Draw:
    assert isinstance(job.item, Item), "the numbers of a program are drawn"
    return Draw(job.fetch.seed, job.fetch.epoch, job.item.sample, job.item.occurrence)
