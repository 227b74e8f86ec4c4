"""A loader that streams until it is stopped, in a process of its own, and its log's figures for any seconds."""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler
from torchvision.datasets import ImageFolder

from bench.bed import Bed
from bench.children import LOADER_CORE, Child, Orders, agent_address, child
from bench.loading import quiet, training_pipeline
from sophon_loader import OffloadingDataLoader

Log = Sequence[Sequence[float]]
"""A row per batch: when it came (time.monotonic(), which all processes of a machine share), samples so far, and seconds
of training steps so far."""
LAST_BATCH_S = 20.0
"""Seconds that a log waits for a batch after the requested time: the slowest conditions give one in seconds."""
TOLD = ("bottleneck", "limits", "would_bring", "rates", "choices", "plan_reason", "samples", "fallbacks", "degraded")
"""Fields that are kept of a report."""


# --- logs -------------------------------------------------------------------------------------------------------------


def rate(log: Log, start_s: float, end_s: float) -> float:
    """Samples per second; a batch counts evenly over the time since the one before.

    Args:
        log: of a stream.
        start_s: on its clock.
        end_s: on its clock, > start_s. Time after the last batch counts as time without samples.
    """
    return _grown(log, 1, start_s, end_s) / (end_s - start_s)


def windows(log: Log, start_s: float, end_s: float, length_s: float) -> list[float]:
    """Samples per second of one window after the other; what is left at the end is not looked at.

    Args:
        log: of a stream.
        start_s: on its clock.
        end_s: on its clock.
        length_s: of a window, in seconds.
    """
    number = math.floor((end_s - start_s) / length_s + 1e-9)
    return [rate(log, start_s + i * length_s, start_s + (i + 1) * length_s) for i in range(number)]


def step_share(log: Log, start_s: float, end_s: float) -> float:
    """Share of the time that training steps took.

    Args:
        log: of a stream.
        start_s: on its clock.
        end_s: on its clock, > start_s.
    """
    return _grown(log, 2, start_s, end_s) / (end_s - start_s)


def deviation(values: Sequence[float]) -> float:
    """Standard deviation by the mean."""
    return statistics.pstdev(values) / statistics.fmean(values)


def _grown(log: Log, column: int, start_s: float, end_s: float) -> float:
    """By how much a column grew."""
    clock, values = ([row[i] for row in log] for i in (0, column))
    before, after = np.interp([start_s, end_s], clock, values)
    return float(after - before)


# --- the loader's process ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a streaming loader.

    Args:
        policy: its name.
        data: the ImageFolder tree.
        samples: of an epoch: the pictures are listed as often as it takes, each time with indices of their own.
        replicas: of a DistributedSampler that shuffles; the loader is rank 0 of this many, whose epochs are as long.
        batch_size: samples per batch.
    """

    policy: str
    data: str
    samples: int
    replicas: int = 1
    batch_size: int = 16


def listed(data: str, samples: int) -> ImageFolder:
    """The pictures with the training pipeline, listed again and again.

    Args:
        data: an ImageFolder tree.
        samples: how many there are to be.
    """
    dataset = ImageFolder(data, training_pipeline())
    times = math.ceil(samples / len(dataset.samples))
    dataset.samples = dataset.imgs = (dataset.samples * times)[:samples]
    dataset.targets = [target for _, target in dataset.samples]
    return dataset


class Stream:
    """Iterates over a loader, epoch after epoch, in a thread.

    Args:
        loader: which.

    Attributes:
        log: a row per batch so far.
        step_s: length of the training step of a batch, a sleep.

    Example:
        stream = Stream(loader)
        stream.begin()
        time.sleep(10.0)
        stream.end()
        rate(stream.log, stream.log[0][0], stream.log[-1][0])
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.log: list[tuple[float, int, float]] = []
        self.step_s = 0.0
        self._came, self._stop = threading.Condition(), threading.Event()
        self._pool = ThreadPoolExecutor(1, "stream")
        self._done: Future[None] | None = None

    def begin(self) -> None:
        """Start, and wait for the first batch."""
        self._done = self._pool.submit(self._run)
        self._done.add_done_callback(lambda _: self._tell())
        self.wait_until(0.0, None)

    def wait_until(self, clock_s: float, timeout_s: float | None) -> None:
        """Wait for a batch at or after a time.

        Args:
            clock_s: of time.monotonic().
            timeout_s: after which it is given up; None for never.
        """
        done = self._done
        assert done is not None, "begin() comes first"
        with self._came:
            self._came.wait_for(lambda: done.done() or bool(self.log and self.log[-1][0] >= clock_s), timeout_s)
        if done.done():
            done.result()  # raises what has ended it

    def end(self) -> None:
        """Stop after the batch that is on its way."""
        self._stop.set()
        self._pool.shutdown()

    def _run(self) -> None:
        samples, stepped_s = 0, 0.0
        for number in itertools.count():
            self._loader.set_epoch(number)
            for _, labels in self._loader:
                samples += len(labels)
                came_s = time.monotonic()
                self.log.append((came_s, samples, stepped_s))
                self._tell()
                if self._stop.wait(self.step_s):
                    return
                if self.step_s:
                    stepped_s += time.monotonic() - came_s

    def _tell(self) -> None:
        with self._came:
            self._came.notify_all()


