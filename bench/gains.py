"""README's table: what the loader gains, and where it gains nothing."""

from __future__ import annotations

from typing import Any

from bench.markdown import MISSING, Result, Results, middle, table

LINES = (
    ("**network of 100 Mbit/s, ImageNet files**", "long-epochs-imagenet", "no-off", "auto"),
    ("**network of 100 Mbit/s, photographs**", "long-epochs-photos", "no-off", "auto"),
    ("**the loader's CPU, no limit on the network**", "cpu-bound", "torch", "auto"),
    ("the same, and the agent only sends files", "cpu-bound", "torch", "no-off"),
    ("network of 100 Mbit/s, agent with 0.05 cores", "policies-0.05-imagenet", "no-off", "auto"),
)
"""What limits, the result's name, and the policies before and after."""
LOCAL = {
    (2, "nothing"): "two cores, shared by loader and agent",
    (1, "gpu"): "the training step",
}
"""Rows of `overhead` by workers and limit, and what limits there."""
BEFORE = {"no-off": "whole files", "torch": "`DataLoader`"}


def gains(results: Results) -> str:
    """Times the images per second, by what limits."""
    rows = []
    for what, name, before, after in LINES:
        if (result := results.named(name)) is not None:
            slow, fast = entry(result, before), entry(result, after)
            rates = f"{middle(slow['images_per_s'], 0)} → {middle(fast['images_per_s'], 0)}"
            rows.append((what, BEFORE[before], rates, times(fast["times_faster"]["median"]), f"`{name}.json`"))
    if (result := results.named("overhead")) is not None:
        found = {(one["workers"], one["limit"]): one for one in result.rows["throughput"] if one["policy"] == "auto"}
        for which, what in LOCAL.items():
            rows.append((what, BEFORE["torch"], "", times(found[which]["ratio"]["median"]), "`overhead.json`"))
    return table(("what limits", "compared with", "images/s", "gain", "file"), rows) if rows else MISSING


def entry(result: Result, policy: str) -> dict[str, Any]:
    """The figures of a policy."""
    found: dict[str, Any] = next(one for one in result.rows["summary"] if one["policy"] == policy)
    return found


def kb_per_image(result: Result, policy: str) -> float:
    """Kilobytes on the network per image, under a policy."""
    one = entry(result, policy)
    return float(one["interface_bytes"]["median"] / sum(one["choices"].values()) / 1000)


def times(ratio: float) -> str:
    """A gain in words; within 2 % there is none."""
    return "none" if abs(ratio - 1) < 0.02 else f"{ratio:.1f} times"
