"""What `PIL.Image.open` gives for a file whose pixels are not made yet.

Such an image is a `Deferred` and an instance of the file's own class, `JpegImageFile` for one. It answers from the
header what that tells; whatever else the file's class has comes from Pillow's own opened file, opened when somebody
asks. `load()` makes no pixels, and tells the file's tally. The first look makes them, and turns the image into one of
the file's own class.

Not as Pillow's: behind `close()`, `with` and `verify()` there are still pixels; `fp` of a path is a stream of the
file's bytes. A damaged file raises at each look, and in `load()` only if the tally does.
"""

from __future__ import annotations

import io
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any
from weakref import ReferenceType, ref

from PIL import Image, ImageFile

from sophon_loader.errors import must_leave
from sophon_loader.kinds.image.deferred import Deferred, guarded, image_of, lock_of
from sophon_loader.kinds.image.far_picture import FarPicture, Supplier, far_picture
from sophon_loader.kinds.image.fused_picture import DecodeTally, Picture
from sophon_loader.kinds.image.header import Header, header_of
from sophon_loader.kinds.image.history import Node
from sophon_loader.kinds.image.opening import naming, open_image
from sophon_loader.kinds.image.primitives import NEAREST, Shape
from sophon_loader.kinds.image.source import PictureFile, copied, source_of
from sophon_loader.programs.program import Step

_STARTS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"RIFF": "WEBP",
    b"BM": "BMP",
    b"P5": "PPM",
    b"P6": "PPM",
}
"""How the files begin that are opened here, and Pillow's names of their formats."""
_CLASSES = {"JPEG": "Jpeg", "PNG": "Png", "WEBP": "WebP", "BMP": "Bmp", "PPM": "Ppm"}
"""By Pillow's name of a format, how the name of its module and of its class begins."""
_METADATA = (b"Exif", b"http://ns.adobe.com/xap/")
"""First bytes of EXIF and XMP data in a JPEG."""
_LOADED: dict[str, Any] = {"tile": [], "fp": None, "map": None, "_readonly": 0}
"""What an image of a file has behind `load()`."""
_OURS = ("_info_before", "_load_gave", "_lock", "_node")


def opened_image(data: bytes, name: str | None, file: Any = None) -> Image.Image | None:
    """The picture of a file as `PIL.Image.open` gives it, with its pixels not made yet.

    Args:
        data: the whole file.
        name: its path; None or "" for a stream, whose name Pillow does not ask for either.
        file: the open file that the user has given; None for a path.

    Returns:
        None where Pillow is to open it: whatever is damaged, has several pictures, or no program knows.
    """
    format_ = next((one for start, one in _STARTS.items() if data.startswith(start)), None)
    if format_ is None or not _is_opened_by_pillow(format_):
        return None
    try:
        source = source_of(data)
        if source is None or not _is_of_one_picture(source, format_):
            return None
        source.let_pillow_warn()
    except Exception as error:  # Pillow's own `open` raises it, and names the file
        if must_leave(error):
            raise
        return None
    return _image_of(source, format_, name, file)


def opened_far(header: Header, nbytes: int, supplier: Supplier, name: str | None, file: Any = None) -> Opened | None:
    """The picture of a file that lies elsewhere, as `PIL.Image.open` gives it, with its pixels not made yet.

    Args:
        header: of the file.
        nbytes: its size.
        supplier: of the picture.
        name, file: see `opened_image`.

    Returns:
        None where the file has to be here.
    """
    source = far_picture(header, nbytes, supplier) if _is_opened_by_pillow(header.format) else None
    return None if source is None else _image_of(source, header.format, name, file)


def _image_of(source: PictureFile, format_: str, name: str | None, file: Any) -> Opened:
    source.is_file = True
    source.tally = DecodeTally()
    image: Opened = image_of(Node(source, source.shape), _class_of(format_))  # type: ignore[assignment]
    known = image.__dict__
    path = "" if file is not None or name is None else name
    known.update(filename=path, _readonly=1, _exclusive_fp=bool(path))  # the user's own file stays open
    del known["_exif"]  # Pillow may have read it to open the file, and warned
    if file is not None:
        known["fp"] = file
    return image


def _is_opened_by_pillow(format_: str) -> bool:
    """Whether nobody has registered another opener for a format. Before Pillow has opened a file it has none."""
    opens = Image.OPEN.get(format_)
    return opens is None or str(getattr(opens[0], "__module__", "")).startswith("PIL.")


