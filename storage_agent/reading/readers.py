"""Threads in the broker's process for answers that need no op: unchanged files, listings, sizes, headers."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sophon_loader.errors import MessageTooLong
from sophon_loader.wire.messages import Failed, Failure
from storage_agent.jobs.turns import NBYTES_PER_S, Turns
from storage_agent.reading.answers import Answer

SLICE_S = 0.02
"""Seconds of a thread in a row for one client, before it is another one's turn: a long listing takes many turns."""
_AHEAD = 2
"""Number of tasks handed out per thread: one at work, one waiting."""


@dataclass(frozen=True)
class ReaderTask:
    """An answer that a thread is to make.

    Args:
        client: client that gets the answer.
        make: called until it returns an answer; None means that there is more to do.
        then: called with the answer in the thread that owns the readers.
        ids: ids of the samples concerned, for the refusal if `make` fails.
    """

    client: bytes
    make: Callable[[], Answer | None]
    then: Callable[[Answer], None]
    ids: Sequence[int] = ()


class Readers:
    """Runs `count` threads that make answers; clients take turns by time. One thread owns it.

    The queue is bounded by admission, which limits each client's unanswered requests.

    Args:
        count: number of threads.
        hand_in: called by them; makes the owner's thread call a function with its arguments.

    Example:
        >>> readers = Readers(2, lambda function, *arguments: notices.put(partial(function, *arguments)))
        >>> readers.submit(ReaderTask(client, lambda: answer_file(exports, job), reply, ids=[job.item.id]))
        >>> readers.stop()

    Attributes:
        turns: the waiting tasks.
    """

    def __init__(self, count: int, hand_in: Callable[..., None]) -> None:
        self._hand_in = hand_in
        self.turns: Turns[ReaderTask] = Turns()
        self._room = _AHEAD * count
        self._tasks: queue.SimpleQueue[ReaderTask | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"reader-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: ReaderTask) -> None:
        """Have a thread do a task when it is its client's turn."""
        self.turns.push(task.client, task)
        self.assign()

    def hold(self, client: bytes, held: bool) -> None:
        """Stop working for a client, or go on.

        Args:
            client: client of the tasks.
            held: True if its tasks must wait.
        """
        self.turns.hold(client, held)
        self.assign()

    def assign(self) -> None:
        """Hand out waiting tasks as far as threads are free."""
        while self._room and (turn := self.turns.pop()) is not None:
            self._room -= 1
            self._tasks.put(turn[1])

    def stop(self) -> None:
        """End the threads after the tasks that they were given."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(5.0)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            since_s = time.monotonic()
            answer = None
            while answer is None and time.monotonic() < since_s + SLICE_S:
                answer = _made(task)
            self._hand_in(self._worked, task, answer, time.monotonic() - since_s)

    def _worked(self, task: ReaderTask, answer: Answer | None, took_s: float) -> None:
        self._room += 1
        nbytes = 0 if answer is None or answer.payload is None else len(answer.payload)
        self.turns.spent(task.client, took_s + nbytes / NBYTES_PER_S)
        if answer is None:
            self.turns.push(task.client, task, first=True)
        self.assign()
        if answer is not None:
            task.then(answer)


def _made(task: ReaderTask) -> Answer | None:
    """Call `make` and pack the answer's header. An error becomes a refusal for the loader, and the thread lives on."""
    try:
        answer = task.make()
        if answer is not None:
            _ = answer.header
    except MessageTooLong as error:
        return Answer(Failed(Failure.TOO_LONG, str(error), list(task.ids)))
    except Exception as error:  # for instance, no memory for a large file
        return Answer(Failed(Failure.UNREADABLE, f"{type(error).__name__}: {error}", list(task.ids)))
    return answer
