"""A dataset's transforms as they are now, and whether they still are what they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchvision.datasets import DatasetFolder

from sophon_loader.datasets.protocol import Transform
from sophon_loader.datasets.remote import RemoteImageFolder
from sophon_loader.pipeline.chain import Chain, chain_of


def transforms_of(owner: Any) -> tuple[Transform | None, Transform | None]:
    """The transform and the target transform of a dataset that a source comes from, as they are now."""
    # The protocol's target(index) is the label as the training loop gets it, whatever else the dataset has.
    labels = owner.target_transform if isinstance(owner, (DatasetFolder, RemoteImageFolder)) else None
    return owner.transform, labels


@dataclass(frozen=True)
class Pipeline:
    """What a dataset does to its samples, as it is now."""

    transform: Transform | None
    target_transform: Transform | None
    chain: Chain


def pipeline_of(owner: Any) -> Pipeline:
    """The pipeline of a dataset that a source comes from."""
    transform, target_transform = transforms_of(owner)
    return Pipeline(transform, target_transform, chain_of(transform))


def same_pipeline(before: Pipeline, now: Pipeline) -> bool:
    """Whether neither a transform was replaced nor the parameters of one were changed.

    Args:
        before, now: the pipeline of one dataset at two moments.
    """
    old, new = before.chain, now.chain
    # The objects too: one without a description, or behind such a one, may have been replaced in its Compose.
    return (
        before.transform is now.transform
        and before.target_transform is now.target_transform
        and len(old) == len(new)
        and all(one.call is other.call for one, other in zip(old.ops, new.ops, strict=True))
        and old.description == new.description
    )
