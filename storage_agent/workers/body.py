"""A worker process: runs the ops of samples, one at a time. Imported first by the forkserver, for its imports.

Speaks to the broker over one channel: says READY once, then answers each job it is sent.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import os
import signal
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING

import msgpack

from sophon_loader.encodings.catalogue import leave_out
from sophon_loader.encodings.encoding import Payload
from sophon_loader.encodings.registry import encodings
from sophon_loader.host.system import end_with_parent
from sophon_loader.programs.program import Limits
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.host.allocator import KEPT_NBYTES, keep_freed_memory
from storage_agent.host.channel import Channel
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.upkeep import Upkeep
from storage_agent.reading.answers import Answer
from storage_agent.stores import Exports, open_exports
from storage_agent.workers import message_types
from storage_agent.workers.agent_choice import Done
from storage_agent.workers.memory import Memory
from storage_agent.workers.prepared_job import Prepared
from storage_agent.workers.program_answers import CheckedProgram, answer_program, check_program, limits_of
from storage_agent.workers.program_choice import ProgramAppraisers, try_out_program
from storage_agent.workers.trials import SampleTrial

if TYPE_CHECKING:  # it imports torch
    from storage_agent.workers.answering import BuiltPipelines

MAX_TOGETHER = 4
"""Jobs that are looked at before the first of them is made, and answers that go out at once. Since jobs and answers go
together, upkeep under `auto` is 479 and 464 us per sample, not 643 and 669 (bench.hotpath). Eight brought no more."""
MAX_READ_NBYTES = 4 << 20
"""Of files that are kept until their turn comes, but for the last."""
MAX_HELD_NBYTES = 128 << 10
"""Of answers that are held, but for the last: what a socket takes without waiting for the other end."""
HOLD_S = 0.02
"""How long an answer may wait for the next ones."""
_LOOK_EVERY = 16
"""Samples after which a worker looks how much memory it has taken; it does so whenever one has failed."""


def main(settings: AgentSettings, broker: Channel, *, with_ops: bool) -> None:
    """Body of a worker process; returns when the channel is closed, ends at once when the broker dies.

    Args:
        settings: the agent's.
        broker: the channel to it.
        with_ops: True for a worker that runs named ops; False for one that runs programs, which imports no torch.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a Ctrl-C reaches the whole group; the broker decides
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    what = "the ops of installed packages"
    try:
        pipelines = pipelines_of(settings, with_ops=with_ops)
        for what in settings.ops if with_ops else ():
            importlib.import_module(what)
    except Exception as error:  # the boundary to user code
        text = f"cannot import {what}: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # it has ended, as another worker has said so before
            broker.send([message_types.BROKEN, text.encode("utf-8", "backslashreplace")])
        return
    with contextlib.suppress(Exception):  # a broken one of another package shows with the first sample
        encodings()  # loaded here, because the first sample's CPU seconds are measured
    refuse_what_pillow_warns_of()
    os.nice(settings.nice)
    keep_freed_memory(min(KEPT_NBYTES, settings.worker_nbytes // 8))  # what it keeps counts as taken
    memory = Memory(settings.worker_nbytes)
    try:
        broker.send([message_types.READY])
    except OSError:  # it has stopped in the meantime
        return
    Service(broker, open_exports(settings), pipelines, memory, limits_of(settings)).run()


def pipelines_of(settings: AgentSettings, *, with_ops: bool) -> BuiltPipelines | None:
    """The pipelines of an op worker, which has learnt none so far; None for a worker that runs programs.

    Args:
        settings: the agent's.
        with_ops: see `main`.

    Raises:
        Exception: see `answering.load`.
    """
    if not with_ops:
        leave_out("array")  # it imports torch, and no program ends in one
        return None
    from storage_agent.workers.answering import BuiltPipelines, load

    load()
    return BuiltPipelines(settings.max_px)


def refuse_what_pillow_warns_of() -> None:
    """From now on, have Pillow's warnings fail a job in this process, so that the file goes out: then the loader's own
    Pillow warns, or raises, as its program has asked for."""
    for category in (UserWarning, RuntimeWarning):
        warnings.filterwarnings("error", category=category, module=r"PIL\.")


class _Gone(Exception):
    """The broker has stopped, or has died."""


class Service:
    """Does what the broker says, until the channel is closed or this process has taken too much memory.

    Jobs that came together are looked at together, and their answers go out together, as long as the first of them need
    not wait for it: a turn of either process, after which the caches are another's, then serves several samples.

    Args:
        broker: the channel to it, which waits.
        exports: the agent's.
        pipelines: of this worker; None where the broker sends programs alone.
        memory: of this process.
        limits: of a program that comes in a request.

    Example:
        >>> Service(broker, open_exports(settings), None, Memory(2 << 30), Limits()).run()
    """

    def __init__(
        self, broker: Channel, exports: Exports, pipelines: BuiltPipelines | None, memory: Memory, limits: Limits
    ) -> None:
        self._broker = broker
        self._exports = exports
        self._learnt = pipelines
        self._memory = memory
        self._limits = limits
        self._appraisers = ProgramAppraisers()
        self._upkeep = Upkeep()
        self._since_s = time.monotonic()
        """Since when it has been at what it answers next."""
        self._answered = 0

    @property
    def _pipelines(self) -> BuiltPipelines:
        assert self._learnt is not None, "the broker sends jobs and news of pipelines to op workers alone"
        return self._learnt

    def run(self) -> None:
        """Serve; returns when there is nobody to serve, or memory is short."""
        with contextlib.suppress(_Gone):
            while True:
                for are_jobs, messages in itertools.groupby(
                    self._received(), lambda frames: frames[0] == message_types.JOB
                ):
                    if not (self._work if are_jobs else self._obey)(list(messages)):
                        return

    def _received(self) -> list[list[memoryview]]:
        """What has come, once something has."""
        waits_s = time.monotonic()
        try:
            frames = self._broker.receive()
        except (EOFError, OSError) as error:
            raise _Gone from error
        self._since_s += time.monotonic() - waits_s
        received = []
        while frames is not None:
            received.append(frames)
            frames = self._broker.at_hand()
        return received

    def _obey(self, messages: list[list[memoryview]]) -> bool:
        """Do what is said about pipelines; False once memory is short."""
        for word, *said in messages:
            digest = bytes(said[0]).decode()
            if word == message_types.TRIED_PROGRAM:
                self._appraisers.hear(digest, SampleTrial.from_bytes(said[1]))
            elif word == message_types.LEARN:
                self._pipelines.learn(digest, bytes(said[1]))
            elif word == message_types.FORGET:
                self._pipelines.forget(digest)
            elif word == message_types.TRIED:
                self._pipelines.hear(digest, SampleTrial.from_bytes(said[1]))
            else:
                self._broker.put([message_types.REGISTERED, *self._counted(self._pipelines.register(digest))])
                self._flush()
                if self._memory.short:
                    return False
        return True

    def _work(self, messages: list[list[memoryview]]) -> bool:
        """Answer jobs; False once memory is short."""
        jobs = deque(Job.from_frames(fetch, item, self._upkeep.per_sample_s) for _, fetch, item in messages)
        while jobs:
            done = self._answer(self._look_at(jobs))
            before, self._answered = self._answered, self._answered + len(done)
            for job, made in done:
                if job.fetch.has_programs:
                    word = message_types.TRIED_PROGRAM
                    trying, about = try_out_program(job, made, self._appraisers)
                else:
                    word, about = message_types.TRIED, job.fetch.digest
                    trying = self._pipelines.try_out(job, made)
                self._upkeep.count(made.answer.cpu_s + trying.cpu_s)
                if trying.to_tell is not None:
                    self._broker.put([word, about.encode(), trying.to_tell.to_bytes()])
            self._flush()
            is_time = before // _LOOK_EVERY != self._answered // _LOOK_EVERY
            if (is_time or any(made.failed for _, made in done)) and self._memory.short:
                return False
        return True

    def _look_at(self, jobs: deque[Job]) -> list[Prepared]:
        """Take the next jobs, and see what they are."""
        looked: list[Prepared] = []
        until_s, nbytes = time.monotonic() + HOLD_S, 0
        while jobs and len(looked) < MAX_TOGETHER and nbytes < MAX_READ_NBYTES:
            job = jobs.popleft()
            if job.fetch.has_programs:
                looked.append(check_program(self._exports, job, self._limits, self._appraisers))
            else:
                looked.append(self._pipelines.prepare(self._exports, job))
            nbytes += looked[-1].nbytes
            if time.monotonic() >= until_s:  # a slow disk: the first is not to wait for the others
                break
        return looked

    def _answer(self, looked: list[Prepared]) -> list[tuple[Job, Done]]:
        """Answer jobs that have been looked at. An answer is held while the next is expected to come in time."""
        done: list[tuple[Job, Done]] = []
        held_nbytes, until_s = 0, math.inf
        for one in looked:
            if held_nbytes >= MAX_HELD_NBYTES or time.monotonic() + one.expected_s > until_s:
                self._flush()
                held_nbytes, until_s = 0, math.inf
            made = answer_program(one) if isinstance(one, CheckedProgram) else self._pipelines.answer(one)
            message = [message_types.ANSWER, *self._counted(made.answer)]
            self._broker.put(message)
            held_nbytes += len(message[-1])
            until_s = min(until_s, self._since_s + HOLD_S)
            done.append((one.job, made))
        self._flush()
        return done

    def _flush(self) -> None:
        try:
            self._broker.flush()
        except OSError as error:
            raise _Gone from error

    def _counted(self, answer: Answer) -> list[Payload]:
        """An answer's frames behind what the broker counts."""
        since_s, self._since_s = self._since_s, time.monotonic()
        return [msgpack.packb((answer.kind, answer.cpu_s, self._since_s - since_s)), *answer.frames()]
