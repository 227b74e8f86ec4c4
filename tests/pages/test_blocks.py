"""Every code block of the pages runs as it is printed, or says why it cannot be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, Step, steps_of
from tests.pages.running import Page

NAMES = ("README.md", "CONTRIBUTING.md", *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))))
PAGES = [name for name in NAMES if (ROOT / name).exists()]
PRINTED = {
    "README.md": "96 of 96 samples ",
    "docs/for-agents.md": "with and without the agent, augmented: True",
}
"""What the blocks of a page must print, among more."""
ELSEWHERE = {"docs/frameworks.md": "tests/e2e/test_frameworks.py, on several ranks and with what makes them comparable"}
"""Pages whose programs another test runs."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", [one for one in PAGES if steps_of((ROOT / one).read_text()) and one not in ELSEWHERE])
def test_the_blocks_of_a_page_run(path: str, tmp_path: Path) -> None:
    with Page(path, tmp_path) as page:
        assert PRINTED.get(path, "") in page.run()


PAGE = """
<!-- run: hidden
import sys
-->
```python
print(1)
```
<!-- run: no (there is no such host) -->
```sh
ssh nowhere
```
1. In a list:
   <!-- run: continue -->
   ```python
   if sys:
       print(2)
   ```
<!-- run: diff -->
```diff
-old()
+new()
 kept()
```
<!-- run: file a/b.csv -->
```
x,y
```
```text
not run
```
"""


def test_a_page_is_taken_apart() -> None:
    first = "\n\nimport sys\n\n\nprint(1)\n\n\n\n\n\n\n\n\nif sys:\n    print(2)\n"
    assert steps_of(PAGE) == [
        Step(3, "python", first),
        Step(10, "no", "ssh nowhere\n", "(there is no such host)"),
        Step(20, "python", "\n" * 20 + "new()\nkept()\n"),
        Step(26, "file", "x,y\n", "a/b.csv"),
    ]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("```python\nprint(1)\n", "line 1: there is no '```'"),
        ("<!-- run: no (reason) -->\n\n```sh\n```", "line 2: `run: no` must stand right above a block"),
        ("<!-- run: never -->\n```sh\n```", "line 1: no comment of the runner"),
        ("<!-- run: continue -->\n```python\n```", "line 2: there is no program"),
    ],
)
def test_what_the_runner_does_not_understand_is_an_error(page: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        steps_of(page)


FAILING = """
```sh
false | true
touch never
```
<!-- run: no because -->
```sh
touch never
```
```python
import sys

print("before")
sys.exit("the end")
```
```python
assert sys
```
"""


def test_a_block_that_fails_is_told_with_its_line_and_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(FAILING)
    with Page(str(tmp_path / "page.md"), tmp_path) as page, pytest.raises(AssertionError) as failed:
        page.run()
    text = str(failed.value)
    for words in (
        "page.md:3: sh ended with 1",
        "page.md:8: no ended with no reason",
        "page.md:11: python ended with 1",
    ):
        assert words in text
    assert "before\nthe end" in text and 'line_17.py", line 17, in <module>' in text
    assert not (tmp_path / "never").exists()