def _is_of_one_picture(source: PictureFile, format_: str) -> bool:
    """Whether it is, as Pillow has it; which is asked of whatever our C does not decode, since `open` checks a lot."""
    header = header_of(source.data) if format_ == "JPEG" else None
    if header is not None:
        return header.format == format_
    opened = source.opened()
    return type(opened) is _file_class(format_) and getattr(opened, "n_frames", 1) == 1


def _may_have_exif(source: PictureFile) -> bool:
    """True if a JPEG may have EXIF data, or XMP data, in which Pillow looks for the orientation as well."""
    if isinstance(source, FarPicture):
        return source.may_have_metadata
    data = source.data
    header = header_of(data)
    return header is None or any(data.find(start, 0, header.header_nbytes) >= 0 for start in _METADATA)


@cache
def _file_class(format_: str) -> type[ImageFile.ImageFile]:
    name = _CLASSES[format_]
    found: type[ImageFile.ImageFile] = getattr(import_module(f"PIL.{name}ImagePlugin"), f"{name}ImageFile")
    return found


@cache
def _class_of(format_: str) -> type[Opened]:
    """The class of deferred images that stand for a file of this format."""
    of = _file_class(format_)
    names = {"_file_class": of, "__module__": of.__module__, "__qualname__": of.__qualname__, "__doc__": of.__doc__}
    if hasattr(of, "text"):  # which looks for texts behind the pixels
        names["text"] = property(_text)
    return type(of)(of.__name__, (Opened, of), names)  # type: ignore[misc, no-any-return]


def _text(self: Any) -> Any:
    _ = self.load(), self.im
    return self.text


