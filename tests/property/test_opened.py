"""An image of a file whose pixels are not made yet is, to any calls of Pillow's, the file that Pillow opens."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat

from sophon_loader.kinds.image.opened import opened_image
from tests.property.test_deferred import files, of_code
from tests.support.drawn import FULL
from tests.support.outcomes import outcome_of, seen, text_of
from tests.support.picture_files import KINDS, file_of
from tests.support.pillow_code import all_codes

Call = Callable[[Any], Any]
Calls = list[tuple[str, int]]

_ATTRIBUTES = (
    *("format", "filename", "size", "mode", "readonly", "palette", "tile", "layers", "app", "quantization", "text"),
    *("n_frames", "is_animated", "has_transparency_data", "nonsense", "fp", "info", "bits", "icclist"),
)
_METHODS = (
    *("getbands", "getexif", "_getexif", "getxmp", "get_format_mimetype", "tell", "tobytes", "split", "getbbox"),
    *("getextrema", "histogram", "getpalette", "load", "copy", "getprojection", "entropy", "__getstate__"),
)


def _drawn_on(image: Any) -> None:
    ImageDraw.Draw(image).line((0, 0, 40, 30), fill=3, width=3)


def _saved(image: Any, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def _within(image: Any) -> Any:
    with image as same:
        return same.convert("L")


def _box(image: Any) -> tuple[int, int, int, int]:
    width, height = image.size
    return width // 4, height // 3, width - width // 5, height - height // 7


def _named(image: Any, name: str) -> Any:
    found = getattr(image, name)
    return type(found).__name__ if name == "fp" and found is None else None if name == "fp" else found


def _called(image: Any, name: str) -> Any:
    found = getattr(image, name)()
    if isinstance(found, Image.Exif):
        return dict(found)
    return found is None if name == "load" else found


CALLS: dict[str, Call] = {
    **{f".{name}": lambda image, name=name: _named(image, name) for name in _ATTRIBUTES},
    **{f"{name}()": lambda image, name=name: _called(image, name) for name in _METHODS},
    "class": lambda image: (type(image).__name__, type(image).__module__),
    "repr": lambda image: text_of(repr(image)),
    "exif twice": lambda image: (image.getexif() is image.getexif(), image.getexif().tobytes()),
    "exif changed": lambda image: image.getexif().update({0x010E: "b"}),
    "orientation set": lambda image: image.getexif().update({0x0112: 7}),
    "info changed": lambda image: image.info.update(new=[1, 2]),
    "info's list changed": lambda image: image.info.setdefault("new", []).append(3),
    "attribute set": lambda image: setattr(image, "own", 5),
    "attribute got": lambda image: image.own,
    "load()[]": lambda image: image.load()[0, 0],
    "load()[] of the last": lambda image: image.load()[-1, -1],
    "load()[] beyond": lambda image: image.load()[999, 0],
    "load()[] =": lambda image: image.load().__setitem__((0, 0), image.getpixel((-1, -1))),
    "getpixel": lambda image: image.getpixel((0, 0)),
    "with": _within,
    "seek 0": lambda image: image.seek(0),
    "seek 1": lambda image: image.seek(1),
    "crop": lambda image: image.crop(_box(image)),
    "crop beyond": lambda image: image.crop((-3, -4, 30, 20)),
    "crop all": lambda image: image.crop(),
    "resize": lambda image: image.resize((20, 17)),
    "resize by 2": lambda image: image.resize((31, 9), 2),
    "resize a box": lambda image: image.resize((9, 8), 3, (0, 0, image.width / 2, image.height / 3)),
    "resize with a gap": lambda image: image.resize((5, 4), 2, reducing_gap=1.5),
    "resize wrongly": lambda image: image.resize((0, 4)),
    **{f"transpose {number}": lambda image, number=number: image.transpose(number) for number in range(7)},
    **{f"convert {mode}": lambda image, mode=mode: image.convert(mode) for mode in ("RGB", "L", "RGBA", "CMYK", "P")},
    "rotate": lambda image: image.rotate(30, 2, expand=True),
    "rotate 90": lambda image: image.rotate(90, expand=True),
    "point": lambda image: image.point(lambda value: 255 - value),
    "filter": lambda image: image.filter(ImageFilter.GaussianBlur(1)),
    "affine": lambda image: image.transform((30, 20), 0, (1, 0.1, 2, 0, 1, 3), 2),
    "reduce": lambda image: image.reduce(2),
    "reduce a box": lambda image: image.reduce((3, 2), _box(image)),
    "getchannel": lambda image: image.getchannel(0),
    "draft": lambda image: image.draft("RGB", (20, 20)),
    "draft L": lambda image: image.draft("L", None),
    "thumbnail": lambda image: image.thumbnail((20, 20)),
    "thumbnail small": lambda image: image.thumbnail((4, 5), 2),
    "exif_transpose": ImageOps.exif_transpose,
    "exif_transpose in place": lambda image: ImageOps.exif_transpose(image, in_place=True),
    "expand": lambda image: ImageOps.expand(image, 3, 7),
    "pad": lambda image: ImageOps.pad(image, (40, 20)),
    "fit": lambda image: ImageOps.fit(image, (12, 12)),
    "equalize": ImageOps.equalize,
    "autocontrast": ImageOps.autocontrast,
    "contrast": lambda image: ImageEnhance.Contrast(image).enhance(0.6),
    "saturation": lambda image: ImageEnhance.Color(image).enhance(1.4),
    "mean": lambda image: ImageStat.Stat(image).mean,
    "blend": lambda image: Image.blend(image, image.transpose(0), 0.4),
    "difference": lambda image: ImageChops.difference(image, image.transpose(1)),
    "paste": lambda image: image.paste(9, (0, 0, 5, 6)),
    "paste itself": lambda image: image.paste(image.crop((0, 0, 9, 9)), (2, 3)),
    "putpixel": lambda image: image.putpixel((0, 0), image.getpixel((-1, -1))),
    "putalpha": lambda image: image.putalpha(50),
    "draw": _drawn_on,
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "equal": lambda image: [image == image, image == image.copy(), image != image.crop((1, 1, 2, 2))],
    "np.asarray": np.asarray,
    "np.array": lambda image: np.array(image, np.float32),
    "save PNG": lambda image: _saved(image, "PNG"),
    "save JPEG": lambda image: _saved(image, "JPEG"),
    "save JPEG keep": lambda image: _saved(image, "JPEG", quality="keep"),
    "save WEBP": lambda image: _saved(image, "WEBP", method=0),
}
LAST: dict[str, Call] = {
    "close()": lambda image: (image.close(), image.size, image.mode, image.fp),
    "verify()": lambda image: (image.verify(), image.size, image.fp),
    "with, unread": lambda image: (image.__enter__() is image, image.__exit__(), image.size, image.fp),
}
"""Behind those, Pillow's image has no pixels, and a deferred one does."""


