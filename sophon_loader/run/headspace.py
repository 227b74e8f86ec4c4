"""Measures how much faster the training step could go than it is fed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sophon_loader.epoch.epoch import EpochIterator
from sophon_loader.errors import ConfigError
from sophon_loader.figures import per_second

MIN_REPLAY_S = 2.0
"""Minimum duration of the replay of held batches, in seconds."""


@dataclass(frozen=True)
class Headspace:
    """Rates of a training step, alone and with its loader.

    Example:
        >>> print(loader.headspace(step))
        The training step alone takes 812 samples/s and gets 266 samples/s: a faster loader would bring up to
        3.1 times as many.

    Args:
        step_samples_s: samples/s of the step alone, on batches that are there already.
        loader_samples_s: samples/s of the step as the loader feeds it.
    """

    step_samples_s: float
    loader_samples_s: float

    @property
    def times(self) -> float:
        """Factor in samples/s that a loader could bring at most."""
        return self.step_samples_s / self.loader_samples_s

    def __str__(self) -> str:
        return (
            f"The training step alone takes {per_second(self.step_samples_s)} and gets "
            f"{per_second(self.loader_samples_s)}: a faster loader would bring up to {self.times:.2g} times as many."
        )


def measured_headspace(batches: Any, step: Callable[[Any], object], held: int, skipped: int, name: str) -> Headspace:
    """Step on batches as they arrive, then on some of them again, and return the rates.

    Args:
        batches: of an iteration that has just begun.
        step: the training step, called with every batch.
        held: batches to keep for the second part.
        skipped: batches before the first part counts: those requested at the start.
        name: of the dataset's class.

    Raises:
        ConfigError: the dataset cannot be offloaded, or the iteration is too short.
    """
    if not isinstance(batches, EpochIterator):
        raise ConfigError(
            f"headspace() needs a dataset that can be offloaded, got a {name}; "
            "print(loader.report()) says what it lacks"
        )
    kept: list[tuple[Any, int]] = []
    started_s, counted = time.perf_counter(), 0
    for number, batch in enumerate(batches):
        size = batches.last_size
        step(batch)
        if number == skipped:
            _synchronise()
            started_s, counted = time.perf_counter(), 0
            continue
        counted += size
        if number > skipped:
            kept.append((batch, size))
        if len(kept) == held:
            break
    _synchronise()
    if not kept:
        raise ConfigError(
            f"headspace() needs an epoch of more than {skipped + 1} batches, got fewer; use a smaller batch_size"
        )
    fed_s = time.perf_counter() - started_s
    return Headspace(_replayed(kept, step), counted / fed_s)


def _replayed(kept: list[tuple[Any, int]], step: Callable[[Any], object]) -> float:
    """Return samples/s of stepping on batches in memory."""
    for batch, _ in kept[:2]:
        step(batch)
    _synchronise()
    started_s, samples = time.perf_counter(), 0
    while True:
        for batch, size in kept:
            step(batch)
            samples += size
        _synchronise()
        seconds = time.perf_counter() - started_s
        if seconds >= MIN_REPLAY_S:
            return samples / seconds


def _synchronise() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
