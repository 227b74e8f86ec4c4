"""Names of resources for sentences, and sentences on the limiting ones."""

from __future__ import annotations

from collections.abc import Mapping

from sophon_loader.figures import percent

_RESOURCES = {
    "gpu": "the training step",
    "wire": "the network",
    "loader-cpu": "the loader's CPU",
    "agent-cpu": "the agent's CPU",
    "agent-disk": "the agent's disk",
    "cache": "the cache",
    "cpu": "the loader's CPU",
    "io": "the network",
}
"""Phrases by the names in a report; the last two names are those of its `throughput`."""
RESOURCES = ("gpu", "wire", "loader-cpu", "agent-cpu", "agent-disk")
"""Names of the resources that an epoch uses."""
_DOUBLED = {"gpu": "a training step twice as fast"}
NOTHING = "nothing is offloaded"
"""End of the reason of a plan that offloads nothing."""
LEAST_GAIN = 0.005
"""Smallest gain that is reported; a smaller one would read as 0 %."""


def resource(name: str) -> str:
    """Return the phrase for a resource; an unknown name is returned unchanged.

    Example:
        >>> resource("wire")
        'the network'
    """
    return _RESOURCES.get(name, name)


def doubled(name: str) -> str:
    """Return the phrase for twice a resource.

    Example:
        >>> doubled("wire")
        'twice the network'
    """
    return _DOUBLED.get(name, f"twice {resource(name)}")


def capitalised(text: str) -> str:
    """Return a text with a capital first letter, and the rest unchanged."""
    return text[:1].upper() + text[1:]


def what_limits(limits: Mapping[str, float]) -> str:
    """Return a sentence on the two busiest resources; "" if nothing is known.

    Args:
        limits: share of the time for which each resource is busy, the busiest first.

    Example:
        >>> what_limits({"wire": 1.0, "loader-cpu": 0.78})
        "The network limits; the loader's CPU is busy 78 % of the time."
    """
    if not limits:
        return ""
    (first, _), *others = limits.items()
    text = f"{capitalised(resource(first))} limits"
    if others and others[0][1] > 0:
        text += f"; {resource(others[0][0])} is busy {percent(others[0][1])} of the time"
    return f"{text}."


def what_more_brings(would_bring: Mapping[str, float]) -> str:
    """Return a sentence on the gain from twice of each resource, for those with a gain; "" if nothing is known.

    Args:
        would_bring: factor by which samples/s grow with twice of each resource, in the order of the sentence.

    Example:
        >>> what_more_brings({"gpu": 1.0, "wire": 1.6, "loader-cpu": 1.04})
        "Twice the network would bring 60 % more samples per second; twice the loader's CPU 4 %."
    """
    if not would_bring:
        return ""
    told = [(doubled(name), times - 1) for name, times in would_bring.items() if times - 1 >= LEAST_GAIN]
    if not told:
        return "Twice of any single resource would bring nothing."
    (first, most), *others = told
    text = f"{capitalised(first)} would bring {percent(most)} more samples per second"
    return "; ".join((text, *(f"{what} {percent(gain)}" for what, gain in others))) + "."
