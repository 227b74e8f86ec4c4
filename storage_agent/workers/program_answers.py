"""What a worker answers to a job that is a program: checks it, reads the file, runs the steps, encodes.

Nothing is drawn here and no pipeline is known. A program comes from whoever may connect, so it is checked against
limits before its file is read, and the file against what the program was drawn for.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from sophon_loader.encodings.catalogue import ANY_PART
from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import encodings, used_at
from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.execute import check, execute, part_read
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.programs.program import Limits, Program
from sophon_loader.wire.messages import ProgramItem
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer, FileRead, file_answer, read_file, refuse, sample_answer
from storage_agent.stores import Exports
from storage_agent.workers.answering import Done, cuts_the_file, encoded_at, note_of

MAX_WORK = 2e10
"""Multiplications of one program. A photo of 64 million pixels that is resized to half of its side takes 1.2e9."""
_LAST = len(SEGMENTS) - 2
"""The number of the last segment that an agent makes: the table is the loader's."""


@dataclass(frozen=True)
class CheckedProgram:
    """A job whose program has been checked and whose file has been read.

    Args:
        job: with a `ProgramItem`.
        program: unpacked.
        read: the file, or why there is no answer but this.
        ready_s: when all this was done, by this host's monotonic clock.
    """

    job: Job
    program: Program | None
    read: FileRead | Answer
    ready_s: float = 0.0

    @property
    def nbytes(self) -> int:
        """Of the file that is kept until the job is answered."""
        return len(self.read.data) if isinstance(self.read, FileRead) else 0

    expected_s: float = math.inf
    """CPU seconds that it will probably take; nobody knows."""


def limits_of(settings: AgentSettings) -> Limits:
    """How much a program may take at an agent.

    Args:
        settings: the agent's.
    """
    return Limits(px=settings.max_px, work=MAX_WORK, nbytes=settings.worker_nbytes / 2)


def check_program(exports: Exports, job: Job, limits: Limits) -> CheckedProgram:
    """Check the program of a job, then read its file.

    Args:
        exports: the agent's.
        job: with a `ProgramItem`.
        limits: of one program.
    """
    item = job.item
    assert isinstance(item, ProgramItem), "jobs of a FetchPrograms have these"
    try:
        program = Program.unpack(item.program)
        check(program, limits)
        if item.cut > _LAST:
            raise ProgramRefused(f"the segment of a program must be a number from 0 to {_LAST}, got {item.cut}")
        read = read_file(exports, job)
        if isinstance(read, FileRead) and len(read.data) != item.nbytes:
            raise ProgramRefused(
                f"the file of a program must have the {item.nbytes} bytes that it was drawn for, got {len(read.data)}; "
                "draw it anew"
            )
    except ProgramRefused as error:
        return CheckedProgram(job, None, refuse(error, [item.id]))
    return CheckedProgram(job, program, read, time.monotonic())


def answer_program(checked: CheckedProgram) -> Done:
    """Run a job's program. If a step or the encoding fails, the file goes out and the loader meets the failure itself.

    Args:
        checked: the job.
    """
    job, program, read = checked.job, checked.program, checked.read
    if program is None or isinstance(read, Answer):
        assert isinstance(read, Answer)
        return Done(read)
    since_s = time.monotonic()
    read = replace(read, queued_s=read.queued_s + since_s - checked.ready_s)
    op_s = [read.cpu_s]
    try:
        encoded = (_values if job.item.cut else _bytes_of_file)(job, program, read.data, op_s)
        work_s = time.monotonic() - since_s
        made = sample_answer(job, read, encoded, cut=job.item.cut, op_s=op_s, note="", work_s=work_s)
        _ = made.header  # too long when an encoding writes a great deal of meta
    except ProgramRefused as error:
        return Done(refuse(error, [job.item.id]))
    except Exception as error:  # a damaged file, or one that Pillow here reads otherwise
        return Done(file_answer(job, read, note_of(error, job.item.key)), failed=True)
    return Done(made)


def _values(job: Job, program: Program, data: bytes, op_s: list[float]) -> Encoded:
    """What the steps up to the wanted segment make of the picture; appends CPU seconds of these and of encoding."""
    since_s = time.thread_time()
    value = execute(program, data, stop=SEGMENTS[job.item.cut])
    now_s = time.thread_time()
    op_s.append(now_s - since_s)
    return encoded_at(job, value, job.item.encoding, job.item.cut, op_s, now_s)


def _bytes_of_file(job: Job, program: Program, data: bytes, op_s: list[float]) -> Encoded:
    """The part of the file that the steps read, or the whole in other words; the file as it is where neither is to be
    had. Appends CPU seconds, but for the file as it is."""
    encoding, since_s = job.item.encoding, time.thread_time()
    if cuts_the_file(encoding):
        if ANY_PART in job.fetch.allowed:
            part = part_read(program, data, keep_metadata=job.fetch.keep_info)
            if isinstance(part, PartOfFile):
                return encoded_at(job, part, encoding, 0, op_s, since_s)
    elif used_at(encoding) is UsedAt.FILE and encodings()[encoding].accepts(data):
        return encoded_at(job, data, encoding, 0, op_s, since_s)
    return Encoded("file", {}, data)
