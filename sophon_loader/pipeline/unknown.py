"""Explains why an op stays at the loader, and what its author can do."""

from __future__ import annotations

import enum
import types
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.op import Op, OpType
from sophon_loader.pipeline.op_catalogue import op_type_above, op_type_of
from sophon_loader.pipeline.plain import MAX_PLAIN_DEPTH, check_plain, to_plain
from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.pipeline.torchvision_ops import NOT_REGISTERED

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial, v1.Lambda, v2.Lambda)
_REGISTER = "register it at both ends (register_op)"
_PLAIN = "give it plain values and registered ops only"
_OF_VALUE = (np.ndarray, np.generic, torch.Tensor, enum.Enum)
"""Types with some values that are sent, so the type alone does not explain why another value is not."""
_FAILS = (PipelineError, AttributeError, TypeError, ValueError, RuntimeError)
_FIRST = "put it behind the ops that an agent is to run"


def why_local(op: Op, *, first: bool) -> str:
    """Return the reason why an op has no description, and the remedy.

    Args:
        op: an op of a chain.
        first: True if it is the first op behind decoding, so that no other op can run at an agent.
    """
    reason, remedy = _reason(op)
    if first and isinstance(op.call, _FUNCTIONS):
        remedy = f"leave it out if it only converts to RGB (the image is RGB already), {_FIRST}, or {remedy}"
    elif first:
        remedy = f"{_FIRST}, or {remedy}" if remedy else _FIRST
    return f"{reason}; {remedy}" if remedy else reason


def no_op_for_agents(chains: Sequence[Chain]) -> str:
    """Return the reason why no agent can run any op besides decoding; "" if one can, or there is no other op."""
    notes = [note for chain in chains for note in notes_on_local_ops(chain)]
    return notes[0] if notes and all(chain.describable <= 1 for chain in chains) else ""


def notes_on_local_ops(chain: Chain) -> list[str]:
    """Return a note on the first op that agents cannot run; [] if there is none."""
    position = chain.describable
    return [
        f"{op.label} and the ops behind it stay at the loader: {why_local(op, first=position == 1)}"
        for op in chain.ops[position : position + 1]
    ]


def _reason(op: Op) -> tuple[str, str]:
    """Return (reason, remedy)."""
    cls, unregistered = type(op.call), "the op is not registered"
    if op.spec is not None:
        return "with it, the description of the pipeline is too large to send", "give it smaller parameters"
    if isinstance(op.call, _FUNCTIONS):
        reason = f"{unregistered}: it is a function, and code is never sent to an agent"
        return reason, "make it a class at the top level of a module, and register that at both ends (register_op)"
    if what := replaced_in_transform(cls):
        remedy = "make what that does a class of its own, and register it at both ends (register_op)"
        return f"{what}, and an agent runs what the library ships", remedy
    if (op_type := op_type_of(op.call)) is not None:
        return _of_parameters(op_type, op.call)
    if why := NOT_REGISTERED.get(_name_in_torchvision(cls)):
        return f"{unregistered}: it {why}", ""
    if "<locals>" in cls.__qualname__:
        reason = f"{unregistered}: its class is defined inside a function, where an agent cannot find it"
        return reason, f"define it at the top level of a module, and {_REGISTER}"
    if (base := op_type_above(cls)) is not None:
        return f"{unregistered}: a class derived from {base.name} may do something else", _REGISTER
    return unregistered, _REGISTER


def _of_parameters(op_type: OpType, transform: Any) -> tuple[str, str]:
    """Return (reason, remedy) for a registered op without a description."""
    try:
        parameters = dict(op_type.describe(transform))
    except _FAILS:
        parameters = {}
    for name, value in parameters.items():
        error = _why_not_sent(value)
        if error is None:
            continue
        odd = value
        for _ in range(MAX_PLAIN_DEPTH):  # a value may hold itself
            within = next((one for one in _parts(odd) if _why_not_sent(one) is not None), None)
            if within is None:
                break
            odd, error = within, _why_not_sent(within)
        if isinstance(odd, _OF_VALUE) or _is_plain_type(odd):
            return f"its parameter {name} cannot be sent: {error}", _PLAIN
        what = f"{'is' if odd is value else 'holds a value'} of the type {type(odd).__qualname__}"
        remedy = "give it as list(...) or tuple(...)" if isinstance(odd, Sequence) else _PLAIN
        return f"its parameter {name} {what}, which is not sent to an agent", remedy
    return "the op was changed after it was made", "give its constructor the values of now"


def _why_not_sent(value: Any) -> Exception | None:
    try:
        check_plain(to_plain(value))
    except _FAILS as error:
        return error
    return None


def _parts(value: Any) -> list[Any]:
    if type(value) is dict:
        return [one for pair in value.items() for one in pair]
    return list(value) if type(value) in (list, tuple, torch.nn.ModuleList) else []


def _is_plain_type(value: Any) -> bool:
    return type(value) in (int, float, str, bytes, list, tuple, dict)


def _name_in_torchvision(cls: type) -> str:
    module = "v2" if ".v2." in f"{cls.__module__}." else "v1"
    return f"{module}.{cls.__name__}" if cls.__module__.startswith("torchvision.") else ""
