"""What the wire can do, by a short burst of files."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sophon_loader.client.connection import Connection
from sophon_loader.errors import AgentUnreachable
from sophon_loader.wire.messages import Fetch, Sample

_BURST_S = 0.15
"""How long files are asked for; the workers wait for that."""
_BURST_MAX_S = 2.0
"""How long at most, on a wire that brings too few of them in that time; twice as long if nothing at all comes."""
_BURST_MIN_SAMPLES = 8
"""Answers from which a rate is taken."""
_BURST_AHEAD_S = 0.1
"""Seconds' worth of files that may be outstanding. They must be waited for at the end."""


def measure_wire(connection: Connection, keys: Sequence[str], window: int) -> float:
    """Bytes per second that come through the wire with several requests outstanding.

    Fetches files for about 0.15 s, or for up to 2 s on a wire that brings fewer than eight in that time. What is
    outstanding grows with the rate and stays below a tenth of a second's worth, because it must be waited for: left on
    the wire it would hold up the first batch.

    Args:
        connection: to the agent, with no other request outstanding.
        keys: of files in the export, at least one; they are fetched in turns.
        window: how many requests may be outstanding; four always may.

    Raises:
        AgentUnreachable: nothing came.
    """
    asked = answered = nbytes = first_nbytes = 0
    started_s = first_s = last_s = time.perf_counter()
    asking = True
    while asking or answered < asked:
        now_s = time.perf_counter()
        wanted_s = _BURST_S if answered >= _BURST_MIN_SAMPLES else _BURST_MAX_S
        asking = asking and now_s - started_s < wanted_s
        if now_s - started_s > 2 * _BURST_MAX_S:
            break
        allowed = max(4, min(window, int(_BURST_AHEAD_S * answered / max(now_s - started_s, 1e-3))))
        while asking and asked - answered < allowed:
            connection.send(Fetch.of_files(connection.address.export, {asked: keys[asked % len(keys)]}))
            asked += 1
        reply = connection.receive(0.05)
        if reply is None:
            continue
        answered += 1
        last_s = time.perf_counter()
        message, payload = reply
        if isinstance(message, Sample):
            nbytes += len(payload)
        if answered == 1:  # the time it took is latency
            first_s, first_nbytes = last_s, nbytes
    if nbytes == 0:
        raise AgentUnreachable(f"agent {connection.address} must send files, got none within {_BURST_MAX_S:g} s")
    later_nbytes = nbytes - first_nbytes
    if later_nbytes and last_s > first_s:
        return later_nbytes / (last_s - first_s)
    return nbytes / (last_s - started_s)
