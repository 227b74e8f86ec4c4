"""Replacements for the calls of torchvision's Compose and `to_tensor` while a sample is made.

A Compose that is called on a deferred image runs its transforms one after the other, as always. Only its last ones
differ, those that make a tensor of the image value by value, such as ToTensor and Normalize. They draw no random
numbers, so a table replaces them (`pipeline.ends`): the same bits, without another image of Pillow's. On deferred
images, `functional.to_tensor` uses a table as well, for a ToTensor without a Compose or in the user's own code.

All else is called as the user has written it: several inputs, subclasses of Compose, and unknown transforms. So are
transforms that have been changed since, and everything that the table cannot make.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.errors import must_leave
from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.pipeline.ends import PointwiseEnd, end_of
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.op_catalogue import load_ops, op_type_of
from sophon_loader.pipeline.op_registry import op_of
from sophon_loader.pipeline.randomness import preserved
from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.pipeline.watch import Watch
from sophon_loader.recording.stand_in import PerThread, StandIn


class Containers:
    """Runs the containers that one thread calls on deferred images, with a table for their end if they have one.

    A container's transforms are looked at when it is called for the second time. That takes a millisecond, too long for
    a container that is made for each sample.

    Example:
        >>> containers = Containers()
        >>> with containers.standing_in():
        ...     tensor = compose(deferred_image)
    """

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[Any, TableEnd | None] = WeakKeyDictionary()
        """End of each container; None for one that has been called once."""

    def standing_in(self) -> AbstractContextManager[None]:
        """Within the block, containers of this thread use their tables. Functions that other code puts there stay."""
        return _ACTIVE.within(self)

    def end_of(self, container: Any) -> TableEnd | None:
        """Return a container's end by a table; None if it has none, or is called for the first time."""
        if container not in self._ends:
            self._ends[container] = None
            return None
        end = self._ends[container]
        if end is None:
            end = self._ends[container] = _looked_at(container)
        return end if end.is_usable and type(container.transforms) in (list, tuple) else None


def _calling(before: Any, cls: Any) -> Any:
    """Return a replacement for the method of a class that runs its transforms."""

    @wraps(before)
    def call(container: Any, *inputs: Any, **named: Any) -> Any:
        if len(inputs) == 1 and not named and type(container) is cls and isinstance(inputs[0], Deferred):
            containers = _ACTIVE.now
            end = None if containers is None else containers.end_of(container)
            if end is not None:
                return _run(container.transforms, inputs[0], end)
        return before(container, *inputs, **named)

    return call


def _converting(before: Any) -> Any:
    """Return a replacement for `functional.to_tensor`: a ToTensor's table, if the function there is the library's."""
    container = v1.Compose([v1.ToTensor()])

    @wraps(before)
    def to_tensor(*inputs: Any, **named: Any) -> Any:
        containers = _ACTIVE.now if len(inputs) == 1 and not named and isinstance(inputs[0], Deferred) else None
        end = None if containers is None else containers.end_of(container)
        made = None if end is None else end.run(container.transforms, inputs[0], is_given=True)
        return before(*inputs, **named) if made is None else made

    return to_tensor


_ACTIVE: PerThread[Containers] = PerThread(
    StandIn(v1.Compose, "__call__", partial(_calling, cls=v1.Compose)),
    StandIn(v2.Compose, "forward", partial(_calling, cls=v2.Compose)),
    StandIn(v1.functional, "to_tensor", _converting),
)


def read_library() -> None:
    """Read the code of torchvision's transforms, which takes 15 ms, so that no worker forked from here has to."""
    for cls in (v1.Compose, v2.Compose):
        replaced_in_transform(cls)
    load_ops()


class TableEnd:
    """Last transforms of a container, which make a tensor of an image value by value, while they are unchanged.

    Args:
        first: position of the first of them.
        transforms: all of them; empty if the container has no such end.
        end: their table.
    """

    def __init__(self, first: int, transforms: Sequence[Any], end: PointwiseEnd | None) -> None:
        self.first, self.stop = first, first + len(transforms)
        self._transforms = transforms
        self._classes = [*map(type, transforms)]
        self._watch = Watch((), transforms)
        self._end = end

    @property
    def is_usable(self) -> bool:
        """True if there is a table: False for a container without such an end, and after a change of it."""
        return self._end is not None

    def run(self, transforms: Sequence[Any], image: Any, *, is_given: bool) -> Any | None:
        """Run the transforms on an image, by the table.

        Args:
            transforms: all that are in the container now.
            image: input of the transform at position `first`.
            is_given: True if it is the container's own input, so that other code may look at it again.

        Returns:
            Tensor [C, H, W] of their dtype, class and strides; None if they must be called.
        """
        if self._end is None or torch.is_autocast_enabled("cpu"):
            return None
        now = transforms[self.first : self.stop]
        same = len(now) == len(self._transforms) and all(map(is_, now, self._transforms))
        if not same or [*map(type, now)] != self._classes or self._watch.changed():
            self._end = None
            return None
        return self._end.run(image, keep=is_given)


def _run(transforms: Sequence[Any], image: Any, end: TableEnd) -> Any:
    """Run the transforms of a container one after the other, its end by the table if possible."""
    value, done = image, 0
    for position, transform in enumerate(transforms):
        if position < done:
            continue
        if position == end.first:
            made = end.run(transforms, value, is_given=value is image)
            if made is not None:
                value, done = made, end.stop
                continue
        value = transform(value)
    return value


def _looked_at(container: Any) -> TableEnd:
    """Return the end of a container, as its transforms are now."""
    taken = [one for one in _ACTIVE.stand_ins if one.take_away()]  # so that the library's own functions are seen
    try:
        transforms = list(container.transforms)
        first = next((at for at, one in enumerate(transforms) if _makes_tensor(one)), len(transforms))
        if not replaced_in_transform(type(container)):
            with preserved(GENERATORS):  # packages that register transforms may be imported here
                end = end_of([op_of(one) for one in transforms[first:]])
            if end is not None and end.first == 0:
                return TableEnd(first, transforms[first : first + end.stop], end)
    except Exception as error:  # its call says what is wrong with it
        if must_leave(error):
            raise
    finally:
        for one in taken:
            one.place()
    return TableEnd(0, (), None)


def _makes_tensor(transform: Any) -> bool:
    op_type = op_type_of(transform)
    return op_type is not None and op_type.makes == "tensor"
