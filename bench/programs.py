"""Reach of the programs of whole pipelines, and the share of files that can be cut for them; docs/programs.md shows it.

    python -m bench.programs --data PATH --json programs.json

Each pipeline of bench/program_cases.py meets 200 files, file i under the random numbers of sample i. A program ends
where an op looks at pixels. Nothing is decoded or timed; files are cut as an agent does it for `roi-jpeg`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from bench.program_cases import PIPELINES
from bench.recorded import look_of, taken_by
from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.kinds.image.part import WORTH_SHARE, PartOfFile
from sophon_loader.kinds.image.segments import leading, shrunk
from sophon_loader.kinds.image.source import PixelsWanted
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.described import Begun, begin_on_file
from sophon_loader.pipeline.randomness import Draw

FILES = 200
FIGURES = ("shrunk", "whole", "cut", "here")
NO_PROGRAM = "the file has no program"


@dataclass(frozen=True)
class Reach:
    """Reach of a sample's program.

    Args:
        shrunk, whole, cut, here: see `shares`.
        ended: reason why it ends before `whole`, or has no `shrunk`.
    """

    shrunk: bool = False
    whole: bool = False
    cut: bool = False
    here: bool = False
    ended: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Ask every pipeline, print a table, write the results."""
    options = arguments.parsed(arguments.Parser("bench.programs", __doc__, pictures=True), argv)
    files = [path.read_bytes() for path in sorted(options.data.glob("*/*"))[:FILES]]
    rows = pipelines(files)
    show(rows, options.data)
    record.write(options.output, {"files": len(files), "pipelines": rows})
    return 0


def pipelines(files: Sequence[bytes]) -> list[dict[str, Any]]:
    """A row of each pipeline, see `shares`, with `title`."""
    progress = tqdm(PIPELINES, desc="pipelines", file=sys.stderr)
    return [{"title": one.title, **shares(chain_of(one.make()), files)} for one in progress]


def shares(chain: Chain, files: Sequence[bytes]) -> dict[str, Any]:
    """Return the outcomes of some files under a pipeline, as shares of them.

    Returns:
        `shrunk` and `whole`: programs with the segment `shrunk`, and those that reach the end of the 8-bit ops. `cut`:
        files whose part is cut out. `here`: files whose part a host with the whole file decodes. `ended`: reasons why
        others have no segment `shrunk` or end early.
    """
    reaches = []
    with chain.isolated():
        for index, data in enumerate(files):
            draw = Draw(0, 0, index)
            begun = begin_on_file(chain, data, draw)
            reaches.append(Reach(ended=NO_PROGRAM) if begun is None else reach(chain, begun, draw))
    ended = Counter(one.ended for one in reaches if one.ended)
    total = len(reaches)
    row: dict[str, Any] = {name: sum(getattr(one, name) for one in reaches) / total for name in FIGURES}
    return {**row, "ended": {why: times / total for why, times in ended.most_common()}} if ended else row


def reach(chain: Chain, begun: Begun, draw: Draw) -> Reach:
    """Return the reach of a program.

    Seeds the global generators: call it within `chain.isolated()`.

    Args:
        chain: the pipeline.
        begun: of a sample.
        draw: of the same sample.
    """
    image, ended = begun.image, ""
    begun.source.sealed = True
    for stage in range(begun.stage, len(chain)):
        op = chain.ops[stage]
        label = op.label.partition(".")[2].partition("@")[0] or op.label
        if stage >= chain.deferrable:
            ended = f"`{label}` is not known"
            break
        try:
            made = chain.run(image, stage, stage + 1, draw)
        except PixelsWanted as error:
            ended = "" if op.makes == "tensor" else f"`{label}` looks: `{taken_by(look_of(error))}`"
            break
        except Exception as error:  # an op that fails is one of the answers
            ended = f"`{label}` fails: {error}"
            break
        if not isinstance(made, Deferred):
            break
        image = made
    whole, steps = not ended, image.steps
    if whole and not shrunk(steps) and leading(steps) < len(steps):
        ended = f"`{steps[leading(steps)][0]}` comes before the crop"
    cut = bool(begun.steps) and isinstance(begun.part(), PartOfFile)
    return Reach(shrunk(steps) > 0, whole, cut, cut and begun.share <= WORTH_SHARE, ended)


def show(rows: list[dict[str, Any]], data: Path) -> None:
    """Print how far each pipeline gets."""
    table = Table("pipeline", *FIGURES, "ended", title=data.name)
    for row in rows:
        figures = (f"{row[name]:.0%}" for name in FIGURES)
        ended = ", ".join(f"{name} {share:.0%}" for name, share in row.get("ended", {}).items())
        table.add_row(row["title"], *figures, ended)
    Console(width=200).print(table)


if __name__ == "__main__":
    sys.exit(main())
