"""Counts wording that is hard to read, and holds each folder to its budget in `words.json`.

python .ci/check_words.py            exits with status 1 and says what is above or below its budget
python .ci/check_words.py --lower    writes budgets that became smaller; without the file, today's counts

Reads docstrings, texts below constants and comments of the Python code, `docs/*.md` and `README.md`; skips code blocks.
docs/style.md explains the rules, with examples. It quotes what it advises against, so it is not read itself.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BUDGETS = Path(__file__).with_name("words.json")
CODE = ("sophon_loader", "storage_agent", "bench", "examples")
ROOMS = ("sophon_loader", "storage_agent")
"""Packages whose subfolders have budgets of their own."""
STYLE = "docs/style.md"
MAX_WORDS = 32

FIRST_WORDS = {
    "of": "name the thing first",
    "times": "write 'Factor by which ...'",
    "so": "name the amount first: 'Maximum number of ...'",
    "such": "name the thing",
    "as": "say what it does, then what it resembles",
    "those": "write the noun",
    "that": "write the noun",
    "what": "write the noun, or the verb of what the function does",
    "whether": "write 'True if ...' or 'Return True if ...'",
    "how": "write the noun: 'Number of ...', 'Seconds until ...'",
    "who": "write the noun",
    "whose": "write the noun",
    "which": "write the noun",
    "where": "write 'Path of ...', 'Position of ...', or 'If ...'",
    "why": "write 'Reason why ...'",
    "the same": "say what it is, then what it equals",
}
"""First words of docstrings, and what to write instead."""

HOUSE_WORDS = {
    r"whoever": "the caller, the user, the worker ...",
    r"whatever": "any, everything that; or name the thing",
    r"wherever": "where, everywhere",
    r"somebody|nobody|everybody": "name the person or process",
    r"anew": "again",
    r"beside": "next to, apart from, in addition to",
    r"in vain": "without success",
    r"of (?:no |any |little )?use": "useful, useless",
    r"of late": "recently",
    r"told(?!:)|tells? of": "reported, sent, listed, knows",
    r"(?:is|are|be|was|were) had|to have it": "get, fetch, receive",
    r"(?:has|have|had) come": "arrived",
    r"of which|of whom": "whose; or two sentences",
    r"of our own|of ours|of theirs|of his": "our, their, separate",
    r"stands?(?! (?:in )?for\b)": "is",
    r"mends?|mended": "fix, repair",
    r"spares|spared": "saves",
    r"lets? go(?: of)?": "release, free",
    r"likewise": "also",
    r"so (?:many|much)(?= (?:of|at|as)\b)": "this many, a number",
    r"(?<!there )(?:is|are) (?-i:none)": "does not exist, is not one",
    r"hence|thereby": "so",
}
"""Patterns of words that mark the prose as translated, and the plain words."""

_HOUSE = re.compile("|".join(rf"\b(?P<w{number}>{one})\b" for number, one in enumerate(HOUSE_WORDS)), re.IGNORECASE)
_FIRST = re.compile(r"\W*(the same|\w+)", re.IGNORECASE)
_SPAN = re.compile(r"(`+)[^`]+?\1|\]\([^)\s]*\)|<[^<>]+>")
_BLOCK = re.compile(
    r"\n(?=\s*\n|\s*(?:[-*|>#]|\d+\.|\w+(?:, \w+)*:)\s"  # an empty line, a list's item, an argument
    r"|.*\S {2,}\S|[ ]*\S+$)|\|",  # lines in columns, of a tree; a table's cells
    re.MULTILINE,
)
_END = re.compile(r"[.!?][)\"']*(?=\s+[A-Z`\"'(\d])")
_FENCE = re.compile(r"^ *(`{3,}).*?^ *\1 *$|^ *<!--.*?-->", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(r"^ *>>>.*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)
_NO_PROSE = re.compile(r"#\s*(?:noqa|type:|pragma|fmt:|!|ruff:)")


class Text(NamedTuple):
    """A docstring, a comment or a page."""

    line: int
    text: str
    is_docstring: bool = False


class Finding(NamedTuple):
    """A place that breaks a rule, and what to write there instead."""

    rule: str
    line: int
    advice: str


Found = dict[tuple[str, str], list[str]]
"""Findings as lines to print, by (folder, rule)."""


def findings_of(text: Text) -> Iterator[Finding]:
    """Check one text against all rules."""
    prose = _SPAN.sub(lambda span: "x" + "\n" * span[0].count("\n"), _EXAMPLE.sub(_blank, text.text))
    first = _FIRST.match(text.text)
    if text.is_docstring and first and (advice := FIRST_WORDS.get(first[1].lower())):
        yield Finding("first words", text.line, advice)
    for found in _HOUSE.finditer(prose):
        advice = [*HOUSE_WORDS.values()][int(str(found.lastgroup)[1:])]
        yield Finding("house words", text.line + prose.count("\n", 0, found.start()), f"'{found[0]}': {advice}")
    for start, sentence in sentences(prose):
        if (count := len(sentence.split())) > MAX_WORDS:
            yield Finding("long sentences", text.line + prose.count("\n", 0, start), f"{count} words; make it two")


def sentences(prose: str) -> Iterator[tuple[int, str]]:
    """Yield (offset, sentence). Paragraphs, list items and table cells end a sentence, too."""
    start = 0
    for end in sorted({found.end() for one in (_BLOCK, _END) for found in one.finditer(prose)} | {len(prose)}):
        sentence = prose[start:end]
        yield start + len(sentence) - len(sentence.lstrip()), sentence
        start = end


def texts_of_code(source: str) -> Iterator[Text]:
    """Yield the docstrings and comments of a Python file; comments on adjacent lines are one text."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield Text(value.lineno, value.value, is_docstring=True)
    if "#" in source:
        yield from _comments(source)


