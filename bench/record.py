"""Results of a bench: everything it measured, or the summary of it that bench/results/ keeps. Both carry a stamp."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "bench" / "results"
"""Summaries, in git; the newest of each bench."""
RAW = REPOSITORY / "bench" / "raw"
"""All that was measured; not in git."""
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
PACKAGES = ("torch", "torchvision", "pillow")
"""Packages that decide how fast an image is decoded and transformed."""
SINGLE = ("rounds", "epochs")
"""Names of lists of single measurements. A summary has their number in their place."""
WRITTEN = (":(exclude)bench/results", ":(exclude)docs", ":(exclude)README.md")
"""Files that benches, and the pages made of them, change; they do not affect the code that was measured."""
WIDTH = 110
"""Characters of a line of a result file, about."""
DIGITS = 6
"""Number of digits in the figures of a summary."""
UNKNOWN = "unknown"
_OUTPUTS = ("--json", "--summary")


@dataclass(frozen=True)
class Output:
    """Destinations of a run's results.

    Args:
        json: file for everything; None for nowhere.
        summary: file for the summary; None for nowhere.
        command: what the stamp says was run.
    """

    json: Path | None
    summary: Path | None
    command: str


def write(output: Output, rows: Any) -> None:
    """Write what a bench has measured.

    Args:
        output: where to.
        rows: what goes into the file besides the stamp, as JSON can carry it.
    """
    if output.json is None and output.summary is None:
        return
    about = stamp(output.command)
    if output.json is not None:
        write_json(output.json, {**about, "rows": rows})
    if output.summary is not None:
        write_json(output.summary, {**about, "rows": summary_of(rows)})


def write_json(path: Path, value: Any) -> None:
    """Write a value to a file, and make the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_laid_out(value) + "\n")


def _laid_out(value: Any, indent: str = "") -> str:
    """Return JSON with everything on one line that fits there: a third of the lines, and a figure next to its range."""
    short = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(indent) + len(short) <= WIDTH:
        return short
    inner = indent + " "
    if isinstance(value, list):
        parts = [inner + _laid_out(one, inner) for one in value]
        return "[\n" + ",\n".join(parts) + f"\n{indent}]"
    parts = [f"{inner}{json.dumps(name)}: {_laid_out(one, inner)}" for name, one in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


def stamp(command: str) -> dict[str, Any]:
    """Commit, machine, versions and command, without the name of a host or a path of this machine.

    Args:
        command: as by `short_command`.
    """
    commit = _output("git", "rev-parse", "HEAD")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", ".", *WRITTEN)
    return {
        "commit": commit or UNKNOWN,
        "clean": not changed if commit else UNKNOWN,
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "command": command,
    }


def summary_of(rows: Any) -> Any:
    """Return a bench's measurements without single rounds, in figures of six digits."""
    if isinstance(rows, dict):
        summary = {}
        for name, value in rows.items():
            singles = name in SINGLE and isinstance(value, list)
            summary[name] = _number_of(value) if singles else summary_of(value)
        return summary
    if isinstance(rows, list):
        return [summary_of(value) for value in rows]
    if isinstance(rows, float):
        return float(f"{rows:.{DIGITS}g}")
    return rows


def _number_of(rows: list[Any]) -> int:
    """Return the number of rounds of these rows; several rows share a round when several loaders took turns in it."""
    for name in ("round", "number"):
        if rows and all(isinstance(row, dict) and name in row for row in rows):
            return len({row[name] for row in rows})
    return len(rows)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": median(values), "max": max(values)}


def judged(what: str, ratio: dict[str, float], bar: float) -> str:
    """A line of a bench's output: a ratio, and whether it keeps its bar.

    Args:
        what: was compared.
        ratio: as by `spread`.
        bar: for the median, which must not be below it.

    Example:
        >>> judged("new / old", spread([0.97, 0.95]), 0.95)
        'new / old: 0.960 (0.950 to 0.970) (bar >= 0.95: ok)'
    """
    middle, verdict = ratio["median"], "ok" if ratio["median"] >= bar else "below"
    return f"{what}: {middle:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f}) (bar >= {bar:g}: {verdict})"


def in_turns(names: Sequence[str], number: int) -> list[str]:
    """The names, another one first in every round.

    Args:
        names: who takes turns.
        number: of the round, from 0.
    """
    shift = number % max(1, len(names))
    return [*names[shift:], *names[:shift]]


def short_command(module: str, arguments: Sequence[str]) -> str:
    """A command line as a stamp has it: without the files that it writes, and paths by their last two parts.

    Args:
        module: as in `python -m MODULE`.
        arguments: the rest.
    """
    kept: list[str] = []
    skips = False
    for argument in arguments:
        if skips:
            skips = False
        elif argument in _OUTPUTS:
            skips = True
        elif not argument.startswith(tuple(f"{name}=" for name in _OUTPUTS)):
            kept.append(_short(argument))
    return shlex.join(["python", "-m", module, *kept])


def _short(argument: str) -> str:
    return os.path.join("...", *Path(argument).parts[-2:]) if argument.startswith("/") else argument


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY).stdout.strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
