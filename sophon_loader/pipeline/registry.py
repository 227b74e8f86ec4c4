"""The registry of ops: a transform object -> name and plain parameters, and back.

A transform is described only if rebuilding it from the description gives an object with equal state, so an op
that this registry half knows (a subclass, a patched attribute, a newer torchvision) counts as unknown and stays
at the loader. Descriptions are data: numbers, strings, lists, and tagged enums, dtypes and tensors. No code.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import reprlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from torch import nn

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.op import GENERATORS, Crop, Op, OpSpec

ENTRY_POINTS = "sophon_loader.ops"
MAX_PLAIN_DEPTH = 32
"""How deep the lists and dicts of a description may be nested."""
MAX_PLAIN_NBYTES = 4 << 20
"""How large the parameters of one op may be (a tensor parameter, say); a value counts for at least 8 bytes."""
_TAG = "$"
_NUMERIC_DTYPES = "|b1 |i1 |u1 <i2 <u2 <i4 <u4 <i8 <u8 <f2 <f4 <f8 <c8 <c16"
_NUMERIC = {text: np.dtype(text) for text in _NUMERIC_DTYPES.split()}
_TORCH_DTYPES = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
_PLAIN_OBJECT_NBYTES = type("_Plain", (), {}).__basicsize__

Draws = tuple[str, ...] | Callable[[Any], tuple[str, ...]]


@dataclass(frozen=True)
class OpType:
    """What is known of one class of transforms.

    Args:
        name: its id on the wire, for ever.
        build: the class, called with the parameters as keywords.
        describe: transform -> parameters (values may be anything `to_plain` takes).
        draws: generators it may draw from, or a function of the transform.
        crop: builds the op's `Crop` from the transform; None for ops without a known region.
        shrinks: see `Op.shrinks`.
    """

    name: str
    build: Callable[..., Any]
    describe: Callable[[Any], Mapping[str, Any]]
    draws: Draws
    crop: Callable[[Any], Crop | None] | None = None
    shrinks: bool = False


_BY_NAME: dict[str, OpType] = {}
_BY_CLASS: dict[type, OpType] = {}
_ENUMS: dict[str, type[enum.Enum]] = {}
_NAMED_TYPES: dict[str, type] = {}
_loaded_entry_points = False


def add_op_type(cls: type, op_type: OpType) -> None:
    """Register `op_type` for objects of exactly `cls`; a name is given away only once."""
    known = _BY_NAME.get(op_type.name)
    if known is not None and known.build is not op_type.build:
        raise PipelineError(f"op name must be free, got {op_type.name!r}, taken by {known.build}")
    _BY_NAME[op_type.name] = op_type
    _BY_CLASS[cls] = op_type


def add_enum(cls: type[enum.Enum]) -> None:
    """Let parameters hold members of `cls` (they travel by member name)."""
    _ENUMS[cls.__name__] = cls


def add_named_type(name: str, cls: type) -> None:
    """Let parameters hold the class `cls` itself, under `name`."""
    _NAMED_TYPES[name] = cls


def register_op(
    name: str,
    cls: type,
    *,
    describe: Callable[[Any], Mapping[str, Any]] | None = None,
    draws: tuple[str, ...] = GENERATORS,
    shrinks: bool = False,
) -> None:
    """Make a transform class of your own known, so that agents can run it.

    Call it in a module that both sides import: the loader's program, and the agent through
    `sophon-agent serve --ops package.module` or an entry point of the group `sophon_loader.ops`.

    Args:
        name: a unique id, e.g. `"mylab.Solarize16"`.
        cls: the class; called with the described parameters as keywords.
        describe: object -> parameters. Default: each constructor parameter's attribute of the same name.
        draws: the global generators that `__call__` draws from (subset of torch, numpy, python).
        shrinks: True for a crop or resize.

    Raises:
        PipelineError: the name is taken, or `draws` names an unknown generator.
    """
    if unknown := set(draws) - set(GENERATORS):
        raise PipelineError(f"draws must be a subset of {GENERATORS}, got {sorted(unknown)}")
    rule = describe or attribute_parameters(cls)
    add_op_type(cls, OpType(name, cls, rule, draws, shrinks=shrinks))


def attribute_parameters(cls: type) -> Callable[[Any], Mapping[str, Any]]:
    """The usual rule of description: every constructor parameter is kept in an attribute of its name."""
    names = [
        p.name
        for p in inspect.signature(cls).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    return lambda transform: {name: getattr(transform, name) for name in names}


def op_of(transform: Any) -> Op:
    """The op for a transform object; `spec` is None when it cannot be described (see module docstring)."""
    load_ops()
    op_type = _BY_CLASS.get(type(transform))
    if op_type is None:
        return _local_op(transform)
    try:
        plain = {key: to_plain(value) for key, value in op_type.describe(transform).items()}
        check_plain(plain)
        spec = OpSpec(op_type.name, plain)
        if same_state(_construct(spec), transform):
            return _op(op_type, transform, spec)
    except (PipelineError, AttributeError, TypeError, ValueError, RuntimeError):
        pass  # A parameter that does not travel. RuntimeError: a tensor without storage; a cycle of containers.
    return _local_op(transform)


def build_op(spec: OpSpec) -> Op:
    """The op that a description names.

    Raises:
        PipelineError: unknown name, or parameters the op's class refuses.
    """
    load_ops()
    check_plain(spec.params)
    return _build(spec)


def knows(name: str) -> bool:
    """Whether an op of this name is registered here."""
    load_ops()
    return name in _BY_NAME


def registered() -> Mapping[str, OpType]:
    """Every registered op type by name."""
    load_ops()
    return dict(_BY_NAME)


def load_ops() -> None:
    """Load torchvision's ops and those of installed packages (entry points), once."""
    global _loaded_entry_points
    if _loaded_entry_points:
        return
    _loaded_entry_points = True  # set before: a package's own module may ask for ops while it is loaded
    try:
        importlib.import_module("sophon_loader.pipeline.torchvision_ops")
        for entry in entry_points(group=ENTRY_POINTS):
            entry.load()
    except BaseException:
        _loaded_entry_points = False
        raise


