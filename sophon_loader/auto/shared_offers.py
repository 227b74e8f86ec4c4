"""Choices that the agent has weighed for recent samples, in memory that workers write and the main process reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon_loader.auto.corrections import AGENT_S_PER_BYTE, LOADER_S_PER_BYTE, CostCorrections
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable
from sophon_loader.host.shared import SharedArray
from sophon_loader.wire.limits import MAX_OPS
from sophon_loader.wire.messages import Offer

KEPT = 2048
"""Number of samples that are remembered, over all workers: enough for prices within a percent, and 1 MB."""
MIN_PER_WORKER = 64
MAX_OFFERS = 24
"""Maximum number of choices per sample; later ones are left out."""


class SharedOffers:
    """The newest samples of each worker with their choices. Bounded for datasets of any size.

    Args:
        workers: number of workers that write.
        encodings: all names, in an order that every process of this loader has.

    Example:
        >>> offers = SharedOffers(1, ("file", "pixels"))
        >>> offers.write(0, [Offer(0, "file", 9000, 0.0, 0.002), Offer(2, "pixels", 3000, 0.001, 0.001)])
        >>> offers.choices()
        (Choice(cut=0, encoding='file'), Choice(cut=2, encoding='pixels'))
    """

    def __init__(self, workers: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)
        rows = max(KEPT // max(1, workers), MIN_PER_WORKER)
        self._serial, self._kinds, self._costs = SharedArray.together(
            np.zeros((workers, rows), np.int64),  # 0: nothing there yet
            np.zeros((workers, rows, MAX_OFFERS), np.uint16),  # 0: none, else 1 + the choice
            np.zeros((workers, rows, MAX_OFFERS, 3), np.float32),
        )
        self._written: int | None = None  # by this process's worker, and those before it in its place

    def write(self, worker: int, offers: Sequence[Offer]) -> None:
        """Remember a sample in place of this worker's oldest.

        Args:
            worker: number of the worker that writes; others write elsewhere.
            offers: the choices of the sample.
        """
        if self._written is None:
            self._written = int(self._serial.array[worker].max())
        place = self._written % self._serial.array.shape[1]
        self._written += 1
        kinds, costs = self._kinds.array[worker, place], self._costs.array[worker, place]
        self._serial.array[worker, place] = 0  # half written
        kinds[:] = 0
        for n, offer in enumerate(offers[:MAX_OFFERS]):
            if offer.encoding in self._encodings:
                kinds[n] = 1 + self._encodings.index(offer.encoding) + len(self._encodings) * offer.cut
                costs[n] = offer.nbytes, offer.agent_s, offer.rest_s
        self._serial.array[worker, place] = self._written

    def __len__(self) -> int:
        return int(np.count_nonzero(self._serial.array))

    def choices(self) -> tuple[Choice, ...]:
        """Return every choice that some sample has; not offloading is the first."""
        return self.costs()[0]

    def _choice(self, kind: int) -> Choice:
        cut, name = divmod(kind - 1, len(self._encodings))
        return Choice(cut, self._encodings[name])

    def costs(self) -> tuple[tuple[Choice, ...], NDArray[Any]]:
        """Return the choices, and float32[n, C, 3]: payload bytes (`inf` for no choice), agent CPU s, other CPU s."""
        there = self._serial.array > 0
        kinds, costs = self._kinds.array[there], self._costs.array[there]
        # Workers go on writing: the choices are those of these rows, and not of what is there a moment later.
        found = {int(kind): self._choice(int(kind)) for kind in np.unique(kinds) if kind}
        choices = (FILE, *sorted(set(found.values()) - {FILE}))
        table = np.zeros((len(kinds), len(choices), 3), np.float32)
        table[:, :, 0] = np.inf
        for kind, choice in found.items():
            rows, positions = np.nonzero(kinds == kind)
            table[rows, choices.index(choice)] = costs[rows, positions]
        return choices, table[np.isfinite(table[:, 0, 0])]

    def table(self, beside: CostCorrections, *, files_here: bool) -> ChoiceTable | None:
        """Return the costs of each choice of each of these samples; None before one is known.

        Args:
            beside: corrections of the agent's estimates.
            files_here: True if the loader reads files itself: no wire, no agent.
        """
        choices, costs = self.costs()
        if not len(costs):
            return None
        wire, agent, rest = costs[:, :, 0].copy(), costs[:, :, 1] * np.float32(beside.agent_per_work), costs[:, :, 2]
        agent[:, 0], agent[:, 1:] = beside.file_s, agent[:, 1:] + np.float32(beside.agent_s)
        if files_here:
            wire[:, 0] = agent[:, 0] = 0.0
        bytes_there = np.where(np.isfinite(wire), wire, 0.0)
        agent += np.float32(AGENT_S_PER_BYTE) * bytes_there
        loader = rest * np.float32(beside.loader_per_rest) + np.float32(beside.loader_s)
        return ChoiceTable(choices, wire, agent, loader + np.float32(LOADER_S_PER_BYTE) * bytes_there)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the remembered choices for saving: uint16[n, K] kinds, float32[n, K, 3] costs, and the names."""
        there = self._serial.array > 0
        names = np.array(self._encodings)
        return {"offer_kinds": self._kinds.array[there], "offer_costs": self._costs.array[there], "offer_names": names}

    def load(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take over the result of `arrays`, before workers write.

        Raises:
            KeyError, ValueError: an array is missing, has another shape or dtype, or holds an invalid size or time; or
                this host has other encodings.
        """
        if arrays["offer_names"].tolist() != list(self._encodings):
            raise ValueError(f"offers must be of the encodings {self._encodings}")
        kinds, costs = arrays["offer_kinds"], arrays["offer_costs"]
        if kinds.dtype != np.uint16 or kinds.shape[1:] != (MAX_OFFERS,) or costs.shape != (*kinds.shape, 3):
            raise ValueError(f"offers must be uint16[n, {MAX_OFFERS}] and float32 of that, got {kinds.shape}")
        stages = (MAX_OPS + 1) * len(self._encodings)
        if costs.dtype != np.float32 or not (np.isfinite(costs) & (costs >= 0)).all() or (kinds > stages).any():
            raise ValueError("offers must be of known encodings, and hold sizes and times")
        workers, rows = self._serial.array.shape
        for n in range(min(len(kinds), workers * rows)):
            worker, place = n % workers, n // workers
            self._kinds.array[worker, place], self._costs.array[worker, place] = kinds[n], costs[n]
            self._serial.array[worker, place] = 1 + place

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_written": None}
