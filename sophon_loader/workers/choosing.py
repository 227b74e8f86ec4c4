"""What a loader worker asks for: for every sample of a batch a choice as planned, prices to choose at, or the file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from sophon_loader.auto.shared_tariff import Dealer, SharedTariff
from sophon_loader.cache.worker_cache import Before, WorkerCache
from sophon_loader.client.wanted import Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.facts import FILE, Choice
from sophon_loader.decide.tariff import Prices
from sophon_loader.order.tickets import Ticket
from sophon_loader.wire.messages import CHEAPEST
from sophon_loader.workers.shared_plan import SharedPlan
from sophon_loader.workers.source_steps import Steps


class Chooser:
    """Turns tickets into what is wanted. Reads shared memory; no socket, and no file but the cache's.

    Args:
        data: the dataset, taken apart.
        steps: one per source of `data`.
        locations: of its files.
        plan: says what each sample gets; None where nothing is planned.
        tariff: what requests go out at where the agent chooses; without that and a plan, files are wanted.
        files_here: what is wanted as a file is read on this host.
        kept: of the files, which are read on this host, too; None for none.

    Example:
        >>> ticket = Ticket(BatchId(iteration=1, epoch=0, number=0), indices=[4, 2])
        >>> [one.key for one in chooser.wanted(ticket)]
        ['cat/5.jpg', 'cat/3.jpg']
    """

    def __init__(
        self,
        data: Offloadable,
        steps: Sequence[Steps],
        locations: Locations,
        plan: SharedPlan | None,
        tariff: SharedTariff | None = None,
        *,
        files_here: bool = False,
        kept: WorkerCache | None = None,
    ) -> None:
        self._kept = kept
        self._files_here = files_here
        self._dealer = None if tariff is None else Dealer(tariff)
        self._data = data
        self._steps = tuple(steps)
        self._locations = locations
        self._plan = plan

    def wanted(self, ticket: Ticket) -> list[Wanted]:
        """What to ask for, sample by sample, in the ticket's order.

        Raises:
            TypeError, IndexError, ValueError, ConfigError: see `Offloadable.position`.
        """
        indices = self.positions(ticket)
        occurrences = ticket.occurrences or [0] * len(indices)
        sources: list[int] = self._data.source_of.array[indices].tolist()
        if self._dealer is not None:
            dealt = self._dealer.batch(len(indices))
            return list(map(self._open, sources, indices, occurrences, dealt, repeat(ticket.batch.epoch)))
        reaches = [self._steps[source].reach for source in sources]
        choices = [FILE] * len(indices) if self._plan is None else self._plan.choose(indices, reaches)
        return list(map(self._planned, sources, indices, occurrences, choices))

    def positions(self, ticket: Ticket) -> list[int]:
        """The numbers of a ticket's samples in the dataset.

        Raises:
            TypeError, IndexError, ValueError, ConfigError: see `Offloadable.position`.
        """
        length = len(self._data)
        return [
            index if type(index) is int and 0 <= index < length else self._data.position(index)
            for index in ticket.indices
        ]

    def file(self, index: int) -> Wanted:
        """A sample as its file at the agent."""
        source = int(self._data.source_of.array[index])
        return Wanted(source, index, FILE.cut, FILE.encoding, self._locations.key_in_export(index))

    def _planned(self, source: int, index: int, occurrence: int, choice: Choice) -> Wanted:
        """A sample with its choice."""
        if choice == FILE:
            return self._file(source, index, occurrence, *self._look(index))
        return Wanted(source, index, choice.cut, choice.encoding, self._locations.key_in_export(index), occurrence)

    def _look(self, index: int, fill: float = 1.0, epoch: int = 0) -> tuple[bool, Before | None]:
        """See `WorkerCache.look`."""
        return (False, None) if self._kept is None else self._kept.look(index, fill, epoch)

    def _file(self, source: int, index: int, occurrence: int, in_cache: bool, before: Before | None) -> Wanted:
        """A sample as its file."""
        key, here = self._locations.key_in_export(index), in_cache or self._files_here
        cut, encoding = FILE.cut, FILE.encoding
        return Wanted(source, index, cut, encoding, key, occurrence, here=here, before=before, in_cache=in_cache)

    def _open(self, source: int, index: int, occurrence: int, prices: Prices | None, epoch: int) -> Wanted:
        """A sample whose choice is left to the agent, or its file."""
        in_cache, before = self._look(index, 1.0 if prices is None else prices.fill, epoch)
        if prices is None or before is not None or (in_cache and prices.kept_here):
            return self._file(source, index, occurrence, in_cache, before)
        key = self._locations.key_in_export(index)
        asked = (prices.wire, prices.agent, prices.loader, prices.per_worker)
        return Wanted(
            source, index, self._steps[source].reach, CHEAPEST, key, occurrence, prices=asked, in_cache=in_cache
        )
