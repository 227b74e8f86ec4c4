"""One picture whose file an agent has: asks for what a look needs, or reads the file on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

from sophon_loader.errors import SophonError
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.segments import SEGMENTS, read_by, shape_at
from sophon_loader.programs.program import Program

if TYPE_CHECKING:
    from sophon_loader.workers.agent_pictures import AgentPictures


class OnePicture:
    """The supplier of one picture; see `kinds.image.far_picture.Supplier`.

    What no agent sends is read on this host. The sample is not made again for that: a state that its code has would
    move twice.

    Args:
        pictures: of this process.
        nbytes: size of the picture's file.
        path: of the file on this host.
    """

    def __init__(self, pictures: AgentPictures, nbytes: int, path: str) -> None:
        self._pictures, self._nbytes, self._path = pictures, nbytes, path

    @property
    def keeps_info(self) -> bool:
        """See `Supplier`."""
        return self._pictures.keeps_info

    @keeps_info.setter
    def keeps_info(self, keeps: bool) -> None:
        self._pictures.keeps_info = keeps

    def made(self, program: Program, *, pixels: bool) -> tuple[int, Any]:
        """See `Supplier.made`."""
        try:
            answer = self._pictures.ask(self._path, self._nbytes, program, pixels=pixels)
        except SophonError as error:
            try:
                return 0, self._pictures.read_here(self._path)
            except OSError as other:
                raise other from error
        self._pictures.verify(self._path, self._nbytes, program, answer)
        return answer


def suits(program: Program, segment: int, value: Any) -> bool:
    """Return True if a value has the kind, size and mode of what a program makes at a segment."""
    if isinstance(value, PartOfFile):
        kept, picture = value.window, Shape(*program.made_for)
        whole = kept.full_width, kept.full_height
        return not segment and whole == picture[:2] and kept.kept.contains(read_by(program.steps, picture))
    if isinstance(value, Image.Image):
        shape = shape_at(SEGMENTS[segment], program.steps, Shape(*program.made_for))
        return segment > 0 and (*value.size, value.mode) == tuple(shape)
    return not segment and isinstance(value, (bytes, bytearray, memoryview))
