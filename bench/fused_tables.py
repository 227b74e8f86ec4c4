"""The tables of docs/fused.md, and of docs/any-class.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.cost_stages import REST, TOGETHER
from bench.cost_ways import FUSED as OURS
from bench.cost_ways import TORCH
from bench.fused import FUSED, TORCHVISION
from bench.markdown import MISSING, Results, sources, spread, table

_STAGES = {
    "read": "read",
    "draw": "crop and flip, on an image without pixels",
    "decode": "decode: the whole file / the box",
    "crop and resize": "crop and resize",
    "resize": "resize",
    "flip": "flip",
    "ToTensor": "ToTensor",
    "Normalize": "Normalize",
    "finish": "flip, ToTensor and Normalize, into the batch",
    "collate": "collate",
    REST: REST,
    TOGETHER: TOGETHER,
}
"""In the order of the table, and what it says."""


def fused(results: Results) -> str:
    """Milliseconds and files per picture folder and filter."""
    found = results.each("fused")
    rows = [
        (
            result.data,
            row["filter"],
            *(spread(row["ms"][way], 2) for way in (TORCHVISION, FUSED)),
            spread(row["ratio"], 2),
            f"{row['through']:.1%} / {row['of_baseline']:.1%}",
            str(row["unlike"]),
        )
        for result in found
        for row in result.rows["filters"]
    ]
    columns = ("files", "filter", "torchvision ms", "ours ms", "ratio", "go through: of all / baseline", "unlike")
    return f"{table(columns, rows)}\n\n{sources(*found)}" if rows else MISSING


def any_class(results: Results) -> str:
    """CPU milliseconds per sample of datasets of one's own, by shape and picture folder."""
    found = results.each("any-class")
    shapes = [row["shape"] for row in found[0].rows["shapes"]] if found else []
    rows = []
    for shape in shapes:
        of_each = [next(row for row in one.rows["shapes"] if row["shape"] == shape) for one in found]
        rows.append((shape, *(text for row in of_each for text in _against_torch(row))))
    columns = ("a sample", *(f"{one.data}: {what}" for one in found for what in ("torch → ours, ms", "ratio")))
    return f"{table(columns, rows)}\n\n{sources(*found)}" if rows else MISSING


def any_class_recording(results: Results) -> str:
    """CPU microseconds per sample that recording takes, by what is loaded and picture folder."""
    found = results.each("any-class")
    of_each = [one.rows.get("recording", []) for one in found]
    rows = [
        (
            each[0]["what"],
            *(text for row in each for text in (f"{row['other_us']['median']:.0f}", _more(row["more_us"]))),
        )
        for each in zip(*of_each, strict=True)
    ]
    columns = ("recorded; beside", *(f"{one.data}: {what}" for one in found for what in ("that, us", "more, us")))
    return table(columns, rows) if rows else MISSING


def _more(us: Mapping[str, float]) -> str:
    low, middle, high = (f"{round(us[name]):+d}" for name in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"


def any_class_memory(results: Results) -> str:
    """Megabytes of one of two workers, by loader and picture folder."""
    found = results.each("any-class")
    of_each = [one.rows.get("memory", []) for one in found]
    rows = [
        (each[0]["way"], *(spread(row[name], 0) for row in each for name in ("pss_mb", "uss_mb")))
        for each in zip(*of_each, strict=True)
    ]
    columns = ("loader", *(f"{one.data}: {what}" for one in found for what in ("PSS, MB", "private, MB")))
    return table(columns, rows) if rows else MISSING


def _against_torch(row: Mapping[str, Any]) -> tuple[str, str]:
    return f"{row['torch_ms']['median']:.2f} → {row['ours_ms']['median']:.2f}", spread(row["ratio"], 2)


def cost(results: Results) -> str:
    """Images per second and CPU per image of each way, per picture folder and number of workers."""
    found = results.each("cost")
    rows = [
        (
            result.data,
            str(row["workers"]),
            f"`{row['way']}`",
            spread(row["images_per_s"], 0),
            spread(row["cpu_ms"], 2),
            spread(row.get("ratio"), 2),
            spread(row.get("cpu_ratio"), 2),
        )
        for result in found
        for row in result.rows["summary"]
    ]
    if not rows:
        return MISSING
    columns = ("files", "workers", "way", "images/s", "CPU ms", "times torch's images/s", "times less CPU than torch")
    reasons = {way: reason for result in found for way, reason in result.rows["unavailable"].items()}
    left_out = [f"`{way}` was left out: {reason}." for way, reason in reasons.items()]
    return "\n\n".join([table(columns, rows), *left_out, sources(*found)])


def cost_stages(results: Results) -> str:
    """Microseconds of CPU per sample and stage, of torch's loader and ours."""
    found = results.each("cost")
    if not found:
        return MISSING
    ways = [(result, way) for result in found for way in (TORCH, OURS)]
    columns = ("stage, us", *(f"{result.data} `{way}`" for result, way in ways))
    rows = [
        (text, *(spread(result.rows["stages"][way]["us"].get(name), 0) for result, way in ways))
        for name, text in _STAGES.items()
    ]
    return f"{table(columns, rows)}\n\n{sources(*found)}"
