"""Pieces of code that use Pillow on an image, with usual and odd arguments, by name.

Each takes an image that nobody else has, and gives whatever could be told of what it did.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat

from tests.support.outcomes import text_of

Code = Callable[[Any], Any]
_CROPS: list[Any] = [
    None,
    (0, 0, 75, 58),
    [0, 0, 75, 58],
    (3, 4, 40, 30),
    (-5, -6, 90, 70),
    (200, 200, 210, 220),
    (1.5, 2.5, 30.49, 31.51),
    (5, 5, 5, 20),
    (5, 5, 20, 5),
    (20, 5, 5, 20),
    (5, 20, 20, 5),
    (0, 0, 0, 0),
    np.array([1, 2, 30, 31]),
    tuple(np.array([1, 2, 30, 31])),
    tuple(np.array([1.2, 2.7, 30.5, 31.5], np.float32)),
    (float("nan"), 0, 5, 5),
    (0, 0, float("inf"), 5),
    (0, 0, 5),
    (0, 0, 5, 6, 7),
    "0055",
    5,
    (True, False, 20, 20),
    (None, 0, 1, 1),
    (0, 0, 10**9, 5),
    (-(10**9), 0, 5, 5),
    (0, 0, 1 << 40, 5),
]
_RESIZES: list[tuple[Any, dict[str, Any]]] = [
    *[((31, 17), {"resample": filter_}) for filter_ in (*range(-1, 8), None, True, 2.0, "2")],
    *[((31, 17), {"resample": one, "reducing_gap": gap}) for one in (0, 2, 3) for gap in (1, 1.0, 2.0, 3, 0.5)],
    *[((9, 8), {"box": box}) for box in ((3.3, 4.7, 40.2, 50.1), (0, 0, 75, 58), [1, 2, 30, 40], (5, 5, 5, 20))],
    *[((9, 8), {"box": box}) for box in ((-1, 0, 9, 9), (0, 0, 90, 9), (0, 0, 1e-9, 9), (0, 0), (30, 9, 5, 20))],
    *[
        ((9, 8), {"box": box})
        for box in ("0099", 7, np.array([1, 2, 30, 40]), tuple(np.array([1, 2, 30.3, 40], np.float32)))
    ],
    ((75, 58), {}),
    ((75, 58), {"resample": 1}),
    ((75, 58), {"box": (0, 0, 75, 58)}),
    ((75, 58), {"box": (0, 0, 75, 57.5)}),
    ((75, 58), {"reducing_gap": 2.0}),
    ((75, 58), {"resample": 99}),
    ([20, 21], {}),
    (np.array([20, 21]), {}),
    (tuple(np.array([20, 21])), {"resample": np.int64(2)}),
    ((20.0, 21), {}),
    ((20.5, 21), {}),
    ((0, 5), {}),
    ((-3, 5), {}),
    ((True, 5), {}),
    ((5,), {}),
    (5, {}),
    ("ab", {}),
    ((1, 1), {"resample": 1}),
    ((300, 1), {"resample": 5}),
    ((6, 5), {"resample": 1, "reducing_gap": float("nan")}),
]
_RADII: list[Any] = [0, 0.7, 2, (1, 3), (0, 2), [1, 2], -1, "a", (1,)]
_FILTERS: list[Any] = [
    *[ImageFilter.GaussianBlur(radius) for radius in _RADII],
    *[ImageFilter.BoxBlur(radius) for radius in (0, 1.5, (2, 0))],
    *[ImageFilter.UnsharpMask(), ImageFilter.UnsharpMask(1.5, 80, 0)],
    ImageFilter.UnsharpMask(1, 50.5, 1),  # type: ignore[arg-type]
    *[ImageFilter.MedianFilter(3), ImageFilter.MinFilter(5), ImageFilter.MaxFilter(3), ImageFilter.RankFilter(3, 2)],
    *[ImageFilter.ModeFilter(3), ImageFilter.ModeFilter(4)],
    *[ImageFilter.SHARPEN, ImageFilter.SMOOTH, ImageFilter.BLUR, ImageFilter.CONTOUR, ImageFilter.FIND_EDGES()],
    *[ImageFilter.EMBOSS, ImageFilter.DETAIL, ImageFilter.EDGE_ENHANCE_MORE, ImageFilter.SMOOTH_MORE],
    ImageFilter.GaussianBlur,
    ImageFilter.Kernel((3, 3), [0.5, 1, 0, -1, 2, 0.25, 0, 0, 1]),
    ImageFilter.Kernel((5, 5), range(25), 7, 3),
    ImageFilter.Color3DLUT.generate(3, lambda r, g, b: (g, b, r)),
    object(),
    None,
]
_TRANSFORMS: list[tuple[Any, Any, Any]] = [
    ((30, 40), Image.Transform.AFFINE, (1, 0.2, 3, 0.1, 0.9, -4)),
    ((30, 40), Image.Transform.AFFINE, (1, 0.2, 3, 0.1, 0.9, -4, 8, 9)),
    ([30, 40], 0, [1, 0, 0, 0, 1, 0]),
    ((30, 40), Image.Transform.EXTENT, (-3, 2, 60, 50)),
    ((30, 40), Image.Transform.PERSPECTIVE, (1, 0.1, 2, 0.1, 1, 3, 0.001, 0.002)),
    ((30, 40), Image.Transform.QUAD, (1, 2, 3, 50, 70, 55, 60, 3)),
    ((30, 40), Image.Transform.MESH, [((0, 0, 10, 10), (1, 2, 3, 50, 70, 55, 60, 3))]),
    ((30, 40), Image.Transform.AFFINE, None),
    ((30, 40), Image.Transform.AFFINE, (1, 2)),
    ((30, 40), Image.Transform.AFFINE, (1, 2, 3, 4, float("nan"), 6)),
    ((30, 40), 9, (1, 2, 3, 4, 5, 6)),
    ((30, 40), Image.Transform.AFFINE, np.array([1, 0.2, 3, 0.1, 0.9, -4])),
    ((0, 40), Image.Transform.AFFINE, (1, 0, 0, 0, 1, 0)),
    ((30.5, 40), Image.Transform.AFFINE, (1, 0, 0, 0, 1, 0)),
]
_FILLS: list[Any] = [None, 0, 77, (1, 2, 3), (1, 2), (300, 0, 0), "red", 5.5, [4, 5, 6], (9,)]
_TABLES: list[Any] = [
    list(range(255, -1, -1)) * 3,
    list(range(256)),
    [value / 2 for value in range(256)] * 3,
    [300] * 768,
    [-1] * 768,
    [0] * 5,
    bytes(range(256)) * 3,
    np.arange(768) % 256,
    lambda value: value * 1.2,
    lambda value: 255 - value,
    lambda value: value > 100,
    lambda value: 1 / value,
    lambda value: value << 3,
    "x" * 768,
    None,
]
_MODES = ["1", "L", "P", "LA", "La", "PA", "I", "F", "I;16"]
_MODES += ["RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"]
_MATRIX = (0.4, 0.3, 0.2, 5, 0.1, 0.9, 0, 0, 0.2, 0.2, 0.6, -3)

_OTHERS = ("getxmp", "getdata", "get_flattened_data", "toqimage", "__arrow_c_schema__")


def all_codes() -> dict[str, Code]:
    """All of them."""
    return {name: code for make in (_steps, _looks, _changes, _other_modules, _several) for name, code in make()}


def _steps() -> Iterator[tuple[str, Code]]:
    for number, box in enumerate(_CROPS):
        yield f"crop {number} {box}", lambda image, box=box: image.crop(box)
    for number, (size, how) in enumerate(_RESIZES):
        yield f"resize {number} {size} {how}", lambda image, size=size, how=how: image.resize(size, **how)
    for method in (*range(-1, 8), Image.Transpose.ROTATE_90, "1", None, 2.0, True):
        yield f"transpose {method!r}", lambda image, method=method: image.transpose(method)
    for mode in (*_MODES, None, "", "nonsense", 5):
        yield f"convert {mode}", lambda image, mode=mode: _converted(image, mode)
        yield f"convert {mode} matrix", lambda image, mode=mode: image.convert(mode, _MATRIX)
    yield "convert 1 undithered", lambda image: image.convert("1", dither=Image.Dither.NONE)
    yield "convert P adaptive", lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE, colors=7)
    yield "convert L matrix", lambda image: image.convert("L", _MATRIX[:4])
    for number, table in enumerate(_TABLES):
        yield f"point {number}", lambda image, table=table: image.point(table)
        yield f"point {number} L", lambda image, table=table: image.convert("L").point(table, "L")
        yield f"point {number} F", lambda image, table=table: image.convert("L").point(table, "F")
    for number, one in enumerate(_FILTERS):
        yield f"filter {number} {type(one).__name__}", lambda image, one=one: image.filter(one)
    for number, (size, method, data) in enumerate(_TRANSFORMS):
        for resample in (0, 2, 3, 1, 9, "2") if number < 6 else (0,):
            name = f"transform {number} {method!r} {resample}"
            yield name, lambda im, a=(size, method, data, resample): im.transform(*a)
    for fill in _FILLS:
        yield (
            f"transform filled {fill}",
            lambda im, fill=fill: im.transform((90, 80), 0, (1, 0, -5, 0, 1, -6), 2, fillcolor=fill),
        )
        yield f"rotate filled {fill}", lambda image, fill=fill: image.rotate(30, fillcolor=fill)
    for angle, more in [(0, {}), (90, {}), (180, {"expand": True}), (33.3, {"resample": 3, "expand": 1}), (360, {})]:
        yield f"rotate {angle} {more}", lambda image, angle=angle, more=more: image.rotate(angle, **more)
    yield "rotate around", lambda image: image.rotate(20, center=(3, 4), translate=(5, -6))
    for factor in (1, 2, (3, 2), 0, 2.5):
        yield f"reduce {factor}", lambda image, factor=factor: image.reduce(factor)
    yield "reduce box", lambda image: image.reduce(2, box=(5, 6, 50, 41))


def _converted(image: Any, mode: Any) -> Any:
    made = image.convert(mode)
    if mode == "LAB":
        made.info.pop("icc_profile", None)  # which says when it was made
    return made


def _looks() -> Iterator[tuple[str, Code]]:
    for name in ("getbands", "getbbox", "getextrema", "histogram", "entropy", "getprojection", "tobytes", "getpalette"):
        yield name, lambda image, name=name: getattr(image, name)()
    for name in ("split", "tell", "getcolors", "get_child_images", "verify", "has_transparency_data", *_OTHERS):
        yield name, lambda image, name=name: _called(getattr(image, name))
    for name in ("size", "width", "height", "mode", "readonly", "palette", "is_animated", "format", "nonsense"):
        yield f".{name}", lambda image, name=name: getattr(image, name)
    yield "info", lambda image: dict(image.info)
    yield "np.asarray", np.asarray
    yield "np.array", lambda image: np.array(image, dtype=np.float32)
    yield "getchannel", lambda image: [image.getchannel(0), image.getchannel("R")]
    yield "getchannel beyond", lambda image: image.getchannel(9)
    yield "getpixel", lambda image: [image.getpixel((3, 4)), image.getpixel((-1, -2)), image.getpixel([5, 6])]
    yield "getpixel beyond", lambda image: image.getpixel((500, 4))
    yield "load()", lambda image: [image.load()[3, 4], image.load()[-1, -1]]
    yield "histogram mask", lambda image: image.histogram(Image.new("1", image.size, 1))
    yield "getcolors many", lambda image: image.getcolors(1 << 20)
    yield "getexif", lambda image: dict(image.getexif())
    yield "getexif twice", lambda image: (image.getexif().tobytes(), image.getexif() is image.getexif())
    yield "quantize", lambda image: image.quantize(9)
    yield "remap", lambda image: image.convert("L").remap_palette(list(range(255, -1, -1)))
    yield "tobytes raw", lambda image: image.tobytes("raw", image.mode, 0, -1)
    yield "tobitmap", lambda image: image.convert("1").tobitmap()
    yield "seek", lambda image: image.seek(1)
    yield "seek 0", lambda image: image.seek(0)
    yield "draft", lambda image: (image.draft("L", (20, 20)), image)
    yield "with", _within
    yield "closed", lambda image: (image.close(), image.tobytes())
    yield "closed, then cropped", lambda image: (image.close(), image.crop((1, 1, 5, 5)))
    for format_, more in [("PNG", {}), ("JPEG", {}), ("BMP", {}), ("WEBP", {"method": 0}), ("TIFF", {}), ("X", {})]:
        yield f"save {format_}", lambda image, format_=format_, more=more: _saved(image, format_, more)
    yield "pickled", lambda image: pickle.loads(pickle.dumps(image))
    yield "pickled, protocol 0", lambda image: pickle.loads(pickle.dumps(image, 0))
    yield "copied", lambda image: [copy.copy(image), copy.deepcopy(image), image.copy(), image]
    yield "equal", lambda image: [image == image, image == image.copy(), image.copy() == image, image != image.crop()]
    yield "unequal", lambda image: [image == image.crop((1, 1, 9, 9)), image == 5, image is None]
    yield "hash", hash
    yield "shown as text", lambda image: [text_of(image), text_of(image.crop()), repr(type(image))]
    yield "state", lambda image: [one := copy.copy(image), one.__setstate__(image.__getstate__()), image]
    yield "isinstance", lambda image: isinstance(image, Image.Image)
    yield "readonly after", lambda image: (image.load(), image.readonly)[1]


def _called(found: Any) -> Any:
    return found() if callable(found) else found


def _within(image: Any) -> Any:
    with image as same:
        return same.size, same.tobytes(), same is image


def _saved(image: Any, format_: str, more: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **more)
    return file.getvalue()


def _changes() -> Iterator[tuple[str, Code]]:
    def changing(name: str, *arguments: Any, **more: Any) -> tuple[str, Code]:
        def code(image: Any) -> Any:
            return getattr(image, name)(*arguments, **more), image

        return f"{name} {arguments} {more}", code

    yield changing("putpixel", (3, 4), (9, 8, 7))
    yield changing("putpixel", (3, 4), 5)
    yield changing("putpixel", (300, 4), (9, 8, 7))
    yield changing("paste", (1, 2, 3), (5, 6, 30, 31))
    yield changing("paste", "red")
    yield changing("paste", Image.new("RGB", (9, 8), (4, 5, 6)), (3, -2))
    yield changing("paste", Image.new("RGB", (9, 8)), (3, 4, 5, 6))
    yield changing("putalpha", 50)
    yield changing("putdata", [1, 2, 3])
    yield changing("alpha_composite", Image.new("RGBA", (9, 8)))
    yield changing("putpalette", bytes(range(256)) * 3)
    yield changing("frombytes", b"short")
    yield changing("apply_transparency")
    for size in [(20, 20), (200, 200), (20.5, 30), (0, 5), [30, 9], (75, 58), (1, 1), (40, 1000), 5, ("a", 1)]:
        yield changing("thumbnail", size)
    yield changing("thumbnail", (20, 30), 2, None)
    yield changing("thumbnail", (20, 30), 0, 1.0)
    yield changing("thumbnail", (20, 30), 77)
    yield changing("thumbnail", (20, 30), reducing_gap=0.1)
    yield "load()[] = ", lambda image: (image.load().__setitem__((2, 3), (1, 2, 3)), image)
    yield "thumbnail of a crop", lambda image: [one := image.crop((5, 6, 70, 50)), one.thumbnail((20, 20)), one, image]
    yield "thumbnail twice", lambda image: [image.thumbnail((40, 40)), image.thumbnail((15, 10)), image.copy(), image]
    yield "thumbnail, then draft", lambda im: [im.thumbnail((40, 40)), im.draft("L", (9, 9)), im]
    yield "info, then crop", lambda image: [image.info.update(new=[1, 2]), image.crop((1, 1, 20, 20)), image]
    yield "info of a copy", lambda image: [one := image.copy(), one.info.update(new=1), one, image]
    yield "info set", lambda image: [_set(image, "info", {"a": [1]}), image.resize((9, 9)), image]
    yield "info set, of a looked", lambda image: [image.load(), _set(image, "info", {"a": [1]}), image.resize((9, 9))]
    yield "info, of a looked", lambda image: [image.load(), image.info.clear(), image.resize((9, 9)), image]
    yield "info transparency", lambda image: [image.info.update(transparency=(1, 2, 3)), image.convert("RGBA"), image]
    yield "attribute", lambda image: [_set(image, "own", 5), image.own, hasattr(image.copy(), "own"), image]
    yield "draw", lambda image: [_drawn_on(image), image]
    yield "im set", lambda image: [_set(image, "im", Image.new("L", (3, 4)).im), image.im.size]


def _set(image: Any, name: str, value: Any) -> Any:
    setattr(image, name, value)


def _drawn_on(image: Any) -> Any:
    ImageDraw.Draw(image).line((0, 0, 40, 30), fill=3, width=3)


def _other_modules() -> Iterator[tuple[str, Code]]:
    ops: dict[str, Code] = {
        "autocontrast": lambda image: ImageOps.autocontrast(image, 2, preserve_tone=False),
        "autocontrast tone": lambda image: ImageOps.autocontrast(image, (1, 2), ignore=3, preserve_tone=True),
        "equalize": ImageOps.equalize,
        "posterize": lambda image: ImageOps.posterize(image, 3),
        "posterize 0": lambda image: ImageOps.posterize(image, 0),
        "solarize": lambda image: ImageOps.solarize(image, 100),
        "invert": ImageOps.invert,
        "grayscale": ImageOps.grayscale,
        "colorize": lambda image: ImageOps.colorize(image.convert("L"), "red", "blue", "green"),
        "flip": ImageOps.flip,
        "mirror": ImageOps.mirror,
        "exif_transpose": ImageOps.exif_transpose,
        "exif_transpose in place": lambda image: [ImageOps.exif_transpose(image, in_place=True), image],
        "fit": lambda image: ImageOps.fit(image, (30, 30), centering=(0.3, 0.9)),
        "fit bleed": lambda image: ImageOps.fit(image, (30, 10), 2, 0.1),
        "pad": lambda image: ImageOps.pad(image, (90, 40), color="red"),
        "contain": lambda image: ImageOps.contain(image, (30, 40)),
        "cover": lambda image: ImageOps.cover(image, (30, 40)),
        "scale": lambda image: ImageOps.scale(image, 0.4),
        "expand": lambda image: ImageOps.expand(image, (1, 2, 3, 4), 7),
        "crop": lambda image: ImageOps.crop(image, 5),
        "deform": lambda image: ImageOps.deform(image, _Deformer()),
        "blend": lambda image: Image.blend(image, image.transpose(0), 0.3),
        "composite": lambda image: Image.composite(image, image.transpose(0), image.convert("L")),
        "merge": lambda image: Image.merge("RGB", image.convert("RGB").split()[::-1]),
        "alpha_composite": lambda image: Image.alpha_composite(image.convert("RGBA"), image.convert("RGBA")),
        "effect_spread": lambda image: image.effect_spread(0),
        "fromarray": lambda image: Image.fromarray(np.asarray(image)),
    }
    for name, code in ops.items():
        yield f"ops {name}", code
    for enhancer in (ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Brightness, ImageEnhance.Sharpness):
        for factor in (0, 0.4, 1, 2.5):
            yield f"{enhancer.__name__} {factor}", lambda image, e=enhancer, f=factor: e(image).enhance(f)
    for name in ("add", "multiply", "screen", "difference", "lighter", "overlay", "add_modulo", "logical_and"):
        yield f"chops {name}", lambda image, name=name: getattr(ImageChops, name)(image, image.transpose(1))
    yield "chops invert", lambda image: [ImageChops.invert(image), ImageChops.offset(image, 3, 4)]
    yield "chops constant", lambda image: [ImageChops.constant(image, 3), ImageChops.duplicate(image)]
    yield "stat", lambda image: [getattr(ImageStat.Stat(image), name) for name in ("mean", "var", "extrema", "median")]


class _Deformer:
    def getmesh(self, image: Any) -> Any:
        return [((0, 0, 20, 20), (0, 0, 0, 30, 30, 30, 30, 0))]


def _several() -> Iterator[tuple[str, Code]]:
    """Several images of one, which must not see what is done to each other."""

    def drawn_on(image: Any, how: Code) -> Any:
        children = [image.crop((2, 2, 30, 30)), image.copy(), image.resize((20, 20)), image.crop((1, 1, 40, 40)).copy()]
        how(image)
        return [*children, image, image.crop((0, 0, 9, 9))]

    ways: dict[str, Code] = {
        "putpixel": lambda image: image.putpixel((5, 5), 1),
        "paste": lambda image: image.paste(7, (0, 0, 50, 50)),
        "draw": lambda image: ImageDraw.Draw(image).rectangle((0, 0, 50, 50), 9),
        "load": lambda image: image.load().__setitem__((6, 6), 1),
        "thumbnail": lambda image: image.thumbnail((20, 20)),
        "looked, then paste": lambda image: (image.tobytes(), image.paste(7, (0, 0, 50, 50))),
        "info": lambda image: image.info.clear(),
        "draft": lambda image: image.draft("L", (20, 20)),
        "close": lambda image: image.close(),
        "putalpha": lambda image: image.putalpha(9),
        "frombytes": lambda image: image.frombytes(bytes(len(image.tobytes()))),
    }
    for name, how in ways.items():
        yield f"children, then {name}", lambda image, how=how: drawn_on(image, how)
    yield "child drawn on", lambda im: [one := im.copy(), other := one.crop((0, 0, 9, 9)), one.paste(3), other, one, im]
    yield "child, parent gone", lambda image: image.crop((1, 1, 60, 50)).resize((30, 20)).transpose(0)
    yield "looks between", lambda im: [a := im.crop((3, 3, 60, 50)), a.tobytes(), b := a.resize((9, 9)), a.paste(1), b]
    yield "pasted into another", lambda image: [_pasted(image, (3, 4)), image]
    yield "mask of another", lambda image: _pasted(9, (0, 0), image.convert("L"))
    yield "many steps", lambda image: _turned(image, 80)


def _turned(image: Any, times: int) -> Any:
    for number in range(times):
        image = image.transpose(number % 2).crop((0, 0, 50, 40))
    return image


def _pasted(*arguments: Any) -> Image.Image:
    image = Image.new("RGB", (90, 90))
    image.paste(*arguments)
    return image
