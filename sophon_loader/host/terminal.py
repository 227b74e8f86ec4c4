"""Text for standard output: limited to its width and characters, and tables that respect both."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

DEFAULT_COLUMNS = 80
"""Width in columns without a terminal."""
_LINES = "┏━┳┓┃┡╇┩│└─┴┘"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """Escape control characters, and characters that standard output cannot encode."""
    text = _CONTROL.sub(lambda found: repr(found.group())[1:-1], text)
    try:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:  # of a stream that is no file: any name
        return text.encode("ascii", "backslashreplace").decode()


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Format a table of two columns, within the terminal's width, in plain characters.

    Args:
        title: text above the table.
        rows: (name, value) of each row.
    """
    lines = box.HEAVY_HEAD if shown(_LINES) == _LINES else box.ASCII
    made = Table(title=Text(shown(title)), box=lines)
    made.add_column("what", overflow="fold")
    made.add_column("value", overflow="fold")
    for what, value in rows:  # as Text, since square brackets in a string would be taken for markup
        made.add_row(Text(shown(what)), Text(shown(value)))
    out = io.StringIO()
    columns = shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns or DEFAULT_COLUMNS
    # Said outright, since rich would look at the environment: colours by FORCE_COLOR, and no text at all in a notebook.
    console = Console(
        file=out, width=columns, color_system=None, force_terminal=False, force_jupyter=False, legacy_windows=False
    )
    console.print(made)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
