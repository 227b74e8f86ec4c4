"""An image whose header is known and whose pixels are not made yet.

What a program knows (`primitives`) is recorded when it is called. Anything else looks at the pixels: they are made
once, and the image is one of Pillow's own from there on. Pillow's methods reach pixels through `_im` alone, which is a
property here, so nothing has to be patched, and whatever is not recorded is Pillow's own code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import wraps
from numbers import Integral, Real
from operator import index
from threading import RLock
from typing import Any, TypeVar
from weakref import ref

from PIL import Image, ImageFilter

from sophon_loader.host.regular import read_regular
from sophon_loader.kinds.image.fused_picture import Picture
from sophon_loader.kinds.image.history import Node
from sophon_loader.kinds.image.opening import naming, open_image
from sophon_loader.kinds.image.primitives import BANDS, BICUBIC, NEAREST, SUPPORTS, Shape, numbers_of, output
from sophon_loader.kinds.image.source import PictureFile, copied, source_of
from sophon_loader.programs.program import MAX_STEPS, Program, Step

_NUMBERS = {int, float}
_Method = TypeVar("_Method", bound=Callable[..., Any])


def lock_of(image: Image.Image) -> AbstractContextManager[Any]:
    """What a thread holds while it changes an image or another one of the same file; nothing for one of Pillow's."""
    return image.__dict__.get("_lock") or nullcontext()


def guarded(method: _Method) -> _Method:
    """A method of deferred images that one thread runs at a time on all images of a file. If another thread has looked
    before, it is the method of the image's class by then."""

    @wraps(method)
    def one_at_a_time(self: Any, *args: Any, **kwargs: Any) -> Any:
        lock = self.__dict__.get("_lock")
        if lock is not None:
            with lock:
                if isinstance(self, Deferred):
                    return method(self, *args, **kwargs)
        return getattr(self, method.__name__)(*args, **kwargs)

    return one_at_a_time  # type: ignore[return-value]


class _Ours(Image.Image):
    """What a deferred image and one that has been looked at have in common."""

    def __eq__(self, other: object) -> bool:
        plain(self)
        if isinstance(other, _Ours):
            plain(other)
        return self == other  # by Pillow: the class is another one now

    __hash__ = None  # type: ignore[assignment]  # as Pillow's

    def __reduce_ex__(self, protocol: Any) -> Any:
        return plain(self).__reduce_ex__(protocol)


class Looked(_Ours):
    """An image whose pixels have been made, and whose `info` nobody has asked for; then it is Pillow's own."""

    @property
    def info(self) -> dict[Any, Any]:
        """As Pillow's reader makes it of the whole file."""
        with lock_of(self):
            if isinstance(self, Looked):
                self.info = self.__dict__["_source"].info()
        return self.info

    @info.setter
    def info(self, info: dict[Any, Any]) -> None:
        known = self.__dict__
        known["info"] = info
        self.__class__ = Image.Image  # type: ignore[assignment]
        known.pop("_source", None)
        known.pop("_lock", None)


