"""The queues between a loader and its workers, where the handler of a signal raises at random moments."""

from __future__ import annotations

import multiprocessing
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sophon_loader.torch_internals.worker_queues import Asking, Sending
from tests.support.alarms import Interrupted, interruptible, raise_within

MESSAGES = 200


@contextmanager
def _queue(kind: type) -> Iterator[Any]:
    queue: Any = multiprocessing.get_context().Queue()
    queue.__class__ = kind
    queue.put((-1, "its thread starts"))
    assert queue.get(timeout=10)[0] == -1
    try:
        yield queue
    finally:
        queue.close()
        queue.join_thread()


@pytest.fixture
def alarm() -> Iterator[Any]:
    draw = random.Random(0)
    before = signal.signal(signal.SIGALRM, raise_within)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 2e-4))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _calmly(queue: Any) -> Any:
    signal.setitimer(signal.ITIMER_REAL, 0)
    return queue.get(timeout=10)


def test_whether_a_task_was_put_is_known(alarm: Any) -> None:
    interrupted = 0
    with _queue(Asking) as queue:
        for number in range(MESSAGES):
            try:
                alarm()
                interruptible(queue.put, (number, "task"))
            except Interrupted:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if number not in queue.newest:
                queue.put((number, "task"))
            queue.wake()
            assert _calmly(queue) == (number, "task")
    assert interrupted


@pytest.mark.parametrize("nbytes", [1, 200_000])
def test_a_message_is_read_on_where_it_was_interrupted(alarm: Any, nbytes: int) -> None:
    interrupted = lost = 0
    with _queue(Sending) as queue:
        queue.keeps = True
        queue.taken()
        for number in range(MESSAGES):
            queue.put((number, bytes(nbytes)))
            try:
                alarm()
                interruptible(queue.get, True, 10)
            except Interrupted:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            if queue._kept is None and queue._partly is None and not queue._reader.poll(0.2):
                lost += 1  # as it was unpickled
                continue
            assert _calmly(queue) == (number, bytes(nbytes))
            queue.taken()
    assert interrupted > lost


def test_a_message_of_more_than_two_gigabytes_is_announced_by_a_longer_head() -> None:
    with _queue(Sending) as queue:
        queue.taken()
        body = b"\x80\x04K\x07."
        queue._sem.acquire()
        for part in (b"\xff\xff\xff\xff", len(body).to_bytes(8, "big"), body):
            queue._writer._send(part)
        assert queue.get(timeout=10) == 7
