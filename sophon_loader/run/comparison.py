"""Checks that `dataset[i]` equals the result of its parts: `(transform(image), target(i))`, as the protocol promises.

A dataset with `root`, `transform`, `key` and `target` may do more in its `__getitem__`: convert the image, return a
third value, transform image and label together. Offloaded it would silently lose that, so a few samples are compared.
This is done without an agent as well: samples are made of the parts there, too, so that they are the same with one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from sophon_loader.datasets.indices import as_integer
from sophon_loader.datasets.pipelines import transforms_of
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.datasets.recognised import Transforms
from sophon_loader.datasets.without_gain import why_no_gain
from sophon_loader.errors import must_leave
from sophon_loader.host.regular import read_regular
from sophon_loader.order.order import Order
from sophon_loader.pipeline.chain import decode, isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import seed_generators
from sophon_loader.run.trial_process import tried_apart
from sophon_loader.workers.alike import difference, kind_of

COMPARED = 3
"""Number of samples compared per dataset: the first, the last, and one between."""
_SEED = 20240710


_GIVE_INTEGERS = (RandomSampler, SequentialSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers that give integers, so their first index is not checked."""


def unlike_its_parts(data: Offloadable, order: Order | None = None) -> str | None:
    """Return the reason why the parts do not give `dataset[i]`, for datasets that promise it; None if they agree.

    The parts need integers as indices (not names, tuples, lists), so the first index of the samplers in `order` is
    checked, too. The result is also None if a sample's file cannot be read on this host, so that nothing can be
    compared. The user's objects are called in another process (`trial_process.py`), so that workers begin with them as
    they are.

    Raises:
        NotTried: they could not be compared.
    """
    if not any(source.promised and len(owner) for source, owner in zip(data.sources, data.owners, strict=True)):
        return None
    return tried_apart(lambda: _odd_index(order) or _first_difference(data))


def _odd_index(order: Order | None) -> str | None:
    if order is None or type(order.source) in _GIVE_INTEGERS:
        return None
    try:
        entry = next(iter(order.whole))
        first = entry if order.batch_sampler is None else next(iter(entry))
    except Exception:  # no index, or an error that the epoch will raise
        return None
    try:
        as_integer(first)
    except TypeError:
        return f"the sampler must give integers to a dataset that is taken apart, and gives {kind_of(first)}"
    return None


def _first_difference(data: Offloadable) -> str | None:
    for source, owner in zip(data.sources, data.owners, strict=True):
        length = len(owner) if source.promised else 0
        transforms = transforms_of(owner)
        for row in sorted({0, length // 2, length - 1}) if length else ():
            found = _difference(owner, source, transforms, row)
            if found is not None:
                kind = why_no_gain(owner)
                return f"the dataset does more than its parts: {found}{f'; {kind}' if kind else ''}"
    return None


def _difference(owner: Any, source: Source, transforms: Transforms, row: int) -> str | None:
    transform, target_transform = transforms
    name = f"dataset[{row}]"
    try:
        data = read_regular(os.path.join(str(source.root), source.keys[row]))
    except Exception:  # no such file here, or the user's `key` fails, which the epoch will say
        return None

    def image() -> Any:
        return decode(data) if transform is None else transform(decode(data))

    def label() -> Any:
        if target_transform is None:
            return source.target(row)
        image()  # which draws first, from the same generators
        return target_transform(source.target(row))

    with isolated(GENERATORS):
        theirs = _outcome(lambda: owner[row])
        parts = [_outcome(image) for _ in range(2)]
        targets = [_outcome(label) for _ in range(2)]
    if isinstance(theirs, _Raised):
        fails = isinstance(parts[0], _Raised) or isinstance(targets[0], _Raised)
        return None if fails else f"{name} raises {theirs.text}, while its file, transform and target do not"
    if isinstance(parts[0], _Raised):
        return f"transform raises {parts[0].text} for the file of {name}, while {name} itself does not"
    if type(theirs) is not tuple or len(theirs) != 2:
        return f"{name} is {kind_of(theirs)}, not a tuple of image and target"
    for position, (what, (one, again)) in enumerate((("transform(image)", parts), (f"target({row})", targets))):
        # One that is not the same twice under the same seeds has random numbers of its own.
        steady = difference(one, again) is None
        found = difference(theirs[position], one, values=steady)
        if found is not None:
            return f"{name}[{position}]{found[0]} is {found[1]}, where {what} gives {found[2]}"
    return None


class _Raised:
    """An exception in place of a value."""

    def __init__(self, error: Exception) -> None:
        self.text = f"{type(error).__name__}: {error}"


def _outcome(make: Callable[[], Any]) -> Any:
    seed_generators(GENERATORS, _SEED)
    try:
        return make()
    except Exception as error:  # the boundary to the user's dataset
        if must_leave(error):
            raise
        return _Raised(error)
