"""Threads in the broker's process for what needs no op: files that cross as they are, listings, sizes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import zmq

from sophon_loader.errors import MessageTooLong
from sophon_loader.wire.messages import Failed, Failure
from storage_agent.jobs import Answer

READ, TOLD = b"read", b"told"

Task = tuple[bytes, bytes, Callable[[], Answer]]


class Readers:
    """`count` threads; what they make of a task arrives on the `notify` endpoint.

    The queue is bounded by admission: no client may have more than its number of unanswered requests.
    """

    def __init__(self, count: int, context: zmq.Context[zmq.Socket[bytes]], notify: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, args=(context, notify), name=f"reader-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, kind: bytes, client: bytes, make: Callable[[], Answer]) -> None:
        """Have `make` called by a thread and its answer sent to `client`.

        Args:
            kind: READ for a sample that admission has counted, else TOLD.
        """
        self._tasks.put((kind, client, make))

    def stop(self) -> None:
        """End the threads after the tasks queued before."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(5.0)

    def _work(self, context: zmq.Context[zmq.Socket[bytes]], notify: str) -> None:
        with context.socket(zmq.PUSH) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(notify)
            while (task := self._tasks.get()) is not None:
                kind, client, make = task
                socket.send_multipart([kind, client, *_made(make)])


def _made(make: Callable[[], Answer]) -> list[bytes]:
    """The answer's frames; if there is none, the loader is told why, and the thread lives on."""
    try:
        return make().frames()
    except MessageTooLong as error:
        return Answer(Failed(Failure.TOO_LONG, str(error))).frames()
