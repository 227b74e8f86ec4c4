"""The first steps of a picture's program by C of our own, from the file's bytes on: Pillow's pixels, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sophon_loader.kinds.image.part import Region
from sophon_loader.kinds.image.primitives import Shape, run
from sophon_loader.kinds.image.segments import turned_back
from sophon_loader.native import fused
from sophon_loader.programs.program import Step

if TYPE_CHECKING:
    from sophon_loader.kinds.image.source import PictureFile

MODES = ("L", "RGB")
"""What our code makes."""
_TURNS = {
    0: (False, True, False),
    1: (False, False, True),
    2: (True, False, True),
    3: (False, True, True),
    4: (True, True, False),
    5: (True, False, False),
    6: (True, True, True),
}
"""Pillow's methods of transposing: whether rows become columns, and whether it is then mirrored across and down."""


@dataclass
class DecodeTally:
    """Whether C of our own has decoded the picture that is at work: once, or more often, as several images of it may
    want. Else Pillow has, whether a program knows the file or not. Also whether its pixels could not be made."""

    ours: bool = False
    failed: bool = False

    def note(self, *, ours: bool, opened: Image.Image | None = None) -> None:
        """The picture has been decoded, by C of our own or by Pillow, which has `opened` it."""
        self.ours |= ours

    def made_far(self) -> None:
        """Its pixels were made where the file lies."""

    def load(self, source: PictureFile) -> None:
        """Pillow would decode the picture now: `load()` has been called, or a method that calls it.

        Raises:
            Exception: what Pillow raises for a damaged file, where the sample cannot be made once more later.
        """

    def look(self, *, whole: bool) -> None:
        """Somebody wants pixels: of all of the picture, or of what a crop or a resize leaves of it."""


