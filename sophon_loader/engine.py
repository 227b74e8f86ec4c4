"""What drives an offloading loader in the main process: the agreement with the agent, the plan, the epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sophon_loader.agreement import Agreement, agree, common_root, own_address
from sophon_loader.client.address import Address
from sophon_loader.client.local_agent import LocalAgent
from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets import Offloadable, transforms_of
from sophon_loader.decide.facts import Facts, Rates
from sophon_loader.decide.policies import Policy
from sophon_loader.encodings.names import encoding_names
from sophon_loader.errors import ConfigError
from sophon_loader.offloaded import OffloadedDataset, SharedPlan
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.report import Report
from sophon_loader.statistics import Statistics

_UNKNOWN = Rates(math.inf, math.inf, math.inf, math.inf)


class Engine:
    """The state of one OffloadingDataLoader whose dataset can be offloaded.

    Args:
        agent: an address, "local", or None to read all files on this host.
        encodings: names that may be used on the wire.
        rows: number of processes that load.
    """

    def __init__(
        self,
        data: Offloadable,
        agent: str | None,
        policy: Policy,
        encodings: Sequence[str],
        options: OffloadOptions,
        rows: int,
    ) -> None:
        self.data = data
        self.options = options
        own = own_address(data)
        self._agent = str(own) if agent is None and own is not None else agent
        self._address = Address.parse(self._agent) if self._agent not in (None, "local") else None
        self._local_agent: LocalAgent | None = None
        self._policy = policy
        self._encodings = tuple(name for name in encoding_names() if name in encodings)
        self._statistics = Statistics(rows, encoding_names())
        self._plan = SharedPlan(len(data), encoding_names())
        self._iteration = self._epoch = 0
        self._chains: tuple[Chain, ...] = ()
        self._transforms: list[tuple[Any, Any]] = []
        self._dataset: OffloadedDataset | None = None
        self._agreement: Agreement | None = None
        self._report = Report(policy=policy.name)

    # --- before the first epoch -------------------------------------------------------------------------------

    def prepare(self, seed: int) -> OffloadedDataset:
        """Agree with the agent and plan; the dataset that the workers shall use from now on.

        Called before every epoch that starts new workers; does nothing while the transforms stay the same.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        transforms = [transforms_of(owner) for owner in self.data.owners]
        chains = tuple(chain_of(transform) for transform, _ in transforms)
        if self._dataset is not None and _same_pipelines(self._transforms, transforms, self._chains, chains):
            return self._dataset
        self._forget_dataset()
        self._chains, self._transforms = chains, transforms
        self._agreement = self._agree(seed) if self._agent is not None and len(self.data) else None
        reach = self._agreement.reach if self._agreement else tuple(0 for _ in chains)
        plan = self._policy.plan(self._facts(reach))
        self._plan.set(plan)
        self._report.plan_reason = plan.reason
        self._report.notes = self._notes()
        terms = self._agreement.terms if self._agreement else None
        targets = [target for _, target in transforms]
        self._dataset = OffloadedDataset(self.data, chains, targets, reach, self._plan, self._statistics, terms, seed)
        return self._dataset

    def _facts(self, reach: tuple[int, ...]) -> Facts:
        cuts = [chain.resize_cut for chain in self._chains if chain.resize_cut is not None]
        farthest = max(reach, default=0)
        resize_cut = min(max(cuts), farthest) if cuts and farthest else None
        return Facts(len(self.data), _UNKNOWN, None, farthest, resize_cut or None, 0.0)

    def _notes(self) -> tuple[str, ...]:
        local = sorted({label for chain in self._chains for label in chain.local_ops[:1]})
        notes = [f"{label} and what follows it stays at the loader: the op is not registered" for label in local]
        return (*notes, *(self._agreement.notes if self._agreement else ()))

    def _agree(self, seed: int) -> Agreement:
        if self._agent == "local" and self._local_agent is None:
            base = common_root(self.data)
            if base is None or any(source.root is None for source in self.data.sources):
                raise ConfigError("agent='local' must have a dataset on this host, got a RemoteImageFolder")
            self._local_agent = LocalAgent(base, self.options)
        address = self._local_agent.address if self._local_agent else self._address
        assert address is not None
        return agree(self.data, self._chains, address, self.options, seed)

    # --- epochs -----------------------------------------------------------------------------------------------

    def begin(self, epoch: int) -> int:
        """A new iteration starts; returns its number."""
        self._iteration += 1
        self._epoch = epoch
        return self._iteration

    def current(self) -> tuple[int, int]:
        """(iteration, epoch) of the iteration that has begun last."""
        return self._iteration, self._epoch

    def watch(self, batches: Iterator[Any], length: int) -> EpochIterator:
        """The user's iterator over an epoch's batches, which keeps the report up to date."""
        return EpochIterator(self, batches, length)

    def report(self) -> Report:
        """The report of the last epoch, or of the running one so far."""
        return self._report

    def close(self) -> None:
        """End the local agent and this process's connection, if there are any; a later epoch starts them anew."""
        self._forget_dataset()
        if self._local_agent is not None:
            self._local_agent.close()
            self._local_agent = None

    def _forget_dataset(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
            self._dataset = None


class EpochIterator(Iterator[Any]):
    """Yields an epoch's batches and measures it."""

    def __init__(self, engine: Engine, batches: Iterator[Any], length: int) -> None:
        self._engine = engine
        self._batches = batches
        self._length = length
        self._started_s = time.perf_counter()
        self._iteration, self._epoch = engine.current()

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        finally:
            self._note_progress()

    def _note_progress(self) -> None:
        if self._iteration != self._engine.current()[0]:
            return  # an abandoned iteration; the report is about the newest
        totals = self._engine._statistics.totals(self._iteration)
        self._engine._report.update(self._epoch, time.perf_counter() - self._started_s, totals)


def _same_pipelines(
    before: list[tuple[Any, Any]], now: list[tuple[Any, Any]], chains_before: Sequence[Chain], chains: Sequence[Chain]
) -> bool:
    """Whether neither a transform was replaced nor the parameters of one were changed."""
    same_objects = all(a is b for old, new in zip(before, now, strict=True) for a, b in zip(old, new, strict=True))
    return same_objects and all(map(_same_chain, chains_before, chains))


def _same_chain(before: Chain, now: Chain) -> bool:
    # The objects too: one without a description, or behind such a one, may have been replaced in its Compose.
    return (
        len(before) == len(now)
        and all(old.call is new.call for old, new in zip(before.ops, now.ops, strict=True))
        and before.description == now.description
    )
