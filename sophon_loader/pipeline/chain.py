"""Runs pipelines from any stage to any stage, at either end of the wire. No other code runs ops."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgpack
import torch
from PIL import Image

from sophon_loader.errors import PipelineError, TooManyPixels, note_foreign
from sophon_loader.kinds.image.opening import open_image
from sophon_loader.pipeline.ends import Place, PointwiseEnd, end_of
from sophon_loader.pipeline.growth import Growth
from sophon_loader.pipeline.op import GENERATORS, Op, OpSpec
from sophon_loader.pipeline.op_registry import build_op, classes_of, knows, op_of
from sophon_loader.pipeline.plain import check_plain
from sophon_loader.pipeline.presets import steps_of
from sophon_loader.pipeline.randomness import Draw, op_seed, preserved, seed_generators
from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.wire.counting import holds_more
from sophon_loader.wire.limits import MAX_DESCRIPTION_NBYTES, MAX_DESCRIPTION_VALUES, MAX_OPS


def decode(data: Any, max_px: float = math.inf) -> Image.Image:
    """Return a file's bytes as a PIL RGB image, like torchvision's default loader. This is op 0.

    Args:
        data: the file's bytes.
        max_px: maximum px of the image.

    Raises:
        TooManyPixels: the file's header gives more than `max_px`.
    """
    with open_image(data) as image:
        _check_px("decode", image.width * image.height, max_px)
        image.load()
        # `convert` would copy an RGB image, but no other object holds these pixels.
        decoded: Image.Image = image._new(image.im) if image.mode == "RGB" else image.convert("RGB")
    return decoded


DECODE = Op("decode", decode, (), OpSpec("decode", {}))


@dataclass(frozen=True, eq=False)
class Chain:
    """A pipeline: op 0 (Decode) and the user's transforms in order. Stage s is the value after s ops.

    Args:
        ops: Decode, then the user's.
        max_px: maximum px of an image behind or within an op; an op that would exceed it does not run.

    Example:
        >>> chain = chain_of(v2.Compose([v2.RandomResizedCrop(224), v2.ToImage()]))
        >>> with chain.isolated():
        ...     cropped = chain.run(file, 0, 2, Draw(seed=1, epoch=0, index=7))
    """

    ops: tuple[Op, ...]
    max_px: float = math.inf
    draws: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.ops) <= MAX_OPS:
            raise PipelineError(f"a pipeline must have 1 to {MAX_OPS} ops, got {len(self.ops)}")
        drawn = {name for op in self.ops for name in op.draws}
        object.__setattr__(self, "draws", tuple(name for name in GENERATORS if name in drawn))

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def describable(self) -> int:
        """Number of leading ops with a description: the last stage that an agent could reach."""
        for position, op in enumerate(self.ops):
            if op.spec is None or _too_large(description_of(self.ops[: position + 1])):
                return position
        return len(self.ops)

    @cached_property
    def resize_cut(self) -> int | None:
        """Stage right behind the first crop or resize that an agent could run; None if there is none."""
        for position, op in enumerate(self.ops[: self.describable]):
            if op.shrinks:
                return position + 1
        return None

    @cached_property
    def deferrable(self) -> int:
        """Last stage before which all ops accept an image without pixels yet, or what such ops make of it."""
        ops = enumerate(self.ops[1:], 1)
        return next((position for position, op in ops if not op.takes_deferred), len(self.ops))

    @cached_property
    def shrinks_until(self) -> int:
        """Last stage, up to `deferrable`, that is right behind a crop or resize; 1 if there is none."""
        return max((at + 1 for at in range(1, self.deferrable) if self.ops[at].shrinks), default=1)

    @property
    def image_stages(self) -> int:
        """Last stage whose value is an image, as far as the registry knows the ops."""
        made = (position for position, op in enumerate(self.ops) if op.makes == "tensor")
        return next(made, len(self.ops))

    @property
    def pillow_stages(self) -> int:
        """Last stage whose value depends on no setting of torch: images that Pillow made of images."""
        ops = self.ops[: self.image_stages]
        return next((position for position, op in enumerate(ops) if op.in_torch), len(ops))

    @cached_property
    def end(self) -> PointwiseEnd | None:
        """The ops that make a tensor of pixels, as a table; None unless they are known to be that simple."""
        return end_of(self.ops)

    @property
    def local_ops(self) -> tuple[str, ...]:
        """Labels of the ops that stay at the loader because the registry does not know the first of them."""
        return tuple(op.label for op in self.ops[self.describable :])

    @property
    def info_readers(self) -> tuple[Op, ...]:
        """Ops that may read an image's `info` (EXIF, ICC profile), up to the op that makes a tensor."""
        return tuple(op for op in self.ops[: self.image_stages + 1] if op.reads_info is not False)

    @property
    def keeps_info(self) -> bool:
        """True if an op here, an unregistered op, or the receiver of the image may read its `info`."""
        return self.image_stages == len(self) or bool(self.local_ops) or bool(self.info_readers)

    @cached_property
    def description(self) -> bytes:
        """The describable ops, op 0 included, as msgpack: [[name, params], ...]."""
        return description_of(self.ops[: self.describable])

    def isolated(self) -> AbstractContextManager[None]:
        """Return a context in which this chain may run. It restores the caller's generators afterwards. Within it torch
        runs on one thread, because a reduction split over threads rounds differently. Autocast is off, as it is in
        workers.
        """
        return isolated(self.draws)

    def run(
        self,
        value: Any,
        start: int,
        stop: int,
        draw: Draw,
        *,
        after: Callable[[int, Any], None] | None = None,
        place: Place | None = None,
    ) -> Any:
        """Take the value at stage `start` to stage `stop` and return it.

        Seeds the global generators: call it within `isolated()`.

        Args:
            value: a file's bytes at stage 0, later the result of the ops before `start`.
            start, stop: stages, `0 <= start <= stop <= len(self)`.
            draw: decides the random numbers.
            after: called with (stage, value) after each op, for profiling.
            place: returns memory for the value at the last stage, if the ops before it are known well enough.

        Returns:
            The value at stage `stop`.

        Raises:
            TooManyPixels: an op would make more than `self.max_px`, and was not run.
            Exception: any error of an op, with a note that names the op.
        """
        end = self.end if after is None else None
        done = start
        for position in range(start, stop):
            if position < done:
                continue
            if end and position == end.first and end.stop <= stop:
                made = end.run(value, place if end.stop == len(self.ops) else None)
                if made is not None:
                    value, done = made, end.stop
                    continue
            op = self.ops[position]
            if op.growth is not None and self.max_px < math.inf:
                _check_growth(op.label, op.growth, value, self.max_px)
            if op.draws:
                seed_generators(op.draws, op_seed(draw, position))
            try:
                bounded = op is DECODE and self.max_px < math.inf
                value = decode(value, self.max_px) if bounded else op.call(value)
            except Exception as error:
                note_foreign(error, f"in op {position} ({op.label}) of the pipeline")
                raise
            if after is not None:
                after(position + 1, value)
        return value


