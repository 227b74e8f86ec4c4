"""Choosing for a job whose choice was left to the worker, and learning from its answer. The job may name a pipeline or
a program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sophon_loader.encodings.catalogue import ANY_PART
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import used_at
from sophon_loader.wire.messages import Offer, Sample
from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer
from storage_agent.workers.appraiser import Appraiser, LoaderPrices, cheapest, of_parts, unproven
from storage_agent.workers.trials import KnownPicture, SampleTrial, Stages, tried

OFFERED_EVERY = 8
"""Samples per answer that lists the offers: 8 offers are 300 bytes, a thousandth of the traffic at this rate."""
OFFERED_FIRST = 96
"""Number of first answers of a connection that all list them, since a loader that has just begun knows nothing. Before
a worker knows the pipeline there are no offers."""
TRIED_FROM_CORES = 0.06
"""Cores of a worker from which on samples are tried: of fewer, one trial would use up several periods of a quota."""


@dataclass(frozen=True)
class Done:
    """A job's answer, and what a trial of its sample would need.

    Args:
        answer: for the loader.
        data: the file, if the choice was left to this worker.
        picture: facts about it.
        failed: whether an op or the encoding did.
    """

    answer: Answer
    data: bytes = b""
    picture: KnownPicture | None = None
    failed: bool = False


class Chosen(NamedTuple):
    """A cut and an encoding, what they were taken from, and the CPU seconds that they will probably take: infinitely
    many while that is not known."""

    cut: int
    encoding: str
    offers: Sequence[Offer] = ()
    expected_s: float = math.inf


def choose(
    job: Job, appraiser: Appraiser, picture: KnownPicture, of: Callable[[list[Offer]], list[Offer]] = list
) -> Chosen:
    """The cheapest choice for a sample.

    Args:
        job: the sample.
        appraiser: knows what its choices take.
        picture: facts about its file.
        of: which of the offers to choose from, and by which names; all, without it.
    """
    allowed = allowed_by(job)
    offers = of(appraiser.offers(picture, allowed, furthest=job.item.cut))
    if not offers:
        return Chosen(*unproven(picture, allowed))
    taken = cheapest(offers, LoaderPrices(*job.fetch.prices))
    return Chosen(taken.cut, taken.encoding, offers, taken.agent_s)


def told_of(job: Job, offers: Sequence[Offer]) -> Sequence[Offer]:
    """The offers that an answer lists; most answers list none.

    Args:
        job: the sample.
        offers: all of them.
    """
    return offers if job.item.id <= OFFERED_FIRST or job.item.id % OFFERED_EVERY == 0 else ()


class Tried(NamedTuple):
    """CPU seconds that a trial took, and what came of it for other workers to know."""

    cpu_s: float = 0.0
    to_tell: SampleTrial | None = None


def learn_from(
    job: Job, done: Done, appraiser: Appraiser, stages: Callable[[], Stages], cut: int | None = None
) -> Tried:
    """Learn from a job that has been answered, and take its sample through all stages, if it is time for that.

    Args:
        job: the sample, whose choice was left to this worker.
        done: what came of it.
        appraiser: of samples like this one.
        stages: makes how to run it, once that is wanted.
        cut: the stage of the answer, by the appraiser's count; None for the answer's own.
    """
    picture, sample = done.picture, done.answer.message
    assert picture is not None, "a choice was made"
    if isinstance(sample, Sample) and done.answer.payload:  # not of a dry run
        cut, nbytes = sample.cut if cut is None else cut, len(done.answer.payload)
        appraiser.saw(picture, cut, sample.encoding, nbytes, sample.op_s[-1])
    if job.fetch.per_worker < TRIED_FROM_CORES:
        return Tried()
    began_s, since_s = time.monotonic(), time.thread_time()
    allowed = allowed_by(job)
    cuts = of_parts(allowed) is not None
    lacking = appraiser.lacks(picture, allowed, cuts=cuts)
    if not appraiser.due(began_s, lacking):
        return Tried()
    to_tell = None
    names = appraiser.names(allowed)
    try:
        trial = tried(done.data, picture, stages(), names, cuts=cuts)
    except Exception:  # the boundary to user code; the loader meets it when it runs that op
        appraiser.failed(lacking)
    else:
        trial = replace(trial, lacking=tuple(lacking))
        appraiser.learn(trial)
        to_tell = trial if appraiser.is_warm else None
    appraiser.took(began_s, time.monotonic())
    return Tried(time.thread_time() - since_s, to_tell)


def allowed_by(job: Job) -> Collection[str]:
    """The encodings that the loader accepts; of loaders that take only some parts of files, without those of parts."""
    allowed = job.fetch.allowed
    return allowed if ANY_PART in allowed else [name for name in allowed if not cuts_the_file(name)]


def cuts_the_file(encoding: str) -> bool:
    """True if an encoding is of a part of a file."""
    return used_at(encoding) is UsedAt.FIRST_REGION
