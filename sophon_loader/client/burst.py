"""What the wire can do, by a short burst of files."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sophon_loader.client.connection import Connection
from sophon_loader.errors import AgentUnreachable
from sophon_loader.wire.messages import Fetch, Sample

_BURST_S = 0.15
_BURST_MAX_S = 2.0
_BURST_MIN_SAMPLES = 8
_BURST_AHEAD_S = 0.1


def measure_wire(connection: Connection, keys: Sequence[str], window: int) -> float:
    """Bytes per second that come through the wire with several requests outstanding.

    Fetches files for about 0.15 s (longer on a wire that brings fewer than eight in that time, but not over 2 s). What
    is outstanding grows with the rate and stays below a tenth of a second's worth, because it must be waited for: left
    on the wire it would hold up the first batch.

    Args:
        connection: to the agent; nothing else must use it meanwhile.
        keys: paths in the export, fetched in turn.
        window: most requests outstanding.

    Raises:
        AgentUnreachable: nothing came.
    """
    asked = answered = nbytes = first_nbytes = 0
    started_s = first_s = last_s = time.perf_counter()
    asking = True
    while asking or answered < asked:
        now_s = time.perf_counter()
        asking = asking and now_s - started_s < (_BURST_S if answered >= _BURST_MIN_SAMPLES else _BURST_MAX_S)
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
        nbytes += len(reply[1]) if isinstance(reply[0], Sample) else 0
        if answered == 1:  # its way is latency, not rate
            first_s, first_nbytes = last_s, nbytes
    if nbytes == 0:
        raise AgentUnreachable(f"agent {connection.address} must send files, got none within {_BURST_MAX_S:g} s")
    later_nbytes = nbytes - first_nbytes
    return later_nbytes / (last_s - first_s) if later_nbytes and last_s > first_s else nbytes / (last_s - started_s)
