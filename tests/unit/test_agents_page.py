"""docs/for-agents.md quotes words that the loader says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "for-agents.md").read_text()
TABLE = PAGE.split("## 6. ")[1]
QUOTED = [words for line in TABLE.splitlines()[3:] for words in re.findall(r"`([^`]+)`", line.split(" | ")[0])]


@pytest.fixture(scope="module")
def said() -> str:
    """All texts of the loader's sources, and the names of its exceptions."""
    found: list[str] = []
    for path in sorted((ROOT / "sophon_loader").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(one.value if isinstance(one, ast.Constant) else "{}" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.ClassDef):
                found.append(node.name)
    return "\n".join(found)


@pytest.mark.parametrize("words", QUOTED)
def test_the_loader_says_what_the_page_quotes(said: str, words: str) -> None:
    assert words in said


def test_the_page_is_short() -> None:
    lines = PAGE.splitlines()
    assert len(lines) <= 250 and max(map(len, lines)) <= 120
