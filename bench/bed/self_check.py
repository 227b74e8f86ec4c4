"""Does the bed deliver what it promises? A stream over the link, a busy loop under a quota, and a verdict on both."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.bed import Bed, Host, LinkedHosts
from bench.bed.stream import plain_stream
from bench.children import Orders, child

MESSAGE_NBYTES = 110_000
"""The mean file of the ImageNet sample set."""
HIGH_WATER_MARK = 16
UNSHAPED_MBIT_GUESS = 8000.0
PAYLOAD_SHARE = 1448 / 1514
"""Bytes of payload in an Ethernet frame of full length. ZeroMQ's 9 bytes per message are too few to show."""
MAX_OVERHEAD = 1.06
"""Bytes on the link per payload byte: 1514 / 1448, acknowledgements, and some retransmissions."""


@dataclass(frozen=True)
class StreamResult:
    """One stream of messages from agent to loader.

    Args:
        payload_nbytes: message bytes, all of them.
        payload_mbit: rate of the message bytes after the warm-up, Mbit/s.
        interface_nbytes: what the agent's interface counted as sent; None on the loopback bed.
        link_nbytes: what the shaper let through; None when not shaped.
    """

    payload_nbytes: int
    payload_mbit: float
    interface_nbytes: int | None
    link_nbytes: int | None


@dataclass(frozen=True)
class QuotaResult:
    """CPU seconds per second that a busy loop got; used_cores is None without control groups."""

    quota_cores: float
    used_cores: float | None


@dataclass(frozen=True)
class Finding:
    """One line of the self-check's table; `holds` is None where nothing is expected."""

    what: str
    value: str
    expected: str
    holds: bool | None


def measure_stream(bed: Bed, seconds: float) -> StreamResult:
    """Push ZeroMQ messages from the agent's host to the loader's.

    Args:
        bed: an open bed.
        seconds: about how long that is to take.
    """
    rate_mbit = bed.link_mbit if bed.shaped and bed.link_mbit else UNSHAPED_MBIT_GUESS
    count = max(20, round(rate_mbit * 1e6 / 8 * seconds / MESSAGE_NBYTES))
    with plain_stream(bed, HIGH_WATER_MARK) as stream:
        before, link_before = bed.agent_host.interface_bytes(), _link_bytes(bed)
        payload_mbit = stream([MESSAGE_NBYTES] * count)
        after, link_after = bed.agent_host.interface_bytes(), _link_bytes(bed)
    return StreamResult(
        payload_nbytes=count * MESSAGE_NBYTES,
        payload_mbit=payload_mbit,
        interface_nbytes=None if before is None or after is None else after.sent - before.sent,
        link_nbytes=None if link_before is None or link_after is None else link_after - link_before,
    )


def _link_bytes(bed: Bed) -> int | None:
    return bed.link_bytes() if isinstance(bed, LinkedHosts) else None


def measure_quota(host: Host, quota_cores: float, seconds: float) -> QuotaResult:
    """Run a busy loop under a quota, then lift the quota.

    Args:
        host: of an open bed.
        quota_cores: CPU seconds per second.
        seconds: how long it runs.
    """
    with child(host, None, spinning, {}):
        host.set_quota(quota_cores)
        cpu_s, clock_s = host.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        used_s, elapsed_s = host.cpu_seconds(), time.monotonic() - clock_s
        host.set_quota(None)
    return QuotaResult(quota_cores, None if cpu_s is None or used_s is None else (used_s - cpu_s) / elapsed_s)


@contextmanager
def spinning() -> Iterator[Orders]:
    """A child that takes all the CPU it gets until it is ended."""

    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, name="spin", daemon=True).start()
    yield {}


def judge(link_mbit: float | None, stream: StreamResult, quota: QuotaResult) -> list[Finding]:
    """Compare measurements with what the bed promises.

    Args:
        link_mbit: the link's rate in Mbit/s; None when it is not shaped.
        stream: what was measured of the link.
        quota: what was measured of a quota.
    """
    expected_mbit = None if link_mbit is None else link_mbit * PAYLOAD_SHARE
    return [
        _judged_rate(stream.payload_mbit, expected_mbit),
        _judged_bytes("interface bytes / payload bytes", stream.interface_nbytes, stream.payload_nbytes),
        _judged_bytes("bytes on the link / payload bytes", stream.link_nbytes, stream.payload_nbytes),
        _judged_quota(quota),
    ]


def _judged_rate(payload_mbit: float, expected_mbit: float | None) -> Finding:
    value = f"{payload_mbit:.1f}"
    if expected_mbit is None:
        return Finding("payload, Mbit/s", value, "-", None)
    holds = abs(payload_mbit / expected_mbit - 1) <= 0.02
    return Finding("payload, Mbit/s", value, f"{expected_mbit:.1f} +- 2 %", holds)


def _judged_bytes(what: str, nbytes: int | None, payload_nbytes: int) -> Finding:
    expected = f"1 to {MAX_OVERHEAD}"
    if nbytes is None:
        return Finding(what, "not counted", expected, None)
    ratio = nbytes / payload_nbytes
    return Finding(what, f"{ratio:.4f}", expected, 1 <= ratio <= MAX_OVERHEAD)


def _judged_quota(quota: QuotaResult) -> Finding:
    what, expected = f"cores used at a quota of {quota.quota_cores}", f"{quota.quota_cores} +- 0.05"
    if quota.used_cores is None:
        return Finding(what, "not counted", expected, None)
    holds = abs(quota.used_cores - quota.quota_cores) <= 0.05
    return Finding(what, f"{quota.used_cores:.3f}", expected, holds)
