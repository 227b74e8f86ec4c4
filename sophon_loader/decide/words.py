"""How resources are called in sentences, and what limits in such."""

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
"""By their names in a report; the last two are those of its `throughput`."""
RESOURCES = ("gpu", "wire", "loader-cpu", "agent-cpu", "agent-disk")
"""Those that an epoch uses up."""
_DOUBLED = {"gpu": "a training step twice as fast"}
NOTHING = "nothing is offloaded"
"""How a policy ends the reason of a plan that offloads nothing."""
LEAST_GAIN = 0.005
"""A smaller one would read as 0 %."""


def resource(name: str) -> str:
    """A resource in a sentence; one that is not known here under its own name.

    Example:
        >>> resource("wire")
        'the network'
    """
    return _RESOURCES.get(name, name)


def doubled(name: str) -> str:
    """Twice of a resource, in a sentence.

    Example:
        >>> doubled("wire")
        'twice the network'
    """
    return _DOUBLED.get(name, f"twice {resource(name)}")


def capitalised(text: str) -> str:
    """A text with a capital first letter, the rest as it is."""
    return text[:1].upper() + text[1:]


def what_limits(limits: Mapping[str, float]) -> str:
    """A sentence on the two busiest resources; empty while nothing is known.

    Args:
        limits: share of the time for which each is busy, the busiest first.

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
    """A sentence on what twice of each resource would bring, those that bring something; empty while nothing is known.

    Args:
        would_bring: how many times as many samples per second twice of each gives, in the order to tell.

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
