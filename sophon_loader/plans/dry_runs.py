"""Dry runs at the agent while an epoch runs, which measure ops and encodings there."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.encodings.catalogue import ANY_PART, PLAIN
from sophon_loader.errors import SophonError
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.plans.probes import PROBE_EPOCH, Probe, ProbeRequest
from sophon_loader.wire.messages import Fetch, Item, Sample


class Prober(threading.Thread):
    """Asks the agent for dry runs, one at a time, while the epoch runs; `probes` holds the results.

    A failure ends it quietly: without probes the agent's CPU counts as equal to the loader's, as in the paper.

    Example:
        >>> prober = Prober(address, requests, Seed(1), OffloadOptions(dead_after_s=5.0))
        >>> prober.start()
        >>> probes = prober.finish(timeout_s=5.0)

    Args:
        address: of the agent and its export.
        requests: samples and choices to try, in this order.
        seed: of the pipeline's random numbers.
        options: the time-outs; a silence of `dead_after_s` ends it.
    """

    def __init__(self, address: Address, requests: Sequence[ProbeRequest], seed: Seed, options: OffloadOptions) -> None:
        super().__init__(name="sophon-prober", daemon=True)
        self._address = address
        self._requests = requests
        self._seed = seed
        self._options = options
        self._cancelled = threading.Event()
        self.probes: list[Probe] = []

    def run(self) -> None:
        """The thread's body."""
        try:
            connection = Connection(self._address, 1, self._options)
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
        """Return True if the agent has answered, even if the answer is useless."""
        item = Item(
            id=0, sample=request.index, occurrence=0, cut=request.cut, encoding=request.encoding, key=request.key
        )
        connection.send(
            Fetch(
                export=self._address.export,
                digest=request.digest,
                seed=self._seed.number,
                epoch=PROBE_EPOCH,
                keep_info=False,
                dry=True,
                allowed=[*PLAIN, request.encoding, ANY_PART],
                items=[item],
            )
        )
        answer = connection.receive(self._options.dead_after_s)
        if answer is None:
            return False
        message = answer[0]
        if isinstance(message, Sample) and message.cut == request.cut and _is_measured(message):
            self.probes.append(
                Probe(
                    index=request.index,
                    cut=request.cut,
                    encoding=message.encoding,
                    nbytes=message.meta["nbytes"],
                    op_s=tuple(message.op_s),
                    upkeep_s=message.upkeep_s,
                )
            )
        return True

    def cancel(self, timeout_s: float) -> None:
        """End after the current run; waits for that for at most `timeout_s`."""
        self._cancelled.set()
        self.join(timeout_s)

    def finish(self, timeout_s: float) -> list[Probe]:
        """Return the results, after waiting for the rest for at most `timeout_s`."""
        self.join(timeout_s)
        self._cancelled.set()
        return list(self.probes)


def _is_measured(sample: Sample) -> bool:
    """Return True if an answer has a valid size and valid times."""
    nbytes = sample.meta.get("nbytes")
    return (
        type(nbytes) is int
        and nbytes > 0
        and len(sample.op_s) > 1
        and all(0 <= s < math.inf for s in (*sample.op_s, sample.upkeep_s))
    )
