"""Measures the wire by a short burst of files."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from sophon_loader.client.connection import Connection
from sophon_loader.client.window import Mark, RequestWindow
from sophon_loader.errors import AgentUnreachable, CorruptMessage
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from sophon_loader.wire.messages import Fetch, Pong, Sample

_BURST_S = 0.15
"""Seconds for which files are requested; the workers wait for that."""
_BURST_MAX_S = 2.0
"""Maximum of these seconds, on a wire that brings too few files; twice as long if nothing arrives at all."""
_BURST_MIN_SAMPLES = 8
"""Minimum number of replies for a rate."""
_BURST_AHEAD_S = 0.1
"""Seconds' worth of files that may be outstanding beyond what latency takes. They must be waited for at the end."""
_BURST_ROUND_TRIPS = 6
"""Maximum extension over a wire with high latency, in round trips: outstanding files double in each, until replies wait
for one another."""


def measure_wire(connection: Connection, keys: Sequence[str], window: int) -> float:
    """Return the wire's rate in bytes/s, with several requests outstanding.

    Fetches files for about 0.15 s, or for up to 2 s on a wire that brings fewer than eight in that time. With high
    latency that time begins when replies wait for one another. The number of outstanding files grows with the rate.
    Beyond twice the bandwidth-delay product it stays below a tenth of a second's worth, because these must be waited
    for: left on the wire they would delay the first batch.

    Args:
        connection: to the agent, with no other request outstanding.
        keys: of files in the export, at least one; they are fetched in turns.
        window: maximum number of outstanding requests; four are always allowed.

    Raises:
        AgentUnreachable: nothing arrived.
    """
    asked = answered = 0
    found = RequestWindow(window, MAX_PAYLOAD_NBYTES)
    marks: dict[int, Mark] = {}
    arrivals: list[tuple[float, int]] = []  # time of each file's arrival, and the sum of bytes by then
    started_s = time.perf_counter()
    full_s: float | None = None  # when the first reply came that had waited for others
    asking = True
    while asking or answered < asked:
        now_s = time.perf_counter()
        round_trip_s = found.round_trip_s or 0.0
        grown_s = started_s + _BURST_ROUND_TRIPS * round_trip_s if full_s is None else full_s
        end_s = grown_s + _BURST_S if answered >= _BURST_MIN_SAMPLES else math.inf
        asking = asking and now_s < min(end_s, started_s + _BURST_MAX_S)
        if now_s - started_s > 2 * _BURST_MAX_S:
            break
        ahead_nbytes = found.rate * (2 * round_trip_s + _BURST_AHEAD_S)
        allowed = max(4, min(window, int(ahead_nbytes / max(found.mean_nbytes, 1.0))))
        while asking and asked - answered < allowed:
            connection.send(Fetch.of_files(connection.address.export, {asked: keys[asked % len(keys)]}))
            marks[asked] = found.asked(asked - answered, now_s)
            asked += 1
        try:
            reply = connection.receive(0.05)
        except CorruptMessage:
            reply = Pong(""), b""  # any that brings no file
        if reply is None:
            continue
        answered += 1
        message, payload = reply
        if isinstance(message, Sample) and message.id in marks:
            arrived_s = time.perf_counter()
            found.answered(marks.pop(message.id), len(payload), 0.0, arrived_s)
            arrivals.append((arrived_s, len(payload) + (arrivals[-1][1] if arrivals else 0)))
            if full_s is None and found.queues:
                full_s = arrived_s
    if not arrivals or not arrivals[-1][1]:
        raise AgentUnreachable(
            f"agent {connection.address} must send files to measure the network with, got none within "
            f"{_BURST_MAX_S:g} s"
        )
    return _rate_of(arrivals, started_s, grown_s)


def _rate_of(arrivals: Sequence[tuple[float, int]], started_s: float, grown_s: float) -> float:
    """Return bytes/s from the last arrival on by which enough was outstanding, or else from the first one on.

    Args:
        arrivals: (time in s, sum of bytes by then).
        started_s: time of the first request.
        grown_s: time until which too little may have been outstanding.
    """
    early = sum(arrived_s <= grown_s for arrived_s, _ in arrivals[:-1])
    first_s, first_nbytes = arrivals[max(0, early - 1)]
    last_s, nbytes = arrivals[-1]
    if last_s > first_s and nbytes > first_nbytes:
        return (nbytes - first_nbytes) / (last_s - first_s)
    return nbytes / (last_s - started_s)
