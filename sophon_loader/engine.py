"""What drives an offloading loader in the main process: the agreement with the agent, the plan, the epochs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.local_agent import LocalAgent
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets import Offloadable, Source
from sophon_loader.decide.facts import Facts, Rates
from sophon_loader.decide.policies import Policy
from sophon_loader.encodings.names import encoding_names
from sophon_loader.errors import ConfigError
from sophon_loader.host import software
from sophon_loader.offloaded import OffloadedDataset, SharedPlan
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.report import Report
from sophon_loader.statistics import Statistics
from sophon_loader.wire.messages import Welcome

_PROBED = 8
"""How many files are compared by size before the first epoch."""
_UNKNOWN = Rates(math.inf, math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Agreement:
    """What came of the handshake: the terms for the workers, and per source the last stage the agent reaches."""

    terms: Terms
    reach: tuple[int, ...]
    notes: tuple[str, ...]


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
        self._agent = agent
        self._address = Address.parse(agent) if agent not in (None, "local") else None
        self._local_agent: LocalAgent | None = None
        self._policy = policy
        self._encodings = tuple(name for name in encoding_names() if name in encodings)
        self._statistics = Statistics(rows, encoding_names())
        self._plan = SharedPlan(len(data), encoding_names())
        self._iteration = 0
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
        owners = self.data.owners
        transforms = [(owner.transform, getattr(owner, "target_transform", None)) for owner in owners]
        chains = tuple(chain_of(transform) for transform, _ in transforms)
        if self._dataset is not None and _same_pipelines(self._transforms, transforms, self._chains, chains):
            return self._dataset
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
        roots = [source.root for source in self.data.sources]
        base, prefixes = _common(roots)
        if self._agent == "local" and self._local_agent is None:
            if base is None:
                raise ConfigError("agent='local' must have a dataset on this host, got a RemoteImageFolder")
            self._local_agent = LocalAgent(base, self.options)
        address = self._local_agent.address if self._local_agent else self._address
        assert address is not None
        descriptions = tuple(chain.description for chain in self._chains)
        connection = Connection(address, window=1)
        try:
            welcome = connection.greet(self.options.connect_timeout_s)
            keep_info = tuple(bool(chain.local_ops) for chain in self._chains)
            terms = Terms(address, self.options, welcome.instance, prefixes, descriptions, keep_info, seed)
            self._check_files(connection, terms)
            reach, notes = self._reach(connection, welcome, descriptions)
        finally:
            connection.close()
        return Agreement(terms, reach, notes)

    def _reach(
        self, connection: Connection, welcome: Welcome, descriptions: tuple[bytes, ...]
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Per source the last stage that the agent can reach, and what a user should know of it."""
        here = software()
        differ = sorted(k for k in here if here[k] != welcome.software.get(k))
        if differ:
            both = ", ".join(f"{k} {here[k]} here and {welcome.software.get(k)} there" for k in differ)
            note = f"no op runs at the agent, because its pixels could differ: {both}"
            return tuple(0 for _ in descriptions), (note,)
        # Building the ops for the first time takes the agent's workers as long as importing torchvision does.
        timeout_s = self.options.connect_timeout_s + 60.0
        reach = tuple(connection.register(description, timeout_s) for description in descriptions)
        notes = [
            f"the agent knows only the first {ops} ops of the pipeline; {chain.ops[ops].label} is not registered there"
            for ops, chain in zip(reach, self._chains, strict=True)
            if ops < chain.describable
        ]
        return reach, tuple(notes)

    def _check_files(self, connection: Connection, terms: Terms) -> None:
        """See at a few files that the agent serves this dataset and not another one."""
        step = max(1, len(self.data) // _PROBED)
        probed = [self._key_and_path(terms, index) for index in range(0, len(self.data), step)]
        answer = connection.sizes([key for key, _ in probed], self.options.dead_after_s)
        for (key, path), nbytes in zip(probed, answer.nbytes, strict=True):
            if path is None or not os.path.exists(path):
                continue  # only the agent has it; a failure shows when it is asked for
            here = os.path.getsize(path)
            if here != nbytes:
                found = "no such file" if nbytes < 0 else f"{nbytes} bytes"
                raise ConfigError(
                    f"the dataset must lie under the export, got {path} ({here} bytes) here and {found} for {key!r} at "
                    f"{terms.address} (folder {answer.root}); if the dataset is a folder of the export, "
                    "add it to the address: tcp://host:port/export/folder"
                )

    def _key_and_path(self, terms: Terms, index: int) -> tuple[str, str | None]:
        source_number, row = self.data.locate(index)
        source: Source = self.data.sources[source_number]
        key = source.keys[row]
        return terms.key(source_number, key), None if source.root is None else os.path.join(source.root, key)

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
        """End the local agent, if there is one."""
        if self._local_agent is not None:
            self._local_agent.close()
            self._local_agent = None


class EpochIterator(Iterator[Any]):
    """Yields an epoch's batches and measures it."""

    def __init__(self, engine: Engine, batches: Iterator[Any], length: int) -> None:
        self._engine = engine
        self._batches = batches
        self._length = length
        self._before = engine._statistics.snapshot()
        self._started_s = time.perf_counter()
        self._epoch = engine.current()[1]

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
        totals = self._engine._statistics.since(self._before)
        self._engine._report.update(self._epoch, time.perf_counter() - self._started_s, totals)


def _common(roots: list[str | None]) -> tuple[str | None, tuple[str, ...]]:
    """The folder that holds all roots, and each root's path in it ("" for the folder itself)."""
    known = [root for root in roots if root is not None]
    if len(known) < len(roots):
        return None, tuple("" for _ in roots)
    base = os.path.commonpath([os.path.abspath(root) for root in known])
    paths = (os.path.relpath(os.path.abspath(root), base) for root in known)
    return base, tuple("" if path == "." else path for path in paths)


def _same_pipelines(
    before: list[tuple[Any, Any]], now: list[tuple[Any, Any]], chains_before: Sequence[Chain], chains: Sequence[Chain]
) -> bool:
    """Whether neither a transform was replaced nor the parameters of one were changed."""
    same_objects = all(a is b for old, new in zip(before, now, strict=True) for a, b in zip(old, new, strict=True))
    return same_objects and [chain.description for chain in chains_before] == [chain.description for chain in chains]
