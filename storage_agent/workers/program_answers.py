"""What a worker answers to a job that is a program: checks it, reads the file, chooses where that is left to it, runs
the steps, encodes.

Nothing is drawn here and no pipeline is known. A program comes from whoever may connect, so it is checked against
limits before its file is read, and the file against what the program was drawn for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache

from sophon_loader.encodings.catalogue import ANY_PART
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.info import MoreThanPixels
from sophon_loader.encodings.registry import encodings, used_at
from sophon_loader.errors import EncodingError, ProgramRefused, TooManyPixels
from sophon_loader.kinds.image.execute import begin_program, check, image_at, part_of_begun
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.kinds.image.source import StepsOnPicture
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Limits, Program
from sophon_loader.wire.messages import CHEAPEST, ProgramItem
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer, FileRead, file_answer, read_file, refuse, sample_answer
from storage_agent.stores import Exports
from storage_agent.workers.agent_choice import Chosen, Done, cuts_the_file, told_of
from storage_agent.workers.job_outcomes import encoded_at, note_of
from storage_agent.workers.prepared_job import Prepared
from storage_agent.workers.program_choice import LAST_MADE, ProgramAppraisers, choose_for_program, look_at_program

MAX_WORK = 2e10
"""Multiplications of one program. A photo of 64 million pixels that is resized to half of its side takes 1.2e9."""


_pixels_by = cache(pixels_by)  # nothing in a worker changes it once the modules of --ops are imported


@dataclass(frozen=True)
class CheckedProgram(Prepared):
    """A job whose program has been checked and whose file has been read; its cuts are segments.

    Args:
        program: unpacked; None for one that is refused.
    """

    program: Program | None = None


def limits_of(settings: AgentSettings) -> Limits:
    """How much a program may take at an agent.

    Args:
        settings: the agent's.
    """
    return Limits(px=settings.max_px, work=MAX_WORK, nbytes=settings.worker_nbytes / 2)


def check_program(exports: Exports, job: Job, limits: Limits, appraisers: ProgramAppraisers) -> CheckedProgram:
    """Check the program of a job, then read its file, and choose if that is left to this worker.

    Args:
        exports: the agent's.
        job: with a `ProgramItem`.
        limits: of one program.
        appraisers: of this worker.
    """
    item = job.item
    assert isinstance(item, ProgramItem), "jobs of a FetchPrograms have these"
    choice, picture, error, since_s = Chosen(item.cut, item.encoding), None, None, 0.0
    try:
        program = Program.unpack(item.program)
        check(program, limits)
        if item.cut > LAST_MADE:
            raise ProgramRefused(f"the segment of a program must be a number from 0 to {LAST_MADE}, got {item.cut}")
        if item.cut and job.fetch.pixels_by != _pixels_by():
            if item.encoding != CHEAPEST:
                raise ProgramRefused(
                    f"pixels must be made by {job.fetch.pixels_by}, as at the loader, got {_pixels_by()}; ask for a "
                    "part of the file"
                )
            job = replace(job, item=item._replace(cut=0))
        read = read_file(exports, job)
        if isinstance(read, FileRead) and len(read.data) != item.nbytes:
            raise ProgramRefused(
                f"the file of a program must have the {item.nbytes} bytes that it was drawn for, got {len(read.data)}; "
                "draw it anew"
            )
        since_s = time.monotonic()
        if isinstance(read, FileRead) and item.encoding == CHEAPEST:
            picture = look_at_program(read.data, program)
            choice = choose_for_program(job, appraisers, picture)
    except ProgramRefused as refused:
        return CheckedProgram(job, refuse(refused, [item.id]), choice)
    except Exception as failed:  # a damaged file, or an encoding of somebody else's
        error = failed
    now_s = time.monotonic()
    return CheckedProgram(job, read, choice, picture, error, now_s - since_s, now_s, program)


def answer_program(checked: CheckedProgram) -> Done:
    """Run a job's program. If a step or the encoding fails, the file goes out and the loader meets the failure itself.

    Args:
        checked: the job.
    """
    job, program, read, picture = checked.job, checked.program, checked.read, checked.picture
    if program is None or isinstance(read, Answer):
        assert isinstance(read, Answer)
        return Done(read)
    cut, encoding, offers, _ = checked.choice
    since_s = time.monotonic()
    read = replace(read, queued_s=read.queued_s + since_s - checked.ready_s)
    op_s = [read.cpu_s]
    try:
        if checked.error is not None:
            raise checked.error
        begun = None if picture is None else picture.begun
        encoded = _encoded(job, program, begun, read.data, cut, encoding, op_s)
        work_s, told = checked.looked_s + time.monotonic() - since_s, told_of(job, offers)
        made = sample_answer(job, read, encoded, cut=cut, op_s=op_s, note="", work_s=work_s, offers=told)
        _ = made.header  # too long when an encoding writes a great deal of meta
    except ProgramRefused as error:
        return Done(refuse(error, [job.item.id]))
    except Exception as error:  # a damaged file, or one that Pillow here reads otherwise
        # What goes unasked needs no excuse, as for pipelines.
        chosen = picture is not None and isinstance(error, (EncodingError, TooManyPixels))
        chosen = chosen and not isinstance(error, MoreThanPixels)
        return Done(file_answer(job, read, "" if chosen else note_of(error, job.item.key)), failed=True)
    return Done(made) if picture is None else Done(made, read.data, picture)


def _encoded(
    job: Job,
    program: Program,
    begun: StepsOnPicture | None,
    data: bytes,
    cut: int,
    encoding: str,
    op_s: list[float],
) -> Encoded:
    """What the steps up to a segment make of the picture, or the file in other words; appends CPU seconds of these and
    of encoding, but for the file as it is."""
    since_s = time.thread_time()
    if cut > 0:
        value = image_at(begun or begin_program(program, data), SEGMENTS[cut])
        now_s = time.thread_time()
        op_s.append(now_s - since_s)
        return encoded_at(job, value, encoding, cut, op_s, now_s)
    if cuts_the_file(encoding):
        if ANY_PART in job.fetch.allowed:
            part = part_of_begun(begun or begin_program(program, data), keep_metadata=job.fetch.keep_info)
            if isinstance(part, PartOfFile):
                return encoded_at(job, part, encoding, 0, op_s, since_s)
    elif encoding != "file" and used_at(encoding) is UsedAt.FILE and encodings()[encoding].accepts(data):
        return encoded_at(job, data, encoding, 0, op_s, since_s)
    return Encoded("file", {}, data)
