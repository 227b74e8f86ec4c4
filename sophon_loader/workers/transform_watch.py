"""The pipelines that samples are made by, in a process whose transforms may change within an epoch.

In the main process (`num_workers=0`) the user's loop may change them between two batches; in a worker, whoever else has
memory in which an op keeps its parameters. Both act in torch's DataLoader from the next batch on, and so they do here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from sophon_loader.datasets.look import watch_of_parts
from sophon_loader.datasets.pipelines import Pipeline, described_ops, pipeline_of, same_ops, same_pipeline, watch_of
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.datasets.recognised import rule_of
from sophon_loader.errors import ConfigError
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.op import Op
from sophon_loader.pipeline.op_catalogue import op_type_of
from sophon_loader.pipeline.op_registry import op_of
from sophon_loader.pipeline.watch import Watch
from sophon_loader.workers.source_steps import Steps


class TransformWatch:
    """Says by which steps samples are made now.

    Args:
        data: the dataset, taken apart.
        steps: one per source of `data`, as agreed on with the agent.
        pipelines: of the dataset, from which the steps were made; none for a dataset that does not change.

    Attributes:
        agreed: the steps that were agreed on.
        steps: those of now.
        as_agreed: whether the agent may be asked for more than files: it knows the ops with their parameters of now.

    Example:
        >>> following = TransformWatch(data, steps, pipelines)
        >>> data.owners[0].transform = v1.ToTensor()
        >>> following.look(), following.as_agreed
        (True, False)
    """

    def __init__(self, data: Offloadable, steps: Sequence[Steps], pipelines: Sequence[Pipeline] = ()) -> None:
        self._data = data
        self._pipelines = tuple(pipelines)
        self._watch: Watch | None = None
        self._parts = watch_of_parts(data.whole) if pipelines else None
        self.agree(steps)
        if pipelines:
            self._watch = watch_of(data.owners, pipelines)

    def agree(self, steps: Sequence[Steps]) -> None:
        """Begin anew, by these steps; what of them is not so any more is seen by the next look."""
        self.agreed = self.steps = tuple(steps)
        self.as_agreed = True
        self._now, self._watch = self._pipelines, None

    def look(self) -> bool:
        """Whether samples are made by other steps from now on than before; to be called before each batch.

        Raises:
            ConfigError: a change that cannot be followed within an epoch.
        """
        in_main = bool(self._pipelines) and get_worker_info() is None
        if in_main and self._parts is not None and self._parts.changed():
            raise _refusal("samples, indices or loader")
        if self._watch is not None and not self._watch.changed():
            return False
        return self._look_at_transforms() if in_main else self._look_at_ops()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipelines": (), "_now": (), "_watch": None, "_parts": None}

    def _look_at_transforms(self) -> bool:
        owners = self._data.owners
        now = tuple(map(pipeline_of, owners))
        changed = not all(map(same_pipeline, self._now, now))
        if changed:
            self._check(now)
        self._now, self._watch = now, watch_of(owners, now)
        if changed:
            self._take(
                [
                    replace(one, chain=two.chain, target_transform=two.target_transform, target_position=len(two.chain))
                    for one, two in zip(self.agreed, now, strict=True)
                ]
            )
        return changed

    def _check(self, now: Sequence[Pipeline]) -> None:
        """See that changed pipelines can be followed: until they are put back, every look raises the same."""
        if any(one.chain is not two.chain for one, two in zip(self.agreed, self._pipelines, strict=True)):
            raise _refusal("transform, whose last ops run with whole batches (tail=)")
        rules = [(owner, rule_of(owner)) for owner in self._data.owners]
        if not all(rule is None or rule.opens_as_rgb(owner) for owner, rule in rules):
            raise _refusal("transform to one that does not begin with RGB()")

    def _look_at_ops(self) -> bool:
        """The same where the dataset is a copy: only what its ops share with other processes can change."""
        both = zip(self.agreed, self.steps, strict=True)
        steps = [replace(one, chain=_as_now(two.chain)) for one, two in both]
        self._watch = Watch([], described_ops([one.chain for one in steps]))
        if all(same_ops(one.chain, two.chain) for one, two in zip(self.steps, steps, strict=True)):
            return False
        self._take(steps)
        return True

    def _take(self, steps: Sequence[Steps]) -> None:
        self.as_agreed = all(map(_agreed_alike, self.agreed, steps))
        self.steps = tuple(steps) if self.as_agreed else tuple(replace(one, reach=0) for one in steps)


def _agreed_alike(one: Steps, other: Steps) -> bool:
    """Whether what an agent was told of one holds for the other."""
    a, b = one.chain, other.chain
    return len(a) == len(b) and a.description == b.description and a.keeps_info == b.keeps_info


def _as_now(chain: Chain) -> Chain:
    return replace(chain, ops=tuple(map(_op_as_now, chain.ops)))


def _op_as_now(op: Op) -> Op:
    return op if op.spec is None or op_type_of(op.call) is None else op_of(op.call)


def _refusal(what: str) -> ConfigError:
    return ConfigError(
        f"the loop must not change the dataset's {what} within an epoch where num_workers=0; make that change between "
        "epochs, or use torch's DataLoader"
    )
