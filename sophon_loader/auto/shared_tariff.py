"""The tariff that all workers follow, in memory that the main process writes."""

from __future__ import annotations

import secrets

import msgpack

from sophon_loader.decide.plan import GOLDEN
from sophon_loader.decide.tariff import Prices, Tariff
from sophon_loader.host.shared import SharedNotes

_NOTE_NBYTES = 1 << 10
"""Size of the shared memory, in bytes. A part takes 46 bytes as msgpack, and a mix has at most four."""


class SharedTariff:
    """The current tariff.

    A tariff is a hint: a worker that reads an older one still gets the right samples.

    Example:
        >>> shared = SharedTariff()
        >>> shared.set(Tariff((Part(1.0, None),), "because"))
        >>> Dealer(shared).batch(size=2)
        [None, None]
    """

    def __init__(self) -> None:
        self._note = SharedNotes(1, _NOTE_NBYTES)

    def set(self, tariff: Tariff) -> None:
        """Set the tariff from now on."""
        self._note.write(0, msgpack.packb(tariff.to_plain()))

    def packed(self) -> bytes | None:
        """Return the newest one packed, b"" before the first; None while it is written."""
        return self._note.read(0)


class Dealer:
    """Distributes one worker's requests over the parts of a tariff.

    Samples that go as files are spread over all batches. The others of a batch go at one set of prices, so that a batch
    stays few messages.

    Args:
        shared: to follow.
    """

    def __init__(self, shared: SharedTariff) -> None:
        self._shared = shared
        self._packed = b""
        self._files = 1.0
        self._priced: list[tuple[float, Prices]] = []
        self._batches = _Places()
        self._samples = _Places()

    def batch(self, size: int) -> list[Prices | None]:
        """Return the price at which each sample of the next batch is requested; None for its file.

        Args:
            size: number of samples in the batch.
        """
        packed = self._shared.packed()
        if packed and packed != self._packed:
            self._packed = packed
            parts = Tariff.from_plain(msgpack.unpackb(packed)).parts
            self._files = sum(part.share for part in parts if part.prices is None)
            self._priced = [(part.share, part.prices) for part in parts if part.prices is not None]
        if not self._priced:
            return [None] * size
        prices = self._next_prices()
        return [None if self._samples.next() < self._files else prices for _ in range(size)]

    def _next_prices(self) -> Prices:
        place = self._batches.next() * sum(share for share, _ in self._priced)
        for share, prices in self._priced:
            place -= share
            if place < 0:
                return prices
        return self._priced[-1][1]


class _Places:
    """Places on [0, 1) in golden-ratio steps, which cover it evenly for any number of steps.

    Every process begins at another place, or short-lived workers would always give the same samples the same part.
    """

    def __init__(self) -> None:
        self._number: int | None = None

    def next(self) -> float:
        if self._number is None:
            self._number = secrets.randbelow(1 << 32)
        self._number += 1
        return (self._number * int(GOLDEN) % (1 << 32)) / (1 << 32)
