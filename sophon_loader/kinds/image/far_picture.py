"""A picture whose file lies elsewhere: its header is known, and its pixels are asked for at the first look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from PIL import Image

from sophon_loader.errors import ProgramRefused, must_leave
from sophon_loader.kinds.image.fused_picture import MODES, Picture
from sophon_loader.kinds.image.header import Header
from sophon_loader.kinds.image.opening import open_image
from sophon_loader.kinds.image.part import WORTH_SHARE, PartOfFile
from sophon_loader.kinds.image.primitives import Shape, output
from sophon_loader.kinds.image.segments import SEGMENTS, steps_until
from sophon_loader.kinds.image.source import DecodedPixels, PictureFile, copied, shape_of, source_of
from sophon_loader.programs.program import Program, Step

_FORMATS = ("JPEG", "PNG", "WEBP")
"""Those whose headers say all that an unopened picture must know."""


class Supplier(Protocol):
    """Where the file of one picture lies, and who makes its pixels there.

    Attributes:
        keeps_info: True if what is made is to come with all that Pillow makes an image's `info` of. Pictures set it
            when somebody has asked for an `info`.
    """

    keeps_info: bool

    def made(self, program: Program, *, pixels: bool) -> tuple[int, Any]:
        """What a program makes of the picture.

        Args:
            program: to be run on it; one without steps asks for the whole file.
            pixels: False if the file or a part of it is wanted, but no pixels.

        Returns:
            A segment's number, and the value there: at 0 the file's bytes or a `PartOfFile`, else an image.

        Raises:
            Exception: it cannot be had.
        """


class FarPicture(PictureFile):
    """A picture's file that is not here.

    At the first look, the supplier gives what the steps up to there make of it: their pixels, the part of the file that
    they read, or the file. Further looks are served from the part or the file if it holds what they read; else the
    file is asked for. It is also asked for when somebody wants more than pixels: metadata, the stream, a check.

    Args:
        header: of the file.
        shape: of its picture.
        nbytes: size of the file.
        supplier: of this picture.
    """

    __slots__ = ("_data", "_info", "_supplier", "may_have_metadata", "nbytes")

    def __init__(self, header: Header, shape: Shape, nbytes: int, supplier: Supplier) -> None:
        self._data: bytes | None = None
        self._supplier = supplier
        self._info: dict[Any, Any] | None = None
        self.may_have_metadata = header.may_have_metadata
        self.nbytes = nbytes
        super().__init__(b"", shape)
        self._data = None

    @property
    def data(self) -> bytes:
        """The whole file; asked for if it is not here."""
        if self._data is None:
            self._take(self._file())
        assert self._data is not None
        return self._data

    @data.setter
    def data(self, data: bytes) -> None:
        self._data = data

    def _file(self) -> bytes:
        """Ask for the whole file."""
        _, value = self._supplier.made(self.program((), ""), pixels=False)
        return bytes(value)

    def _take(self, data: bytes) -> None:
        """Go on with the whole file.

        Raises:
            ProgramRefused: it is another one than the header was read of.
        """
        found = source_of(data) if len(data) == self.nbytes else None
        if found is None or found.shape != self.shape:
            raise ProgramRefused(
                f"the file must be the one whose header was read, of {self.nbytes} bytes and {self.shape}, got "
                f"{len(data)} bytes{'' if found is None else f' and {found.shape}'}"
            )
        self._data, self.part = data, None
        self.can_be_cut, self.can_be_decoded = found.can_be_cut, found.can_be_decoded
        self.let_pillow_warn()

    def fetch(self, ways: Sequence[tuple[Step, ...]]) -> tuple[Picture, int] | None:
        """See `PictureFile.fetch`. If several points are wanted, the pixels of none are sent."""
        if self._data is not None:
            return None
        steps, *others = ways
        region = self.region(steps)
        for one in others:
            region = region.joined(self.region(one))
        if self.part is not None:
            if not self.part.window.kept.contains(region):
                self._take(self._file())
            return None
        is_small = region.share_of(*self.shape[:2]) <= WORTH_SHARE
        is_again = self.reads > 0 or (self.rereads is not None and self.rereads.likely)
        if not steps or (not is_small if others else is_again):
            self._take(self._file())
            return None
        if others:
            steps = (("crop", region.left, region.top, region.left + region.width, region.top + region.height),)
        keeps_info = self._supplier.keeps_info
        program, pixels = self.program(steps, ""), not others and self._sends_pixels(steps)
        segment, value = self._supplier.made(program, pixels=pixels)
        if isinstance(value, PartOfFile):
            self.part = value
            if keeps_info:
                self._info = open_image(value.data).info
            return None
        if not segment:
            self._take(value)
            return None
        self._info = value.info if keeps_info else None
        self.note_read()
        if self.tally is not None:
            self.tally.made_far()
        return Picture(_pixels_of(value), value.mode), steps_until(SEGMENTS[segment], steps)

    @property
    def is_far(self) -> bool:
        """See `PictureFile.is_far`."""
        return self._data is None and self.part is None

    def _sends_pixels(self, steps: Sequence[Step]) -> bool:
        """True if our C can go on from the pixels at each segment."""
        shape, modes = self.shape, {self.shape.mode}
        for step in steps:
            shape = output(step, shape) or shape
            modes.add(shape.mode)
        return modes <= {*MODES}

    def want_info(self) -> bool:
        """See `PictureFile.want_info`."""
        if self.is_far:
            self._supplier.keeps_info = True
        return self.is_far

    def info(self) -> dict[Any, Any]:
        """See `PictureFile.info`."""
        if self._data is None:
            if self._info is not None:
                return copied(self._info)
            self._supplier.keeps_info = True
        return super().info()

    def held(self, steps: Sequence[Step]) -> DecodedPixels:
        """See `PictureFile.held`. A part that cannot be decoded says nothing of the file."""
        if self.part is not None:
            try:
                return super().held(steps)
            except Exception as error:
                if must_leave(error):
                    raise
            self._take(self._file())
        return super().held(steps)

    def whole(self) -> Image.Image:
        """See `PictureFile.whole`."""
        if self.part is not None:
            self._take(self._file())
        return super().whole()


def far_picture(header: Header, nbytes: int, supplier: Supplier) -> FarPicture | None:
    """The picture of a file that lies elsewhere.

    Args:
        header: of the file.
        nbytes: its size.
        supplier: of the picture.

    Returns:
        None for a file that has to be here to be opened as Pillow opens it.
    """
    shape = shape_of(header)
    if (
        shape is None
        or header.several
        or header.format not in _FORMATS
        or (header.format == "PNG" and header.bits != 8)
    ):
        return None
    return FarPicture(header, shape, nbytes, supplier)


def _pixels_of(image: Image.Image) -> Any:
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, -1)
