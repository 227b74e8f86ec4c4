"""Why an op stays at the loader, and what its author can do."""

from __future__ import annotations

import types
from functools import partial

from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.catalogue import op_type_above, op_type_of
from sophon_loader.pipeline.op import Op
from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.pipeline.torchvision_ops import NOT_REGISTERED

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, v1.Lambda, v2.Lambda)
_REGISTER = "register it at both ends (register_op)"
_FIRST = "put it behind the ops that an agent is to run"


def why_local(op: Op, *, first: bool) -> str:
    """Why an op without a description has none, and the remedy.

    Args:
        op: of a chain.
        first: whether it is the first op behind decoding, so that no other one can run at an agent.
    """
    reason, remedy = _reason(op)
    if first and isinstance(op.call, _FUNCTIONS):
        remedy = f"leave it out if it only converts to RGB (the image is RGB already), {_FIRST}, or {remedy}"
    elif first:
        remedy = f"{_FIRST}, or {remedy}" if remedy else _FIRST
    return f"{reason}; {remedy}" if remedy else reason


def _reason(op: Op) -> tuple[str, str]:
    """Why, and what helps."""
    cls, unregistered = type(op.call), "the op is not registered"
    if op.spec is not None:
        return "with it, the description of the pipeline is too large to send", "give it smaller parameters"
    if isinstance(op.call, _FUNCTIONS):
        reason = f"{unregistered}: it is a function, and code is never sent to an agent"
        return reason, "make it a class at the top level of a module, and register that at both ends (register_op)"
    if what := replaced_in_transform(cls):
        remedy = "make what that does a class of its own, and register it at both ends (register_op)"
        return f"{what}, and an agent runs what the library ships", remedy
    if op_type_of(op.call) is not None:
        reason = (
            "one of its parameters is a function or an op that is not registered, or the op was changed after it was "
            "made"
        )
        return reason, "give it plain values and registered ops only"
    if why := NOT_REGISTERED.get(_name_in_torchvision(cls)):
        return f"{unregistered}: it {why}", ""
    if "<locals>" in cls.__qualname__:
        reason = f"{unregistered}: its class is defined inside a function, where an agent cannot find it"
        return reason, f"define it at the top level of a module, and {_REGISTER}"
    if (base := op_type_above(cls)) is not None:
        return f"{unregistered}: a class derived from {base.name} may do something else", _REGISTER
    return unregistered, _REGISTER


def _name_in_torchvision(cls: type) -> str:
    module = "v2" if ".v2." in f"{cls.__module__}." else "v1"
    return f"{module}.{cls.__name__}" if cls.__module__.startswith("torchvision.") else ""
