"""A dataset's transforms as they are now, and checks for changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any

from sophon_loader.datasets.look import owners
from sophon_loader.datasets.protocol import Transform
from sophon_loader.datasets.recognised import known_classes, rule_of
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.op import Op
from sophon_loader.pipeline.op_registry import classes_of
from sophon_loader.pipeline.replaced import (
    Replaced,
    is_checked,
    replaced_in_dataset,
    replaced_in_pillow,
    replaced_in_transform,
)
from sophon_loader.pipeline.watch import Watch


def transforms_of(owner: Any) -> tuple[Transform | None, Transform | None]:
    """Return (transform, target transform) of a source's dataset, as they are now."""
    rule = rule_of(owner)
    # The protocol's target(index) is the label as the training loop gets it, even if the dataset has a
    # target_transform.
    return (owner.transform, None) if rule is None else rule.transforms(owner)


@dataclass(frozen=True)
class Pipeline:
    """The transforms of a dataset, as they are now."""

    transform: Transform | None
    target_transform: Transform | None
    chain: Chain


def pipeline_of(owner: Any) -> Pipeline:
    """Return the pipeline of a source's dataset."""
    transform, target_transform = transforms_of(owner)
    return Pipeline(transform, target_transform, chain_of(transform))


def rests_on(dataset: Any) -> tuple[type, ...]:
    """Return the library classes whose functions make a dataset's samples; they travel to spawned workers by name."""
    found: dict[type, None] = {}
    for owner in owners(dataset):
        found.update(dict.fromkeys(known_classes(owner)))
        for op in pipeline_of(owner).chain.ops:
            found.update(dict.fromkeys(classes_of(op.call)))
    return tuple(filter(is_checked, found))


def replaced_among(classes: Iterable[type]) -> Iterator[Replaced]:
    """Yield the functions replaced in this process that these classes call, or that Pillow calls to make pixels.

    Args:
        classes: result of `rests_on`.
    """
    for cls in classes:
        what = replaced_in_dataset(cls) if hasattr(cls, "__getitem__") else replaced_in_transform(cls)
        yield from filter(None, [what])
    yield from filter(None, [replaced_in_pillow()])


def same_pipeline(before: Pipeline, now: Pipeline) -> bool:
    """Return True if no transform was replaced and no transform's parameters were changed.

    Args:
        before, now: the pipeline of one dataset at two moments.
    """
    return (
        _same_call(before.transform, now.transform)
        and _same_call(before.target_transform, now.target_transform)
        and same_ops(before.chain, now.chain)
    )


def same_ops(one: Chain, other: Chain) -> bool:
    """Return True if two chains have equal ops.

    All ops are compared, since one without a description may have been replaced in its Compose, and so may later ones.
    """
    return len(one) == len(other) and all(map(_same_op, one.ops, other.ops))


def _same_op(one: Op, other: Op) -> bool:
    """Return True if two ops are identical or described alike (a preset's steps are new objects at each look)."""
    return _same_call(one.call, other.call) if one.spec is None else one.spec == other.spec


def _same_call(one: Any, other: Any) -> bool:
    """Return True if two transforms are identical. Methods are compared by value: each access makes a new object."""
    return one is other or (type(one) is type(other) is MethodType and bool(one == other))


def watch_of(owners: Sequence[Any], pipelines: Sequence[Pipeline]) -> Watch:
    """Return a watch that notices later changes of datasets' pipelines.

    Args:
        owners: the datasets.
        pipelines: one pipeline per dataset.
    """
    transforms = [one.transform for one in pipelines]
    return Watch(transforms, described_ops([one.chain for one in pipelines]), [(o, _names(o)) for o in owners])


def described_ops(chains: Sequence[Chain]) -> list[Any]:
    """Return the transforms whose parameters an agent may know."""
    return [op.call for chain in chains for op in chain.ops if op.spec is not None]


def _names(owner: Any) -> Sequence[str]:
    """Return the names of the attributes that hold a dataset's transforms."""
    rule = rule_of(owner)
    return ("transform",) if rule is None else rule.holds(owner)
