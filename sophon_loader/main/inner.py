"""The DataLoader of torch's own class that reads a wrapped dataset by tickets, and starts the workers."""

from __future__ import annotations

import warnings
from typing import Any

from torch.utils.data import DataLoader

from sophon_loader.main.engine import Engine
from sophon_loader.main.order import Order
from sophon_loader.main.sampler import TicketSampler
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.workers.init import WorkerInit
from sophon_loader.workers.tickets import QueuedTickets


def inner_of(
    loader: DataLoader[Any], engine: Engine, seed: Seed, order: Order
) -> tuple[DataLoader[Any], TicketSampler]:
    """What reads the samples of a loader, with the same workers, and what gives it tickets.

    Args:
        loader: the user's.
        engine: of that.
        seed: of the run.
        order: of the loader's samplers.

    Raises:
        AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
    """
    batched, workers = loader._auto_collation, loader.num_workers
    dataset = engine.prepare(seed, loader.collate_fn, max(1, workers))
    # A batch's successor at the same worker is known if batches are dealt out in turn, and more than one at a time.
    depth = loader.prefetch_factor or 2
    dataset.queued = QueuedTickets(workers * depth) if workers and loader.in_order and depth > 1 else None
    tickets = TicketSampler(order, len(engine.data), dataset.queued)
    of_workers: dict[str, Any] = {}
    if workers:  # what DataLoader refuses without any; `num_workers` may have been changed
        of_workers = {
            "prefetch_factor": depth,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
            "worker_init_fn": WorkerInit(loader.worker_init_fn, loader.dataset, loader.multiprocessing_context),
        }
    with warnings.catch_warnings():  # the user's own has already warned of too many workers
        warnings.simplefilter("ignore")
        inner: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=None if not batched else 1,
            sampler=None if batched else tickets,
            batch_sampler=tickets if batched else None,  # type: ignore[arg-type]
            num_workers=workers,
            collate_fn=engine.collate_fn,
            pin_memory=loader.pin_memory,
            pin_memory_device=loader.pin_memory_device,
            generator=loader.generator,
            in_order=loader.in_order,
            **of_workers,
        )
    return inner, tickets
