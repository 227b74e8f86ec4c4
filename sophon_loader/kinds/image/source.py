"""A picture's file, read as far as somebody has looked: its header at first, then a part of it, or the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from sophon_loader import native
from sophon_loader.errors import must_leave, without_frames
from sophon_loader.kinds.image.fused_picture import DecodeTally, Picture
from sophon_loader.kinds.image.header import Header, header_of
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.opening import open_image
from sophon_loader.kinds.image.part import WORTH_SHARE, NotCut, PartOfFile, Region, part_of
from sophon_loader.kinds.image.primitives import BANDS, Shape, output, run
from sophon_loader.kinds.image.segments import read_by, turned
from sophon_loader.native import fused
from sophon_loader.programs.program import Program, Step


class PixelsWanted(Exception):
    """Somebody looked at pixels where only a header is to be looked at (`PictureFile.sealed`)."""


class Rereads:
    """Whether a picture is read more than once where files are read now: by several views of it, one after the other.

    A first read of a crop's rectangle is cheaper than the whole picture. But a second read decodes anew, so where
    most pictures have one, the first takes all of it. Counts of the newest 32 to 64 pictures.
    """

    def __init__(self) -> None:
        self._pictures = self._again = 0

    @property
    def likely(self) -> bool:
        """Whether most pictures of late were read again."""
        return 2 * self._again > self._pictures

    def first(self) -> None:
        """A picture is read for the first time."""
        if self._pictures == 64:
            self._pictures, self._again = 32, self._again // 2
        self._pictures += 1

    def second(self) -> None:
        """The same picture is read again."""
        self._again += 1


class PictureFile:
    """A picture's file, whose pixels are decoded when somebody wants them, and only those that are wanted.

    Args:
        data: the file.
        shape: of its picture, in the file's own mode.
        opened: the file as Pillow has opened it; None to do that when it is needed.
        part: what there is in place of the file: a part of it.
        can_be_cut: whether the rectangle that a program reads may be cut out in the bitstream.
        can_be_decoded: whether C of our own may be tried on the file.

    Attributes:
        sealed: whether to raise `PixelsWanted` in place of decoding.
        is_file: whether the image stands for an opened file, which can still be told how to decode (`drafted`).
        reads: how often a program has begun with it.
        tally: notes whether C of our own decodes it, where that may; None for Pillow alone.
        rereads: of the pictures that are opened where this one is; None where nobody counts them.
    """

    __slots__ = (
        "_failed",
        "_opened",
        "can_be_cut",
        "can_be_decoded",
        "data",
        "is_file",
        "part",
        "reads",
        "rereads",
        "sealed",
        "shape",
        "tally",
    )

    def __init__(
        self,
        data: bytes,
        shape: Shape,
        opened: ImageFile.ImageFile | None = None,
        *,
        part: PartOfFile | None = None,
        can_be_cut: bool = False,
        can_be_decoded: bool = False,
    ) -> None:
        self.data = data
        self.shape = shape
        self._opened = opened
        self._failed: Exception | None = None
        self.part = part
        self.can_be_cut = can_be_cut
        self.can_be_decoded = can_be_decoded
        self.is_file = False
        self.sealed = False
        self.reads = 0
        self.rereads: Rereads | None = None
        self.tally: DecodeTally | None = None

    @property
    def is_far(self) -> bool:
        """True while neither the file nor a part of it is on this host (`far_picture.py`)."""
        return False

    def fetch(self, ways: Sequence[tuple[Step, ...]]) -> tuple[Picture, int] | None:
        """Get what a look needs, if it is not on this host.

        Args:
            ways: steps from the decoded picture to the point that is looked at; then those to other points whose pixels
                may be wanted, too.

        Returns:
            The picture behind some of the steps, and their number; None if the file or a part of it is here.

        Raises:
            Exception: it cannot be had.
        """
        return None

    def want_info(self) -> bool:
        """Have metadata come along with pixels from now on; return False if the file or a part of it is here."""
        return False

    def note_read(self) -> None:
        """A program has begun with it."""
        self.reads += 1
        if self.rereads is not None and self.reads <= 2:
            (self.rereads.first if self.reads == 1 else self.rereads.second)()

    def opened(self) -> ImageFile.ImageFile:
        """The file as `PIL.Image.open` gives it: opened once, so that its warnings come once."""
        if self._opened is None:
            self._opened = open_image(self.data)
        return self._opened

    def let_pillow_warn(self) -> None:
        """Have Pillow warn of a JPEG that it does not decode, or of which it sees a part, as when it opens the file."""
        if _may_warn(self.data):
            self.opened()

    def info(self) -> dict[Any, Any]:
        """`info` of the decoded picture, as Pillow's own reader makes it."""
        opened = self.opened()
        if opened.format not in ("JPEG", "MPO"):  # others may say more behind their pixels
            self._load()
        return copied(opened.info)

    def _load(self) -> ImageFile.ImageFile:
        """The opened file with its pixels. A damaged one fails each time; Pillow fails once, and gives what there is
        to whoever asks again, such as an op that runs because a table could not be used."""
        if self._failed is not None:
            raise without_frames(self._failed)
        opened = self.opened()
        if self.tally is not None and opened.tile:
            self.tally.note(ours=False, opened=opened)
        try:
            opened.load()
        except Exception as error:
            if not must_leave(error):
                self._failed = without_frames(error)
            raise
        return opened

    def drafted(self, mode: Any, size: Any) -> Any:
        """Have Pillow decode it smaller, or in another mode: what `draft` of an opened file does and gives."""
        opened = self.opened()
        found = opened.draft(mode, size)
        if found is not None:
            self.can_be_cut = self.can_be_decoded = False
            self.shape = Shape(*opened.size, opened.mode)
        return found

    def whole(self) -> Image.Image:
        """The picture, decoded by Pillow; a plain image.

        Raises:
            Exception: whatever Pillow raises for a damaged file.
        """
        if self.sealed:
            raise PixelsWanted
        if self.part is not None:
            raise ValueError("the whole picture is wanted, and there is a part of it only")
        return _plain(self._load())

    def decoded(self, box: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """A rectangle of the picture by C of our own, uint8 [h, w, 1 or 3]; None where Pillow must decode it.

        Args:
            box: left, top, right and bottom, within the picture.
        """
        if self.sealed:
            raise PixelsWanted
        left, top, right, bottom = box
        if self.part is None:
            data = self.data
        else:
            kept = self.part.window.kept
            if not kept.contains(Region(left, top, right - left, bottom - top)):
                return None
            left, top, right, bottom = left - kept.left, top - kept.top, right - kept.left, bottom - kept.top
            data = self.part.data
        pixels = fused.decode(data, (left, top, right, bottom))
        if pixels is not None and self.part is None:
            self.let_pillow_warn()
        return pixels

    def region(self, steps: Sequence[Step]) -> Region:
        """The rectangle that a program reads of it."""
        return read_by(steps, self.shape)

    def part_of(self, region: Region, *, keep_metadata: bool = False) -> PartOfFile | NotCut:
        """The part of the file that holds a rectangle.

        Args:
            region: within the picture.
            keep_metadata: whether it is to hold what Pillow makes an image's `info` of.
        """
        width, height, _ = self.shape
        if region.share_of(width, height) == 1:
            return NotCut("the region is the whole picture")
        return part_of(self.data, region, width, height, keep_metadata=keep_metadata)

    def program(self, steps: tuple[Step, ...], file: str) -> Program:
        """Steps on it as a program of the file with this key."""
        return Program(ImageKind.name, file, tuple(self.shape), steps)

    def held(self, steps: Sequence[Step]) -> DecodedPixels:
        """As much of the picture, decoded, as a program reads, where that is faster to have than all of it."""
        if self.sealed:
            raise PixelsWanted
        part = self.part
        if part is not None:
            region = self.region(steps)
            if not part.window.kept.contains(region):
                raise ValueError(f"the part of the picture must hold {region}, got {part.window.kept}")
        elif self.can_be_cut and steps:
            region = self.region(steps)
            if region.share_of(*self.shape[:2]) <= WORTH_SHARE:
                found = part_of(self.data, region, *self.shape[:2])
                part = None if isinstance(found, NotCut) else found
                if part is not None:
                    self.let_pillow_warn()
        if part is None:
            return DecodedPixels(self.whole(), None, self.shape)
        with open_image(part.data) as opened:
            opened.load()
            return DecodedPixels(_plain(opened), part.window.kept, self.shape)


@dataclass(frozen=True)
class StepsOnPicture:
    """Steps of a program and the picture's file that they are for.

    Args:
        source: the picture's file.
        steps: that suit the picture.
    """

    source: PictureFile
    steps: tuple[Step, ...]

    @property
    def region(self) -> Region:
        """The rectangle of the picture that is read; all of it where that is not known."""
        return self.source.region(self.steps)

    @property
    def share(self) -> float:
        """Share of the picture's area that is read."""
        return self.region.share_of(*self.source.shape[:2])

    def program(self, file: str) -> Program:
        """As a program of the file with this key."""
        return self.source.program(self.steps, file)

    def part(self, *, keep_metadata: bool = False) -> PartOfFile | NotCut:
        """The part of the file that holds the region.

        Args:
            keep_metadata: whether it is to hold what Pillow makes an image's `info` of.
        """
        return self.source.part_of(self.region, keep_metadata=keep_metadata)


class DecodedPixels:
    """What is there of a decoded picture.

    Args:
        image: its px.
        kept: where they lie in the picture; None for all of it.
        shape: of the picture.
    """

    __slots__ = ("image", "kept", "shape")

    def __init__(self, image: Image.Image, kept: Region | None, shape: Shape) -> None:
        self.image = image
        self.kept = kept
        self.shape = shape

    def run(self, steps: Sequence[Step], after: Callable[[int, Image.Image], None] | None = None) -> Image.Image:
        """The steps on it, by Pillow: what they make of the whole picture.

        Args:
            steps: that read no more of the picture than there is.
            after: called with (steps that have run, image) wherever the image is all that the steps make.
        """
        image, kept, shape = self.image, self.kept, self.shape
        is_all = True
        for position, step in enumerate(steps):
            if kept is None:
                image = run(image, (step,))
            else:
                is_all = kept.contains(read_by((step,), shape))  # else right where it is read
                image, kept = _run_on_part(image, kept, shape, step)
                made = output(step, shape)
                assert made is not None, step
                shape = made
            if after is not None and kept is None and is_all:
                after(position + 1, image)
        return image if kept is None else _on_canvas(image, kept, shape)


def _run_on_part(image: Image.Image, kept: Region, shape: Shape, step: Step) -> tuple[Image.Image, Region | None]:
    """A step on a part of an image, and where what it makes lies in what the step makes of the whole image."""
    name = step[0]
    if name in ("convert", "point"):
        return run(image, (step,)), kept
    if name == "transpose":
        box = kept.left, kept.top, kept.left + kept.width, kept.top + kept.height
        left, top, right, bottom = turned(step[1], box, shape)
        return run(image, (step,)), Region(left, top, right - left, bottom - top)
    if name == "crop":
        left, top, right, bottom = step[1:]
        x0, y0, x1, y1 = max(left, 0), max(top, 0), min(right, shape.width), min(bottom, shape.height)
        beyond = (x0, y0, x1, y1) != (left, top, right, bottom)  # zeros, which later steps may read and change
        if beyond or kept.contains(Region(x0, y0, x1 - x0, y1 - y0)):
            place = left - kept.left, top - kept.top, right - kept.left, bottom - kept.top
            return image.crop(place), None
        x0, y0 = max(kept.left, left), max(kept.top, top)
        x1, y1 = min(kept.left + kept.width, right), min(kept.top + kept.height, bottom)
        place = x0 - kept.left, y0 - kept.top, x1 - kept.left, y1 - kept.top
        return image.crop(place), Region(x0 - left, y0 - top, x1 - x0, y1 - y0)
    return run(_on_canvas(image, kept, shape), (step,)), None


def _on_canvas(image: Image.Image, kept: Region, shape: Shape) -> Image.Image:
    """An image of the whole's size. Pillow's resize rounds by where a px lies, so a part has to lie where it did."""
    canvas = Image.new(image.mode, (shape.width, shape.height))
    canvas.paste(image, (kept.left, kept.top))
    return canvas


def _plain(opened: ImageFile.ImageFile) -> Image.Image:
    """The picture of an opened and decoded file as a plain image, whose px are nobody else's."""
    return opened._new(opened.im)


def copied(info: dict[Any, Any]) -> dict[Any, Any]:
    """`info` for a derived image, as Pillow copies it: lists are copied too."""
    return {key: value.copy() if isinstance(value, list) else value for key, value in info.items()}


def source_of(data: bytes) -> PictureFile | None:
    """A picture's file, of which only the header has been read.

    Returns:
        None for what programs do not know: an image of more than 8 bits, a palette, or with a transparent colour, and
        whatever Pillow warns of because it is large.

    Raises:
        Exception: whatever Pillow raises for a file that it cannot open.
    """
    header = native.read_header(data)
    if header is not None and header.can_be_cropped:
        shape = Shape(header.width, header.height, "L" if header.components == 1 else "RGB")
        return PictureFile(data, shape, can_be_cut=True, can_be_decoded=True) if _unsuspected(shape) else None
    known, opened, can_be_decoded = header_of(data), None, False
    if known is not None:
        can_be_decoded = known.format == "JPEG" and known.progressive
        found = shape_of(known)
    else:
        opened = open_image(data)
        found = _of_programs(Shape(*opened.size, opened.mode), "transparency" in opened.info)
    return None if found is None else PictureFile(data, found, opened, can_be_decoded=can_be_decoded)


def shape_of(header: Header) -> Shape | None:
    """The decoded picture of a file with this header; None for one that programs do not know."""
    transparent = header.has_transparency and header.mode not in ("LA", "RGBA")
    return _of_programs(Shape(header.width, header.height, header.mode), transparent)


def _of_programs(shape: Shape, transparent: bool) -> Shape | None:
    return None if shape.mode not in BANDS or transparent or not _unsuspected(shape) else shape


def _may_warn(data: bytes) -> bool:
    """Whether Pillow may warn when it opens a JPEG that our code takes: of damaged EXIF data. An index of several
    pictures of which it would warn is refused by our code."""
    return data.find(b"Exif\0\0", 0, data.find(b"\xff\xda")) >= 0


def _unsuspected(shape: Shape) -> bool:
    return Image.MAX_IMAGE_PIXELS is None or shape.px <= Image.MAX_IMAGE_PIXELS
