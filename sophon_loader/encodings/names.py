"""Names of the encodings, without importing what implements them (the agent's broker needs no torch)."""

from __future__ import annotations

from importlib.metadata import entry_points

ENTRY_POINTS = "sophon_loader.encodings"
BUILT_IN = ("file", "pixels", "array", "webp")


def encoding_names() -> list[str]:
    """Every encoding that can be offered here."""
    return [*BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))]
