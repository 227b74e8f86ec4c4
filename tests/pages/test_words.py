"""The check of wording finds what docs/style.md advises against, where it is, and lets no budget rise."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.pages.blocks import ROOT


@pytest.fixture(scope="module")
def words() -> ModuleType:
    """The check, which is a script outside every package."""
    spec = importlib.util.spec_from_file_location("check_words", ROOT / ".ci/check_words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LONG = "word " * 33
SOURCE = f'''\
"""Of a module."""
LIMIT = 3  # noqa: E501 anew
"""Number of files.

Read anew:
- {LONG}
"""


def read() -> None:
    # A file is opened
    # anew here.
    """Return `told`.

    >>> told, anew
    """
'''
PAGE = f"""\
# Told
```
anew
```
A [link](anew.md) and `whoever`.
| {"word " * 20} | {"word " * 20} |

{"word " * 20}. Then {"word " * 20}.
<!-- anew -->
In vain.
"""


def test_texts_of_code_and_pages_are_read_and_their_code_is_not(words: ModuleType) -> None:
    def places(texts: list[object]) -> list[tuple[str, int]]:
        return sorted((one.rule, one.line) for text in texts for one in words.findings_of(text))

    assert places([*words.texts_of_code(SOURCE)]) == [
        ("first words", 1),
        ("house words", 5),
        ("house words", 12),
        ("long sentences", 6),
    ]
    assert places([*words.texts_of_page(PAGE)]) == [("house words", 1), ("house words", 10)]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("The same as before.", "say what it is, then what it equals"),
        ("`so` is a name.", "name the amount first: 'Maximum number of ...'"),
        ("It stands in a list.", "'stands': is"),
        ("It stands for a list, and stands in for another.", None),
        ("The key is None if there is none.", None),
        ("told: name of an argument.", None),
        ("Offset of a word.", None),
    ],
)
def test_advice_names_the_plain_word(words: ModuleType, text: str, advice: str | None) -> None:
    found = [one.advice for one in words.findings_of(words.Text(1, text, is_docstring=True))]
    assert found == ([] if advice is None else [advice])


def test_a_budget_is_met_exactly_and_never_rises(words: ModuleType) -> None:
    found = {("wire", "house words"): ["wire/a.py:1: x"] * 2, ("new", "first words"): ["new/b.py:2: y"]}
    budgets = {"wire": {"house words": 3}, "gone": {"house words": 1}}
    gone, above, below = words.compare(found, budgets)
    assert above == "new/b.py:2: y\nnew has 1 first words, at most 0 are allowed; see docs/style.md"
    assert gone.startswith("gone has 0 house words; lower the budget to 0")
    assert below.startswith("wire has 2 house words; lower the budget to 2")
    assert words.lowered(found, budgets) == {"wire": {"house words": 2}}
    first = words.lowered(found, None)
    assert first == {"wire": {"house words": 2}, "new": {"first words": 1}} and not [*words.compare(found, first)]
