"""The order of an epoch: reads the user's sampler, and reads it again up to the place where a state was taken.

An order is not stored. Only the generators' states from before it was drawn are kept, and how far the training has
come. To continue, the order is drawn again and as many indices are skipped, without reading a sample. A digest shows if
the skipped indices are the same.
"""

from __future__ import annotations

import copy
import weakref
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from itertools import chain, islice
from typing import Any

from torch.utils.data import BatchSampler

from sophon_loader.errors import ConfigError
from sophon_loader.order.entries import Again, Anew, Rest, changed
from sophon_loader.order.generators import Generators, States, packed, unpacked
from sophon_loader.order.look_ahead import Foreseen, LookAhead, Through, may_be_foreseen
from sophon_loader.order.reading import Drawn, Position, Reading
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import preserved

_AT_A_TIME = 4096
"""Number of indices that are skipped at a time."""
REMEDY = (
    "give the sampler a generator of its own (as an attribute), let it draw all its indices at once, or give it "
    "state_dict() and load_state_dict()"
)


class Order:
    """The samplers of a loader, as one iterable of batches (or of indices, for a loader without batches).

    Args:
        sampler, batch_sampler: of the loader; the latter is None for a loader without batches.
        generator: of the loader.

    Attributes:
        start: position at which iterations begin. DataLoader with workers begins two each time, and reads the second.
        newest: the newest iteration; None before the first.
        epoch: number of the newest iteration.
        look_ahead: how far ahead workers learn of batches.
        global_names: names of the global generators that the samplers draw from, as far as is known; at first those
            that they may draw from.
    """

    def __init__(self, sampler: Any, batch_sampler: Any, generator: Any) -> None:
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.generators = Generators([one for one in (batch_sampler, sampler) if one is not None], generator)
        self.start = Position()
        self.newest: Reading | None = None
        self.epoch = 0
        self.look_ahead = LookAhead()
        of_torch = type(self.source).__module__.startswith("torch.utils.data")
        self.global_names: tuple[str, ...] = ("torch",) if of_torch else GENERATORS

    @property
    def whole(self) -> Any:
        """The sampler that DataLoader would read."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    @property
    def by_index(self) -> bool:
        """True if batches are made of single indices by torch's rule, or there are none, so that reading may begin at
        any index."""
        return self.batch_sampler is None or type(self.batch_sampler) is BatchSampler

    @property
    def batch_size(self) -> int:
        """Size of batches made by torch's rule; 1 without batches, or if the size is not known."""
        return int(self.batch_sampler.batch_size) if type(self.batch_sampler) is BatchSampler else 1

    @property
    def kind(self) -> str:
        """Class name of the sampler that gives the indices."""
        return type(self.source).__name__

    @property
    def source(self) -> Any:
        """The sampler that is read to draw an order again."""
        inner = self.batch_sampler.sampler if type(self.batch_sampler) is BatchSampler else self.sampler
        return inner if self.by_index else self.batch_sampler

    def own_state(self) -> Any:
        """Return a copy of the sampler's `state_dict`; None if it has none."""
        keeper = self._keeper
        return None if keeper is None else copy.deepcopy(keeper.state_dict())

    def load_own_state(self, state: Any) -> None:
        """Load a state that `own_state` returned into the sampler."""
        if self._keeper is not None:
            self._keeper.load_state_dict(copy.deepcopy(state))

    @property
    def _keeper(self) -> Any:
        for one in (self.batch_sampler, self.sampler):
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
                return one
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "newest": None}

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def length(self) -> int | None:
        """Batches of an epoch (samples, without batches); None if not known."""
        return _length(self.whole)

    def share_of(self, samples: int) -> float:
        """Return the share of the dataset's samples that an epoch delivers, as far as known; otherwise 1.

        Args:
            samples: number of samples of the dataset.
        """
        given = _length(self.source) if self.by_index and samples else None
        return 1.0 if given is None else min(1.0, given / samples)

    def __iter__(self) -> Reading:
        self.newest = self._reading(self.start)
        return self.newest

    def _reading(self, start: Position) -> Reading:
        return SamplerReading(self, start)


