"""`sophon-report`: the page of a run's log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sophon_loader import __version__
from sophon_loader.errors import SophonError
from sophon_loader.host.unread import quiet_when_unread
from sophon_loader.report.course import read_course
from sophon_loader.report.run_page import run_page


@quiet_when_unread
def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `sophon-report`; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    page = parsed.output or parsed.log.with_suffix(".html")
    try:
        if page.exists() and page.samefile(parsed.log):
            print(f"sophon-report: -o must be another file than the log, got {page}; leave it out", file=sys.stderr)
            return 1
        text = run_page(read_course(parsed.log))
        page.write_text(text, encoding="utf-8", errors="backslashreplace")
    except (SophonError, OSError) as error:
        print(f"sophon-report: {error}", file=sys.stderr)
        return 1
    print(page)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sophon-report",
        description="Make a page for a browser of a run's log, which OffloadOptions(log='run-{rank}.jsonl') writes. "
        "The run may still go on.",
        epilog="example: sophon-report run-0.jsonl -o run.html",
    )
    parser.add_argument("log", type=Path, help="the log")
    parser.add_argument("-o", "--output", type=Path, metavar="PAGE", help="the page; LOG with .html if left out")
    parser.add_argument("--version", action="version", version=__version__)
    return parser


if __name__ == "__main__":
    sys.exit(main())
