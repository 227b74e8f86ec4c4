"""What reaches a loader worker in place of a list of indices: the batch, its epoch, and a look-ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import index as as_int
from typing import Any, NamedTuple

from torch.utils.data import Sampler

from sophon_loader.client.requests import BatchId


class Ticket(NamedTuple):
    """One batch to fetch, and the batch that the same worker will be given next (None: unknown or the last)."""

    batch: BatchId
    indices: list[int]
    ahead: tuple[BatchId, list[int]] | None


class TicketSampler(Sampler[Ticket]):
    """Wraps a batch sampler (or, `batched` False, a sampler) so that it yields tickets, in its order.

    DataLoader deals batches to its workers in turn, so a worker's next batch is the one `ahead` positions on. The
    wrapped sampler is read that far ahead. If it raises, the batches before are still delivered first.

    Args:
        start: called when an iteration begins; gives its (iteration, epoch).
        ahead: 0 for no look-ahead.

    Attributes:
        sizes: samples per batch of the newest iteration, as far as it has been read.
    """

    def __init__(self, wrapped: Iterable[Any], batched: bool, start: Callable[[], tuple[int, int]], ahead: int) -> None:
        self._wrapped = wrapped
        self._batched = batched
        self._start = start
        self._ahead = ahead
        self.sizes: list[int] = []

    def __len__(self) -> int:
        return len(self._wrapped)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Ticket]:
        # At once, not at the first `next`: another iteration may have begun by then.
        iteration, epoch = self._start()
        self.sizes = []
        return self._tickets(iteration, epoch, enumerate(self._wrapped), self.sizes)

    def _tickets(
        self, iteration: int, epoch: int, source: Iterator[tuple[int, Any]], sizes: list[int]
    ) -> Iterator[Ticket]:
        waiting: deque[tuple[BatchId, list[int]]] = deque()
        failure: Exception | None = None
        while True:
            try:
                number, entry = next(source)
                indices = [as_int(i) for i in entry] if self._batched else [as_int(entry)]
            except StopIteration:
                break
            except Exception as error:  # the boundary to the user's sampler
                failure = error
                break
            sizes.append(len(indices))
            waiting.append((BatchId(iteration, epoch, number), indices))
            if len(waiting) > self._ahead:
                yield self._ticket(waiting)
        while waiting:
            yield self._ticket(waiting)
        if failure is not None:
            raise failure

    def _ticket(self, waiting: deque[tuple[BatchId, list[int]]]) -> Ticket:
        batch, indices = waiting.popleft()
        ahead = waiting[self._ahead - 1] if 0 < self._ahead <= len(waiting) else None
        return Ticket(batch, indices, ahead)
