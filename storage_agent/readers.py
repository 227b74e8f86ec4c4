"""Threads in the broker's process for what needs no op: files that cross as they are, listings, sizes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from sophon_loader.errors import MessageTooLong
from sophon_loader.wire.messages import Failed, Failure
from storage_agent.answers import Answer

Task = tuple[Callable[[], Answer], Callable[[Answer], None], Sequence[int]]


class Readers:
    """`count` threads that make answers and hand them on.

    The queue is bounded by admission: no client may have more than its number of unanswered requests.

    Example:
        >>> readers = Readers(2)
        >>> readers.submit(lambda: answer_file(exports, job), notices.put, ids=[job.item.id])
        >>> readers.stop()
    """

    def __init__(self, count: int) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"reader-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, make: Callable[[], Answer], then: Callable[[Answer], None], ids: Sequence[int] = ()) -> None:
        """Have a thread call `make`, and then `then` with its answer.

        Args:
            make: makes the answer, in a reader's thread.
            then: takes it, in the same thread.
            ids: the samples concerned, should `make` fail.
        """
        self._tasks.put((make, then, ids))

    def stop(self) -> None:
        """End the threads after the tasks queued before."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(5.0)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            make, then, ids = task
            then(_made(make, ids))


def _made(make: Callable[[], Answer], ids: Sequence[int]) -> Answer:
    """The answer, with its header; if that cannot be, the loader is told why, and the thread lives on."""
    try:
        answer = make()
        _ = answer.header
    except MessageTooLong as error:
        return Answer(Failed(Failure.TOO_LONG, str(error), list(ids)))
    except Exception as error:  # no memory for a large file, say
        return Answer(Failed(Failure.UNREADABLE, f"{type(error).__name__}: {error}", list(ids)))
    return answer
