"""The history of deferred images: points at which they stand, and how the pixels there are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

from PIL import Image

from sophon_loader.errors import must_leave
from sophon_loader.kinds.image.fused_picture import Picture, begun, decoded
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.source import DecodedPixels, PictureFile
from sophon_loader.programs.program import Step

_SMALLER = ("crop", "reduce", "resize", "transform")
"""Steps that may leave less than all of a picture."""


class Node:
    """A point of an image's history: a picture's file, or a step on what another point makes.

    Args:
        source: the file.
        shape: of the image here.
        parent: what the step is done to; None for the picture as it is decoded.
        step: None for a copy of the parent.
    """

    __slots__ = ("__weakref__", "children", "depth", "im", "image", "ours", "parent", "shape", "source", "step")

    def __init__(self, source: PictureFile, shape: Shape, parent: Node | None = None, step: Step | None = None) -> None:
        self.source = source
        self.shape = shape
        self.parent = parent
        self.step = step
        self.depth = 0
        self.im: Any = None
        """Pillow's own image of this point, where it is kept for whoever may want it once more."""
        self.ours: Picture | None = None
        """Its pixels by C of our own, where those are kept."""
        self.image: ReferenceType[Any] | None = None
        """The image that stands at this point, as long as somebody has it."""
        self.children: list[ReferenceType[Node]] = []
        if parent is not None:
            self.depth = parent.depth + 1
            parent.children.append(ref(self))

    def steps(self) -> tuple[Step, ...]:
        """From the decoded picture to here."""
        found = []
        node: Node | None = self
        while node is not None:
            if node.step is not None:
                found.append(node.step)
            node = node.parent
        return tuple(reversed(found))

    def wanted(self) -> int:
        """How many points come from this one whose pixels have not been made."""
        return sum(child() is not None for child in self.children)

    def is_shared(self) -> bool:
        """Whether pixels of this point are wanted more than once: several images come from it, or one has before."""
        return (self.parent is None and self.source.reads > 0) or (len(self.children) > 1 and self.wanted() > 1)

    def made(self) -> Any:
        """Pillow's own image of this point, made of the nearest point before it that is kept or will be wanted again,
        or of as much of the file as it takes."""
        with self._noting():
            return self._made() if self.im is None else self.im

    def _made(self) -> Any:
        base, ran, steps = self._way()
        if base.parent is not None and base.im is None and base.ours is None and base.is_shared():
            base.im = base._made()
        if base.im is not None:
            held = DecodedPixels(Image.Image()._new(base.im), None, base.shape)
        elif (found := base._begun(steps, _until_held(ran))) is not None:
            picture, done = found
            image = picture.image()
            if done:
                ran[done - 1].keep(image.im)
            held, ran, steps = DecodedPixels(image, None, picture.shape), ran[done:], steps[done:]
        else:
            shared = base.is_shared()
            held = base.source.held([] if shared else steps)
            base.source.note_read()
            if held.kept is None and (shared or base.is_held):  # all of it is there
                base.im = held.image.im
        im = held.run(steps, lambda count, image: ran[count - 1].keep(image.im)).im
        return im.copy() if any(node.im is im for node in (base, *ran)) else im

    def picture(self) -> Picture | None:
        """The pixels of this point by C of our own, of the file alone; None where Pillow must make them."""
        with self._noting():
            return self._picture()

    def _picture(self) -> Picture | None:
        base, ran, steps = self._way()
        if base.im is not None or (_until_held(ran) < len(steps) and not base.source.is_far):
            return None
        if base.parent is not None and base.ours is None and base.is_shared():
            return None
        found = base._begun(steps, len(steps))
        if found is None:
            return None
        picture, done = found
        if done == len(steps):
            return picture
        self.im = DecodedPixels(picture.image(), None, picture.shape).run(steps[done:]).im
        return None

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Tell the file's tally that somebody looks here, and whether that fails."""
        tally = self.source.tally
        if tally is not None:
            tally.look(whole=self._is_whole())
        try:
            yield
        except Exception as error:
            if tally is not None and not must_leave(error):
                tally.failed = True
            raise

    def _is_whole(self) -> bool:
        """Whether all of the picture is here, at its own size."""
        node: Node | None = self
        while node is not None:
            if node.step is not None and node.step[0] in _SMALLER:
                return False
            node = node.parent
        return True

    def _way(self) -> tuple[Node, list[Node], list[Step]]:
        """The nearest point up to this one that is kept, or will be wanted again; those from there to here that are no
        copies, and their steps."""
        ran: list[Node] = []
        steps: list[Step] = []
        base = self
        while base.im is None and base.ours is None and base.parent is not None:
            if base is not self and base.is_shared():
                break
            if base.step is not None:
                ran.append(base)
                steps.append(base.step)
            base = base.parent
        return base, ran[::-1], steps[::-1]

    def _begun(self, steps: Sequence[Step], until: int) -> tuple[Picture, int] | None:
        """By C of our own: the picture from here on, and how many of these steps it has taken; None where it cannot.

        Args:
            steps: from here to where somebody looks.
            until: number of those to take. A picture that is far takes more, since pixels in between would have to
                be sent as well.
        """
        if self.parent is None and self.ours is None:
            found = self.source.fetch([tuple(steps), *self._ways_of_others(tuple(steps))])
            if found is not None:
                picture, done = found
                return picture, done + picture.runs(steps[done:])
        steps = steps[:until]
        if self.ours is None and self.parent is None and self._takes_whole(steps):
            whole = decoded(self.source, ())
            if whole is not None:
                self.ours = whole[0]
        if self.ours is not None:
            if self.parent is None:
                self.source.note_read()
            picture = self.ours.copy()
            return picture, picture.runs(steps)
        found = begun(self.source, steps) if self.parent is None else None
        if found is not None:
            self.source.note_read()
        return found

    def _takes_whole(self, steps: Sequence[Step]) -> bool:
        """Whether all of the picture is to be decoded, and kept for whoever wants it next."""
        rereads = self.source.rereads
        if self.is_shared() or (rereads is not None and rereads.likely):
            return True
        return self.is_held and next((step[0] for step in steps if step[0] != "convert"), "") != "crop"

    def _ways_of_others(self, steps: tuple[Step, ...]) -> list[tuple[Step, ...]]:
        """The steps from here to other images that somebody has, if these may want a part of a far picture, too."""
        if not self.source.is_far:
            return []
        found: list[tuple[Step, ...]] = []
        nodes = [self]
        while nodes:
            node = nodes.pop()
            if node.image is not None and node.image() is not None:
                found.append(node.steps())
            nodes += [child for one in node.children if (child := one()) is not None]
        return [
            one
            for one in found
            if one != steps and (one != steps[: len(one)] or any(step[0] in _SMALLER for step in one))
        ]

    def keep(self, im: Any) -> None:
        """Keep what has been made on the way to another point, if somebody still has the image that stands here."""
        if self.is_held:
            self.im = im

    @property
    def is_held(self) -> bool:
        """Whether somebody still has the image that stands here, or a copy of it."""
        if self.image is not None and self.image() is not None:
            return True
        return any(child.step is None and child.is_held for one in self.children if (child := one()) is not None)


def _until_held(path: Sequence[Node]) -> int:
    """How many points of a path come before, and with, the first whose image somebody has: it may be wanted as well."""
    return next((at + 1 for at, node in enumerate(path) if node.is_held), len(path))
