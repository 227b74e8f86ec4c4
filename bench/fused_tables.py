"""The table of docs/fused.md."""

from __future__ import annotations

from bench.fused import FUSED, TORCHVISION
from bench.markdown import MISSING, Results, sources, spread, table


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