def draws_of(transform: Any) -> tuple[str, ...]:
    """The generators a transform may draw from: all of them for one that is not registered."""
    op_type = _BY_CLASS.get(type(transform))
    if op_type is None:
        return GENERATORS
    return op_type.draws(transform) if callable(op_type.draws) else op_type.draws


def _op(op_type: OpType, transform: Any, spec: OpSpec) -> Op:
    crop = op_type.crop(transform) if op_type.crop else None
    return Op(op_type.name, transform, draws_of(transform), spec, crop, op_type.shrinks)


def _local_op(transform: Any) -> Op:
    label = getattr(transform, "__qualname__", None) or type(transform).__qualname__
    return Op(label, transform, GENERATORS, None)


def _type_named(name: str) -> OpType:
    if name not in _BY_NAME:
        raise PipelineError(
            f"op must be registered here, got {name!r}; register it with register_op, and at the agent "
            "with `sophon-agent serve --ops package.module`"
        )
    return _BY_NAME[name]


def _build(spec: OpSpec) -> Op:
    op_type = _type_named(spec.name)
    transform = _construct(spec)
    try:
        return _op(op_type, transform, spec)
    except (TypeError, AttributeError) as error:
        raise _refusal(spec, error) from error


def _construct(spec: OpSpec) -> Any:
    op_type = _type_named(spec.name)
    params = {key: _read(value) for key, value in spec.params.items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whoever built the original has been warned
            return op_type.build(**params)
    except Exception as error:  # a boundary: parameters off the wire meet a constructor that is not ours
        raise _refusal(spec, error) from error


def _refusal(spec: OpSpec, error: Exception) -> PipelineError:
    params = reprlib.repr(dict(spec.params))
    return PipelineError(f"parameters of op {spec.name!r} must suit its class, got {params}: {error!r}")


# --- parameters as plain data ---------------------------------------------------------------------------------


def check_plain(value: Any) -> None:
    """Check that `value` is what `to_plain` gives and msgpack carries: bounded and made of plain types alone.

    Raises:
        PipelineError: another type, an int beyond 64 bits, or over MAX_PLAIN_DEPTH or MAX_PLAIN_NBYTES.
    """
    nbytes, open_values = 0, [(value, 1)]
    while open_values:
        value, depth = open_values.pop()
        nbytes += 8 + _leaf_nbytes(value)
        if depth > MAX_PLAIN_DEPTH or nbytes > MAX_PLAIN_NBYTES:
            raise PipelineError(
                f"parameters must be at most {MAX_PLAIN_NBYTES} bytes, {MAX_PLAIN_DEPTH} levels deep, got more"
            )
        if isinstance(value, dict):
            open_values += [(item, depth + 1) for pair in value.items() for item in pair]
        elif isinstance(value, list):
            open_values += [(item, depth + 1) for item in value]


def _leaf_nbytes(value: Any) -> int:
    if type(value) is bytes:
        return len(value)
    if type(value) is str:
        try:
            return len(value.encode())
        except UnicodeEncodeError as error:
            raise PipelineError(f"text in parameters must be valid Unicode, got {value[:80]!r}") from error
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise PipelineError("integers in parameters must fit 64 bits")
    if type(value) not in (type(None), bool, int, float, list, dict):
        raise PipelineError(f"parameters must be plain data, got {type(value)}")
    return 0


def to_plain(value: Any) -> Any:
    """`value` as msgpack can carry it, tagging what msgpack does not know.

    Raises:
        PipelineError: a kind of value (a function, say) that does not travel.
    """
    if type(value) in (type(None), bool, int, float, str, bytes):  # exact: a subclass may behave differently
        return value
    if isinstance(value, enum.Enum):
        return _enum_to_plain(value)
    if isinstance(value, np.generic):
        return {_TAG: "scalar", **_array_to_plain(np.asarray(value))}
    if type(value) is list:
        return [to_plain(item) for item in value]
    if type(value) in (tuple, nn.ModuleList):
        tag = "tuple" if type(value) is tuple else "modules"
        return {_TAG: tag, "items": [to_plain(item) for item in value]}
    if type(value) is dict:
        return {_TAG: "dict", "items": [[to_plain(k), to_plain(v)] for k, v in value.items()]}
    return _object_to_plain(value)


def _enum_to_plain(value: enum.Enum) -> Any:
    name = type(value).__name__
    if _ENUMS.get(name) is not type(value):
        raise PipelineError(f"enum must be registered (add_enum), got {type(value)}")
    return {_TAG: "enum", "type": name, "member": value.name}


def _object_to_plain(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "name": str(value).removeprefix("torch.")}
    if type(value) is torch.Tensor:
        return {_TAG: "tensor", **_array_to_plain(value.detach().cpu().numpy())}
    if type(value) is np.ndarray:
        return {_TAG: "ndarray", **_array_to_plain(value)}
    for name, cls in _NAMED_TYPES.items():
        if value is cls:
            return {_TAG: "type", "name": name}
    op = op_of(value)
    if op.spec is None:
        raise PipelineError(f"parameter must be plain data or a registered op, got {value!r}")
    return {_TAG: "op", "name": op.spec.name, "params": dict(op.spec.params)}


def _array_to_plain(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    if array.dtype.str not in _NUMERIC or array.nbytes > MAX_PLAIN_NBYTES:
        raise PipelineError(f"array must be numeric and within {MAX_PLAIN_NBYTES} bytes, got {array.dtype}")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": array.tobytes()}


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`.

    Raises:
        PipelineError: not plain data, an unknown tag, or a tagged value whose fields do not fit.
    """
    load_ops()
    check_plain(value)
    return _read(value)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    tag = value.get(_TAG)
    if not isinstance(tag, str) or tag not in _READERS:
        raise PipelineError(f"tag of a parameter must be one of {sorted(_READERS)}, got {reprlib.repr(tag)}")
    try:
        return _READERS[tag](value)
    except PipelineError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(f"parameter must be a well-formed {tag}, got {reprlib.repr(value)}") from error


def _read_items(value: dict[str, Any]) -> list[Any]:
    if not isinstance(value["items"], list):
        raise PipelineError(f"items of a parameter must be a list, got {type(value['items'])}")
    return [_read(item) for item in value["items"]]


def _read_array(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    dtype, shape = _NUMERIC[value["dtype"]], value["shape"]
    if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
        raise PipelineError(f"shape of an array must be a list of sizes, got {reprlib.repr(shape)}")
    array: np.ndarray[Any, Any] = np.frombuffer(value["data"], dtype).reshape(shape).copy()
    return array


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda v: tuple(_read_items(v)),
    "modules": lambda v: nn.ModuleList(_read_items(v)),
    "dict": lambda v: dict(_read_items(v)),
    "enum": lambda v: _ENUMS[v["type"]][v["member"]],
    "dtype": lambda v: _TORCH_DTYPES[v["name"]],
    "tensor": lambda v: torch.from_numpy(_read_array(v)),
    "ndarray": _read_array,
    "scalar": lambda v: _read_array(v)[()],
    "type": lambda v: _NAMED_TYPES[v["name"]],
    "op": lambda v: _build(OpSpec(v["name"], v["params"])).call,
}


# --- equality of two transforms' state ------------------------------------------------------------------------


def same_state(a: Any, b: Any) -> bool:
    """Whether two objects would behave alike: same classes and equal attributes, all the way down."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return _tensor_layout(a) == _tensor_layout(b) and bool(torch.equal(a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides) and bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_state, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same_state(a[key], b[key]) for key in a)
    if not hasattr(a, "__dict__") or type(a).__basicsize__ > _PLAIN_OBJECT_NBYTES:
        # Numbers, functions, types, and what keeps state outside of __dict__ (functools.partial, slots).
        return bool(a == b)
    return same_state(_attributes(a), _attributes(b))


def _tensor_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    # Strides too: a product with a transposed matrix rounds differently.
    strides = tensor.stride() if tensor.numel() else ()
    return tensor.dtype, tensor.shape, strides, tensor.device, tensor.requires_grad


def _attributes(value: Any) -> dict[str, Any]:
    # `training` has no effect on a transform of torchvision's, and Module.eval() changes it.
    ours = isinstance(value, nn.Module) and type(value).__module__.startswith(("torchvision.", "torch.nn."))
    return {k: v for k, v in vars(value).items() if not (ours and k == "training")}
