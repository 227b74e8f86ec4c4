"""Registry of ops: turns a transform object into a name and plain parameters, and back.

A transform is described only if rebuilding it from the description gives an object with equal state. So a subclass, an
object with a patched attribute, or one of a newer torchvision counts as unknown and stays at the loader. So does a
transform of a library in which a function that it may call was replaced.

`op_catalogue.py` has the op types, `plain.py` and `torch_parameters.py` the allowed parameters.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.growth import Growth, of_any_order
from sophon_loader.pipeline.op import GENERATORS, Made, Op, OpSpec, OpType, attribute_parameters
from sophon_loader.pipeline.op_catalogue import add_op_type, op_type_named, op_type_of
from sophon_loader.pipeline.plain import add_tag, check_plain, read_checked, to_plain
from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.pipeline.state import same_state
from sophon_loader.pipeline.torch_parameters import add_torch_parameters


def register_op(
    name: str,
    cls: type,
    *,
    describe: Callable[[Any], Mapping[str, Any]] | None = None,
    draws: tuple[str, ...] = GENERATORS,
    shrinks: bool = False,
    makes: Made | None = None,
    on_batches: bool = False,
    reads_info: bool | None = None,
) -> None:
    """Register a transform class of yours, so that agents can run it.

    Call this in a module that both sides import: your training program, and the agent by
    `sophon-agent serve --ops package.module` or an entry point of the group `sophon_loader.ops`. A call of the
    transform must not change the object, because both sides call copies of it, in any order.

    Args:
        name: a unique name, for example `"mylab.Solarize16"`.
        cls: the class. The agent makes objects of it with the described parameters as keywords.
        describe: object -> parameters. Default: for each parameter of the constructor, the attribute of that name.
        draws: global generators that `__call__` draws from, out of "torch", "numpy" and "python".
        shrinks: True for a crop or resize. The policy `resize-off` offloads up to the first of them.
        makes: "tensor" if the op turns a PIL image into a tensor, "image" if it turns a tensor into a PIL image.
        on_batches: True if the op treats a batch of tensors [N, C, H, W], on any device, bit for bit like each tensor;
            the loader's `tail` may then run it. (An op that makes a tensor must treat uint8 pixels like images.) Such
            an op draws nothing.
        reads_info: False if the op reads an image's pixels only, True if also its `info` (EXIF, ICC profile). Default:
            as True, with a note in `report()`. Metadata is then sent with each image, and no file is cut to what the
            first crop reads.

    Raises:
        PipelineError: the name is in use, `draws` names an unknown generator, `makes` is another word, or an op for
            batches draws random numbers, makes an image or reads its info.

    Example:
        >>> class Gamma:  # behind ToTensor
        ...     def __init__(self, exponent: float) -> None:
        ...         self.exponent = exponent
        ...
        ...     def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        ...         return tensor**self.exponent
        >>> register_op("mylab.Gamma", Gamma, draws=(), on_batches=True)
    """
    if unknown := set(draws) - set(GENERATORS):
        raise PipelineError(
            f"draws must be a subset of {GENERATORS}, got {sorted(unknown)}; name the generators that the op draws from"
        )
    if makes not in (None, "tensor", "image"):
        raise PipelineError(f"makes must be 'tensor', 'image' or None, got {makes!r}")
    if on_batches and (draws or makes == "image"):
        raise PipelineError(
            f"an op for batches must draw nothing and make no image, got draws={draws}, makes={makes!r}"
        )
    if on_batches and reads_info:
        raise PipelineError("an op for batches must not read an image's info, got reads_info=True; a batch has no info")
    if on_batches or makes == "image":  # it takes tensors, or treats bare pixels the same
        reads_info = bool(reads_info)
    rule = describe or attribute_parameters(cls)
    op_type = OpType(
        name,
        cls,
        rule,
        draws,
        shrinks=shrinks,
        makes=makes,
        on_batches=on_batches,
        reads_info=reads_info,
        in_torch=True,  # as far as is known here
    )
    add_op_type(cls, op_type)


def op_of(transform: Any) -> Op:
    """Return the op of a transform; its `spec` is None if it cannot be described (see the module's docstring)."""
    op_type = op_type_of(transform)
    if op_type is None or replaced_in_transform(type(transform)):
        return _local_op(transform)
    try:
        plain = {key: to_plain(value) for key, value in op_type.describe(transform).items()}
        check_plain(plain)
        spec = OpSpec(op_type.name, plain)
        if same_state(_construct(spec), transform):
            return _op(op_type, transform, spec)
    except (PipelineError, AttributeError, TypeError, ValueError, RuntimeError):
        pass  # A parameter that cannot be sent. RuntimeError: a tensor without storage; a cycle of containers.
    return _local_op(transform)


def build_op(spec: OpSpec) -> Op:
    """Return the op that a description names.

    Raises:
        PipelineError: the name is unknown, or the op's class refuses the parameters.
    """
    check_plain(spec.params)
    return _build(spec)


def knows(name: str) -> bool:
    """Return True if an op of this name is registered here."""
    return op_type_named(name) is not None


def draws_of(transform: Any) -> tuple[str, ...]:
    """Return the generators that a transform and those it holds may draw from: all of them if one is not registered."""
    op_type = op_type_of(transform)
    if op_type is None:
        return GENERATORS
    drawn = set(op_type.draws)
    for step in op_type.steps(transform) if op_type.steps else ():
        drawn.update(draws_of(step))
    return tuple(name for name in GENERATORS if name in drawn)


def classes_of(transform: Any) -> Iterator[type]:
    """Yield the classes of a transform and of those that it holds."""
    yield type(transform)
    op_type = op_type_of(transform)
    for step in op_type.steps(transform) if op_type is not None and op_type.steps else ():
        yield from classes_of(step)


def reads_info_of(transform: Any) -> bool | None:
    """Return True if a transform, or one that it holds, may read an image's `info`; None if one does not declare it."""
    op_type = op_type_of(transform)
    if op_type is None:
        return True
    found = {op_type.reads_info, *map(reads_info_of, op_type.steps(transform) if op_type.steps else ())}
    return None if None in found else True in found


def in_torch(transform: Any) -> bool:
    """Return True if torch computes any number when a transform, or one that it holds, is given a PIL image."""
    op_type = op_type_of(transform)
    if op_type is None or op_type.in_torch:
        return True
    return any(map(in_torch, op_type.steps(transform) if op_type.steps else ()))


def takes_deferred(transform: Any) -> bool:
    """Return True if a transform, and all that it holds, accept an image without pixels yet."""
    op_type = op_type_of(transform)
    if op_type is None or not op_type.takes_deferred:
        return False
    return all(map(takes_deferred, op_type.steps(transform) if op_type.steps else ()))


def growth_of(transform: Any) -> Growth | None:
    """Return the bound of a transform's result; None if no larger than the image given."""
    op_type = op_type_of(transform)
    if op_type is None:
        return None
    if op_type.growth is not None:
        return partial(op_type.growth, transform)
    held = op_type.steps(transform) if op_type.steps else ()
    steps = [growth for step in held if (growth := growth_of(step)) is not None]
    return partial(of_any_order, steps) if steps else None


def _op(op_type: OpType, transform: Any, spec: OpSpec) -> Op:
    on_batches = op_type.on_batches
    return Op(
        op_type.name,
        transform,
        draws_of(transform),
        spec,
        shrinks=op_type.shrinks,
        makes=op_type.makes,
        on_batches=on_batches(transform) if callable(on_batches) else on_batches,
        growth=growth_of(transform),
        reads_info=reads_info_of(transform),
        in_torch=in_torch(transform),
        takes_deferred=takes_deferred(transform),
        pointwise=op_type.pointwise,
    )


def _local_op(transform: Any) -> Op:
    label = getattr(transform, "__qualname__", None) or type(transform).__qualname__
    return Op(label, transform, GENERATORS, None, reads_info=True, in_torch=True)


def _type_named(name: str) -> OpType:
    op_type = op_type_named(name)
    if op_type is None:
        raise PipelineError(
            f"op must be registered here, got {name!r}; register it with register_op, and at the agent "
            "with `sophon-agent serve --ops package.module`"
        )
    return op_type


def _build(spec: OpSpec) -> Op:
    op_type = _type_named(spec.name)
    transform = _construct(spec)
    try:
        return _op(op_type, transform, spec)
    except (TypeError, AttributeError) as error:
        raise _refusal(spec, error) from error


def _construct(spec: OpSpec) -> Any:
    op_type = _type_named(spec.name)
    params = {key: read_checked(value) for key, value in spec.params.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the builder of the original was warned
            return op_type.build(**params)
    except Exception as error:  # a boundary: parameters from the wire meet another library's constructor
        raise _refusal(spec, error) from error


def _refusal(spec: OpSpec, error: Exception) -> PipelineError:
    params = reprlib.repr(dict(spec.params))
    return PipelineError(f"parameters of op {spec.name!r} must suit its class, got {params}: {error!r}")


def _op_to_plain(value: Any) -> dict[str, Any] | None:
    spec = op_of(value).spec
    return None if spec is None else {"name": spec.name, "params": dict(spec.params)}


def _op_from_plain(fields: dict[str, Any]) -> Any:
    return _build(OpSpec(fields["name"], fields["params"])).call


add_torch_parameters()
# Containers such as RandomApply hold ops as parameters.
add_tag("op", _op_to_plain, _op_from_plain)
