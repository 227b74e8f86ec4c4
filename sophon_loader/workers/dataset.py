"""The dataset that loader workers see: it turns tickets into samples, with the agent's help or without."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from sophon_loader.client.requests import BatchId, Reply, Wanted
from sophon_loader.client.session import LookAhead, Session, Terms
from sophon_loader.datasets.protocol import Offloadable, Source, Transform
from sophon_loader.decide.facts import Choice
from sophon_loader.encodings.registry import decode
from sophon_loader.errors import AgentUnreachable, EncodingError, MalformedMessage, SophonError, add_note
from sophon_loader.pipeline.chain import Chain, isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.pushdown import PartOfFile, run_from_file
from sophon_loader.pipeline.randomness import Draw, op_seed, seed_generators
from sophon_loader.profiling.costs import region_share
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.wire.failures import error_of
from sophon_loader.workers.counters import Row, Statistics
from sophon_loader.workers.plan import SharedPlan, allowed_choice
from sophon_loader.workers.tickets import QueuedTickets, Ticket


class OffloadedDataset(Dataset[Any]):
    """Given a ticket, gives its samples.

    Args:
        chains, target_transforms: one per source of `data`.
        target_positions: per source, the position whose random numbers the target transform draws.
        reach: per source, the last stage that the agent can reach.
        profile: what workers measure, while it is recording.
        terms: None to read all files below the sources' roots.
        seed: of the run.
    """

    def __init__(
        self,
        data: Offloadable,
        chains: Sequence[Chain],
        target_transforms: Sequence[Transform | None],
        target_positions: Sequence[int],
        reach: Sequence[int],
        plan: SharedPlan,
        statistics: Statistics,
        profile: SampleProfile,
        terms: Terms | None,
        seed: int,
    ) -> None:
        self._data = data
        self._chains = tuple(chains)
        self._target_transforms = tuple(target_transforms)
        self._target_positions = tuple(target_positions)
        self._reach = tuple(reach)
        self._plan = plan
        self._statistics = statistics
        self._profile = profile
        self._terms = terms
        self._seed = seed
        drawn = {name for chain in chains for name in chain.draws}
        labelled = any(transform is not None for transform in target_transforms)
        self._draws = GENERATORS if labelled else tuple(name for name in GENERATORS if name in drawn)
        self._process: tuple[int, Session | None, Row] | None = None
        self.queued: QueuedTickets | None = None
        """Where the tickets of later batches are, for a look-ahead."""

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, ticket: Ticket) -> Any:
        return self.__getitems__(ticket)[0]

    def __getitems__(self, ticket: Ticket) -> list[Any]:
        session, row = self._own()
        row.begin(ticket.batch.iteration)
        # A worker's process has no other work; in the main process other threads must not be counted.
        clock = time.thread_time if get_worker_info() is None else time.process_time
        started_s = clock()
        before = (session.received_nbytes, session.retries, session.waited_s) if session else (0, 0, 0.0)
        samples: list[Any] = [None] * len(ticket.indices)
        with isolated(self._draws):
            replies = self._replies(session, ticket)
            try:
                for reply in replies:
                    samples[reply.position] = self._finish(reply, ticket.batch.epoch, row)
            except AgentUnreachable:
                self.close()  # so that the next attempt begins with some patience
                raise
            finally:
                replies.close()
        if session is not None:
            row.add(wire_bytes=session.received_nbytes - before[0], retries=session.retries - before[1])
            row.add(waited_s=session.waited_s - before[2])
            self._statistics.agent_gone.array[self._worker] = session.gone
        row.add(loader_cpu_s=clock() - started_s)
        return samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}

    def _own(self) -> tuple[Session | None, Row]:
        """This process's session and statistics; a forked copy of this object makes its own."""
        pid = os.getpid()
        if self._process is None or self._process[0] != pid:
            session = None
            if self._terms is not None:
                gone = bool(self._statistics.agent_gone.array[self._worker])
                session = Session(self._terms, gone=gone and self._has_files_here)
            self._process = (pid, session, self._statistics.row(self._worker))
        return self._process[1], self._process[2]

    @property
    def _worker(self) -> int:
        worker = get_worker_info()
        return int(worker.id) if worker else 0

    @property
    def _has_files_here(self) -> bool:
        return all(source.root is not None and os.path.isdir(source.root) for source in self._data.sources)

    def close(self) -> None:
        """Close this process's connection, if it has one."""
        if self._process is not None and self._process[0] == os.getpid() and self._process[1] is not None:
            self._process[1].close()
        self._process = None

    # --- asking -----------------------------------------------------------------------------------------------

    def _replies(self, session: Session | None, ticket: Ticket) -> Generator[Reply, None, None]:
        if session is None:
            wanted = self._wanted(ticket)
            return (Reply(one, position) for position, one in enumerate(wanted))
        return session.replies(ticket.batch, lambda: self._wanted(ticket), self._look_ahead(ticket.batch))

    def _look_ahead(self, batch: BatchId) -> LookAhead | None:
        """What tells a session of this worker's next batch, as soon as that is queued."""
        worker, queued = get_worker_info(), self.queued
        if worker is None or queued is None:
            return None
        failed = False

        def look() -> tuple[BatchId, list[Wanted]] | None:
            nonlocal failed
            ticket = None if failed else queued.get(batch.iteration, batch.number + worker.num_workers)
            try:
                return None if ticket is None else (ticket.batch, self._wanted(ticket))
            except Exception:  # of the user's dataset: raised when that batch is due, and not in this one
                failed = True
                return None

        return look

    def _wanted(self, ticket: Ticket) -> list[Wanted]:
        drawn = [(self._checked(index), occurrence) for index, occurrence in ticket.samples()]
        located = [self._data.locate(index) for index, _ in drawn]

        def shares() -> NDArray[np.float64]:
            sides, seed, epoch = self._profile.sides, self._seed, ticket.batch.epoch
            return np.array(
                [
                    region_share(self._chains[source], sides[index], Draw(seed, epoch, index, occurrence))
                    for (index, occurrence), (source, _) in zip(drawn, located, strict=True)
                ]
            )

        choices = self._plan.choose([index for index, _ in drawn], shares, self._profile)
        return [
            self._wanted_one(index, occurrence, source, row, choice)
            for (index, occurrence), (source, row), choice in zip(drawn, located, choices, strict=True)
        ]

    def _checked(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index of the sampler must be below {len(self)}, got {index}")
        return index % len(self)

    def _wanted_one(self, index: int, occurrence: int, source: int, row: int, choice: Choice) -> Wanted:
        if choice.cut > self._reach[source]:
            allowed = self._terms.allowed if self._terms is not None else ()
            choice = allowed_choice(Choice(self._reach[source], "pixels"), allowed)
        key = self._data.sources[source].keys[row]
        return Wanted(source, index, choice.cut, choice.encoding, key, occurrence)

    # --- finishing --------------------------------------------------------------------------------------------

    def _finish(self, reply: Reply, epoch: int, row: Row) -> Any:
        index, key = reply.wanted.sample, reply.wanted.key
        try:
            return self._finished(reply, epoch, row)
        except Exception as error:
            where = f"agent {self._terms.address}" if self._terms else "no agent"
            note = f"sample {index}, key {key!r}, {where}"
            if reply.sample is not None and reply.sample.note:
                note += f"; before, the agent said: {reply.sample.note}"
            add_note(error, note)
            raise

    def _finished(self, reply: Reply, epoch: int, row: Row) -> Any:
        index = reply.wanted.sample
        source_number, source_row = self._data.locate(index)
        source, chain = self._data.sources[source_number], self._chains[source_number]
        value, cut = self._value(reply, source, row)
        draw = Draw(self._seed, epoch, index, reply.wanted.occurrence)
        value = self._run(chain, value, cut, draw, self._reach[source_number])
        target = source.target(source_row)
        target_transform = self._target_transforms[source_number]
        if target_transform is not None:
            seed_generators(GENERATORS, op_seed(draw, self._target_positions[source_number]))
            target = target_transform(target)
        return value, target

    def _run(self, chain: Chain, value: Any, cut: int, draw: Draw, reach: int) -> Any:
        if isinstance(value, PartOfFile):
            return chain.run(value.data, 0, len(chain), draw, window=value.window)
        if cut > 0:
            return chain.run(value, cut, len(chain), draw)
        if not self._profile.recording:
            return run_from_file(chain, value, len(chain), draw, keep_info=chain.keeps_info)
        measured = self._profile.measure(len(value), reach)
        value = chain.run(value, 0, len(chain), draw, after=measured.after)
        self._profile.store(draw.index, measured)
        return value

    def _value(self, reply: Reply, source: Source, row: Row) -> tuple[Any, int]:
        """The value at the cut, and the cut."""
        if reply.failed is not None:
            raise self._error(reply)
        if reply.sample is None:
            data = self._read(source, reply.wanted)
            row.count_file(len(data))
            row.add(fallbacks=self._terms is not None and not (self._terms.files_here and reply.wanted.is_file))
            return data, 0
        sample = reply.sample
        if sample.cut > reply.wanted.cut:
            where = self._terms.address if self._terms else None
            raise MalformedMessage(f"agent must not go past cut {reply.wanted.cut}, got {sample.cut} from {where}")
        try:
            value = decode(sample.encoding, sample.meta, reply.payload)
        except EncodingError as error:
            raise MalformedMessage(f"agent must send what {sample.encoding!r} is in docs/wire.md: {error}") from error
        row.count(sample, reply.wanted.cut, reply.turnaround_s)
        return value, sample.cut

    def _error(self, reply: Reply) -> SophonError:
        assert reply.failed is not None
        return error_of(
            reply.failed.failure,
            f"{reply.failed.text} (sample {reply.wanted.sample}, agent {self._terms and self._terms.address}); "
            "the dataset and the export must hold the same files",
        )

    def _read(self, source: Source, wanted: Wanted) -> bytes:
        if source.root is None or (self._terms is not None and not os.path.isdir(source.root)):
            silent_s = self._terms.options.dead_after_s if self._terms else 0
            raise AgentUnreachable(
                f"agent {self._terms.address if self._terms else None} must answer, got silence for {silent_s:g} s; "
                f"sample {wanted.sample} ({wanted.key!r}) cannot be read on this host either (root {source.root}); "
                "restart the agent and continue from the last checkpoint"
            )
        with open(os.path.join(source.root, wanted.key), "rb") as file:
            return file.read()
