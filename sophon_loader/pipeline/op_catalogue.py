"""Catalogue of op types, by name and by class: torchvision's, timm's, those of installed packages, the user's own.

The first look-up in a process loads the built-in table (`torchvision_ops.op_types`) and the entry points. So every
process finds the same ops, at either end. An agent's workers call `load_ops` before they report ready, so that a
package whose import fails is reported. Ops of timm are loaded with its first transform, or name, because its import
takes a second.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from sophon_loader.errors import PipelineError
from sophon_loader.logs import log_line
from sophon_loader.pipeline.op import OpType
from sophon_loader.pipeline.torchvision_ops import op_types

ENTRY_POINTS = "sophon_loader.ops"
"""Group of entry points of installed packages: modules that call `register_op` when they are imported."""

_BY_NAME: dict[str, OpType] = {}
_BY_CLASS: dict[type, OpType] = {}
_loaded = False
log = logging.getLogger(__name__)


def add_op_type(cls: type, op_type: OpType) -> None:
    """Register an op type under a name that no other type has.

    Args:
        cls: class of its transforms, without derived classes.
        op_type: properties of the class.

    Raises:
        PipelineError: the name is in use.
    """
    known = _BY_NAME.get(op_type.name)
    if known is not None and known.build is not op_type.build:
        raise PipelineError(
            f"op name must not be in use, got {op_type.name!r}, which {known.build} has; choose another name"
        )
    _BY_NAME[op_type.name] = op_type
    _BY_CLASS[cls] = op_type


def op_type_of(transform: Any) -> OpType | None:
    """Return the op type of a transform object; None if its class is not registered."""
    load_ops(timm=type(transform).__module__.partition(".")[0] == "timm")
    return _BY_CLASS.get(type(transform))


def op_type_above(cls: type) -> OpType | None:
    """Return the op type of the nearest registered class that this one is derived from; None if none is registered."""
    load_ops(timm=any(base.__module__.partition(".")[0] == "timm" for base in cls.__mro__))
    return next((_BY_CLASS[base] for base in cls.__mro__[1:] if base in _BY_CLASS), None)


def op_type_named(name: str) -> OpType | None:
    """Return the op type of this name; None if there is none."""
    load_ops(timm=name.partition(".")[0] == "timm")
    return _BY_NAME.get(name)


def registered() -> Mapping[str, OpType]:
    """Return all registered op types by name, timm's included if it is installed."""
    load_ops(timm=True)
    return dict(_BY_NAME)


def load_ops(*, timm: bool = False) -> None:
    """Load torchvision's ops and those of installed packages (entry points), once per process.

    Args:
        timm: True to load timm's ops as well, if it is installed.
    """
    global _loaded
    for cls, op_type in _timm_types() if timm else ():
        add_op_type(cls, op_type)
    if _loaded:
        return
    _loaded = True  # set early, because a package's module may look up ops while it is loaded
    try:
        for cls, op_type in op_types():
            add_op_type(cls, op_type)
        for entry in entry_points(group=ENTRY_POINTS):
            entry.load()
    except BaseException:
        _loaded = False
        raise


@cache
def _timm_types() -> Collection[tuple[type, OpType]]:
    try:
        from sophon_loader.pipeline import timm_ops
    except ImportError as error:
        log.info(log_line("no ops of timm", reason=error))
        return ()
    return tuple(timm_ops.op_types())
