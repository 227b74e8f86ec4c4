"""The DataLoader of torch's own class that reads a wrapped dataset by tickets, and starts the workers."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from sophon_loader.epoch.epoch import AsMade, Epoch
from sophon_loader.errors import warn_user
from sophon_loader.order.look_ahead import TorchsPrefetch, may_be_foreseen
from sophon_loader.order.order import Order
from sophon_loader.order.tickets import SLOT_NBYTES, QueuedTickets, room_ahead, slot_nbytes
from sophon_loader.pipeline.randomness import Seed, in_main_thread, op_seed, threads_beside
from sophon_loader.run.engine import Engine
from sophon_loader.run.ticket_sampler import TicketSampler
from sophon_loader.run.workforce import AutoWorkers
from sophon_loader.torch_internals.owned_workers import OwnedDataLoader
from sophon_loader.workers.init import WorkerInit

_WORKERS = -2
"""Placeholder for a sample's index; no sample has it, nor the order of a `ShardSampler`."""

_AMONG_THREADS = (
    "One worker process loads the samples, because num_workers=0 is not safe {}: the ops draw from random generators "
    "that all threads of a process share. Give num_workers=1 to choose this yourself."
)


def _why_unsafe() -> str:
    """Return the reason why ops must not draw random numbers in this process; "" if they may."""
    if not in_main_thread():
        return "outside the main thread"
    others = threads_beside()
    return f"beside other threads ({', '.join(others)})" if others else ""


@contextmanager
def undrawn(loader: DataLoader[Any], do: bool) -> Iterator[None]:
    """With `do`, have torch draw the seed of the workers that it starts from a separate generator."""
    before = loader.generator
    if do:
        loader.generator = torch.Generator(torch.get_default_device())  # where torch draws
        loader.generator.manual_seed(torch.initial_seed() + 1)
    try:
        yield
    finally:
        loader.generator = before


class TorchLoader:
    """Reads the samples of a loader, with workers by that loader's arguments.

    Args:
        outer: the user's loader, which owns this, and lives as long as an iteration of it.
        engine: of that loader.
        seed: of the run.
        order: of the loader's samplers.
        unasked: True if torch's loader would have kept its workers at this point, and drawn no number.
        needs_agent: True if nothing can be done without the agent.

    Attributes:
        loader: torch's.
        tickets: read by it.
        workers: their number; 1 in place of 0 if ops draw random numbers and another thread than the main one iterates
            or may draw, too. The generators belong to the whole process.

    Raises:
        AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
    """

    def __init__(
        self,
        outer: DataLoader[Any],
        engine: Engine,
        seed: Seed,
        order: Order,
        *,
        unasked: bool = False,
        needs_agent: bool = False,
    ) -> None:
        # No circle: workers and agent end with the last reference to the loader, and not with a garbage collection.
        self._outer: DataLoader[Any] = weakref.proxy(outer)
        self._engine, self._seed, self._order = engine, seed, order
        self.tickets = TicketSampler(order, len(engine.data))
        self.loader: OwnedDataLoader[Any]
        self._make(self._generator(order.epoch, 0) if unasked else outer.generator, needs_agent=needs_agent)

    def begin(self, epoch: Epoch) -> Iterator[Any]:
        """Return the batches of an epoch."""
        self.tickets.epoch = epoch
        epoch.account.workers = self.workers
        return self._begun(epoch)

    def change(self, number: int, epoch: Epoch) -> Iterator[Any]:
        """Go on with the rest of an epoch, whose tickets have been stopped, with another number of workers.

        Args:
            number: of workers; the current one is kept if a newer epoch has begun.
            epoch: that goes on.
        """
        self.end()
        generator = self._generator(epoch.number, epoch.delivered)
        if epoch.superseded:
            self.loader.generator = generator
        else:
            self._outer.num_workers = AutoWorkers(number)
            self._make(generator)
            self._engine.goes_on(epoch)
        epoch.account.workers = self.workers
        with self.tickets.going_on():
            return self._begun(epoch)

    def _begun(self, epoch: Epoch) -> Iterator[Any]:
        self.loader.meanwhile = meanwhile = self._engine.meanwhile(epoch)
        self._dataset.call_meanwhile(meanwhile)
        batches = iter(self.loader)
        if self._outer.in_order or self.workers < 2 or epoch.reading is None:
            return batches
        return AsMade(batches, epoch.reading)

    def end(self) -> None:
        """End persistent workers, also while an iterator is held."""
        workers: Any = getattr(self.loader, "_iterator", None)
        if hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
        self.loader._iterator = None

    def _generator(self, epoch: int, delivered: int) -> torch.Generator:
        """Return a generator for the seed of workers that torch would not have started: the user's is left alone."""
        generator = torch.Generator(torch.get_default_device())
        generator.manual_seed(op_seed(self._seed.draw(epoch, _WORKERS), delivered))
        return generator

    def _queue(self, workers: int, depth: int) -> QueuedTickets:
        """Return a queue for the tickets that torch hands out, and for later ones if workers may see those."""
        order, ahead = self._order, self._order.look_ahead
        by_torch = self._outer.prefetch_factor is None or isinstance(self._outer.prefetch_factor, TorchsPrefetch)
        if not by_torch or not may_be_foreseen(order.source):
            ahead.allow(0, workers)
            return QueuedTickets(workers * depth)
        nbytes = slot_nbytes(order.batch_size) if order.by_index else SLOT_NBYTES
        window = -(-self._engine.options.window // order.batch_size)
        ahead.allow(min(workers * window, room_ahead(nbytes)), workers)
        return QueuedTickets(workers * depth + ahead.most, nbytes)

    def _make(self, generator: torch.Generator | None, *, needs_agent: bool = False) -> None:
        outer, batched = self._outer, self._outer._auto_collation
        processes = max(1, outer.num_workers)
        dataset = self._dataset = self._engine.prepare(self._seed, outer.collate_fn, processes, needed=needs_agent)
        shares_generators = "" if outer.num_workers or not dataset.draws else _why_unsafe()
        if shares_generators:
            warn_user(_AMONG_THREADS.format(shares_generators))
        workers = self.workers = 1 if shares_generators else outer.num_workers
        # A batch's successor at the same worker is known if batches are dealt out in turn, and more than one at a time.
        depth = outer.prefetch_factor or 2
        in_turn = workers and outer.in_order and depth > 1
        self.tickets.queued = dataset.queued = self._queue(workers, depth) if in_turn else None
        of_workers: dict[str, Any] = {}
        if workers:  # what DataLoader refuses without any; `num_workers` may have been changed
            of_workers = {
                "prefetch_factor": depth,
                "persistent_workers": outer.persistent_workers,
                "multiprocessing_context": outer.multiprocessing_context,
                "timeout": outer.timeout,
                "worker_init_fn": WorkerInit(
                    None if shares_generators else outer.worker_init_fn, outer.dataset, outer.multiprocessing_context
                ),
            }
        with warnings.catch_warnings():  # the user's own has already warned of too many workers
            warnings.simplefilter("ignore")
            self.loader = OwnedDataLoader(
                dataset,
                batch_size=None if not batched else 1,
                sampler=None if batched else self.tickets,
                batch_sampler=self.tickets if batched else None,  # type: ignore[arg-type]
                num_workers=workers,
                collate_fn=self._engine.collate_fn,
                pin_memory=outer.pin_memory,
                pin_memory_device=outer.pin_memory_device,
                generator=generator,
                in_order=outer.in_order,
                **of_workers,
            )
