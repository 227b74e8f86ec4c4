"""Notices changed transforms, by a check before each batch that takes some microseconds for a usual pipeline.

It watches everything that `chain.py` has derived something from: the steps that transforms hold, and described
parameters. Any other op runs as the object itself, so changes to it take effect by themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import nn

from sophon_loader.errors import must_leave
from sophon_loader.pipeline.op_catalogue import op_type_of
from sophon_loader.pipeline.presets import steps_of
from sophon_loader.pipeline.state import same_state
from sophon_loader.wire.limits import MAX_OPS

_COLLECTIONS = (list, dict, set)


class Watch:
    """Snapshot of some transforms, to compare with their later state.

    It also notices changes in place. An alarm may be false, after an assignment of an equal object; the ops themselves
    (`op_of`) show what has changed.

    Args:
        transforms: objects whose steps are watched, down to the ops, but not the ops.
        ops: transforms whose parameters are watched: those with a description, which bounds their size.
        attributes: objects, each with names of attributes that are watched for replacement, and lists for their length.

    Example:
        >>> watch = Watch([], [dataset.transform.transforms[0]], [(dataset, ["transform"])])
        >>> dataset.transform.transforms[0].size = (32, 32)
        >>> watch.changed()
        True
    """

    def __init__(
        self, transforms: Iterable[Any], ops: Iterable[Any], attributes: Iterable[tuple[Any, Sequence[str]]] = ()
    ) -> None:
        # Compared as two whole lists: by identity first, then by value.
        self._live: list[Any] = []
        self._kept: list[Any] = []
        self._empty: list[Any] = []
        self._others: list[tuple[Any, Any]] = []
        self._getters = [(attrgetter(name), owner) for owner, names in attributes for name in names]
        self._got = [get(owner) for get, owner in self._getters]
        self._lists = [value for value in self._got if isinstance(value, list)]
        self._lengths = list(map(len, self._lists))
        self._met: set[int] = set()
        for transform in transforms:
            self._note_steps(transform)
        self._note(ops)

    def changed(self) -> bool:
        """Return True if a watched object differs from the snapshot."""
        try:
            return (
                self._live != self._kept
                or any(self._empty)
                or [get(owner) for get, owner in self._getters] != self._got
                or list(map(len, self._lists)) != self._lengths
                or not all(same_state(live, kept) for live, kept in self._others)
            )
        except Exception as error:  # an attribute has gone, or two objects cannot be compared
            if must_leave(error):
                raise
            return True

    def _note_steps(self, transform: Any) -> None:
        """Note the objects that `presets.steps_of` reads: those that hold steps, and the lists in them."""
        if steps_of(transform) == [transform] or self._is_met(transform):
            return
        self._keep(vars(transform))
        for value in vars(transform).values():
            if isinstance(value, (list, dict)) and len(value) <= MAX_OPS:
                self._keep(value)
                for step in value.values() if isinstance(value, dict) else value:
                    self._note_steps(step)
            else:
                self._note_steps(value)

    def _note(self, values: Iterable[Any]) -> None:
        """Note parameters of ops, and of the ops among them."""
        for value in values:
            if self._is_met(value):
                continue
            if isinstance(value, tuple):
                self._note(value)
            elif isinstance(value, _COLLECTIONS):
                self._keep(value)
                self._note(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, (torch.Tensor, np.ndarray)):
                self._others.append((value, copy.deepcopy(value)))
            elif isinstance(value, nn.ModuleList) or op_type_of(value) is not None:
                if hasattr(value, "__dict__"):
                    self._note([vars(value)])
                else:
                    self._others.append((value, copy.deepcopy(value)))

    def _keep(self, collection: Any) -> None:
        if collection:
            self._live.append(collection)
            self._kept.append(copy.copy(collection))
        else:  # a module has a dozen for hooks
            self._empty.append(collection)

    def _is_met(self, value: Any) -> bool:
        met = id(value) in self._met
        self._met.add(id(value))
        return met
