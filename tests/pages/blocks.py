"""The code blocks of a page, as steps that can be run.

    ```python     a program of its own, whose `__name__` is "__main__"
    ```sh         commands of bash, which stops at the first that fails; `sophon-agent serve` runs until the page ends
    ```diff       not run, as all other blocks, unless a comment says so

A comment right above a block says more:

    <!-- run: continue -->          Python: the same program as the block before
    <!-- run: no (the reason) -->   shown only
    <!-- run: file NAME -->         written as NAME into the folder in which the page's programs run
    <!-- run: diff -->              the new side of the diff is a program
    <!-- run: hidden                Python that readers do not see, down to a line `-->`: the first lines of the next
                                    program; `hidden continue`: more lines of the program before
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"(?P<indent> *)(?P<marks>`{3,})(?P<language>[\w-]*)")
_COMMENT = re.compile(r" *<!-- run: (?P<verb>continue|no|file|diff|hidden)(?: (?P<argument>(?!-->)\S.*?))?(?: -->)?")


@dataclass(frozen=True)
class Step:
    """What is done in one go: a program, commands, a file to write, or nothing.

    Args:
        line: of the page, from 1, where its code begins.
        kind: "python", "sh", "file" or "no".
        text: the code; Python on the lines that it has in the page, so that tracebacks name these.
        argument: the name of the file, or the reason.
    """

    line: int
    kind: str
    text: str
    argument: str = ""


def steps_of(text: str) -> list[Step]:
    """What is done to run a page; blocks of one program are one step.

    Raises:
        ValueError: a block or a comment does not end, or a comment makes no sense where it stands.
    """
    found: list[Step] = []
    lines = iter(enumerate(text.splitlines(), 1))
    verb = argument = ""
    opened = False  # hidden lines wait for the block that goes on with them
    for number, line in lines:
        if "<!-- run" in line:
            comment = _COMMENT.fullmatch(line)
            if verb or not comment or line.endswith(" -->") == (comment["verb"] == "hidden"):
                raise ValueError(f"line {number}: no comment of the runner, or two above one block: {line}")
            verb, argument = comment["verb"], comment["argument"] or ""
            if verb != "hidden":
                continue
            kind, code = "python", _until(lines, "-->", number)
        elif fence := _FENCE.match(line):
            kind, code = fence["language"], _until(lines, fence["indent"] + fence["marks"], number)
            code = [line.removeprefix(fence["indent"]) for line in code]
        elif verb:
            raise ValueError(f"line {number}: `run: {verb}` must stand right above a block, got {line!r}")
        else:
            continue
        if verb == "diff":
            kind, code = "python", ["" if line[:1] == "-" else line[1:] for line in code]
        if verb in ("no", "file"):
            kind = verb
        if kind == "python":
            before = _last_program(found, number) if opened or "continue" in (verb, argument) else None
            _add_program(found, before, number + 1, code)
            opened = verb == "hidden" and not argument
        elif kind in ("sh", "no", "file"):
            found.append(Step(number + 1, kind, "\n".join([*code, ""]), argument))
        verb = argument = ""
    return found


def _until(lines: Iterator[tuple[int, str]], end: str, start: int) -> list[str]:
    found: list[str] = []
    for _, line in lines:
        if line.rstrip() == end:
            return found
        found.append(line)
    raise ValueError(f"line {start}: there is no {end!r} that ends it")


def _last_program(found: list[Step], number: int) -> int:
    programs = [at for at, step in enumerate(found) if step.kind == "python"]
    if not programs:
        raise ValueError(f"line {number}: there is no program that could be continued")
    return programs[-1]


def _add_program(found: list[Step], before: int | None, line: int, code: list[str]) -> None:
    """A program, or more lines of one (`before`, its place), moved down to where they stand in the page."""
    start, text = (line, "") if before is None else (found[before].line, found[before].text)
    text += "\n" * (line - 1 - text.count("\n")) + "\n".join([*code, ""])
    if before is None:
        found.append(Step(start, "python", text))
    else:
        found[before] = Step(start, "python", text)
