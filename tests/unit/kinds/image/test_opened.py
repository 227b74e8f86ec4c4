"""An image of a file whose pixels are not made yet answers small questions as the file that Pillow opens does."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import BmpImagePlugin, Image, ImageChops, ImageDraw, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin
from torchvision.transforms import functional as v1

from sophon_loader import native
from sophon_loader.kinds.image import opened as opened_module
from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.kinds.image.opened import opened_image
from tests.support.outcomes import Outcome, outcome_of, seen, text_of
from tests.support.picture_files import KINDS, file_of
from tests.support.pictures import picture

Question = Callable[[Any], Any]
_FILES = ("jpeg turned", "jpeg L", "jpeg CMYK", "jpeg optimized", "png with texts", "png RGBA", "webp", "bmp")
_ATTRIBUTES = (
    *("format", "format_description", "filename", "size", "mode", "width", "height", "readonly", "palette", "tile"),
    *("layers", "layer", "bits", "app", "applist", "quantization", "icclist", "huffman_dc", "custom_mimetype"),
    *("n_frames", "is_animated", "has_transparency_data", "nonsense", "__nonsense__", "decoderconfig", "text"),
    *("private_chunks", "default_image", "encoderinfo", "map"),
)
_METHODS = (
    *("getbands", "getexif", "_getexif", "getxmp", "get_format_mimetype", "tell", "tobytes", "split", "verify"),
    *("getbbox", "getextrema", "histogram", "getpalette", "get_child_images", "close", "_getmp", "__getstate__"),
    *("entropy", "getcolors", "load_end", "getim"),
)
_TYPES = (
    *(Image.Image, ImageFile.ImageFile, JpegImagePlugin.JpegImageFile, PngImagePlugin.PngImageFile),
    BmpImagePlugin.BmpImageFile,
)


def _saved(image: Any, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


@functools.singledispatch
def _of_class(image: Any) -> str:
    return "something"


@_of_class.register
def _(image: Image.Image) -> str:
    return "an image"


@_of_class.register
def _(image: JpegImagePlugin.JpegImageFile) -> str:
    return "a JPEG"


def _called(image: Any, name: str) -> Any:
    found = getattr(image, name)()
    return dict(found) if isinstance(found, Image.Exif) else found


def _within(image: Any) -> Any:
    with image as same:
        made = same.convert("RGB"), same is image
    return made, image.fp, image.size


def _within_unread(image: Any) -> Any:
    with image as same:
        size = same.size
    return size, image.fp, image.mode, image.info


def _drawn(image: Any) -> Any:
    ImageDraw.Draw(image).line((0, 0, 40, 30), fill=3, width=3)
    return image


def _pixels(image: Any) -> Any:
    pixels = image.load()
    found = pixels[3, 4], pixels[-1, -2]
    pixels[5, 6] = pixels[0, 0]
    return found, image, image.load()[5, 6]


def _pixels_before(image: Any) -> Any:
    pixels = image.load()
    image.thumbnail((20, 20))
    return pixels[40, 40], image


def _info_changed(image: Any) -> Any:
    image.info["new"] = [1, 2]
    made = image.crop((1, 2, 30, 31))
    image.info["newer"] = 3
    return made, image


def _read(image: Any) -> Any:
    image.fp.seek(0)
    return image.fp.read(), image.fp.closed


def _closed_file(image: Any) -> Any:
    stream = image.fp
    image.close()
    return stream.closed, image.fp


def _set(image: Any, name: str, value: Any) -> Any:
    setattr(image, name, value)
    return getattr(image, name), image.crop((1, 1, 9, 9)), getattr(image, name), image


def _put(image: Any, name: str, value: Any) -> Any:
    setattr(image, name, value)


def _pasted(image: Any) -> Any:
    onto = Image.new("RGB", (90, 80))
    onto.paste(image, (3, 4))
    return onto


def _unchanged(image: Any, change: Question) -> Any:
    """A derived image does not see what is done to the opened one later."""
    made = image.rotate(180)
    change(image)
    return made, image


QUESTIONS: dict[str, Question] = {
    **{f".{name}": lambda image, name=name: getattr(image, name) for name in _ATTRIBUTES},
    **{f".{name} behind load()": lambda i, name=name: (i.load(), getattr(i, name))[1] for name in _ATTRIBUTES},
    **{f"{name}()": lambda image, name=name: _called(image, name) for name in _METHODS if name != "getim"},
    **{f"isinstance {of.__name__}": lambda image, of=of: isinstance(image, of) for of in _TYPES},
    "class": lambda image: (type(image).__name__, type(image).__module__, type(image).__qualname__),
    "class behind a look": lambda image: (image.getpixel((0, 0)), type(image)),
    "repr": lambda image: (text_of(repr(image)), str(type(image))),
    "dispatch": _of_class,
    "hash": hash,
    "info": lambda image: image.info,
    "info twice": lambda image: (image.info is image.info, image.load(), image.info)[::2],
    "info before and behind": lambda image: (dict(image.info), image.load(), dict(image.info), image)[::2],
    "info changed": _info_changed,
    "info set": lambda image: (image.load(), _set(image, "info", {"a": [1]}))[1],
    "info cleared": lambda image: (image.info.clear(), image.resize((9, 9)), image),
    "info kept over load": lambda image: (one := image.info, image.load(), image.info is one, one)[2:],
    "an attribute of one's own": lambda image: _set(image, "own", 5),
    "filename set": lambda image: _set(image, "filename", "b.jpg"),
    "format set": lambda image: _set(image, "format", "X"),
    "no attribute of one's own in a copy": lambda i: (_set(i, "own", 5), hasattr(i.copy(), "own"))[1],
    "size set": lambda image: _set(image, "size", (3, 4)),
    "fp read": _read,
    "fp behind load()": lambda image: (image.load(), image.fp)[1],
    "fp behind a crop": lambda image: (image.crop((1, 1, 5, 5)), image.fp),
    "fp behind close()": _closed_file,
    "fp behind verify()": lambda image: (image.verify(), image.fp),
    "verify() behind load()": lambda image: (image.load(), image.verify())[1],
    "verify() twice": lambda image: (image.verify(), image.verify()),
    "load() gives pixels": _pixels,
    "load() beyond": lambda image: image.load()[500, 4],
    "load(), then a thumbnail": _pixels_before,
    "load() is there": lambda image: image.load() is None,
    "load(), then load()": lambda image: [image.load()[1, 2], image.load()[1, 2], image],
    "with": _within,
    "with, unread": _within_unread,
    "closed behind load()": lambda image: (image.load(), image.close(), image.size, image.mode, image.info)[2:],
    "closed twice": lambda image: (image.close(), image.close(), image.size, image.format),
    "closed behind a look": lambda image: (image.getpixel((1, 1)), image.close(), image.tobytes()),
    "seek 0": lambda image: (image.seek(0), image.tell()),
    "seek 1": lambda image: image.seek(1),
    "exif_transpose": ImageOps.exif_transpose,
    "exif_transpose, then exif": lambda image: dict(ImageOps.exif_transpose(image).getexif()),
    "exif_transpose in place": lambda image: [ImageOps.exif_transpose(image, in_place=True), image],
    "exif, twice": lambda image: (image.getexif() is image.getexif(), image.getexif().tobytes()),
    "exif changed": lambda image: (image.getexif().update({0x010E: "b"}), dict(image.getexif()), image),
    "exif's directories": lambda image: [image.getexif().get_ifd(one) for one in (0x8769, 0x8825, 1)],
    "exif of a copy": lambda image: dict(image.copy().getexif()),
    "convert": lambda image: [image.convert("RGB"), image.convert("L"), image],
    "convert to its own": lambda image: image.convert(image.mode),
    "convert to nothing known": lambda image: image.convert("X"),
    "copy": lambda image: [image.copy(), copy.copy(image), image],
    "deep copy": lambda image: [copy.deepcopy(image), image],
    "pickle": lambda image: [pickle.loads(pickle.dumps(image)), image],
    "pickle, protocol 0": lambda image: pickle.loads(pickle.dumps(image, 0)),
    "pickle of a copy": lambda image: pickle.loads(pickle.dumps(image.copy())),
    "pickle behind load()": lambda image: (image.load(), pickle.dumps(image))[1],
    "equal": lambda image: [image == image, image == image.copy(), image.copy() == image.copy(), image != image],
    "equal to others": lambda image: [image == 5, image == image.crop((1, 1, 9, 9)), image is None],
    "equal to its pickle": lambda image: image == pickle.loads(pickle.dumps(image)),
    "array": np.asarray,
    "array of floats": lambda image: np.array(image, np.float32),
    "array's interface": lambda image: {**image.__array_interface__, "data": bytes(image.__array_interface__["data"])},
    "array, then the image": lambda image: (np.asarray(image), image, image.fp, image.tile),
    "tobytes": lambda image: (image.tobytes(), image),
    "tobytes, turned": lambda image: image.tobytes("raw", image.mode, 0, -1),
    "tobytes, of nothing known": lambda image: image.tobytes("x"),
    "save as PNG": lambda image: _saved(image, "PNG"),
    "save as JPEG": lambda image: _saved(image.convert("RGB"), "JPEG"),
    "save as it is": lambda image: _saved(image, "JPEG"),
    "save, keeping quality": lambda image: _saved(image, "JPEG", quality="keep"),
    "save, keeping sampling": lambda image: _saved(image, "JPEG", subsampling="keep", qtables="keep"),
    "save with its exif": lambda image: _saved(image.convert("RGB"), "JPEG", exif=image.getexif()),
    "save, then settings": lambda image: (_saved(image, "BMP"), image.encoderinfo),
    "save as X": lambda image: _saved(image, "X"),
    "crop": lambda image: [image.crop((3, 4, 40, 30)), image.crop(), image.crop((9, 9, 3, 3))],
    "crop and look": lambda image: [image.crop((3, 4, 40, 30)).tobytes(), image],
    "resize": lambda image: [image.resize((31, 17)), image.resize(image.size), image.resize((5, 5), reducing_gap=2.0)],
    "resize wrongly": lambda image: image.resize((31, 17), 99),
    "reduce": lambda image: [image.reduce(2), image.reduce((1, 1)), image.reduce(3, (4, 5, 40, 50))],
    "reduce by lists": lambda image: [image.reduce([2, 3]), image.reduce([1, 1], [4, 5, 40, 50])],
    **{
        f"reduce wrongly, {arguments}": lambda image, arguments=arguments: image.reduce(*arguments)
        for arguments in ((0,), (2.0,), ((2, 3, 4),), (1 << 40,), (2, (4, 5, 40, 99)), (2, (9, 5, 9, 9)), (2, (4, 5)))
    },
    "split": lambda image: [*image.split(), image.getchannel(0)],
    "getchannel": lambda image: image.getchannel("Q"),
    "getpixel": lambda image: [image.getpixel((3, 4)), image.getpixel((-1, -1))],
    "getpixel beyond": lambda image: image.getpixel((300, 4)),
    "transpose": lambda image: [image.transpose(one) for one in range(7)],
    "rotate": lambda image: [image.rotate(90, expand=True), image.rotate(33)],
    "point": lambda image: image.point(lambda value: 255 - value),
    "expand": lambda image: ImageOps.expand(image, (1, 2, 3, 4), 7),
    "pad": lambda image: ImageOps.pad(image, (90, 40)),
    "fit": lambda image: ImageOps.fit(image, (30, 30)),
    "putpixel": lambda image: (image.putpixel((3, 4), image.getpixel((0, 0))), image),
    "putalpha": lambda image: (image.putalpha(50), image),
    "paste": lambda image: _unchanged(image, lambda one: one.paste(9, (5, 6, 30, 31))),
    "paste onto": _pasted,
    "draw": lambda image: _unchanged(image, _drawn),
    "blend": lambda image: Image.blend(image, image.transpose(0), 0.3),
    "chops": lambda image: ImageChops.difference(image, image.transpose(1)),
    "draft": lambda image: (image.draft("L", (20, 20)), image.size, image.mode, image),
    "draft behind load()": lambda image: (image.load(), image.draft("L", (20, 20)), image)[1:],
    "draft twice": lambda image: (image.draft("RGB", (40, 40)), image.draft("RGB", (9, 9)), image),
    "thumbnail": lambda image: (image.thumbnail((20, 20)), image, image.tile, image.format, image.readonly),
    "thumbnail twice": lambda image: (image.thumbnail((40, 40)), image.thumbnail((9, 9)), image, image.fp),
    "thumbnail of nothing": lambda image: (image.thumbnail((200, 200)), image.size, image),
    "thumbnail, then draft": lambda image: (image.thumbnail((40, 40)), image.draft("L", (9, 9)), image),
    "im": lambda image: (image.load(), image.im.size, image.im.mode, image)[1:],
    "im set": lambda image: (image.load(), _put(image, "im", Image.new("L", (3, 4)).im), image.im.size)[2],
    "getbands behind a look": lambda image: (image.tobytes(), image.getbands(), image.layers),
    "to a tensor": v1.to_tensor,
    "to a tensor of bytes": v1.pil_to_tensor,
}


def asked(question: Question, make: Callable[[], Any]) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = make()
    return outcome_of(lambda: question(image))


@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")  # Pillow's
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", _FILES)
def test_it_answers_as_the_file_that_pillow_opens(kind: str, tmp_path: Path) -> None:
    data = file_of(kind)
    path = tmp_path / "a picture"
    path.write_bytes(data)
    is_stream = _FILES.index(kind) % 2 == 1

    def made() -> Any:
        return opened_image(data, "", io.BytesIO(data)) if is_stream else opened_image(data, str(path))

    def by_pillow() -> Any:
        return Image.open(io.BytesIO(data) if is_stream else path)

    for name, question in QUESTIONS.items():
        ours, pillows = asked(question, made), asked(question, by_pillow)
        assert ours == pillows, f"{name}\n{str(ours)[:300]}\n{str(pillows)[:300]}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_programs_do_not_know_is_left_to_pillow(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = opened_image(file_of(kind), "")
    left = ("several", "P", "transparent", "1", "I;16", "header", "12", "picture", "empty", "gif", "tiff")
    is_left = any(word in kind.replace(",", "").split() for word in left) or kind == "webp cut short"
    assert (image is None) == is_left


def test_warnings_of_opening_come_when_it_is_opened() -> None:
    data = file_of("jpeg exif cut short")
    ours, pillows = outcome_of(lambda: opened_image(data, "")), outcome_of(lambda: Image.open(io.BytesIO(data)))
    assert ours.warned == pillows.warned != []


@contextmanager
def without_pixels(image: Any) -> Iterator[None]:
    """Within, an error comes from whatever looks at pixels of the image's file."""
    image._node.source.sealed = True
    yield
    image._node.source.sealed = False


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turning_it_by_its_exif_makes_no_pixels(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = _saved(picture(75, 58, 1), "JPEG", exif=exif)
    image = opened(data)
    with without_pixels(image):
        turned = ImageOps.exif_transpose(image)
    assert isinstance(turned, Deferred)
    assert [step[0] for step in turned.steps] == ["transpose"] * (orientation > 1)
    assert seen(turned) == seen(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))


