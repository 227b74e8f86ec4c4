"""The running line of the user's code that needs a picture's pixels."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_LIBRARIES = ("torchvision", "timm", "albumentations", "albucore", "torch", "PIL", "numpy", "cv2", "sophon_loader")
_HUGGING_FACE = "datasets"
"""A library whose name many users give to a folder of their own, so only an installed one is a library."""
_INSTALLED = {"site-packages", "dist-packages"}
_TELLING = ("torchvision", "timm", "albumentations")
"""Libraries whose function names say more than the user's line, such as `to_tensor` in a `Compose`."""
_STANDARD = "python"
_TYPED_IN = ("<stdin>", "<string>", "<ipython")


class LookPlace(NamedTuple):
    """A line of code.

    Args:
        file: its path.
        line: its number, as text.
        function: the function around the line.
        library: the library function that it has called for the pixels, "torchvision.to_tensor"; "" for none.
    """

    file: str
    line: str
    function: str
    library: str


def look_place() -> LookPlace | None:
    """Return the innermost line on the stack outside of libraries for pictures and the standard library.

    Returns:
        None if there is no such line: a dataset and transforms of torchvision, for example. Takes a few microseconds.
    """
    frame: FrameType | None = sys._getframe(1)
    library = ""
    while frame is not None:
        code = frame.f_code
        of = _library_of(code.co_filename)
        if not of:
            return LookPlace(code.co_filename, str(frame.f_lineno), code.co_name, library)
        if not library and of in _TELLING:
            library = f"{of}.{code.co_name}"
        frame = frame.f_back
    return None


@lru_cache(maxsize=1024)
def _library_of(file: str) -> str:
    """Return the library that a file of code belongs to; "" for the user's own."""
    if file.startswith("<"):
        return "" if file.startswith(_TYPED_IN) else _STANDARD
    path = Path(file)
    is_installed = bool(_INSTALLED & {*path.parts})
    for name in (*_LIBRARIES, _HUGGING_FACE) if is_installed else _LIBRARIES:
        module = sys.modules.get(name)
        if any(path.is_relative_to(folder) for folder in getattr(module, "__path__", ())):
            return name
    for name in ("stdlib", "platstdlib"):
        folder = Path(sysconfig.get_path(name))
        if path.is_relative_to(folder) and not is_installed:
            return _STANDARD
    return ""