def _check_growth(label: str, growth: Growth, value: Any, max_px: float) -> None:
    """Check that an op makes at most `max_px` of its value, whose sides change one after the other."""
    if isinstance(value, Image.Image):
        width, height = value.size
    elif isinstance(value, torch.Tensor) and value.ndim >= 2:
        height, width = value.shape[-2:]
    else:
        return
    if width and height:
        wider, higher = growth(width, height)
        _check_px(label, max(width, wider) * max(height, higher), max_px)


def _check_px(label: str, px: float, max_px: float) -> None:
    if px > max_px:
        raise TooManyPixels(
            f"an op must make at most {max_px:.0f} px here, got {label}, which would make {px:.0f}; raise the agent's "
            "--max-megapixels"
        )


@contextmanager
def isolated(draws: Collection[str]) -> Iterator[None]:
    """Return a context in which chains may run that draw from the generators `draws`; see `Chain.isolated`."""
    threads = torch.get_num_threads()
    if threads != 1:
        torch.set_num_threads(1)
    autocast = torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext()
    try:
        with autocast, preserved(draws):
            yield
    finally:
        if threads != 1:
            torch.set_num_threads(threads)


def chain_of(transform: Callable[[Any], Any] | None) -> Chain:
    """Return the chain of a dataset's `transform`, split by `presets.steps_of`; None is Decode alone."""
    steps = [] if transform is None else steps_of(transform)
    return Chain((DECODE, *(op_of(step) for step in steps)))


def description_of(ops: Sequence[Op]) -> bytes:
    """Return the canonical bytes of consecutive described ops."""
    rows = [[op.spec.name, dict(op.spec.params)] for op in ops if op.spec is not None]
    packed: bytes = msgpack.packb(rows)
    return packed


def _too_large(description: bytes) -> bool:
    return len(description) > MAX_DESCRIPTION_NBYTES or holds_more(description, MAX_DESCRIPTION_VALUES)


def specs_of(description: bytes) -> list[OpSpec]:
    """Read what `description_of` wrote.

    Raises:
        PipelineError: the bytes are not a description, or too many.
    """
    if _too_large(description):
        raise PipelineError(
            f"a pipeline description must be at most {MAX_DESCRIPTION_NBYTES} bytes and {MAX_DESCRIPTION_VALUES} "
            f"values, got {len(description)} bytes"
        )
    try:
        specs = [_spec_of(row) for row in msgpack.unpackb(description)]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PipelineError(f"a pipeline description must be [[name, params], ...]: {error}") from error
    if not specs or specs[0] != DECODE.spec or len(specs) > MAX_OPS:
        names = [spec.name for spec in specs[:MAX_OPS]]
        raise PipelineError(f"a pipeline must have 1 to {MAX_OPS} ops and start with decode, got {names}")
    return specs


def _spec_of(row: Any) -> OpSpec:
    name, params = row
    if not (isinstance(name, str) and isinstance(params, dict)):
        raise PipelineError(f"an op must be [name, params], got {reprlib.repr(row)}")
    check_plain(params)
    return OpSpec(name, params)


def chain_from(description: bytes) -> Chain:
    """Return the chain of the described ops, up to the first op that is unknown or replaced here. A shorter chain is a
    valid answer.

    Raises:
        PipelineError: the bytes are not a description, or a known op refuses its parameters.
    """
    specs = specs_of(description)[1:]
    ops = []
    for spec in specs:
        if not _buildable(spec):
            break
        op = build_op(spec)
        if any(map(replaced_in_transform, classes_of(op.call))):
            break
        ops.append(op)
    return Chain((DECODE, *ops))


def _buildable(spec: OpSpec) -> bool:
    return all(knows(name) for name in _names_in({"$": "op", "name": spec.name, "params": spec.params}))


def _names_in(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_names_in, value))
    if not isinstance(value, dict):
        return set()
    name = value.get("name")
    own = {name} if value.get("$") == "op" and isinstance(name, str) else set()
    return own.union(*map(_names_in, value.values()))
