"""Opens a picture's file from its bytes. An error of Pillow's names the file, and not the buffer that held the bytes.

Who opens a file often has bytes alone. So the text then holds `UNNAMED`, until somebody knows the file's name.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image, ImageFile, UnidentifiedImageError

UNNAMED = "<the sample's file>"
"""What stands for a file's name in the text of an error."""


def pillow_open() -> Any:
    """What opens pictures for this package's own code: never what stands in for it while a sample is made."""
    return getattr(Image.open, "real", Image.open)


def open_image(data: Any) -> ImageFile.ImageFile:
    """What `PIL.Image.open` gives for a file.

    Args:
        data: its bytes.

    Raises:
        Exception: whatever Pillow raises for a file that it cannot open, with `UNNAMED` for its name.
    """
    file = io.BytesIO(data)
    try:
        found: ImageFile.ImageFile = pillow_open()(file)
        return found
    except UnidentifiedImageError as error:
        _replace(error, repr(file), UNNAMED)
        raise


def name_file(error: BaseException, name: str) -> None:
    """Put a file's name where an error says `UNNAMED`.

    Args:
        error: changed in place.
        name: the path or key of the file that was opened.
    """
    _replace(error, UNNAMED, repr(name))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Within, a file of this path or key is opened."""
    try:
        yield
    except Exception as error:
        name_file(error, name)
        raise


def _replace(error: BaseException, known: str, by: str) -> None:
    if any(isinstance(one, str) and known in one for one in error.args):
        error.args = tuple(one.replace(known, by) if isinstance(one, str) else one for one in error.args)
