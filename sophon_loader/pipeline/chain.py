"""The only place where ops are run: a pipeline, from any stage to any stage, at either end of the wire."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgpack
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError, add_note
from sophon_loader.pipeline.op import GENERATORS, Op, OpSpec, Region
from sophon_loader.pipeline.randomness import Draw, op_seed, preserved, seed_generators
from sophon_loader.pipeline.registry import build_op, knows, op_of

MAX_OPS = 64
_COMPOSES = (v1.Compose, v2.Compose, nn.Sequential)


def decode(data: Any) -> Image.Image:
    """Op 0: a file's bytes to PIL RGB, as torchvision's default loader does it."""
    with Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


DECODE = Op("decode", decode, (), OpSpec("decode", {}))


@dataclass(frozen=True)
class Window:
    """Where an image that was cut before decoding lies in its whole: kept rectangle and full size, px."""

    kept: Region
    full_width: int
    full_height: int


@dataclass(frozen=True)
class Chain:
    """A pipeline: op 0 (Decode) and the user's transforms in order. Stage s is the value after s ops."""

    ops: tuple[Op, ...]
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
        """How many leading ops have a description: the last stage an agent could reach."""
        for position, op in enumerate(self.ops):
            if op.spec is None:
                return position
        return len(self.ops)

    @cached_property
    def resize_cut(self) -> int | None:
        """The stage right behind the first crop or resize that an agent could run."""
        for position, op in enumerate(self.ops[: self.describable]):
            if op.shrinks:
                return position + 1
        return None

    @property
    def local_ops(self) -> tuple[str, ...]:
        """Labels of the ops that stay at the loader because the registry does not know the first of them."""
        return tuple(op.label for op in self.ops[self.describable :])

    @cached_property
    def description(self) -> bytes:
        """The describable ops as msgpack: [[name, params], ...], op 0 included."""
        return description_of(self.ops[: self.describable])

    def preserved(self) -> AbstractContextManager[None]:
        """Context in which this chain may run without disturbing the caller's generators."""
        return preserved(self.draws)

    def run(
        self,
        value: Any,
        start: int,
        stop: int,
        draw: Draw,
        *,
        after: Callable[[int, Any], None] | None = None,
        window: Window | None = None,
    ) -> Any:
        """Take the value at stage `start` to stage `stop`.

        Seeds the global generators: call it within `preserved()`.

        Args:
            after: called with (stage, value) after every op, for profiling.
            window: given when `value` is a decoded image that holds only a part of the whole, which must
                contain the region that op 1 reads.

        Raises:
            Exception: whatever an op raises, with a note that names the op.
        """
        for position in range(start, stop):
            op = self.ops[position]
            if op.draws:
                seed_generators(op.draws, op_seed(draw, position))
            try:
                if window is not None and position == 1:
                    value = _run_cropped(op, value, window)
                else:
                    value = op.call(value)
            except Exception as error:
                add_note(error, f"in op {position} ({op.label}) of the pipeline")
                raise
            if after is not None:
                after(position + 1, value)
        return value

    def region(self, width: int, height: int, draw: Draw) -> Region | None:
        """What op 1 will read of a `width` x `height` px image; None if that is not known beforehand.

        Seeds the global generators: call it within `preserved()`.
        """
        if len(self.ops) < 2 or self.ops[1].crop is None:
            return None
        op = self.ops[1]
        seed_generators(op.draws, op_seed(draw, 1))
        return self.ops[1].crop.locate(width, height)


def _run_cropped(op: Op, image: Any, window: Window) -> Any:
    region = op.crop.locate(window.full_width, window.full_height) if op.crop else None
    if op.crop is None or region is None:
        raise PipelineError(f"op must have a known region to run on a part of an image, got {op.label}")
    if not window.kept.contains(region):
        raise PipelineError(f"the part kept must hold the region {region}, got {window.kept}")
    return op.crop.finish(image, region.shifted(window.kept.left, window.kept.top))


def chain_of(transform: Callable[[Any], Any] | None) -> Chain:
    """The chain of a dataset's `transform`: nested Compose objects are taken apart, None is Decode alone."""
    steps = [] if transform is None else _flatten(transform)
    return Chain((DECODE, *(op_of(step) for step in steps)))


def _flatten(transform: Any) -> list[Any]:
    if type(transform) not in _COMPOSES:
        return [transform]
    steps = transform if isinstance(transform, nn.Sequential) else transform.transforms
    return [inner for step in steps for inner in _flatten(step)]


def description_of(ops: Sequence[Op]) -> bytes:
    """Canonical bytes of a run of described ops."""
    rows = [[op.spec.name, dict(op.spec.params)] for op in ops if op.spec is not None]
    packed: bytes = msgpack.packb(rows)
    return packed


def digest_of(description: bytes) -> str:
    """The content hash under which a pipeline is registered: SHA-256, 32 hex digits."""
    return hashlib.sha256(description).hexdigest()[:32]


def specs_of(description: bytes) -> list[OpSpec]:
    """A description taken apart again.

    Raises:
        PipelineError: it is not what `description_of` writes.
    """
    try:
        rows = msgpack.unpackb(description, strict_map_key=False)
        specs = [OpSpec(str(name), dict(params)) for name, params in rows]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise PipelineError(f"a pipeline description must be [[name, params], ...]: {error}") from error
    if not specs or specs[0] != DECODE.spec or len(specs) > MAX_OPS:
        raise PipelineError(f"a pipeline must have 1 to {MAX_OPS} ops and start with decode, got {specs}")
    return specs


def chain_from(description: bytes) -> Chain:
    """Build the described ops, up to the first that is unknown here (a shorter chain is a valid answer).

    Raises:
        PipelineError: malformed, or a known op whose parameters are refused.
    """
    specs = specs_of(description)[1:]
    ops = []
    for spec in specs:
        if not _buildable(spec):
            break
        ops.append(build_op(spec))
    return Chain((DECODE, *ops))


def _buildable(spec: OpSpec) -> bool:
    return all(knows(name) for name in _names_in({"$": "op", "name": spec.name, "params": spec.params}))


def _names_in(value: Any) -> Collection[str]:
    if isinstance(value, list):
        return {name for item in value for name in _names_in(item)}
    if not isinstance(value, dict):
        return ()
    own = {value["name"]} if value.get("$") == "op" else set()
    return own.union(*(_names_in(item) for item in value.values()))
