"""The worker processes: started from a warmed parent, watched, replaced, stopped."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Collection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

import zmq

from storage_agent.settings import Settings

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

DIED = b"died"


class Workers:
    """Starts worker processes and tells `notify` (an inproc endpoint) when one has ended.

    The forkserver imports torch and torchvision once (some seconds); workers are forked from it and share that
    memory. Each worker has a thread here that starts it and waits for its end, so nothing waits for a start.

    Owned by the broker's thread, which calls every method. Stopping climbs: STOP message (sent by the broker),
    `join` until the deadline, SIGKILL.
    """

    def __init__(self, settings: Settings, endpoint: str, context: zmq.Context[zmq.Socket[bytes]], notify: str):
        self._settings = settings
        self._endpoint = endpoint
        self._context = context
        self._notify = notify
        self._spawner: ForkServerContext = multiprocessing.get_context("forkserver")
        self._spawner.set_forkserver_preload(["storage_agent.worker"])
        self._processes: dict[bytes, BaseProcess] = {}
        self._threads: list[threading.Thread] = []
        self._serial = 0
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start one more worker."""
        self._serial += 1
        name = b"worker-%d" % self._serial
        process = self._spawner.Process(
            target=_worker_main, args=(self._settings, self._endpoint, name), name=f"sophon-{name.decode()}"
        )
        self._processes[name] = process
        thread = threading.Thread(target=self._watch, args=(name, process), name=f"watch-{name.decode()}", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _watch(self, name: bytes, process: BaseProcess) -> None:
        try:
            process.start()
        except (OSError, EOFError) as error:  # no process or descriptor to be had, or the forkserver is gone
            self._say_ended(name, f"{type(error).__name__}: {error}")
            return
        if self._stopping.is_set():
            process.kill()
        process.join()
        self._say_ended(name, str(process.exitcode))

    def _say_ended(self, name: bytes, exit_code: str) -> None:
        if self._stopping.is_set():
            return  # nobody listens any more, and the context may be closing
        with self._context.socket(zmq.PUSH) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._notify)
            socket.send_multipart([DIED, name, exit_code.encode()])

    def knows(self, name: bytes) -> bool:
        """Whether this worker has been started and not been forgotten."""
        return name in self._processes

    def forget(self, name: bytes) -> None:
        """A worker whose end has been dealt with."""
        self._processes.pop(name, None)

    @property
    def pids(self) -> list[int]:
        """Process ids of the started workers."""
        return [process.pid for process in self._processes.values() if process.pid is not None]

    def stop(self, deadline_s: float, told: Collection[bytes]) -> None:
        """End all workers.

        Args:
            deadline_s: how long those that have been told to stop may take; then they are killed.
            told: their names; the others, still starting, are killed at once.
        """
        self._stopping.set()
        for name, process in self._processes.items():
            if name not in told and process.pid is not None and process.is_alive():
                process.kill()
        end = time.monotonic() + deadline_s
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        for process in self._processes.values():
            if process.pid is not None and process.is_alive():
                process.kill()
        for thread in self._threads:
            thread.join(2.0)


def _worker_main(settings: Settings, endpoint: str, name: bytes) -> None:
    from storage_agent.worker import main

    main(settings, endpoint, name)
