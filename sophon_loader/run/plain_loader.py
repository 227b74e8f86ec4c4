"""Iterations of a loader whose dataset cannot be offloaded: torch's own, which also report their progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from sophon_loader.device.prefetch import ahead
from sophon_loader.epoch.epoch import AsMade, Epoch, EpochIterator, Observer
from sophon_loader.order.dataset_copies import BatchesWithStates
from sophon_loader.order.loader_state import LoaderState
from sophon_loader.order.order import Order
from sophon_loader.run.torch_loader import undrawn
from sophon_loader.settings import Settings
from sophon_loader.torch_internals.iterator_wrapper import Around
from sophon_loader.torch_internals.owned_workers import takes_a_batch
from sophon_loader.torch_internals.untraced import untraced


def plain_batches(
    loader: DataLoader[Any], begin: Callable[[], Any], place: LoaderState, settings: Settings, *, in_turn: bool
) -> PlainIterator:
    """Return the batches of an iteration.

    Args:
        loader: the user's.
        begin: returns DataLoader's iterator of it.
        place: of the loader.
        settings: of the loader.
        in_turn: True if batches come in the sampler's order.
    """
    if loader._iterator is not None and place.copies.out_of_order:
        place.copies.in_order()
        end_plain_workers(loader)
        place.persisting = True
    with undrawn(loader, place.persisting):
        batches = place.copies.begun(loader, begin)
    told = batches if isinstance(batches, BatchesWithStates) else None
    if not in_turn and place.order.newest is not None:
        batches = AsMade(batches, place.order.newest)
    return PlainIterator(ahead(batches, settings.device_prefetch, settings.tail), place.order, told)


def end_plain_workers(loader: DataLoader[Any]) -> None:
    """End persistent workers."""
    persisting: Any = loader._iterator
    if persisting is not None:
        persisting._shutdown_workers()
    loader._iterator = None


class PlainIterator(Around):
    """An iterator of DataLoader's own that also reports its progress.

    Args:
        batches: of DataLoader; its attributes are those of this object, too.
        order: of the loader; a reading of it has begun.
        told: takes states of the dataset's copies in the workers; None if those have no state.
    """

    def __init__(self, batches: Any, order: Order, told: BatchesWithStates | None) -> None:
        assert order.newest is not None
        super().__init__(batches)
        self._reading = order.newest
        self._told = told
        self._alone = isinstance(batches, _SingleProcessDataLoaderIter)  # one batch is made at a time, when it is due
        self._size = 0
        self.ended = False

    @untraced
    def __next__(self) -> Any:
        if self._alone:
            self._reading.give_up()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._reading.ended = True
            raise
        except BaseException as error:
            if takes_a_batch(error):
                self._batch_passed()
            raise
        self._batch_passed()
        return batch

    def _batch_passed(self) -> None:
        self._size = self._reading.passed()
        if self._told is not None:
            self._told.passed()

    def passed(self) -> int:
        """Return the size of the newest batch in samples, as `Reading.passed` does."""
        return self._size


class ObservedPlain(Around):
    """A `PlainIterator` of an epoch that an engine observes, because an agent makes some of its pictures.

    Args:
        observer: the engine.
        epoch: that it has begun.
        batches: of the epoch.
        length: in batches; None if not known.
    """

    def __init__(self, observer: Observer, epoch: Epoch, batches: PlainIterator, length: int | None) -> None:
        super().__init__(batches)
        epoch.reading = batches  # type: ignore[assignment]  # all that an epoch in turn asks of a reading
        self._observed = EpochIterator(observer, epoch, batches, length, None)

    @untraced
    def __next__(self) -> Any:
        return next(self._observed)
