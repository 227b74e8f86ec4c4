"""The pass over the data that a user may have measured before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from sophon_loader.epoch.epoch import EpochIterator
from sophon_loader.run.engine import Engine


def measured_pass(batches: EpochIterator, engine: Engine, step: Callable[[Any], object] | None) -> None:
    """Go through one pass of an epoch, and have the engine learn from it.

    Args:
        batches: of a measuring epoch that has just begun.
        engine: of the epoch.
        step: the training step, called with every batch; None for none.
    """
    bar = tqdm(total=len(engine.data), desc="profiling", unit=" samples", leave=False, disable=None)
    with bar as progress:  # on a terminal; a log would have a line for every refresh
        for batch in batches:
            if step is not None:
                step(batch)
            progress.update(batches.epoch.delivered - progress.n)
            if batches.epoch.delivered >= len(engine.data):  # maybe of an endless sampler
                break
    if not batches.epoch.learnt:
        engine.finished(batches.epoch)
