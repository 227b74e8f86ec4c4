"""The functions that what is known here of a library's classes rests on, and whether a program has replaced one.

Scripts and vendors' packages replace functions of torchvision, timm and Pillow at run time. torch's DataLoader calls
what stands there; an agent, and this loader's own road from a file to a sample, are made for what the library ships.
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
"""Formats of which all files are taken to be Pillow's own; `told` is about its others."""
_BEGINS = {
    "BMP": b"BM",
    "GIF": b"GIF89a",
    "JPEG": b"\xff\xd8\xff\xe0",
    "PNG": b"\x89PNG\r\n\x1a\n",
    "PPM": b"P6",
    "TIFF": b"II*\0",
    "WEBP": b"RIFF\0\0\0\0WEBPVP8 ",
}
"""How their files begin."""
_DECODERS = ("bmp_rle", "ppm", "ppm_plain")
"""Those decoders of theirs that are written in Python."""
_NO_PIXELS = frozenset(
    (
        *("__del__", "__eq__", "__getstate__", "__repr__", "__setstate__", "_decompression_bomb_check", "_dump"),
        *("_encode_tile", "_getexif", "_getmp", "_repr_image", "_repr_jpeg_", "_repr_mimebundle_", "_repr_pretty_"),
        *("_repr_png_", "_save", "_show", "close", "get_format_mimetype", "getexif", "getxmp", "init", "preinit"),
        *("save", "show", "tobitmap", "toqimage", "toqpixmap", "verify"),
    )
)
"""Names in Pillow that change no pixel of a file that is opened; some are often replaced, to silence a warning."""
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
"""Names transforms for users; none of them looks one up there."""


@dataclass(frozen=True)
class Replaced:
    """A library's function in whose place stands another one.

    Args:
        name: of the function, "PIL.Image.open".
        by: what stands there, "mylab.read".
    """

    name: str
    by: str

    def __str__(self) -> str:
        return f"{self.name} was replaced by {self.by} in this process"


def replaced_in_pillow() -> Replaced | None:
    """What was replaced between a file and an image's pixels; None if nothing was."""
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
    waiting = dict(_BEGINS)  # for their turn: Pillow asks openers in the order of `ID`
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
    """Whether Pillow would have an opener try a file with this beginning; a text says that it cannot open it."""
    try:
        answer = accepts is None or accepts(begin.ljust(16, b"\0"))
    except Exception:  # the program's own code
        return True
    return bool(answer) and not isinstance(answer, str)


def replaced_in_dataset(cls: type) -> Replaced | None:
    """What was replaced of that by which a dataset of torchvision's or timm's makes a sample; None if nothing was.

    Args:
        cls: the library's own class.
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
    """What was replaced of that which a transform of torchvision's or timm's may call; None if nothing was.

    Args:
        cls: of the transform.
        functions: whether to look at the functions of its library too, and not at its methods alone.
    """
    if not is_checked(cls):
        return None
    bases = {base.__qualname__ for base in cls.__mro__ if _root(base) == _root(cls)}
    modules = _modules(_root(cls), cls.__module__.startswith(_V2), len(sys.modules))
    return _first(modules, lambda name: name.rpartition(".")[0] in bases if "." in name else functions)


def is_checked(cls: type) -> bool:
    """Whether a class is of a library whose functions are looked at."""
    return _root(cls) in ("torchvision", "timm")


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


@lru_cache(maxsize=8)
def _modules(library: str, v2: bool, imported: int) -> tuple[str, ...]:
    """The modules of a library's transforms; to look for them takes 2 ms, so only when others have been imported."""
    names = [name for name in list(sys.modules) if name.startswith((_TRANSFORMS, *_V2)) and name != _PUBLIC]
    found = [name for name in names if v2 or not name.startswith(_V2)]
    return (*found, *_TIMM) if library == "timm" else tuple(found)


def _first(modules: Iterable[str], counts: Callable[[str], bool]) -> Replaced | None:
    """The first name that was replaced and counts, and by what."""
    for module in modules:
        for name, value in replaced_in(sys.modules[module]) if module in sys.modules else ():
            if counts(name):
                return Replaced(f"{module}.{name}", name_of(value))
    return None
