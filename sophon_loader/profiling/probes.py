"""What ops cost at the agent: a small share of the samples is run there dry, and compared with the loader's times."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.encodings.registry import PLAIN
from sophon_loader.errors import SophonError
from sophon_loader.wire.limits import MAX_UINT
from sophon_loader.wire.messages import Fetch, Item, Sample

MOST_PROBES = 64
PROBE_EPOCH = 0
"""The epoch whose random numbers probes are run with."""


@dataclass(frozen=True)
class Probe:
    """One sample at the agent: CPU seconds of reading, of each op, and of encoding at `cut`; and its upkeep."""

    index: int
    cut: int
    encoding: str
    nbytes: int
    op_s: tuple[float, ...]
    upkeep_s: float = 0.0


@dataclass(frozen=True)
class ProbeRequest:
    """What to try: a sample by its index and key in the export."""

    index: int
    cut: int
    encoding: str
    key: str
    digest: str


class Prober(threading.Thread):
    """Asks the agent for dry runs, one at a time, beside the epoch; `probes` holds what came back.

    A failure ends it quietly: without probes the agent's CPU counts as equal to the loader's, as in the paper.
    """

    def __init__(self, address: Address, requests: Sequence[ProbeRequest], seed: int, timeout_s: float) -> None:
        super().__init__(name="sophon-prober", daemon=True)
        self._address = address
        self._requests = requests
        self._seed = seed
        self._timeout_s = timeout_s
        self._cancelled = threading.Event()
        self.probes: list[Probe] = []

    def run(self) -> None:
        """The thread's body."""
        try:
            connection = Connection(self._address, window=1)
        except SophonError:
            return
        try:
            for request in self._requests:
                if self._cancelled.is_set() or not self._try(connection, request):
                    return
        except SophonError:
            return
        finally:
            connection.close()

    def _try(self, connection: Connection, request: ProbeRequest) -> bool:
        item = Item(0, request.index, 0, request.cut, request.encoding, request.key)
        seed, allowed = self._seed & MAX_UINT, [*PLAIN, request.encoding]
        fetch = Fetch(self._address.export, request.digest, seed, PROBE_EPOCH, False, True, allowed, [item])
        connection.send(fetch)
        answer = connection.receive(self._timeout_s)
        if answer is None:
            return False
        message = answer[0]
        if isinstance(message, Sample) and message.cut == request.cut and _is_measured(message):
            nbytes, op_s = message.meta["nbytes"], tuple(message.op_s)
            probe = Probe(request.index, request.cut, message.encoding, nbytes, op_s, message.upkeep_s)
            self.probes.append(probe)
        return True

    def cancel(self, timeout_s: float) -> None:
        """End after the question that is being asked; waits for at most `timeout_s`."""
        self._cancelled.set()
        self.join(timeout_s)

    def finish(self, timeout_s: float) -> list[Probe]:
        """What has been found, after waiting for the rest for at most `timeout_s`."""
        self.join(timeout_s)
        self._cancelled.set()
        return list(self.probes)


def _is_measured(sample: Sample) -> bool:
    """Whether an answer tells a size and times that can be calculated with."""
    nbytes = sample.meta.get("nbytes")
    return (
        type(nbytes) is int
        and nbytes > 0
        and len(sample.op_s) > 1
        and all(0 <= s < math.inf for s in (*sample.op_s, sample.upkeep_s))
    )


def spread_over(samples: int, most: int = MOST_PROBES) -> list[int]:
    """Up to `most` indices, evenly over all of them."""
    count = min(samples, most)
    return [int(i) for i in np.linspace(0, samples - 1, count).round()] if count else []


def op_ratios(probes: Sequence[Probe], loader_s: NDArray[np.float64], known: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Agent CPU seconds per loader CPU second, for each op, float64[ops].

    Args:
        loader_s: float64[N, ops], the loader's times.
        known: bool[N], which of them are measured.

    The ratio of an op that no probe reached is that of all ops together; 1 without any probe.
    """
    ops = loader_s.shape[1]
    agent, loader = np.zeros(ops), np.zeros(ops)
    for probe in probes:
        if not known[probe.index]:
            continue
        times = np.asarray(probe.op_s[1 : 1 + min(probe.cut, ops)])
        agent[: len(times)] += times
        loader[: len(times)] += loader_s[probe.index, : len(times)]
    overall = agent.sum() / loader[agent > 0].sum() if (loader[agent > 0] > 0).any() else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((agent > 0) & (loader > 0), agent / loader, overall)
    return np.asarray(ratios, dtype=np.float64)
