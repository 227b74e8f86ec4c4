"""The tables of the pages, made of the files in bench/results/.

    python -m bench.tables             write them into the pages
    python -m bench.tables --check     write nothing; 1 when a page has other tables

A page has them between lines `<!-- bench: NAME -->` and `<!-- /bench -->`; `bench/page_tables.py` has the names.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.markdown import Results
from bench.page_tables import TABLES
from bench.record import REPOSITORY, RESULTS

PAGES = (
    "README.md",
    "docs/results.md",
    "docs/peers.md",
    "docs/papers.md",
    "docs/programs.md",
    "docs/fused.md",
    "docs/any-class.md",
    "bench/README.md",
)
_BLOCK = re.compile(r"(<!-- bench: (?P<name>\S+) -->\n).*?(\n?<!-- /bench -->)", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="Say which pages differ, and change none.")
    options = parser.parse_args(argv)
    other = [name for name in PAGES if not is_filled(REPOSITORY / name)]
    for name in other:
        print(f"{name} has other tables" if options.check else f"{name} written")
        if not options.check:
            page = REPOSITORY / name
            page.write_text(filled(page.read_text(), Results(RESULTS)))
    return int(options.check and bool(other))


def is_filled(page: Path) -> bool:
    """Return True if the tables of a page agree with its results."""
    text = page.read_text()
    return filled(text, Results(RESULTS)) == text


def filled(text: str, results: Results) -> str:
    """A page with the tables of its results.

    Args:
        text: of the page.
        results: what the tables are made of.

    Raises:
        KeyError: the page names a table that there is not.
    """

    def fill(block: re.Match[str]) -> str:
        table = TABLES[block["name"]](results)
        return f"{block[1]}{table}\n{block[3].lstrip()}"

    return _BLOCK.sub(fill, text)


if __name__ == "__main__":
    sys.exit(main())
