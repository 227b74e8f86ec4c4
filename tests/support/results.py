"""Result files of benches, as tables read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import record
from bench.markdown import Results


def written(folder: Path, name: str, rows: Any, *, clean: bool | str = True) -> Results:
    """The results of a folder in which one has been written.

    Args:
        folder: where.
        name: of the result.
        rows: its figures.
        clean: what its stamp says of the tree.
    """
    stamp = {"commit": "0123456789", "clean": clean, "command": "x", "machine": {}, "versions": {}}
    record.write_json(folder / f"{name}.json", {**stamp, "rows": rows})
    return Results(folder)
