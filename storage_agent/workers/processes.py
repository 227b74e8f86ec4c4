"""The worker processes: started from a warmed parent, watched, replaced, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing.process import BaseProcess

from storage_agent.host.agent_settings import AgentSettings
from storage_agent.host.channel import Channel
from storage_agent.host.descriptors import NONE_LEFT
from storage_agent.workers.warm_parent import WarmParent

_START_AGAIN_S = 0.2
"""The pause after there was no descriptor for a worker's start: the agent's connections may take all of them."""

_BODY, _OPS = ["storage_agent.workers.body"], "storage_agent.workers.answering"
"""Modules of every worker, and of one that runs named ops."""


class Workers:
    """Starts worker processes and calls `started(number, channel)` and `ended(number, exit code)`, from a thread.

    Workers that run programs and workers that run named ops are forked from a parent each, and share its memory. The
    parent of the latter imports torch and torchvision once (some seconds), when the first of them is started. Each
    worker has a thread here that starts it, as soon as there are descriptors for that, and waits for its end, so
    nothing waits for a start.

    Owned by the broker's thread, which calls every method. Stopping climbs: the channel closed (by the broker),
    `join` until the deadline, SIGKILL.

    Args:
        settings: of the agent.
        started: called with the worker's number and the channel to it, before the worker speaks.
        ended: called with the worker's number and its exit code, or why it could not be started.

    Example:
        >>> put = lambda *notice: notices.put(notice)
        >>> workers = Workers(settings, put, put)
        >>> number = workers.start()
        >>> number, channel = notices.take(1)[0]
        >>> channel.send([message_types.FORGET, b"digest"])
        >>> channel.close()
        >>> workers.stop(5.0, told=[number])
    """

    def __init__(
        self, settings: AgentSettings, started: Callable[[int, Channel], None], ended: Callable[[int, str], None]
    ) -> None:
        self._settings = settings
        self._started = started
        self._ended = ended
        self._parents = {False: WarmParent(_BODY), True: WarmParent([*_BODY, _OPS])}
        """By whether their workers run named ops."""
        self._processes: dict[int, BaseProcess] = {}
        self._with_ops: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._serial = 0
        self._stopping = threading.Event()
        self._starting = {False: threading.Lock(), True: threading.Lock()}
        """Held while a process of a pool is started, which may start its forkserver, too."""

    def start(self, *, with_ops: bool = False) -> int:
        """Start one more worker; its number.

        Args:
            with_ops: True for one that runs named ops.
        """
        self._serial += 1
        number = self._serial
        if with_ops:
            self._with_ops.add(number)
        thread = threading.Thread(target=self._watch, args=(number,), name=f"watch-worker-{number}", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()
        return number

    def _watch(self, number: int) -> None:
        try:
            process = self._start(number)
        except (OSError, EOFError) as error:  # no process is left, or the forkserver is gone
            self._say_ended(number, f"{type(error).__name__}: {error}")
            return
        if self._stopping.is_set():
            process.kill()
        process.join()
        self._say_ended(number, str(process.exitcode))

    def _start(self, number: int) -> BaseProcess:
        """Start it, as soon as there are descriptors for that."""
        while True:
            try:
                return self._start_now(number)
            except OSError as error:
                if error.errno not in NONE_LEFT or self._stopping.wait(_START_AGAIN_S):
                    raise

    def _start_now(self, number: int) -> BaseProcess:
        """Start it, and hand over the channel to it."""
        ours, theirs = socket.socketpair()
        with_ops = number in self._with_ops
        try:
            with theirs, self._starting[with_ops]:
                if self._stopping.is_set():
                    raise EOFError("the agent ends")
                arguments = (self._settings, theirs, with_ops)
                parent = self._parents[with_ops]
                process = parent.process(target=_worker_main, args=arguments, name=f"sophon-worker-{number}")
                self._processes[number] = process
                parent.start(process)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        self._started(number, Channel(ours))
        return process

    def _say_ended(self, number: int, exit_code: str) -> None:
        if not self._stopping.is_set():  # else nobody listens any more
            self._ended(number, exit_code)

    def kill(self, number: int) -> None:
        """End a worker at once, if it has not ended."""
        process = self._processes.get(number)
        if process is not None and process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def forget(self, number: int) -> None:
        """A worker whose end has been dealt with."""
        self._processes.pop(number, None)
        self._with_ops.discard(number)

    def pids(self, *, with_ops: bool) -> list[int]:
        """Process ids of the started workers.

        Args:
            with_ops: True for those that run named ops, False for those that run programs.
        """
        started = [(process.pid, number in self._with_ops) for number, process in list(self._processes.items())]
        return [pid for pid, with_them in started if pid is not None and with_them == with_ops]

    def stop(self, deadline_s: float, told: Collection[int]) -> None:
        """End all workers.

        Args:
            deadline_s: how long those whose channel has been closed may take; then they are killed.
            told: their numbers; the others, still starting, are killed at once.
        """
        self._stopping.set()
        processes = dict(self._processes)
        for number, process in processes.items():
            if number not in told and process.pid is not None and process.is_alive():
                process.kill()
        if any(process.pid is None for process in processes.values()):
            self._end_parents()
        end = time.monotonic() + deadline_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        for process in dict(self._processes).values():
            if process.pid is not None and process.is_alive():
                process.kill()
        self._end_parents()
        for thread in self._threads:
            thread.join(2.0)

    def _end_parents(self) -> None:
        for parent in self._parents.values():
            parent.end()


def _worker_main(settings: AgentSettings, end: socket.socket, with_ops: bool) -> None:
    from storage_agent.workers.body import main

    with end:
        main(settings, Channel(end), with_ops=with_ops)
