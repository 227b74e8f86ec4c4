"""README's table of the loader's gains. The text below it, and docs/results.md, name the cases without any."""

from __future__ import annotations

from typing import Any

from bench.markdown import MISSING, Result, Results, middle, table

LINES = (
    ("**100 Mbit/s, ImageNet files**", "long-epochs-imagenet", "no-off", "auto"),
    ("**100 Mbit/s, photographs**", "long-epochs-photos", "no-off", "auto"),
    ("**500 Mbit/s, {device}**", "training", "no-off", "auto"),
    ("**one loader core, no network limit**", "cpu-bound", "torch", "auto"),
)
"""(limit, the result's name, the policies before and after)."""
BEFORE = {"no-off": "whole files", "torch": "`DataLoader`"}
MODEL = "resnet50"


def gains(results: Results) -> str:
    """Return a table of the factors in images/s, by what limits."""
    rows = []
    for what, name, before, after in LINES:
        if (result := results.named(name)) is not None:
            slow, fast, gain = compared(result, before, after)
            device = str(result.rows["settings"].get("device", "")).removeprefix("NVIDIA ")
            rates = f"{middle(slow, 0)} → {middle(fast, 0)}"
            rows.append((what.format(device=device), BEFORE[before], rates, times(gain), f"`{name}.json`"))
    return table(("what limits", "instead of", "images/s", "gain", "file"), rows) if rows else MISSING


def compared(result: Result, before: str, after: str) -> tuple[dict[str, float], dict[str, float], float]:
    """Images per second (min, median, max) under two policies, and how many times those of the first the second has."""
    if result.name != "training":
        slow, fast = entry(result, before), entry(result, after)
        return slow["images_per_s"], fast["images_per_s"], fast["times_faster"]["median"]
    cases = [case for case in result.rows["cases"] if case["model"] == MODEL]
    case = next(case for case in cases if bool(case["link_mbit"]) == (before == "no-off"))["summary"]
    return case[before]["images_s"], case[after]["images_s"], case[after]["ratio"]["median"]


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
    if abs(ratio - 1) < 0.02:
        return "none"
    return f"{ratio:.1f} times" + (", slower" if ratio < 1 else "")