@contextmanager
def streaming(address: str, **settings: Any) -> Iterator[Orders]:
    """A loader with one worker, which is made at the first order. Orders:

    epoch: with its number: run it; seconds from before its start (for the first one, before the loader is made).
    begin: stream until `stop`; the answer is the seconds to the first batch.
    step: of the stream from now on, in ms.
    report: the loader's, now.
    log: with a time: the log, once a batch came after that.
    stop: end the stream and the loader.

    Args:
        address: of the agent.
        settings: those of `StreamSettings`.
    """
    quiet()
    process = _Process(address, StreamSettings(**settings))
    try:
        yield {
            "epoch": lambda number: process.epoch(int(number)),
            "begin": lambda _: process.begin(),
            "step": lambda ms: process.step(float(ms)),
            "report": lambda _: process.report(),
            "log": lambda clock_s: process.log(float(clock_s)),
            "stop": lambda _: process.stop(),
        }
    finally:
        process.stop()


class _Process:
    """The loader of a streaming process.

    Args:
        address: of the agent.
        settings: of the loader.
    """

    def __init__(self, address: str, settings: StreamSettings) -> None:
        self._address, self._settings = address, settings
        self._dataset = listed(settings.data, settings.samples * settings.replicas)
        self._loader: OffloadingDataLoader[Any] | None = None
        self._stream: Stream | None = None

    def _made(self) -> OffloadingDataLoader[Any]:
        if self._loader is None:
            told = self._settings
            sampler: Any = DistributedSampler(self._dataset, told.replicas, rank=0, shuffle=True)
            self._loader = OffloadingDataLoader(
                self._dataset,
                told.batch_size,
                sampler=sampler,
                num_workers=1,
                persistent_workers=True,
                agent=self._address,
                policy=told.policy,
            )
        return self._loader

    def epoch(self, number: int) -> dict[str, Any]:
        started_s = time.monotonic()
        loader = self._made()
        loader.set_epoch(number)
        first_s, samples = None, 0
        for _, labels in loader:
            first_s = first_s or time.monotonic() - started_s
            samples += len(labels)
        seconds = time.monotonic() - started_s
        figures = {"seconds": seconds, "first_batch_s": first_s, "images_per_s": samples / seconds}
        return {"number": number, **figures, "report": self.report()}

    def begin(self) -> float:
        started_s = time.monotonic()
        self._stream = Stream(self._made())
        self._stream.begin()
        return self._stream.log[0][0] - started_s

    def step(self, step_ms: float) -> None:
        self._running().step_s = step_ms / 1000

    def report(self) -> dict[str, Any]:
        told = self._made().report().as_dict()
        return {name: told.get(name) for name in TOLD}

    def log(self, clock_s: float) -> list[tuple[float, int, float]]:
        stream = self._running()
        stream.wait_until(clock_s, LAST_BATCH_S)
        return [(round(clock, 3), samples, round(stepped, 3)) for clock, samples, stepped in stream.log]

    def stop(self) -> None:
        if self._stream is not None:
            self._stream.end()
        if self._loader is not None:
            self._loader.close()
        self._stream = self._loader = None

    def _running(self) -> Stream:
        assert self._stream is not None, "`begin` comes first"
        return self._stream


def streaming_loader(bed: Bed, settings: StreamSettings) -> AbstractContextManager[Child]:
    """A streaming loader's process on the loader's host.

    Args:
        bed: an open bed with an agent.
        settings: of the loader.
    """
    return child(bed.loader_host, LOADER_CORE, streaming, {"address": agent_address(bed), **asdict(settings)})