def _comments(source: str) -> Iterator[Text]:
    begin, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or _NO_PROSE.match(token.string):
            continue
        if token.start[0] != begin + len(lines) and lines:
            yield Text(begin, "\n".join(lines))
            lines = []
        begin = begin if lines else token.start[0]
        lines.append(token.string.lstrip("#:"))
    if lines:
        yield Text(begin, "\n".join(lines))


def texts_of_page(page: str) -> Iterator[Text]:
    """Yield the page without its code blocks and hidden comments."""
    yield Text(1, _FENCE.sub(_blank, page))


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def folder_of(where: str) -> str:
    """Return the folder whose budget a file counts towards.

    >>> folder_of("sophon_loader/kinds/image/part.py"), folder_of("bench/peers/ffcv.py"), folder_of("docs/guide.md")
    ('sophon_loader/kinds', 'bench', 'docs')
    """
    parts = where.split("/")
    return "/".join(parts[: 2 if parts[0] in ROOMS and len(parts) > 2 else 1])


def count(paths: Iterable[Path]) -> Found:
    """Read the files and collect their findings; those of the file that was edited last come last."""
    found: Found = defaultdict(list)
    for path in sorted(paths, key=lambda path: (path.stat().st_mtime, path)):
        where, content = path.relative_to(ROOT).as_posix(), path.read_text()
        lines = content.splitlines()
        for text in (texts_of_page if path.suffix == ".md" else texts_of_code)(content):
            for one in findings_of(text):
                said = f"{where}:{one.line}: {lines[one.line - 1].strip()[:90]}\n    {one.advice}"
                found[folder_of(where), one.rule].append(said)
    return found


def compare(found: Found, budgets: dict[str, dict[str, int]]) -> Iterator[str]:
    """Yield a message for each budget that differs from what was found. A folder without a budget has 0."""
    known = {(folder, rule) for folder, rules in budgets.items() for rule in rules}
    for folder, rule in sorted({*found, *known}):
        said, budget = found.get((folder, rule), []), budgets.get(folder, {}).get(rule, 0)
        if len(said) > budget:
            yield "\n".join([*said, f"{folder} has {len(said)} {rule}, at most {budget} are allowed; see {STYLE}"])
        elif len(said) < budget:
            yield f"{folder} has {len(said)} {rule}; lower the budget to {len(said)}: python .ci/check_words.py --lower"


def lowered(found: Found, budgets: dict[str, dict[str, int]] | None) -> dict[str, dict[str, int]]:
    """Return budgets that are at most as large as before, or today's counts if there were none."""
    new: dict[str, dict[str, int]] = defaultdict(dict)
    for (folder, rule), said in sorted(found.items()):
        number = len(said) if budgets is None else min(len(said), budgets.get(folder, {}).get(rule, 0))
        if number:
            new[folder][rule] = number
    return dict(new)


def main() -> int:
    """Compare or lower; returns the exit status."""
    code = (path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    pages = (path for path in (ROOT / "docs").glob("*.md") if path != ROOT / STYLE)
    found = count([*code, *pages, ROOT / "README.md"])
    budgets = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else None
    if "--lower" in sys.argv[1:]:
        budgets = lowered(found, budgets)
        rows = (f"  {json.dumps(folder)}: {json.dumps(rules)}" for folder, rules in budgets.items())
        BUDGETS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    said = [*compare(found, budgets or {})]
    print(*said, sep="\n", end="\n" if said else "")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