def opened(data: bytes) -> Any:
    image = opened_image(data, "a.jpg")
    assert image is not None
    return image


def test_asking_and_loading_makes_no_pixels() -> None:
    image = opened(file_of("jpeg turned"))
    with without_pixels(image):
        image.load()
        for name in ("format", "size", "mode", "info", "layers", "readonly", "filename", "fp"):
            getattr(image, name)
        dict(image.getexif())
        with image:
            image.convert("L").resize((9, 9))
    assert isinstance(image, Deferred)


def test_a_file_of_the_users_own_stays_open(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(file_of("jpeg L"))
    with path.open("rb") as file, opened_image(path.read_bytes(), str(path), file) as image:
        image.load()
        image.tobytes()
        assert (image.filename, file.closed) == (Image.open(file).filename, False) == ("", False)


def test_one_that_nobody_has_is_gone_at_once() -> None:
    """Its file's bytes with it; and whether somebody has it decides what is kept for it."""
    image = opened(file_of("jpeg turned"))
    made = ImageOps.exif_transpose(image)
    seen_by = weakref.ref(image)
    gc.disable()
    try:
        del image
        assert seen_by() is None
    finally:
        gc.enable()
    assert made.size == (58, 75)


@pytest.mark.skipif(not native.available, reason="the C extension is not built")
def test_c_of_our_own_makes_the_pixels() -> None:
    image = opened(file_of("jpeg 4:2:0"))
    tally = image._node.source.tally
    np.asarray(image)
    assert tally.ours


@pytest.mark.parametrize("close", [lambda i: i.close(), lambda i: i.__exit__(), lambda i: i.verify()])
@pytest.mark.parametrize("kind", ["jpeg L", "webp"])
def test_behind_its_end_there_are_still_pixels(kind: str, close: Question) -> None:
    image = opened(file_of(kind))
    close(image)
    assert image.tobytes() == Image.open(io.BytesIO(file_of(kind))).tobytes()


@pytest.mark.parametrize("kind", ["png damaged", "jpeg cut short"])
def test_a_damaged_file_fails_as_by_pillow_at_the_look(kind: str) -> None:
    image, data = opened(file_of(kind)), file_of(kind)
    image.load()
    error = outcome_of(lambda: Image.open(io.BytesIO(data)).load()).error
    assert outcome_of(image.tobytes).error == outcome_of(lambda: np.asarray(image)).error == error is not None


def test_verifying_looks_at_the_files_sums() -> None:
    data = bytearray(file_of("png RGB"))
    data[-14] ^= 1  # in the sum of its pixels
    error = outcome_of(lambda: Image.open(io.BytesIO(data)).verify()).error
    assert outcome_of(opened(bytes(data)).verify).error == error is not None


USES: list[Question] = [
    *(lambda image: image.crop((3, 4, 40, 30)).tobytes(), lambda image: image.convert("L").resize((9, 9)).tobytes()),
    *(np.asarray, lambda image: image.getexif().tobytes(), lambda image: image.info),
    *(lambda image: image.load()[3, 4], lambda image: image.rotate(90).info, lambda image: image.copy().getexif()),
    *(
        lambda image: image.tobytes(),
        lambda image: image.point(lambda value: 255 - value).tobytes(),
        lambda image: image == image,
    ),
]

OF_FILES: list[Question] = [lambda image: image.layers, lambda image: image.quantization]


@pytest.mark.parametrize(("kind", "opens"), [("jpeg 4:2:0", False), ("jpeg turned", True)])
def test_pillow_opens_a_jpeg_for_its_exif_only_where_there_may_be_some(
    kind: str, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    image: Any = opened(file_of(kind))
    asked = Mock(wraps=image._file)
    monkeypatch.setattr(type(image), "_file", asked)
    image.load()
    image.getexif()
    assert asked.called is opens


def _itself(image: Any) -> Any:
    return image


def _derived(image: Any) -> Any:
    return image.convert("RGB").crop((1, 2, 70, 50))


@pytest.mark.parametrize(("make", "uses"), [(_itself, USES + OF_FILES), (_derived, USES)])
@pytest.mark.parametrize("kind", ["jpeg turned", "jpeg CMYK"])
def test_several_threads_use_one(kind: str, make: Question, uses: list[Question]) -> None:
    """The first to look changes its class under the others."""
    data, threads = file_of(kind), 6
    wanted = [outcome_of(lambda use=use: use(make(opened(data)))) for use in uses]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for first in range(40):
                image, ready = make(opened(data)), threading.Barrier(threads)
                if make is _itself:
                    image.load()

                def use(number: int, image: Any = image, ready: Any = ready, first: int = first) -> Any:
                    which = (first + number) % len(uses)
                    ready.wait(10)
                    return which, uses[which](image)

                for which, value in pool.map(use, range(threads)):
                    assert seen(value) == wanted[which].value
    finally:
        sys.setswitchinterval(before)


def test_a_copy_that_is_written_to_changes_nothing_else() -> None:
    data = file_of("jpeg 4:4:4")
    image = opened(data)
    part = image.crop((3, 4, 40, 30))
    same = part.convert("RGB")
    same.load()[0, 0] = 1, 2, 3
    by_pillow = Image.open(io.BytesIO(data))
    assert seen(part) == seen(by_pillow.crop((3, 4, 40, 30)))
    assert seen(image) == seen(by_pillow)


def test_a_format_that_somebody_else_opens_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    assert opened_image(file_of("jpeg 4:2:0"), "") is not None
    monkeypatch.setitem(Image.OPEN, "JPEG", (lambda fp, name: Image.new("L", (3, 2)), None))
    assert opened_image(file_of("jpeg 4:2:0"), "") is None


def test_what_is_no_fault_of_the_file_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(data: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr(opened_module, "source_of", hungry)
    with pytest.raises(MemoryError):
        opened_image(file_of("jpeg 4:2:0"), "")
