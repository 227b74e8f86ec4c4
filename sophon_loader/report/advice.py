"""What a user can do about the resource that limits, in sentences that need no link. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_GAIN = 1.05
"""More cores at the agent are advised where twice of them would bring at least so much."""
_AGENT_CORES = "Give the agent more cores: it then compresses and prepares more."
_ADVICE = {
    "gpu": ("Nothing needs to be done about loading: it keeps up. Only a faster training step or GPU helps.",),
    "wire": (
        "Install the compressing encodings on both hosts: pip install 'sophon_loader[codecs]'.",
        "Otherwise use a faster network, or smaller crops.",
    ),
    "loader-cpu": (
        'Let the loader choose the number of its workers: num_workers="auto".',
        'Move the last ops to the GPU: tail="device".',
        "Otherwise use a host with more cores.",
    ),
    "agent-cpu": (_AGENT_CORES,),
    "agent-disk": ("Use a faster disk at the agent: no offloading helps there.",),
}


def what_to_do(limits: Mapping[str, float], would_bring: Mapping[str, float], why_not: str) -> list[str]:
    """Sentences on what to do, the cheapest first; none while nothing is known.

    Args:
        limits: by resource, the share of the time for which it is busy; the busiest first.
        would_bring: by resource, how many times as many samples/s twice of it would give.
        why_not: why nothing was offloaded; "" where something was.
    """
    if not limits:
        return []
    first = next(iter(limits))
    told = list(_ADVICE.get(first, ()))
    if first in ("wire", "loader-cpu") and would_bring.get("agent-cpu", 1.0) >= _GAIN:
        told.insert(0, _AGENT_CORES)
    if first in ("wire", "loader-cpu") and why_not:
        told.insert(0, f"See why nothing is offloaded: {why_not}.")
    return told