class SamplerReading(Reading):
    """Reading of samplers that draw at any time: when their iterator is made, or when it is first read."""

    def __init__(self, order: Order, start: Position) -> None:
        super().__init__(start)
        # No circles, which would hold the samplers and their dataset until a garbage collection: the order keeps its
        # newest reading, and a reading its generator.
        self._order: Order = weakref.proxy(order)
        this: SamplerReading = weakref.proxy(self)
        self._start = start
        self._read, self._hash = 0, _hash()
        self._skip = self.on_skipping()
        self._seen: Foreseen | Through
        self._reads = False  # or was interrupted as it did
        if start.drawn is not None:
            self._entries = Again(this, start.drawn)
            return
        own, before = order.own_state(), order.generators.take()
        entries = self.begun(order)  # at once, as DataLoader does, which then draws from the same generators
        self._entries = Anew(this, entries, before, changed(before, order.generators.take()), own)

    def __next__(self) -> Any:
        if self._reads:
            self._draw_again()
        self._reads = True
        try:
            entry = next(self._entries)
        except StopIteration:
            self._reads = False
            raise
        self._enter_read(entry)
        self._reads = False
        return entry

    def _draw_again(self) -> None:
        """Continue after the last entry, once an exception from outside (a signal handler's) has interrupted the next
        one.

        A sampler that is a generator has ended by it, so its order is drawn again if that is allowed; otherwise the
        sampler is read on.
        """
        if not (self._order.by_index and may_be_foreseen(self._order.source)):
            return
        entries = self._entries
        if self._drawn is None and isinstance(entries, Anew) and not entries.note():
            self._entries = entries.begun_anew()
        elif self._drawn is not None and not (isinstance(entries, Again) and not entries.drawn):
            self._start = Position(self._read, self._hash.hexdigest(), self._drawn, tuple(self._owed))
            self._entries = Again(weakref.proxy(self), self._drawn)

    def _enter_read(self, entry: Any) -> None:
        indices = [entry] if self._order.batch_sampler is None else entry
        stretches = self._repaid(len(indices))
        owed, begin = sum(end - begin for begin, end in stretches), self._read
        self._take(list(indices)[owed:] if owed else indices)
        if self._read > begin:
            stretches.append((begin, self._read))
        self._enter(Position(self._read, self._hash.hexdigest()), stretches, len(indices))

    @property
    def size(self) -> int:
        return self._order.batch_size

    def foresee(self, behind: int) -> list[Any] | None:
        seen = self._seen.foreseen if isinstance(self._seen, Through) else self._seen
        if seen is None or self._counts:
            return None
        if self._order.by_index:
            size = self.size
            indices = seen.look(behind * size, size)
            return indices if len(indices) == size else None
        return next(map(list, seen.look(behind, 1)), None)

    def begun(self, order: Order) -> Iterator[Any]:
        """Return an iterator over the samplers from the beginning."""
        if type(order.batch_sampler) is BatchSampler:
            self._seen = Through(order.batch_sampler)
            return iter(self._seen)
        self._seen = Foreseen(iter(order.whole), order.whole)
        return self._seen

    def _take(self, indices: Any) -> None:
        read, digest = self._read + len(indices), self._hash.copy()
        digest.update(_bytes_of(indices))
        self._read, self._hash = read, digest  # both or none, even if a signal's handler raises

    # --- an order that is drawn now ---------------------------------------------------------------------------

    def note(self, at_first: States, at_iter: States | None, changed: set[str], own: Any) -> None:
        """Record the states that the order has been drawn from; of the global generators, only those that it draws
        from.

        Args:
            at_first: states before the first index was read.
            at_iter: states before `iter(sampler)`; None if that drew nothing.
            changed: names of the generators that were drawn from.
            own: the sampler's own state from before.
        """
        order = self._order
        order.global_names = tuple(name for name in GENERATORS if name in changed)
        kept = (at_first.keys() - set(GENERATORS)) | set(order.global_names)
        first, second = ({name: one[name] for name in one.keys() & kept} for one in (at_first, at_iter or {}))
        self._drawn = Drawn(packed(first), packed(second) if at_iter else None, own)

    # --- an order that has been drawn before ------------------------------------------------------------------

    def again(self, drawn: Drawn) -> Iterator[Any]:
        """Draw the order again, and return its entries after the start.

        Raises:
            ConfigError: the indices before the start differ.
        """
        start = self._start
        with preserved(GENERATORS):  # what they have become since then is the user's matter
            for own in [drawn.own, None] if drawn.own is not None else [None]:
                self._read, self._hash = 0, _hash()
                rest = self._skipped(drawn, own)
                first = list(islice(rest, 1))  # one that draws when it is read must have done so now
                same = self._read == start.samples and start.digest in ("", self._hash.hexdigest())
                if same and (first or start.samples or own is None):
                    break
            else:
                raise ConfigError(
                    f"the sampler must repeat the {start.samples} indices that it gave before the state was taken, "
                    f"got other ones from {self._order.kind}; {REMEDY}"
                )
        return chain(first, rest)

    def _skipped(self, drawn: Drawn, own: Any) -> Iterator[Any]:
        """Read the samplers up to the place where the epoch continues, and return the entries after it.

        Args:
            drawn: states that the order was drawn from.
            own: state to load into the sampler first; None for none.
        """
        order = self._order
        if own is not None:
            order.load_own_state(own)
        order.generators.put(unpacked(drawn.at_iter or drawn.at_first))
        self._seen = entries = Foreseen(Rest(iter(order.source)), order.source)
        if drawn.at_iter is not None:
            order.generators.put(unpacked(drawn.at_first))
        self._skip = self.on_skipping()
        self._owed = list(self._start.missing)
        self._counts.clear()
        if not order.by_index:
            self._seen = Foreseen(self._skipped_batches(entries), order.source)
            return self._seen
        owed: list[Any] = []
        while chunk := entries.skip(min(_AT_A_TIME, self._start.samples - self._read)):
            owed += self._pass_over(chunk)
        entries.put_back(owed)
        batches = order.batch_sampler
        return entries if batches is None else iter(BatchSampler(entries, batches.batch_size, batches.drop_last))

    def _skipped_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Skip the delivered batches of a user's own batch sampler. Of a batch that was delivered in part, the rest
        remains."""
        owed: list[list[Any]] = []
        for batch in batches:
            left = self._start.samples - self._read
            if len(batch) > left:
                delivered, rest = (list(batch[:left]), list(batch[left:])) if left else ([], batch)
                owed.append(self._pass_over(delivered))
                return chain(filter(None, owed), [rest], batches)
            owed.append(self._pass_over(list(batch)))
        return filter(None, owed)

    def _pass_over(self, indices: list[Any]) -> list[Any]:
        """Count indices as read, and return those of them that are still owed."""
        begin, counts = self._read, self._skip(indices)
        self._take(indices)
        owed = [n - begin for stretch in self._start.missing for n in range(*stretch) if begin <= n < self._read]
        if counts is not None:
            self._counts.extend(counts[n] for n in owed)
        return [indices[n] for n in owed]


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _hash() -> Any:
    return blake2b(digest_size=8)


def _bytes_of(indices: Any) -> bytes:
    """Encode indices for hashing, independently of how they are cut into batches."""
    try:
        return array("q", indices).tobytes()
    except (TypeError, OverflowError):  # keys of some other kind; indices that no dataset has
        return "".join(f"{index!r}\n" for index in indices).encode(errors="surrogatepass")
