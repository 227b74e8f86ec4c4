"""Runs the ops that make a tensor of a PIL image, value by value, as a table of 256 results per channel.

ToTensor and Normalize, for example, map equal values in a channel to equal numbers. So the user's own ops run once, on
a picture that holds each value. Their results are then looked up for each pixel of the samples: the same bits, strides
and class. Nothing is computed here, so nothing can round differently. For 224 x 224 px, ToTensor and Normalize take a
third of the time. Pillow's pixels that stay uint8 would take twice as long, so they are left to the ops; pixels from
our C are copied.

The ops run as usual if there is no such table: for modes other than RGB and L, and for pictures of one pixel's width or
height (whose strides say little). They also run if their result is not a plain tensor on the CPU, or if they raise or
warn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import tv_tensors

from sophon_loader.errors import must_leave
from sophon_loader.kinds.image.deferred import Deferred, Looked
from sophon_loader.kinds.image.fused_picture import Picture
from sophon_loader.pipeline.op import Op
from sophon_loader.pipeline.switches import flushes_denormals

try:
    from sophon_loader.native._table import apply
except ImportError:  # not built, so the ops run
    AVAILABLE = False
else:
    AVAILABLE = True

_CHANNELS = {"L": 1, "RGB": 3}
"""Channels by mode, for the modes that have tables."""
_IMAGES = (Image.Image, Looked)
_CLASSES = (torch.Tensor, tv_tensors.Image)
_CONSTANTS = (bool, int, float, str, bytes, type(None), torch.dtype)
_MAX_VALUES = 4
"""Maximum values of a tensor that counts as a parameter with one value per channel."""


Place = Callable[[tuple[int, ...], torch.dtype], torch.Tensor | None]
"""Given a shape and a dtype, returns an uninitialised contiguous tensor; None for one in new memory with the ops'
strides."""


@dataclass(frozen=True)
class _Table:
    """Results of the ops for each value.

    Args:
        items: bytes of `dtype` [C, 256].
        dtype, cls: those of the ops' results.
        planes: True if the results lie in memory as [C, H, W], False for [H, W, C].
    """

    items: bytes
    dtype: torch.dtype
    cls: type[torch.Tensor]
    planes: bool

    @cached_property
    def copies(self) -> bool:
        """True if each value stays as it is."""
        return self.items == bytes(range(256)) * (len(self.items) // 256)

    @cached_property
    def floats(self) -> NDArray[np.float32] | None:
        """The table as float32[C, 256]; None for another dtype."""
        return np.frombuffer(self.items, np.float32).reshape(-1, 256) if self.dtype == torch.float32 else None


class PointwiseEnd:
    """The pointwise ops of a chain, from the one that makes a tensor on, as one op.

    Args:
        first: stage before the ops.
        ops: the ops.

    Attributes:
        first, stop: the stages between which the ops run.

    Example:
        >>> end = end_of(chain.ops)
        >>> tensor = end.run(image)  # the result of chain.ops[end.first : end.stop], or None
    """

    def __init__(self, first: int, ops: Sequence[Op]) -> None:
        self.first, self.stop = first, first + len(ops)
        self._calls = [op.call for op in ops]
        # A described op has an attribute of each parameter's name.
        self._attributes = [(op.call, name) for op in ops if op.spec is not None for name in op.spec.params]
        self._made: dict[tuple[str, torch.dtype, bool], tuple[list[Any], _Table | None]] = {}

    def run(self, image: Any, place: Place | None = None, *, keep: bool = False) -> Any | None:
        """Return the ops' result for a PIL image, by the table.

        Args:
            image: value at stage `first`.
            place: returns memory for the result; None for new memory.
            keep: True if a deferred image must keep its pixels, because it may be read again.

        Returns:
            Tensor [C, H, W]; None if there is no table for this image, and the ops must run.
        """
        is_deferred = isinstance(image, Deferred)
        if not (is_deferred or type(image) in _IMAGES) or image.mode not in _CHANNELS or min(image.size) < 2:
            return None
        try:
            table = self._table(image.mode)
            if table is None:
                return None
            suits_picture = table.copies or table.floats is not None
            if keep and is_deferred:
                image.decode()
            picture = image.picture() if is_deferred and suits_picture else None
            if picture is None and table.copies:  # copying an image's pixels is what the ops do well
                return None
            return _looked_up(table, picture or image, place)
        except Exception as error:  # the ops run, and report what is wrong with the image or with them
            if must_leave(error):
                raise
            return None

    def _table(self, mode: str) -> _Table | None:
        """Return the table for a mode; made again if an op's parameter, or a setting in its key, has changed."""
        key = mode, torch.get_default_dtype(), flushes_denormals()
        state = [_kept(getattr(call, name)) for call, name in self._attributes]
        known = self._made.get(key)
        if known is None or known[0] != state:
            if not _constant(state):
                return None
            self._made[key] = known = state, self._make(mode)
        return known[1]

    def _make(self, mode: str) -> _Table | None:
        # Recorded instead of raised, because other threads may warn meanwhile.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                table = _table_of(self._run_ops(_picture(mode, 16, 16, shift=0)), _CHANNELS[mode])
                if table is None or (table.dtype == torch.uint8 and not table.copies):
                    return None
                # Odd sides and different bands: borders and other channels must not matter, and strides must match.
                other = _picture(mode, 37, 13, shift=85)
                return table if _same(_looked_up(table, other), self._run_ops(other)) and not said else None
            except Exception as error:  # as in `run`
                if must_leave(error):
                    raise
                return None

    def _run_ops(self, value: Any) -> Any:
        for call in self._calls:
            value = call(value)
        return value


