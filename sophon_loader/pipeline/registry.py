"""The registry of ops: a transform object -> name and plain parameters, and back.

A transform is described only if rebuilding it from the description gives an object with equal state, so an op
that this registry half knows (a subclass, a patched attribute, a newer torchvision) counts as unknown and stays
at the loader. Descriptions are data: numbers, strings, lists, and tagged enums, dtypes and tensors. No code.
"""

from __future__ import annotations

import enum
import importlib
import inspect
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
_TAG = "$"

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
        spec = OpSpec(op_type.name, plain)
        rebuilt = _construct(spec)
    except (PipelineError, AttributeError):
        return _local_op(transform)
    if not same_state(rebuilt, transform):
        return _local_op(transform)
    return _op(op_type, transform, spec)


def build_op(spec: OpSpec) -> Op:
    """The op that a description names.

    Raises:
        PipelineError: unknown name, or parameters the op's class refuses.
    """
    load_ops()
    return _op(_type_named(spec.name), _construct(spec), spec)


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
    _loaded_entry_points = True
    importlib.import_module("sophon_loader.pipeline.torchvision_ops")
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


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


def _construct(spec: OpSpec) -> Any:
    op_type = _type_named(spec.name)
    params = {key: from_plain(value) for key, value in spec.params.items()}
    try:
        return op_type.build(**params)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise PipelineError(
            f"parameters of op {spec.name!r} must suit its class, got {params}: {error}"
        ) from error


# --- parameters as plain data ---------------------------------------------------------------------------------


def to_plain(value: Any) -> Any:
    """`value` as msgpack can carry it, tagging what msgpack does not know.

    Raises:
        PipelineError: a kind of value (a function, say) that does not travel.
    """
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, enum.Enum):
        return _enum_to_plain(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, nn.ModuleList)):
        return [to_plain(item) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [to_plain(item) for item in value]}
    if isinstance(value, Mapping):
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
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {_TAG: "ndarray", **_array_to_plain(value)}
    for name, cls in _NAMED_TYPES.items():
        if value is cls:
            return {_TAG: "type", "name": name}
    op = op_of(value)
    if op.spec is None:
        raise PipelineError(f"parameter must be plain data or a registered op, got {value!r}")
    return {_TAG: "op", "name": op.spec.name, "params": dict(op.spec.params)}


def _array_to_plain(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    data = np.ascontiguousarray(array)
    return {"dtype": data.dtype.str, "shape": list(array.shape), "data": data.tobytes()}


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`.

    Raises:
        PipelineError: an unknown tag, or a tagged value whose fields do not fit.
    """
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    reader = _READERS.get(value.get(_TAG, ""))
    if reader is None:
        raise PipelineError(f"tag of a parameter must be one of {sorted(_READERS)}, got {value}")
    try:
        return reader(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(f"parameter must be well-formed, got {value}: {error!r}") from error


def _read_dtype(value: dict[str, Any]) -> torch.dtype:
    dtype = getattr(torch, value["name"])
    if not isinstance(dtype, torch.dtype):
        raise PipelineError(f"dtype must be one of torch's, got {value['name']!r}")
    return dtype


def _read_array(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "biuf":
        raise PipelineError(f"array parameter must be numeric, got dtype {dtype}")
    return np.frombuffer(value["data"], dtype).reshape(value["shape"]).copy()


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda v: tuple(from_plain(item) for item in v["items"]),
    "dict": lambda v: {from_plain(k): from_plain(item) for k, item in v["items"]},
    "enum": lambda v: _ENUMS[v["type"]][v["member"]],
    "dtype": _read_dtype,
    "tensor": lambda v: torch.from_numpy(_read_array(v)),
    "ndarray": _read_array,
    "type": lambda v: _NAMED_TYPES[v["name"]],
    "op": lambda v: build_op(OpSpec(v["name"], v["params"])).call,
}


# --- equality of two transforms' state ------------------------------------------------------------------------


def same_state(a: Any, b: Any) -> bool:
    """Whether two objects would behave alike: same classes and equal attributes, all the way down."""
    if type(a) is not type(b):
        return bool(_is_number(a) and _is_number(b) and a == b)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_state, a, b))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, (enum.Enum, type, str, bytes)) or not hasattr(a, "__dict__") or callable_only(a):
        return bool(a is b or a == b)
    return same_state(_attributes(a), _attributes(b))


def callable_only(value: Any) -> bool:
    """A function or method: compared by identity, as two closures may differ in what they close over."""
    return inspect.isroutine(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.generic)) and not isinstance(value, bool)


def _attributes(value: Any) -> dict[str, Any]:
    # `training` has no effect on any transform, and Module.eval() changes it.
    return {k: v for k, v in vars(value).items() if not (isinstance(value, nn.Module) and k == "training")}