class Deferred(_Ours):
    """An image whose pixels are not made yet; made by `deferred`.

    Everything of `PIL.Image.Image` gives what it gives on the image itself, in values, generators and errors of wrong
    arguments. An error of a damaged file comes when pixels are looked at.
    """

    _node: Node

    @property
    def _im(self) -> Any:
        Deferred._look(self)  # another thread may have made it an image of Pillow's class since this was called
        return self.__dict__["_im"]

    @_im.setter
    def _im(self, im: Any) -> None:
        self._turn(im)

    @property
    def info(self) -> dict[Any, Any]:
        """As Pillow's reader makes it of the whole file, read when somebody asks."""
        known = self.__dict__
        if "info" not in known:
            with lock_of(self):
                if not isinstance(self, Deferred):
                    return self.info
                if self._node.step is not None and self._node.source.want_info():
                    Deferred._look(self)  # pixels that are wanted sooner or later bring it, else the file would come
                    return self.info
                known["info"] = self._node.source.info()
        found: dict[Any, Any] = known["info"]
        return found

    @info.setter
    def info(self, info: dict[Any, Any]) -> None:
        self.__dict__["info"] = info

    @property
    def steps(self) -> tuple[Step, ...]:
        """What has been recorded, from the decoded picture to here."""
        return self._node.steps()

    def picture(self) -> Picture | None:
        """The pixels by C of our own, for whoever wants no image of Pillow's; None where that one must make them."""
        return self._node.picture()

    def decode(self) -> bool:
        """Make the pixels by C of our own and keep them; False where Pillow must make them."""
        node = self._node
        if node.ours is None and node.im is None:
            node.ours = node.picture()
        return node.ours is not None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """See PIL.Image.Image.__array_interface__: pixels by C of our own are handed over without a copy."""
        with lock_of(self):
            if isinstance(self, Deferred):
                return self._array_interface()
        found: dict[str, Any] = self.__array_interface__  # another thread has looked
        return found

    def _array_interface(self) -> dict[str, Any]:
        if not self.decode():
            return super().__array_interface__
        assert self._node.ours is not None
        pixels = self._node.ours.array()
        shape = pixels.shape[: 2 if self._mode == "L" else 3]
        return {"version": 3, "data": pixels.reshape(-1).data.toreadonly(), "shape": shape, "typestr": "|u1"}

    @guarded
    def tobytes(self, encoder_name: str = "raw", *args: Any) -> bytes:
        """See PIL.Image.Image.tobytes."""
        if encoder_name != "raw" or args or not self.decode():
            return super().tobytes(encoder_name, *args)
        assert self._node.ours is not None
        return self._node.ours.array().tobytes()

    def program(self, file: str = "") -> Program:
        """What has been recorded, as a program of the file with this key."""
        return self._node.source.program(self.steps, file)

    def _look(self) -> None:
        """Make the pixels."""
        with lock_of(self):
            if isinstance(self, Deferred):
                self._make()

    def _make(self) -> None:
        node = self._node
        im = node.made()
        original = _original(node)
        if original is not node and original.im is im:  # which somebody has
            im = im.copy()
        if node.wanted():  # what comes from here is not to see what is drawn on this image from now on
            node.im, im = im, im.copy()
        self._turn(im)

    def _turn(self, im: Any) -> None:
        """Become an image of Pillow's own class."""
        known = self.__dict__
        known["_im"] = im
        if "info" in known:
            self.__class__ = Image.Image  # type: ignore[assignment]
            known.pop("_lock", None)
        else:
            known["_source"] = self._node.source
            self.__class__ = Looked  # type: ignore[assignment]
        known.pop("_node")

    def _recorded(self, step: Step | None, shape: Shape | None = None) -> Image.Image | None:
        """The image behind a step; None where a program does not have that step, so that Pillow is to do it."""
        node = self._node
        if shape is None:
            shape = node.shape if step is None else output(step, node.shape)
        limit = Image.MAX_IMAGE_PIXELS
        if shape is None or node.depth >= MAX_STEPS or (limit is not None and shape.px > limit):
            return None
        made = image_of(Node(node.source, shape, node, step), lock=self.__dict__["_lock"])
        if "info" in self.__dict__:
            made.__dict__["info"] = copied(self.__dict__["info"])
        return made

    # --- what is recorded; whatever is odd goes to Pillow's own method, which looks ----------------------------------

    @guarded
    def copy(self) -> Image.Image:
        """See PIL.Image.Image.copy."""
        return self._recorded(None) or super().copy()

    __copy__ = copy

    @guarded
    def crop(self, box: Any = None) -> Image.Image:
        """See PIL.Image.Image.crop."""
        numbers: tuple[int, ...] = ()
        if isinstance(box, (tuple, list)):  # one release takes an array, the next does not
            with suppress(TypeError, ValueError, OverflowError):
                numbers = tuple(map(int, map(round, box)))
        if box is None or numbers == (0, 0, *self._size):
            return self.copy()
        return self._recorded(("crop", *numbers)) or super().crop(box)

    @guarded
    def resize(self, size: Any, resample: Any = None, box: Any = None, reducing_gap: Any = None) -> Image.Image:
        """See PIL.Image.Image.resize."""
        try:
            width, height = size
            if type(width) is not int or type(height) is not int:  # numpy's; with a gap, Pillow computes with them
                width, height = map(index, size) if reducing_gap is None else size
            filter_ = BICUBIC if resample is None else index(resample)
            part = None if box is None else tuple(box)
            if part is not None and not {*map(type, part)} <= _NUMBERS:
                part = tuple(map(_plain_number, part))
        except (TypeError, ValueError, OverflowError):
            return super().resize(size, resample, box, reducing_gap)
        if part == (0, 0, *self._size):
            part = None
        if part is None and (width, height) == self._size and filter_ in SUPPORTS and reducing_gap is None:
            return self.copy()
        numbers = (width, height, filter_, part, reducing_gap)
        return self._recorded(("resize", *numbers)) or super().resize(size, resample, box, reducing_gap)

    @guarded
    def reduce(self, factor: Any, box: Any = None) -> Image.Image:
        """See PIL.Image.Image.reduce; of a box, it is recorded as that of a crop."""
        try:
            numbers = tuple(map(index, factor if isinstance(factor, tuple) else (factor, factor)))
            left, top, right, bottom = (0, 0, *self._size) if box is None else tuple(map(index, box))
        except (TypeError, ValueError):
            return super().reduce(factor, box)
        made = None
        inside = 0 <= left < right <= self.width and 0 <= top < bottom <= self.height
        if inside and (box is None or isinstance(box, (tuple, list))):
            part = self.crop((left, top, right, bottom))
            made = part._recorded(("reduce", *numbers)) if isinstance(part, Deferred) else None
        return made or super().reduce(factor, box)

    @guarded
    def transpose(self, method: Any) -> Image.Image:
        """See PIL.Image.Image.transpose."""
        number = index(method) if isinstance(method, (int, Integral)) else method
        return self._recorded(("transpose", number)) or super().transpose(method)

    @guarded
    def convert(self, mode: Any = None, matrix: Any = None, *rest: Any, **more: Any) -> Image.Image:
        """See PIL.Image.Image.convert."""
        if matrix is None:
            if not mode or mode == self._mode:
                return self.copy()
            known = self.__dict__.get("info")
            if known is None or "transparency" not in known:
                made = self._recorded(("convert", mode))
                if made is not None:
                    return made
        return super().convert(mode, matrix, *rest, **more)

    @guarded
    def point(self, lut: Any, mode: Any = None) -> Image.Image:
        """See PIL.Image.Image.point."""
        if mode is None and self._mode in BANDS and not isinstance(lut, Image.ImagePointHandler):
            if callable(lut):
                lut = [lut(value) for value in range(256)] * BANDS[self._mode]
            try:
                table = bytes(map(round, lut))
            except (TypeError, ValueError, OverflowError):
                table = b""
            made = self._recorded(("point", table))
            if made is not None:
                return made
        return super().point(lut, mode)

    @guarded
    def filter(self, filter: Any) -> Image.Image:
        """See PIL.Image.Image.filter."""
        one = filter() if callable(filter) else filter
        numbers = numbers_of(one) if isinstance(one, ImageFilter.Filter) else None
        return (None if numbers is None else self._recorded(("filter", *numbers))) or super().filter(one)

    @guarded
    def transform(
        self, size: Any, method: Any, data: Any = None, resample: Any = NEAREST, fill: Any = 1, fillcolor: Any = None
    ) -> Image.Image:
        """See PIL.Image.Image.transform."""
        made = None
        sound = isinstance(method, int) and isinstance(resample, int) and isinstance(size, tuple)
        if sound and not isinstance(fillcolor, list):
            with suppress(TypeError):
                made = self._recorded(("transform", *size, int(method), tuple(data), int(resample), fillcolor))
        return made or super().transform(size, method, data, resample, fill, fillcolor)

    @guarded
    def draft(self, mode: Any, size: Any) -> Any:
        """See PIL.Image.Image.draft: of a file that has been opened and not converted, read smaller."""
        node = self._node
        if node.parent is not None or not node.source.is_file or node.children:
            return None
        found = node.source.drafted(mode, size)
        node.shape = node.source.shape
        self._size, self._mode = node.shape[:2], node.shape.mode
        return found

    @guarded
    def thumbnail(self, size: Any, resample: Any = BICUBIC, reducing_gap: Any = 2.0) -> None:
        """See PIL.Image.Image.thumbnail."""
        stand_in = _StandIn(self)
        Image.Image.thumbnail(stand_in, size, resample, reducing_gap)
        if stand_in.resized is None:
            return
        made = stand_in.resized
        if isinstance(made, Deferred):
            self._node = made._node
            self._node.image = ref(self)
            self._size, self._mode = made._size, made._mode
        else:
            self._turn(made.im)
            self._size, self._mode = made.size, made.mode


