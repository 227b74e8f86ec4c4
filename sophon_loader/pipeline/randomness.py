"""Makes random numbers depend on (seed, epoch, sample index, occurrence, op position) and on nothing else.

Each op that draws runs with its global generators seeded for that op alone. So a sample does not depend on where it is
computed, or after which others. `preserved` restores the caller's generators.
"""

from __future__ import annotations

import gc
import os
import random
import struct
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from types import FrameType

import numpy as np
import torch

_MASK = (1 << 64) - 1
_PACK = struct.Struct("<QQQQ").pack
_PACK_AGAIN = struct.Struct("<QQQQQ").pack
_DRAW_NOTHING = sys.stdlib_module_names.union(
    ("sophon_loader", "torch", "tqdm", "zmq", "tornado"),
    ("IPython", "ipykernel", "jupyter_client", "traitlets", "decorator", "debugpy", "pydevd", "_pydevd_bundle"),
    ("prometheus_client", "tensorboard", "tensorboardX", "wandb", "pytest", "pytest_timeout", "execnet", "xdist"),
)
"""Packages whose own threads draw no random numbers; `__main__` and users' modules are not listed."""
_UNCOLLECTED = threading.RLock()
os.register_at_fork(
    before=_UNCOLLECTED.acquire, after_in_parent=_UNCOLLECTED.release, after_in_child=_UNCOLLECTED.release
)


@dataclass(frozen=True)
class Draw:
    """Numbers that select a sample's random numbers.

    Args:
        seed: seed of the run, any int.
        epoch: number of the epoch.
        index: index of the sample.
        occurrence: number of earlier occurrences of the index in this iteration.
    """

    seed: int
    epoch: int
    index: int
    occurrence: int = 0


@dataclass(frozen=True)
class Seed:
    """Seed of a run, from which all its random numbers come, at either end of the wire.

    Args:
        number: any int; stored modulo 2**64, as `op_seed` uses it and as it fits a message.

    Example:
        >>> Seed(7).draw(epoch=0, index=3)
        Draw(seed=7, epoch=0, index=3, occurrence=0)
    """

    number: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", self.number & _MASK)

    def draw(self, epoch: int, index: int, occurrence: int = 0) -> Draw:
        """Return the numbers that select a sample's random numbers.

        Args:
            epoch: number of the epoch, as in `set_epoch`.
            index: index of the sample in the dataset.
            occurrence: number of earlier occurrences of the index in the epoch.
        """
        return Draw(self.number, epoch, index, occurrence)


def op_seed(draw: Draw, position: int) -> int:
    """Return a seed in [0, 2**64) for one op.

    It is BLAKE2b of the four numbers: sums such as seed + index would give equal streams to different samples. An
    occurrence other than 0 is hashed as a fifth number; with more bytes, the seed differs from all others.

    Args:
        draw: the numbers of the sample that select its random numbers.
        position: position of the op in the pipeline, from 0.
    """
    four = (draw.seed & _MASK, draw.epoch & _MASK, draw.index & _MASK, position)
    packed = _PACK_AGAIN(*four, draw.occurrence & _MASK) if draw.occurrence else _PACK(*four)
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def seed_generators(draws: Collection[str], seed: int) -> None:
    """Seed global generators.

    Args:
        draws: names of the generators, a subset of `op.GENERATORS`.
        seed: number in [0, 2**64); torch and numpy use the low 32 bits, `random` all 64.
    """
    if "torch" in draws:
        # torch.manual_seed would also touch CUDA, which a forked worker must not initialise.
        torch.default_generator.manual_seed(seed)
    if "numpy" in draws:
        np.random.seed(seed & 0xFFFFFFFF)
    if "python" in draws:
        random.seed(seed)


def in_main_thread() -> bool:
    """Return True in the main thread of the process. Its other threads may draw from the generators meanwhile."""
    return threading.current_thread() is threading.main_thread()


def threads_beside() -> list[str]:
    """Return the names of other threads that may draw from the generators now.

    A thread counts as harmless if all frames on its stack belong to Python's library or to packages known to draw
    nothing. That covers the threads of idle pools, queues, servers, progress bars, notebooks and debuggers. Any other
    thread runs unknown code.
    """
    own = threading.get_ident()
    with _uncollected():
        names = {one.ident: one.name for one in threading.enumerate()}
        running = sys._current_frames()
        del running[own]  # a frame that refers to itself would keep its callers, and their loader, until a collection
        return sorted(names.get(ident, "unnamed") for ident, frame in running.items() if not _draws_nothing(frame))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Run a block during which no garbage is collected and no process forked.

    Python 3.11 makes the objects of a stack's frames on demand, and may collect garbage while it does. If a finalizer
    then ends the stack's thread, the frame becomes invalid, and Python crashes.
    """
    with _UNCOLLECTED:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def _draws_nothing(frame: FrameType | None) -> bool:
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package not in _DRAW_NOTHING:
            return False
        frame = frame.f_back
    return True


@contextmanager
def preserved(draws: Collection[str]) -> Iterator[None]:
    """Run a block that may draw from the named generators, and restore their states afterwards."""
    states = GeneratorStates(draws)
    try:
        yield
    finally:
        states.put_back()


class GeneratorStates:
    """States of the named generators at the time this is made.

    Args:
        draws: names of the generators, a subset of `op.GENERATORS`.
    """

    def __init__(self, draws: Collection[str]) -> None:
        self._torch = torch.default_generator.get_state() if "torch" in draws else None
        self._numpy = np.random.get_state() if "numpy" in draws else None
        self._python = random.getstate() if "python" in draws else None

    def put_back(self) -> None:
        """Restore the states."""
        try:  # restores each, even if a signal's handler raises meanwhile
            if self._torch is not None:
                torch.default_generator.set_state(self._torch)
        finally:
            try:
                if self._numpy is not None:
                    np.random.set_state(self._numpy)
            finally:
                if self._python is not None:
                    random.setstate(self._python)