def end_of(ops: Sequence[Op]) -> PointwiseEnd | None:
    """Return the pointwise ops from the first that makes a tensor on; None if it is not pointwise, or without our C.

    Args:
        ops: ops of a chain.
    """
    first = next((position for position, op in enumerate(ops) if op.makes == "tensor"), len(ops))
    pointwise = list(takewhile(lambda op: op.pointwise, ops[first:]))
    return PointwiseEnd(first, pointwise) if AVAILABLE and pointwise else None


def _kept(value: Any) -> Any:
    """Return a parameter's value; of a tensor, such as timm's `mean`, its contents, because they can be written to."""
    if type(value) is torch.Tensor and value.numel() <= _MAX_VALUES:
        return value.dtype, str(value.shape), value.numpy().tobytes()
    return tuple(value) if type(value) is list else value


def _constant(state: list[Any]) -> bool:
    """True if these values can only change by being replaced. An array, for example, can be written to unseen."""
    return all(isinstance(one, _CONSTANTS) for value in state for one in (value if type(value) is tuple else (value,)))


def _picture(mode: str, width: int, height: int, *, shift: int) -> Image.Image:
    """Return a picture with the values 0, 1, ... in each band; those of band c are shifted by `c * shift`."""
    size, area = (width, height), width * height
    bands = [bytes((value + band * shift) % 256 for value in range(area)) for band in range(_CHANNELS[mode])]
    return Image.merge(mode, [Image.frombytes("L", size, band) for band in bands])


def _strides(channels: int, height: int, width: int, *, planes: bool) -> tuple[int, ...]:
    return (height * width, width, 1) if planes else (1, width * channels, channels)


def _table_of(made: Any, channels: int) -> _Table | None:
    """Return the table from the ops' result for the 16 x 16 picture; None if it is not a plain tensor [C, 16, 16]."""
    if type(made) not in _CLASSES or made.layout != torch.strided or made.requires_grad or not made.is_cpu:
        return None
    planes = made.stride() == _strides(channels, 16, 16, planes=True)
    if made.shape != (channels, 16, 16) or made.stride() != _strides(channels, 16, 16, planes=planes):
        return None
    return _Table(_bytes(made), made.dtype, type(made), planes)


def _bytes(tensor: torch.Tensor) -> bytes:
    """Return the items in the order of channels, rows and columns."""
    return tensor.as_subclass(torch.Tensor).contiguous().view(torch.uint8).numpy().tobytes()


def _looked_up(table: _Table, source: Image.Image | Picture, place: Place | None = None) -> torch.Tensor:
    """Return a tensor [C, H, W]; raises TypeError if torch's default device is not the CPU, so that the ops run."""
    width, height, mode = source.shape if isinstance(source, Picture) else (*source.size, source.mode)
    shape = _CHANNELS[mode], height, width
    made, planes = None if place is None else place(shape, table.dtype), True
    if made is None:  # on the default device, as the ops' own tensors may be
        planes = table.planes
        made = torch.empty_strided(shape, _strides(*shape, planes=planes), dtype=table.dtype)
    if isinstance(source, Picture):
        source.written_to(made.numpy(), table.floats)
    else:
        memory = made if planes else made.permute(1, 2, 0)
        apply(source.tobytes(), table.items, memory.view(torch.uint8).numpy().data, table.dtype.itemsize, planes)
    return made if table.cls is torch.Tensor else made.as_subclass(table.cls)


def _same(a: Any, b: Any) -> bool:
    facts_a, facts_b = ((type(one), one.dtype, one.shape, one.stride(), one.is_inference()) for one in (a, b))
    return facts_a == facts_b and _bytes(a) == _bytes(b)