_NOT_EQUAL = (
    *("closed", "closed, then cropped", "children, then close"),  # still have pixels
    *("info set, of a looked", "info, of a looked"),  # give what `load()` does
    "info set",  # before `load()`, to which a WebP then adds
)


def run(image: Any, calls: Calls, *, stops: bool) -> list[Any]:
    """What calls give that are made on an image, and on images that came from it before; all are looked at behind them.

    Args:
        image: a file's.
        calls: names, and how many images came after the one that each is called on.
        stops: whether an error is raised; else it is one of the values.
    """
    images, values = [image], []
    for name, back in calls:
        try:
            found = CALLS[name](images[-1 - back % len(images)])
        except Exception as error:
            if stops:
                raise
            found = type(error), text_of(error)
        made = found if type(found) is tuple else (found,)
        if all(isinstance(one, Image.Image) for one in made):
            images.extend(made)
        else:
            values.append((name, seen(found)))
    return [values, *map(seen, images)]


def both(data: bytes) -> tuple[Any, Any] | None:
    """The picture by ours and by Pillow; None for a file that is Pillow's to open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = opened_image(data, "", io.BytesIO(data))
        return None if ours is None else (ours, Image.open(io.BytesIO(data)))


def fails(data: bytes) -> Any:
    """The error of its pixels; None without one."""
    return outcome_of(lambda: Image.open(io.BytesIO(data)).load() and None).error


@settings(max_examples=2000 if FULL else 300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    data=files(),
    calls=st.lists(st.tuples(st.sampled_from(list(CALLS)), st.integers(0, 3)), max_size=9),
)
def test_calls_give_what_they_give_on_the_file_that_pillow_opens(data: bytes, calls: Calls) -> None:
    pair = both(data)
    if pair is None:
        return
    damage = fails(data)
    ours, pillows = (outcome_of(lambda image=image: run(image, calls, stops=damage is not None)) for image in pair)
    if damage is None:
        assert ours == pillows
    elif pillows.error == damage:  # which comes with the first look; other errors may come before
        assert ours.error is not None
    else:
        assert ours.error == pillows.error


@settings(max_examples=300 if FULL else 30)
@given(data=files(), last=st.sampled_from(list(LAST)), first=st.sampled_from(["nothing", "load()", "crop", ".info"]))
def test_so_does_what_ends_its_use(data: bytes, last: str, first: str) -> None:
    pair = both(data)
    if pair is None or fails(data) is not None:
        return
    ours, pillows = (
        outcome_of(lambda image=image: [CALLS.get(first, lambda _: None)(image) is None, LAST[last](image)])
        for image in pair
    )
    assert ours == pillows


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_uses_pillow_gives_on_it_what_it_gives_on_the_file(kind: str) -> None:
    data, codes = file_of(kind), all_codes()
    if both(data) is None or fails(data) is not None:
        return
    for name in codes if FULL else list(codes)[list(KINDS).index(kind) % 30 :: 30]:
        if name in _NOT_EQUAL:
            continue
        pair = both(data)
        assert pair is not None
        ours, pillows = (of_code(codes[name], lambda image=image: image) for image in pair)
        assert ours == pillows, name