class _Access:
    """What `load()` gives: pixels by their place, which are made when somebody asks for one."""

    def __init__(self, image: Opened) -> None:
        self._image = image
        self.pixels: Any = None
        """Pillow's own, once the pixels are made."""

    def _looked(self) -> Any:
        if self.pixels is None:
            _ = self._image.im
        return self.pixels

    def __getitem__(self, place: Any) -> Any:
        return self._looked()[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._looked()[place] = value


class Opened(Deferred):
    """What the images of files have in common; each is of a class that is the file's own class, too."""

    _file_class: type[ImageFile.ImageFile]

    def __getattr__(self, name: str) -> Any:
        """Whatever only the file's class has, as it is in Pillow's own opened file."""
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        lock = self.__dict__.get("_lock")
        if lock is None:  # another thread has looked
            return object.__getattribute__(self, name)
        with lock:
            if not isinstance(self, Opened):
                return getattr(self, name)
            if name == "fp":
                return self._stream()
            return getattr(self._file(), name)

    def _file(self) -> ImageFile.ImageFile:
        with naming(self.__dict__["filename"]):
            return self._node.source.opened()

    def _stream(self) -> io.BytesIO:
        """What stands for the file that Pillow keeps open."""
        made = io.BytesIO(self._node.source.data)
        kept = self._file().fp
        if kept is not None and not kept.closed:
            made.seek(kept.tell())
        self.__dict__["fp"] = made
        return made

    @property
    def _is_loaded(self) -> bool:
        """Whether `load()` has been called, by whoever, so that Pillow would have the pixels."""
        return "tile" in self.__dict__

    def _note_load(self) -> None:
        known = self.__dict__
        if "tile" not in known:
            stream = known.get("fp")
            if known["_exclusive_fp"] and stream is not None:
                stream.close()
            known.update(_LOADED, tile=[])
            tally = self._node.source.tally
            if tally is not None:
                tally.load(self._node.source)

    def _pixels(self) -> Any:
        return Deferred._im.fget(self) if self._is_loaded else None  # type: ignore[attr-defined]

    _im = property(_pixels, Deferred._im.fset)  # type: ignore[attr-defined]
    """As Pillow's: None up to `load()`, which is what its methods call before they use it."""

    @property
    def info(self) -> dict[Any, Any]:
        """As Pillow's reader makes it of what it has read: of the file's header, or of all of it."""
        with lock_of(self):
            if isinstance(self, Opened):
                return self._info_now()
        return self.info

    @info.setter
    def info(self, info: dict[Any, Any]) -> None:
        self.__dict__["info"] = info

    def _info_now(self) -> dict[Any, Any]:
        known, source = self.__dict__, self._node.source
        if "info" not in known:
            if self._is_loaded:
                known["info"] = source.info()
            else:
                known["info"] = copied(self._file().info)
                known["_info_before"] = copied(known["info"])
        elif self._is_loaded and "_info_before" in known:
            now, before = source.info(), known["_info_before"]
            known["info"].update((key, value) for key, value in now.items() if key not in before)
            del known["_info_before"]
        found: dict[Any, Any] = known["info"]
        return found

    @property
    def readonly(self) -> int:
        """As of an image of Pillow's: 1 up to `load()`."""
        return int(self.__dict__["_readonly"])

    @readonly.setter
    def readonly(self, readonly: int) -> None:
        self.__dict__["_readonly"] = readonly

    @guarded
    def load(self) -> Any:
        """See PIL.ImageFile.ImageFile.load; the pixels are made when somebody wants one of what this gives."""
        self._note_load()
        access = self._access()
        if access is None:
            access = _Access(self)
            self.__dict__["_load_gave"] = ref(access)  # not the other way as well: unseen images must go at once
        return access

    @guarded
    def getexif(self) -> Image.Exif:
        """See PIL.Image.Image.getexif; a JPEG without metadata is not opened by Pillow for it, which takes 0.1 ms."""
        known = self.__dict__
        if self.format != "JPEG" or {"info", "_exif"} & {*known} or _may_have_exif(self._node.source):
            return super().getexif()
        known["_exif"] = exif = Image.Exif()
        exif._loaded = True
        return exif

    def _access(self) -> _Access | None:
        """What `load()` has given, as long as somebody has it."""
        kept: ReferenceType[_Access] | None = self.__dict__.get("_load_gave")
        return None if kept is None else kept()

    @guarded
    def close(self) -> None:
        """See PIL.ImageFile.ImageFile.close."""
        stream = self.__dict__.get("fp")
        if stream is not None:
            with suppress(Exception):
                stream.close()
        self.__dict__["fp"] = None

    @guarded
    def __exit__(self, *args: object) -> None:
        stream = self.__dict__.get("fp")
        if stream is not None and self.__dict__["_exclusive_fp"]:
            stream.close()
        self.__dict__["fp"] = None

    @guarded
    def verify(self) -> None:
        """See PIL.ImageFile.ImageFile.verify."""
        known, of = self.__dict__, self._file_class
        if of.verify is not ImageFile.ImageFile.verify:
            if "fp" in known and known["fp"] is None:
                of.verify(self)  # type: ignore[arg-type]
                return
            with open_image(self._node.source.data) as again:
                again.verify()
        self.__exit__()

    @guarded
    def draft(self, mode: Any, size: Any) -> Any:
        """See PIL.JpegImagePlugin.JpegImageFile.draft."""
        return None if self._is_loaded else super().draft(mode, size)

    @guarded
    def thumbnail(self, size: Any, *args: Any, **kwargs: Any) -> None:
        """See PIL.Image.Image.thumbnail."""
        if self._access() is not None:  # which is of the image before
            self._look()
            self.thumbnail(size, *args, **kwargs)
            return
        super().thumbnail(size, *args, **kwargs)

    @guarded
    def transform(
        self, size: Any, method: Any, data: Any = None, resample: Any = NEAREST, *rest: Any, **more: Any
    ) -> Any:
        """See PIL.Image.Image.transform, which copies `info` before it loads, unless it converts for alpha first."""
        is_converted = self._mode in ("LA", "RGBA") and resample != NEAREST
        before = None if self._is_loaded or is_converted or self.format == "JPEG" else dict(self._info_now())
        made = super().transform(size, method, data, resample, *rest, **more)
        if before is not None:
            made.info = before
        return made

    def decode(self) -> bool:
        """See `Deferred.decode`; Pillow would load it."""
        self._note_load()
        return super().decode()

    def picture(self) -> Picture | None:
        """See `Deferred.picture`; Pillow would load it."""
        self._note_load()
        return super().picture()

    def _recorded(self, step: Step | None, shape: Shape | None = None) -> Image.Image | None:
        made = super()._recorded(step, shape)
        if made is None:
            return None
        self._note_load()
        known = self.__dict__
        before = known.get("_info_before")
        if before is not None:
            if known["info"] == before:
                made.__dict__.pop("info", None)
            else:
                made.__dict__["info"] = copied(self._info_now())
        return made

    def _turn(self, im: Any) -> None:
        known = self.__dict__
        opened = self._file()
        self._note_load()
        info = self._info_now()
        access = self._access()
        file = {key: value for key, value in vars(opened).items() if key not in known}
        known.update(file, _im=im, info=info)
        if access is not None:
            access.pixels = im.pixel_access(0)
        self.__class__ = self._file_class  # type: ignore[assignment]
        for name in _OURS:
            known.pop(name, None)
