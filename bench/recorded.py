"""Outcome of every op that is given a picture whose pixels are not made yet; docs/programs.md shows it.

    python -m bench.recorded --summary bench/results/recorded.json

Each construction of bench/program_cases.py is called with a made JPEG of 160 x 120 px, under 100 seeds, or 30 where
these have one answer. Either it records steps, or it looks at pixels. A look is named by two of Pillow's functions: the
one that was called from outside, and the last one that this called. Nothing is timed, and no picture is decoded.
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from types import TracebackType
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench import arguments, record
from bench.program_cases import CONSTRUCTIONS
from sophon_loader.kinds.image.deferred import Deferred, deferred
from sophon_loader.kinds.image.source import PixelsWanted, source_of
from sophon_loader.pipeline.chain import isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import seed_generators

SEEDS, ALIKE = 100, 30
"""Draws of an op, and how many of them are enough if all have one answer."""
_REACH_PIXELS = ("im", "load", "tobytes")
"""Functions of Pillow's that any look goes through."""

Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Ask every op, print a table, write the results."""
    options = arguments.parsed(arguments.Parser("bench.recorded", __doc__), argv)
    found = answers()
    show(found["ops"])
    record.write(options.output, found)
    return 0


def answers() -> dict[str, Any]:
    """Return the page's facts on ops: `timm`, the release, and `ops`, a row of each construction, see `answer`; one
    for those of the same text and answer."""
    ops: list[Row] = []
    for one in CONSTRUCTIONS:
        row = {"where": one.where, "op": one.text, **answer(one.make())}
        same = next((other for other in ops if {**other, "where": one.where} == row), None)
        if same is None:
            ops.append(row)
        else:
            same["where"] += f", {one.where}"
    return {"timm": version("timm"), "ops": ops}


def answer(op: Callable[[Any], Any]) -> Row:
    """Return the outcome of an op.

    Returns:
        `made`: lists of steps that it may record; `looks`: by name, the share of the draws,
        where there is any; `refused`: True for one that takes no image.
    """
    made: Counter[tuple[str, ...]] = Counter()
    looks: Counter[str] = Counter()
    with isolated(GENERATORS):
        for seed in range(SEEDS):
            if seed == ALIKE and len(made) + len(looks) < 2:
                break
            seed_generators(GENERATORS, seed)
            source = source_of(_picture())
            assert source is not None
            source.sealed = True
            try:
                image = op(deferred(source))
            except PixelsWanted as error:
                looks[look_of(error)] += 1
            except (TypeError, ValueError, AttributeError):  # as it would of Pillow's own image
                if made or looks:
                    raise
                return {"made": [], "refused": True}
            else:
                made[tuple(step[0] for step in image.steps) if isinstance(image, Deferred) else ()] += 1
    row: Row = {"made": [list(steps) for steps in sorted(made)]}
    draws = made.total() + looks.total()
    return {**row, "looks": {name: looks[name] / draws for name in sorted(looks)}} if looks else row


def look_of(error: PixelsWanted) -> str:
    """Return the functions that looked: Pillow's called from outside, and the one within that took the pixels."""
    calls = [call for call in _calls(error.__traceback__) if not call[0].startswith("sophon_loader.")]
    outside = max((at for at, (module, _) in enumerate(calls) if not module.startswith("PIL.")), default=-1)
    if outside == len(calls) - 1:
        return ".".join(calls[-1])
    inside = [(module.removeprefix("PIL."), name) for module, name in calls[outside + 1 :]]
    (module, first), (_, last) = (
        inside[0],
        next((one for one in inside[::-1] if one[1] not in _REACH_PIXELS), inside[0]),
    )
    if first == "__array_interface__":
        return first
    return f"{module}.{first}" if first == last else f"{module}.{first} -> {last}"


def taken_by(look: str) -> str:
    """The function that took the pixels, of a name that `look_of` gave."""
    return look.rpartition(" -> ")[2].removeprefix("Image.")


def _calls(traceback: TracebackType | None) -> list[tuple[str, str]]:
    """Module and name of each function on the way to the error, the outermost first."""
    found = []
    while traceback is not None:
        frame = traceback.tb_frame
        name = frame.f_code.co_name
        if name == "__init__":
            name = type(frame.f_locals["self"]).__name__
        found.append((str(frame.f_globals["__name__"]), name))
        traceback = traceback.tb_next
    return [(module, name) for module, name in found if module != __name__]


@cache
def _picture() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def show(ops: list[Row]) -> None:
    """Print what becomes of each op."""
    table = Table("where", "op", "records", "looks")
    for row in ops:
        made = "takes no image" if row.get("refused") else " | ".join(", ".join(steps) or "-" for steps in row["made"])
        looks = ", ".join(f"{name} {share:.0%}" for name, share in row.get("looks", {}).items())
        table.add_row(row["where"], row["op"], made, looks)
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
