"""Result files, and the Markdown that tables of them are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from bench.catalogue import BENCHES
from bench.record import UNKNOWN

MISSING = "Not measured."
BARS = {bench.name: bench.bar for bench in BENCHES if bench.bar}


@dataclass(frozen=True)
class Result:
    """A result file.

    Args:
        name: of the file, without its suffix.
        stamp: commit, machine, versions and command.
        rows: the figures.
    """

    name: str
    stamp: dict[str, Any]
    rows: Any

    @property
    def bench(self) -> str:
        """The bench's name, without that of the pictures."""
        return self.name if self.name in BARS else self.name.rpartition("-")[0]

    @property
    def data(self) -> str:
        """The pictures, where the file's name says them."""
        return self.name.rpartition("-")[2]

    @property
    def commit(self) -> str:
        """The commit in short, and whether the tree was that."""
        clean = {True: "", False: " with changes", UNKNOWN: " (with changes or not: unknown)"}[self.stamp["clean"]]
        return f"{self.stamp['commit'][:7]}{clean}"

    @property
    def source(self) -> str:
        """File, commit and command, for below a table."""
        return f"`{self.name}.json`, commit {self.commit}: `{self.stamp['command']}`."


class Results:
    """The result files of a folder.

    Args:
        folder: usually bench/results.

    Example:
        >>> Results(Path("bench/results")).named("planner")  # None when there is no planner.json
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def named(self, name: str) -> Result | None:
        """The result of that name; None when there is none."""
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        stamp = json.loads(path.read_text())
        return Result(name, stamp, stamp.pop("rows"))

    def all(self) -> list[Result]:
        """All results, by name."""
        found = (self.named(path.stem) for path in sorted(self._folder.glob("*.json")))
        return [result for result in found if result is not None]

    def each(self, bench: str) -> list[Result]:
        """The results of a bench that runs on each picture folder."""
        return [result for result in self.all() if result.name.rpartition("-")[0] == bench]


# --- Markdown ---------------------------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table.

    Args:
        columns: their titles.
        rows: a text per column.
    """
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: dict[str, float] | None, digits: int, unit: float = 1.0) -> str:
    """Median and range; nothing for None.

    Args:
        values: min, median and max.
        digits: behind the point.
        unit: what they are given in.
    """
    if values is None:
        return ""
    low, middle, high = (f"{values[name] / unit:.{digits}f}" for name in ("min", "median", "max"))
    return f"{middle} ({low}-{high})"


def middle(values: dict[str, float] | None, digits: int, unit: float = 1.0) -> str:
    """The median; nothing for None.

    Args:
        values: with `median`.
        digits: behind the point.
        unit: what it is given in.
    """
    return "" if values is None else f"{values['median'] / unit:.{digits}f}"


def sources(*results: Result) -> str:
    """Return the sources of a table's figures, and their bars."""
    bars = dict.fromkeys(BARS[result.bench] for result in results if result.bench in BARS)
    return "<br>\n".join([*(result.source for result in results), *(f"Bar: {bar}." for bar in bars)])


def of_file(name: str) -> Callable[[Callable[[Result], str]], Callable[[Results], str]]:
    """Makes a table of all results out of one of a single file, with its sources below; MISSING where there is none.

    Args:
        name: of the file, without its suffix.
    """

    def of(make: Callable[[Result], str]) -> Callable[[Results], str]:
        @wraps(make)
        def made(results: Results) -> str:
            result = results.named(name)
            return MISSING if result is None else f"{make(result)}\n\n{sources(result)}"

        return made

    return of
