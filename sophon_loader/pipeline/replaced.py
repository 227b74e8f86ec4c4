"""Finds library functions that a program has replaced, and on which this package relies.

Scripts and vendors' packages replace functions of torchvision, timm and Pillow at run time. torch's DataLoader calls
the replacements. An agent, and this loader's fast road from a file to a sample, are made for the libraries' own
functions.
"""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sophon_loader.pipeline.shipped import name_of, names_in, replaced_in

_PILLOW = tuple(
    f"PIL.{name}"
    for name in ("Image", "ImageFile", "JpegImagePlugin", "ImageOps", "ImageEnhance", "ImageFilter", "ImageChops")
)
_FORMATS = ("BMP", "GIF", "JPEG", "MPO", "PNG", "PPM", "TIFF", "WEBP")
"""Formats whose files are all assumed to be Pillow's own; `told` covers the other formats."""
_BEGINS = {
    "BMP": b"BM",
    "GIF": b"GIF89a",
    "JPEG": b"\xff\xd8\xff\xe0",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "PPM": b"P6",
    "TIFF": b"II*\0",
    "WEBP": b"RIFF\0\0\0\0WEBPVP8 ",
}
"""First bytes of the formats' files."""
_DECODERS = ("bmp_rle", "ppm", "ppm_plain")
"""Decoders of these formats that are written in Python."""
_NO_PIXELS = frozenset(
    (
        *("__del__", "__eq__", "__getstate__", "__repr__", "__setstate__", "_decompression_bomb_check", "_dump"),
        *("_encode_tile", "_getexif", "_getmp", "_repr_image", "_repr_jpeg_", "_repr_mimebundle_", "_repr_pretty_"),
        *("_repr_png_", "_save", "_show", "close", "get_format_mimetype", "getexif", "getxmp", "init", "preinit"),
        *("save", "show", "tobitmap", "toqimage", "toqpixmap", "verify"),
    )
)
"""Names in Pillow that change no pixel of an opened file; some are often replaced, to silence a warning."""
_DATASETS = "torchvision.datasets.folder"
_OPENING = (
    "open",
    "default_loader",
    "pil_loader",
    "StandardTransform.__call__",
    "__getitem__",
    "__getitems__",
    "__len__",
)
_TRANSFORMS, _V2 = "torchvision.transforms.", ("torchvision.transforms.v2.", "torchvision.tv_tensors.")
_TIMM = ("timm.data.auto_augment", "timm.data.random_erasing", "timm.data.transforms")
_PUBLIC = "torchvision.transforms.v2"
"""Module that lists transforms for users; no transform looks one up there."""


@dataclass(frozen=True)
class Replaced:
    """A library's function that was replaced by another one.

    Args:
        name: name of the function, "PIL.Image.open".
        by: name of the replacement, "mylab.read".
    """

    name: str
    by: str

    def __str__(self) -> str:
        return f"{self.name} was replaced by {self.by} in this process"


def replaced_in_pillow() -> Replaced | None:
    """Return the first replacement between a file and an image's pixels; None if there is none."""
    if builtins.open is not io.open:
        return Replaced("builtins.open", name_of(builtins.open))
    in_registries = _replaced_in_registries(sys.modules["PIL.Image"]) if "PIL.Image" in sys.modules else None
    return in_registries or _first(_PILLOW, lambda name: name.rpartition(".")[2] not in _NO_PIXELS)


def _replaced_in_registries(pillow: Any) -> Replaced | None:
    for name in _FORMATS:
        opener = pillow.OPEN.get(name, (None,))[0]
        if opener is not None and not _is_pillows(opener):
            return Replaced(f"PIL.Image.OPEN[{name!r}]", name_of(opener))
    for name, decoder in list(pillow.DECODERS.items()):
        if not _is_pillows(decoder) and (name in _DECODERS or hasattr(pillow.core, f"{name}_decoder")):
            return Replaced(f"PIL.Image.DECODERS[{name!r}]", name_of(decoder))
    waiting = dict(_BEGINS)  # formats whose turn comes later: Pillow asks openers in the order of `ID`
    for name in list(pillow.ID):
        waiting.pop(name, None)
        opener, accepts = pillow.OPEN.get(name, (None, None))
        if opener is None or _is_pillows(opener):
            continue
        for other, begin in waiting.items():
            if _accepts(accepts, begin):
                return Replaced(f"PIL.Image.OPEN[{other!r}]", name_of(opener))
    return None


def _is_pillows(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("PIL.")


def _accepts(accepts: Callable[[bytes], Any] | None, begin: bytes) -> bool:
    """True if Pillow would let an opener try a file with this beginning. A text as answer means no."""
    try:
        answer = accepts is None or accepts(begin.ljust(16, b"\0"))
    except Exception:  # the program's own code
        return True
    return bool(answer) and not isinstance(answer, str)


def replaced_in_dataset(cls: type) -> Replaced | None:
    """Return the first replacement in what a dataset of torchvision or timm uses to make samples; None without one.

    Args:
        cls: class of the library.
    """
    if not is_checked(cls):
        return None
    bases = [base for base in cls.__mro__ if _root(base) == _root(cls)]
    names = set(_OPENING)
    for base in bases:
        code = getattr(vars(base).get("__getitem__"), "__code__", None)
        names |= set() if code is None else names_in(code)
    methods = {f"{base.__qualname__}.{name}" for base in bases for name in names}
    modules = dict.fromkeys([*(base.__module__ for base in bases), _DATASETS])
    return _first(modules, lambda name: name in names or name in methods)


def replaced_in_transform(cls: type, *, functions: bool = True) -> Replaced | None:
    """Return the first replacement in the code that a transform of torchvision or timm may call; None without one.

    Args:
        cls: class of the transform.
        functions: True to check its library's functions, too; False for its methods alone.
    """
    if not is_checked(cls):
        return None
    bases = {base.__qualname__ for base in cls.__mro__ if _root(base) == _root(cls)}
    modules = _modules(_root(cls), cls.__module__.startswith(_V2), len(sys.modules))
    return _first(modules, lambda name: name.rpartition(".")[0] in bases if "." in name else functions)


def is_checked(cls: type) -> bool:
    """Return True if the functions of the class's library are checked."""
    return _root(cls) in ("torchvision", "timm")


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


@lru_cache(maxsize=8)
def _modules(library: str, v2: bool, imported: int) -> tuple[str, ...]:
    """Return the modules of a library's transforms. The search takes 2 ms, so it is repeated only after new imports."""
    names = [name for name in list(sys.modules) if name.startswith((_TRANSFORMS, *_V2)) and name != _PUBLIC]
    found = [name for name in names if v2 or not name.startswith(_V2)]
    return (*found, *_TIMM) if library == "timm" else tuple(found)


def _first(modules: Iterable[str], counts: Callable[[str], bool]) -> Replaced | None:
    """Return the first replaced name that counts, and its replacement."""
    for module in modules:
        for name, value in replaced_in(sys.modules[module]) if module in sys.modules else ():
            if counts(name):
                return Replaced(f"{module}.{name}", name_of(value))
    return None