for _one in (_Ours, Looked, Deferred):  # in reprs, and in texts of errors, they are what they stand for
    _one.__module__, _one.__name__, _one.__qualname__ = Image.Image.__module__, "Image", "Image"


class _StandIn(Image.Image):
    """Lets Pillow work out a thumbnail's size and steps, and takes the resized image in place of its pixels."""

    def __init__(self, image: Deferred) -> None:
        super().__init__()
        self.of = image
        self._size, self._mode = image.size, image.mode
        self.resized: Image.Image | None = None

    def draft(self, mode: Any, size: Any) -> Any:
        found = self.of.draft(mode, size)
        self._size, self._mode = self.of.size, self.of.mode
        return found

    def resize(self, *args: Any, **kwargs: Any) -> Any:
        self.resized = self.of.resize(*args, **kwargs)
        return _Pixels(self.resized.mode)


class _Pixels:
    """What `_StandIn.resize` gives to Pillow's thumbnail: an image, and its pixels, by their mode alone."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.readonly = 0
        self.im = self


_BLANK = {name: value for name, value in vars(Image.Image()).items() if name not in ("_im", "info")}
"""What an image has besides its pixels and its `info`: that alone, since another attribute would not travel."""


def _original(node: Node) -> Node:
    """What a point is a copy of, or a copy of a copy; the point itself if it is no copy."""
    while node.step is None and node.parent is not None:
        node = node.parent
    return node


def image_of(node: Node, of: type[Deferred] = Deferred, lock: Any = None) -> Deferred:
    """The image that stands at a point of a file's history.

    Args:
        node: the point.
        of: its class.
        lock: of all images of the file; None for the first of them.
    """
    image = of.__new__(of)
    known = image.__dict__
    known.update(_BLANK, _node=node, _mode=node.shape.mode, _size=node.shape[:2], _lock=lock or RLock())
    node.image = ref(image)
    return image


def deferred(source: PictureFile) -> Deferred:
    """The picture of a file, as `PIL.Image.open` and `load` give it, with its pixels not made yet."""
    return image_of(Node(source, source.shape))


def open_deferred(file: str | os.PathLike[str] | bytes) -> Image.Image:
    """The picture of a file as `PIL.Image.open` gives it, with its pixels not made yet.

    Args:
        file: its path, which is read once, or its bytes.

    Returns:
        A `Deferred`; where no program knows the file, or the self-test has failed, what `PIL.Image.open` gives.

    Raises:
        Exception: whatever `open` and Pillow raise for a file that cannot be opened.
    """
    from sophon_loader.kinds.image.selftest import trusted  # which tries deferred images

    if isinstance(file, bytes):
        return _opened(file, trusted=trusted())
    with naming(os.fspath(file)):
        return _opened(read_regular(os.fspath(file)), trusted=trusted())


def _opened(data: bytes, *, trusted: bool) -> Image.Image:
    source = source_of(data) if trusted else None
    if source is None:
        return open_image(data)
    source.is_file = True
    return deferred(source)


def _plain_number(value: Any) -> Any:
    """A real number, such as one of numpy's, as the int or float that Pillow takes it for; anything else as it is."""
    if type(value) in (int, float) or not isinstance(value, Real):
        return value
    return index(value) if isinstance(value, Integral) else float(value)


def finished(image: Deferred, made: Image.Image) -> Image.Image:
    """The same object with pixels that somebody has made of its steps, as `plain` gives it but for its `info`."""
    image._turn(made.im)
    return image


def plain(image: Image.Image) -> Image.Image:
    """The same object as an image of Pillow's own class, with its pixels and its `info`."""
    if isinstance(image, Deferred):
        image._look()
    if isinstance(image, Looked):
        image.info  # noqa: B018  # which makes it one
    return image
