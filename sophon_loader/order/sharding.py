"""A sampler for several ranks: each index once, and equally many steps at each rank, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset

from sophon_loader.errors import ConfigError
from sophon_loader.order.look_ahead import Foreseen
from sophon_loader.order.order import Order
from sophon_loader.order.reading import Drawn, Position, Reading
from sophon_loader.pipeline.randomness import Seed, op_seed
from sophon_loader.ranks.seeding import rank_of_all

_ORDER = -1
"""Used in place of a sample's index. No sample has it, so shuffling and augmentation draw different numbers."""


class ShardSampler(DistributedSampler[int]):
    """Deals one order of all samples out to the ranks of `torch.distributed`, or to this process if there are none.

    All ranks go through the same order side by side: a step takes the next `ranks * batch_size` samples. So an epoch
    can continue after any step with another number of ranks. The class is a DistributedSampler because frameworks keep
    such a sampler, and replace or refuse any other (Lightning, Ray Train).

    - Each index is given once in an epoch, at one rank.
    - All ranks have equally many batches. The last two may be shorter, at some ranks by one sample.
    - An index is given twice only if fewer indices are left than there are ranks, since some rank would have no batch.

    Args:
        data: the dataset; only its length is used.
        shuffle: True to draw the order, from seed and epoch alone.

    Attributes:
        run_seed: seed of the run, set by the loader; None before its first iteration.
    """

    may_be_read_ahead = True

    def __init__(self, data: Sized, shuffle: bool) -> None:
        rank, ranks = rank_of_all()
        super().__init__(cast(Any, data), ranks, rank, shuffle)
        self._data = data
        self.run_seed: Seed | None = None

    def __len__(self) -> int:
        """Samples per rank, rounded up: some ranks have one less."""
        return -(-len(self._data) // rank_of_all()[1])

    def __iter__(self) -> Iterator[int]:
        for batch, _ in self.batches(0, None, drop_last=False):
            yield from batch

    def batches(self, start: int, batch_size: int | None, *, drop_last: bool) -> Iterator[tuple[list[int], int]]:
        """Return an iterator of (this rank's batch, samples that all ranks have received after it).

        Args:
            start: samples of the epoch that all ranks have received before.
            batch_size: None for one sample at a time.
            drop_last: True to leave out samples that do not fill a batch at every rank.
        """
        return _Dealt(partial(self._dealt, start, batch_size, drop_last=drop_last))

    def _dealt(self, start: int, batch_size: int | None, *, drop_last: bool) -> Iterator[tuple[list[int], int]]:
        """Draw the order, and return the iterator of `batches`."""
        rank, ranks = rank_of_all()
        order = self._order()
        size, left = batch_size or 1, len(order) - start
        steps = left // (ranks * size) if drop_last else -(-left // (ranks * size))
        if drop_last:
            left = steps * ranks * size
        mine = order[start + rank : start + left : ranks].tolist()
        if len(mine) < steps:
            mine.append(int(order[rank % len(order)]))
        # Where another rank has one sample more, for which it needs one more step, the last batch here takes one of
        # the batch before.
        ends = [*(size * step for step in range(1, steps)), len(mine)][:steps]
        if steps > 1 and ends[-2] == len(mine):
            ends[-2] -= 1

        def batch(step: int) -> tuple[list[int], int]:
            begin = ends[step - 1] if step else 0
            return mine[begin : ends[step]], start + self._had(step + 1, steps, size, ranks, left)

        return map(batch, range(len(ends)))

    @staticmethod
    def _had(step: int, steps: int, size: int, ranks: int, left: int) -> int:
        """Return the number of samples that all ranks have received after a step.

        Args:
            step: number of steps so far.
            steps: number of all steps.
            size: of a batch.
            ranks: number of ranks.
            left: samples of all steps.
        """
        if step == steps:
            return left
        fewest, more = divmod(left, ranks)
        shortened = step == steps - 1 and size > 1 and fewest == size * step
        return ranks * size * step - (ranks - more if shortened else 0)

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(len(self._data), device="cpu")
        if self.run_seed is None:
            raise ConfigError(
                "a sampler of shard=True must be read by its own loader first, which draws its seed, got another "
                "reader before the first epoch; leave shard=True out where a framework makes loaders of its own"
            )
        generator = torch.Generator()
        generator.manual_seed(op_seed(self.run_seed.draw(self.epoch, _ORDER), 0))
        return torch.randperm(len(self._data), generator=generator, device="cpu")


class _Dealt(Iterator[Any]):
    """The entries that `deal` returns; it is called when the first is read.

    Not a generator, which would end with the first exception from outside, such as a signal handler's.
    """

    def __init__(self, deal: Callable[[], Iterator[Any]]) -> None:
        self._deal = deal
        self._dealt: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._dealt is None:
            self._dealt = self._deal()
        return next(self._dealt)


class ShardOrder(Order):
    """The order that a `ShardSampler` deals out.

    Args:
        sampler: the sampler.
        batch_sampler: of the loader; None for a loader without batches.
        generator: of the loader.
        drop_last: of the loader.
    """

    def __init__(self, sampler: ShardSampler, batch_sampler: Any, generator: Any, drop_last: bool) -> None:
        super().__init__(sampler, batch_sampler, generator)
        self.global_names = ()
        self.drop_last = drop_last

    def _reading(self, start: Position) -> Reading:
        return _ShardReading(self, start)


def order_of(sampler: Any, batch_sampler: Any, generator: Any, drop_last: bool) -> Order:
    """Return the order of a loader with these samplers.

    Args:
        sampler, batch_sampler, generator, drop_last: of the loader.
    """
    source = batch_sampler.sampler if type(batch_sampler) is BatchSampler else sampler
    if isinstance(source, ShardSampler):
        return ShardOrder(source, batch_sampler, generator, drop_last)
    return Order(sampler, batch_sampler, generator)


def shard_sampler(dataset: Any, sampler: Any, batch_sampler: Any, shuffle: bool | None) -> ShardSampler:
    """Return the sampler of a loader that shards; an existing ShardSampler if it was made from another such loader.

    Args:
        dataset, sampler, batch_sampler, shuffle: as given to the loader.

    Raises:
        ConfigError: it has another sampler already, or an iterable dataset.
    """
    if isinstance(sampler, ShardSampler):
        return sampler
    if sampler is not None or batch_sampler is not None or isinstance(dataset, IterableDataset):
        what = "an iterable dataset" if isinstance(dataset, IterableDataset) else "a sampler"
        raise ConfigError(f"shard must be False with {what}, got True; leave one of the two out")
    return ShardSampler(dataset, bool(shuffle))


class _ShardReading(Reading):
    """Reading of a sharded order. The position of all ranks follows from the number of steps."""

    def __init__(self, order: ShardOrder, start: Position) -> None:
        super().__init__(start)
        self._drawn = Drawn({})
        self._size = None if order.batch_sampler is None else order.batch_sampler.batch_size
        entries = order.sampler.batches(start.samples, self._size, drop_last=order.drop_last)
        self._entries = self._seen = Foreseen(entries, order.sampler)

    def __next__(self) -> Any:
        batch, samples = next(self._entries)
        self._enter(Position(samples), [], len(batch))
        return batch[0] if self._size is None else batch

    def foresee(self, behind: int) -> list[Any] | None:
        return next((batch for batch, _ in self._seen.look(behind, 1)), None)