class Picture:
    """Pixels, of which a window is meant, and that turned: what is still to be done as they are copied.

    Args:
        pixels: uint8 [h, w, 1 or 3], C-contiguous.
        mode: "L" or "RGB"; grey pixels may be meant as RGB.
    """

    __slots__ = ("_mode", "_pixels", "_turned", "_window")

    def __init__(self, pixels: NDArray[np.uint8], mode: str) -> None:
        self._renewed(pixels)
        self._mode = mode

    def _renewed(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels
        self._window = Region(0, 0, pixels.shape[1], pixels.shape[0])
        self._turned = False, False, False

    @property
    def shape(self) -> Shape:
        """Of what is meant."""
        width, height = self._window.width, self._window.height
        return Shape(height, width, self._mode) if self._turned[0] else Shape(width, height, self._mode)

    @property
    def _is_whole(self) -> bool:
        return self._window == Region(0, 0, self._pixels.shape[1], self._pixels.shape[0])

    def written_to(self, out: NDArray[Any], table: NDArray[Any] | None) -> None:
        """Write it, looked up in a table, to memory of any strides.

        Args:
            out: [bands, height, width], of the table's dtype: uint8 or float32.
            table: [bands, 256]; None for the values themselves, as uint8.
        """
        pixels, (transpose, across, down) = self._pixels, self._turned
        if pixels.shape[2] < out.shape[0]:
            pixels = pixels.repeat(out.shape[0], axis=2)
        done = fused.finish(
            pixels,
            table,
            out,
            left=self._window.left,
            top=self._window.top,
            transpose=transpose,
            flip_horizontal=across,
            flip_vertical=down,
        )
        assert done, "pictures are made where there is `FINISH`"

    def array(self) -> NDArray[np.uint8]:
        """The pixels, uint8 [h, w, 1 or 3], C-contiguous; nobody may write to them."""
        pixels, bands = self._pixels, MODES.index(self._mode) * 2 + 1
        if not self._is_whole or any(self._turned) or pixels.shape[2] != bands:
            pixels = self._copy(bands)
        return pixels

    def image(self) -> Image.Image:
        """As an image of Pillow's."""
        return Image.frombytes(self._mode, self.shape[:2], self.array().data)

    def _copy(self, bands: int) -> NDArray[np.uint8]:
        shape = self.shape
        pixels = np.empty((shape.height, shape.width, bands), np.uint8)
        self.written_to(pixels.transpose(2, 0, 1), None)
        return pixels

    def copy(self) -> Picture:
        """Another one of the same pixels, which nobody writes to."""
        other = Picture(self._pixels, self._mode)
        other._window, other._turned = self._window, self._turned
        return other

    def runs(self, steps: Sequence[Step]) -> int:
        """Take steps up to the first that Pillow must take, and say how many that are."""
        return next((done for done, step in enumerate(steps) if not self.does(step)), len(steps))

    def does(self, step: Step) -> bool:
        """Take a step; False for one that Pillow must take."""
        name = step[0]
        if name == "crop":
            return self._crop(step[1:])
        if name == "transpose":
            self._turn(*_TURNS[step[1]])
            return True
        if name == "resize":
            return self._resize(*step[1:])
        if (name, self._mode, step[1]) == ("convert", "L", "RGB"):
            self._mode = "RGB"
            return True
        return False

    def _crop(self, box: tuple[int, int, int, int]) -> bool:
        shape, window = self.shape, self._window
        if not (_is_within(box, shape) or self._is_whole):
            return False  # around a window there are zeros, not the pixels that lie there
        transpose, across, down = self._turned
        for number, turned in ((1, down), (0, across)):
            if turned:
                box = turned_back(number, box, shape)
        if transpose:
            box = turned_back(5, box, Shape(window.width, window.height, self._mode))
        left, top, right, bottom = box
        self._window = Region(window.left + left, window.top + top, right - left, bottom - top)
        return True

    def _turn(self, transpose: bool, across: bool, down: bool) -> None:
        before, was_across, was_down = self._turned
        if transpose:
            was_across, was_down = was_down, was_across
        self._turned = before != transpose, was_across != across, was_down != down

    def _resize(self, width: int, height: int, resample: int, box: Any, gap: Any) -> bool:
        if gap is not None:
            return False
        is_plain = self._is_whole and not any(self._turned)
        pixels = self._pixels if is_plain else self._copy(self._pixels.shape[2])
        made = fused.resize(pixels, (width, height), None if box is None else tuple(box), resample)
        if made is not None:
            self._renewed(made)
        return made is not None


@cache
def _finishes() -> bool:
    return fused.FINISH in fused.checked()


def _is_within(box: tuple[int, ...], shape: Shape) -> bool:
    left, top, right, bottom = box
    return left >= 0 and top >= 0 and right <= shape.width and bottom <= shape.height


def begun(source: PictureFile, steps: Sequence[Step]) -> tuple[Picture, int] | None:
    """A picture's file as far as our own code takes it.

    Args:
        source: the file.
        steps: of a program for it.

    Returns:
        The picture, and how many steps have been taken; None where Pillow must take all of them, or is to.

    Raises:
        Exception: whatever Pillow raises for a damaged file.
    """
    found = decoded(source, steps) or _opened(source, steps)
    if found is None:
        return None
    picture, done = found
    return picture, done + picture.runs(steps[done:])


def check(source: PictureFile) -> None:
    """Raise what Pillow raises when it decodes a picture; of one that our own code decodes, that takes some 30 us.

    Our code refuses any rectangle of a file for which Pillow raises: the headers and the end are checked for each, and
    libjpeg raises for nothing in between. 15,000 files with random damage have borne that out.
    """
    if not source.can_be_decoded or fused.decode(source.data, (0, 0, 1, 1)) is None:
        source.whole()


def decoded(source: PictureFile, steps: Sequence[Step]) -> tuple[Picture, int] | None:
    """As `begun`, of a JPEG file, what its first crop leaves; noted."""
    tally = source.tally
    if tally is None or not _finishes() or not (source.can_be_decoded or source.part is not None):
        return None
    found = _decoded(source, steps)
    if found is not None:
        tally.note(ours=True)
    return found


def _decoded(source: PictureFile, steps: Sequence[Step]) -> tuple[Picture, int] | None:
    shape = source.shape
    mode, done = shape.mode, 0
    box: tuple[int, ...] = 0, 0, shape.width, shape.height
    if steps and steps[0] == ("convert", "RGB"):
        mode, done = "RGB", 1
    if done < len(steps) and steps[done][0] == "crop":
        first = steps[done][1:]
        if _is_within(first, shape):
            box, done = first, done + 1
    pixels = source.decoded(box)
    return None if pixels is None else (Picture(pixels, mode), done)


def _opened(source: PictureFile, steps: Sequence[Step]) -> tuple[Picture, int] | None:
    """Of another file, decoded by Pillow, what its first crops leave, if our code then has something to resize."""
    if source.tally is None or not _finishes() or source.can_be_decoded or source.part:  # Pillow must judge it
        return None
    done = next((at for at, step in enumerate(steps) if step[0] not in ("convert", "crop")), len(steps))
    if done == len(steps) or steps[done][0] != "resize" or steps[done][-1] is not None:  # a gap is Pillow's
        return None
    image = run(source.whole(), steps[:done])
    if image.mode not in MODES:
        return None
    pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, -1)
    return Picture(pixels, image.mode), done
