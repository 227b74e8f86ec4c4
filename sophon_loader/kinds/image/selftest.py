"""Whether programs give what the installed Pillow gives: seen once in each process, before the first is made."""

from __future__ import annotations

import io
import logging
from functools import cache
from typing import Any

import PIL
from PIL import Image, ImageFilter

from sophon_loader.errors import must_leave
from sophon_loader.kinds.image.deferred import Deferred, deferred
from sophon_loader.kinds.image.part import PartOfFile, Region, Window
from sophon_loader.kinds.image.primitives import AFFINE, BICUBIC, BILINEAR, NEAREST, PERSPECTIVE, SUPPORTS, Shape
from sophon_loader.kinds.image.source import PictureFile
from sophon_loader.logs import log_line

log = logging.getLogger(__name__)

_SIZE = 37, 29
_KEPT = Region(4, 3, 30, 24)
"""What is there of a part of the picture."""

Calls = tuple[tuple[Any, ...], ...]
"""Methods of an image, called one after the other on what the one before gave: each with its arguments."""
_ON_WHOLE: tuple[Calls, ...] = (
    (("crop", (5, 4, 26, 22)),),
    (("crop", (-3, 4, 41, 22)),),
    *((("resize", (11, 41), number),) for number in SUPPORTS),
    (("resize", (19, 17), BILINEAR, (3.25, 4.5, 30.75, 22.125)),),
    (("resize", (5, 4), BICUBIC, None, 2.0),),
    *((("reduce", factor),) for factor in (2, (3, 1), (5, 7))),
    *((("transpose", method),) for method in range(7)),
    *((("convert", mode),) for mode in ("L", "RGBA", "HSV", "CMYK")),
    (("convert", "L"), ("convert", "RGB")),
    (("point", [255 - value for value in range(256)] * 3),),
    *((("filter", one),) for one in (ImageFilter.GaussianBlur(1.5), ImageFilter.BoxBlur(2))),
    *((("filter", one),) for one in (ImageFilter.UnsharpMask(2, 120, 2), ImageFilter.MedianFilter(3))),
    *((("filter", one),) for one in (ImageFilter.ModeFilter(3), ImageFilter.SMOOTH_MORE)),
    (("transform", (31, 23), AFFINE, (0.9, 0.2, 1, -0.2, 1.1, 2), NEAREST, 1, (3, 5, 7)),),
    (("transform", (31, 23), PERSPECTIVE, (0.9, 0.1, 1, 0.05, 1.1, 2, 1e-3, 1e-3), BILINEAR),),
)
"""All primitives."""
_ON_PARTS: tuple[Calls, ...] = (
    (("crop", (6, 5, 30, 24)),),
    *((("crop", (6, 5, 30, 24)), ("resize", (9, 33), number)) for number in SUPPORTS),
    (("resize", (18, 15), BILINEAR), ("crop", (6, 5, 12, 9))),
    (("transpose", 0), ("crop", (6, 5, 30, 24))),
    (("crop", (6, 5, 30, 24)), ("reduce", 3)),
)
"""What reads no more than `_KEPT`."""


@cache
def trusted() -> bool:
    """Whether images may be deferred and parts be cut: whether all primitives give what they have to. If not, the log
    says so once, and pictures are decoded whole by Pillow."""
    found = differing()
    if found:
        event = "pictures are decoded whole, since cropping them earlier would change pixels on this Pillow"
        log.warning(log_line(event, pillow=PIL.__version__, differing=found))
    return not found


def differing() -> list[str]:
    """What does not give on a deferred image, or on a part of the picture, what it gives on the image: the methods."""
    nbytes = 3 * _SIZE[0] * _SIZE[1]
    picture = Image.frombytes("RGB", _SIZE, bytes(n * n * 7919 >> 5 & 255 for n in range(nbytes)))
    file, shape = _file_of(picture), Shape(*_SIZE, "RGB")
    left, top = _KEPT.left, _KEPT.top
    part = _file_of(picture.crop((left, top, left + _KEPT.width, top + _KEPT.height)))
    cut = PartOfFile(part, Window(_KEPT, *_SIZE))
    seen = [(calls, PictureFile(file, shape), "") for calls in _ON_WHOLE]
    seen += [(calls, PictureFile(part, shape, part=cut), " of a part") for calls in _ON_PARTS]
    wrong = [(calls, of) for calls, source, of in seen if not _is_right(calls, source, picture)]
    return list(dict.fromkeys(" and ".join(call[0] for call in calls) + of for calls, of in wrong))


def _is_right(calls: Calls, source: PictureFile, picture: Image.Image) -> bool:
    wanted = _called(calls, picture)
    try:
        image = _called(calls, deferred(source))
        recorded = isinstance(image, Deferred) and (image.mode, image.size) == (wanted.mode, wanted.size)
        same: bool = recorded and image.tobytes() == wanted.tobytes()
    except Exception as error:  # whatever it is: programs are not used
        if must_leave(error):
            raise
        return False
    return same


def _called(calls: Calls, image: Any) -> Any:
    for name, *arguments in calls:
        image = getattr(image, name)(*arguments)
    return image


def _file_of(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PPM")
    return file.getvalue()
