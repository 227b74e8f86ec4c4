"""The dataset that loader workers see: it turns tickets into samples, with the agent's help or without."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch.utils.data import Dataset, get_worker_info

from sophon_loader.auto.shared_live import Live
from sophon_loader.batches.slots import Slots
from sophon_loader.cache.cache import Cache
from sophon_loader.cache.worker_cache import WorkerCache
from sophon_loader.client.session import Session
from sophon_loader.client.wanted import BatchId, Reply, Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.pipelines import Pipeline
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.datasets.targets import IntTargets, ObjectTargets
from sophon_loader.errors import AgentUnreachable, ConfigError, frames_for_user, raised_by_handler
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.fleet.worker_fleet import WorkerFleet
from sophon_loader.host.system import now_s
from sophon_loader.logs import log_line
from sophon_loader.measures.counters import Row, Statistics
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.measures.worker_notes import kept_here
from sophon_loader.native.fused import checked
from sophon_loader.order.tickets import QueuedTickets, Ticket
from sophon_loader.pipeline.chain import isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Seed, in_main_thread
from sophon_loader.pipeline.software import not_of_switches
from sophon_loader.pipeline.switches import settings
from sophon_loader.workers.choosing import Chooser
from sophon_loader.workers.drawing import Drawer
from sophon_loader.workers.finishing import Finisher
from sophon_loader.workers.meter import Meter
from sophon_loader.workers.shared_headers import SharedHeaders
from sophon_loader.workers.shared_plan import SharedPlan
from sophon_loader.workers.source_steps import Steps
from sophon_loader.workers.this_worker import note_agent, worker_count, worker_number
from sophon_loader.workers.transform_watch import TransformWatch

log = logging.getLogger(__name__)
HEADERS_S = 2.0
"""How long a batch that is due waits for the headers of its files, seconds."""


class OffloadedDataset(Dataset[Any]):
    """Given a ticket, gives its samples.

    Args:
        data: the user's dataset, taken apart.
        steps: one per source of `data`.
        plan: which choice each sample gets; None where nothing is planned.
        statistics: where each process counts.
        profile: what workers measure, while it is recording.
        routes: to the agents, each of which is asked from the first batch on that begins when it has agreed; before
            the first has, and without one, all files are read below the sources' roots.
        seed: of the run.
        live: shared with the main process where the agent chooses; without that and a plan, files are asked for.
        pipelines: of `data`, as the main process has found them; none for a dataset that does not change.
        fused: whether C of our own may decode.
        slots: where samples are made for their batch; None for in memory of their own.
        cache: of files, on this host; None for none.

    Attributes:
        chooser: says what to ask for.
        draws: the global generators that finishing a sample may draw from.
        queued: where the tickets of later batches are, for a look-ahead; None for no look-ahead.
    """

    def __init__(
        self,
        data: Offloadable,
        steps: Sequence[Steps],
        plan: SharedPlan | None,
        statistics: Statistics,
        profile: SampleProfile,
        routes: Sequence[SharedRoute],
        seed: Seed,
        live: Live | None = None,
        pipelines: Sequence[Pipeline] = (),
        *,
        fused: bool = True,
        slots: Slots | None = None,
        cache: Cache | None = None,
    ) -> None:
        self._cache = cache
        self._data = data
        self._plan = plan
        self._profile = profile
        self._seed = seed
        self._live = live
        self._fused = fused
        if fused:
            checked()  # workers that are forked know then, too
        self._slots = slots
        self.queued: QueuedTickets | None = None
        address = routes[0].proposed.address if routes else None
        # Where a roster names the agents, their export is known when the first of them is.
        self._locations = Locations(data, address if address and address.export else None)
        self._statistics = statistics
        self._process: tuple[int, Session | Fleet | None, Row, Meter] | None = None
        self._came_s = 0.0
        """When the last sample was finished, or the first was asked for."""
        self._mounted = False
        self._settings = settings()
        self._asked_ahead: dict[BatchId, Ticket] = {}
        self._looked: tuple[int, dict[str, str]] = 0, {}  # in which iteration, from 1, and what has been found
        self._headers = SharedHeaders(len(data)) if routes else None
        self._ways = WorkerFleet(routes)
        self._following = TransformWatch(data, self._joined(steps) or steps, pipelines)
        self._differing: list[str] = []
        self._take_up()

    def _steps_now(self) -> tuple[tuple[Steps, ...], bool]:
        """The steps of now, and whether the agent can be asked for files alone: where it knows other ops than these, or
        where ops here draw other random numbers, by which an agent cuts files too.
        """
        steps = self._following.steps
        files = not self._following.as_agreed or bool(not_of_switches(self._differing))
        if self._differing:
            steps = tuple(replace(one, reach=0 if files else min(one.reach, one.chain.pillow_stages)) for one in steps)
        return steps, files

    def _take_up(self) -> None:
        """Go on by the steps of now."""
        self._taken = steps, files = self._steps_now()
        data, locations = self._data, self._locations
        plan, live = (None, None) if files else (self._plan, self._live)
        profile = self._profile if self._following.as_agreed else None
        self.draws = _drawn_from(steps)
        self._by_position = any(map(_runs_users_code, data.sources, steps))
        here = self._ways.terms is not None and self._ways.terms.files_here
        kept = None if self._cache is None else WorkerCache(self._cache, locations)
        looked_up = None if here or self._ways.terms is None else kept  # else all files are read here in any case
        tariff = live.tariff if live else None
        self.chooser = Chooser(data, steps, locations, plan, tariff, files_here=here, kept=looked_up)
        self._finisher = Finisher(
            data,
            steps,
            locations,
            profile,
            self._ways.terms,
            self._seed,
            fused=self._fused,
            slots=self._slots,
            kept=kept,
            headers=self._headers,
        )
        by_programs = (plan or tariff) and any(one.terms.by_programs for one in self._ways.agreed)
        self._drawer = Drawer(steps, self._seed, self._headers) if by_programs and self._headers else None

    def _joined(self, steps: Sequence[Steps]) -> list[Steps]:
        """The steps as agents have agreed to them, if another has done so just now; else [].

        It is asked from now on.
        """
        if not self._ways.look():
            return []
        first, reaches = self._ways.agreed[0], zip(*(one.reach for one in self._ways.agreed), strict=True)
        folder, inner = first.place
        self._locations = Locations(self._data, replace(first.terms.address, folder=folder), inner)
        return [replace(one, reach=max(far)) for one, far in zip(steps, reaches, strict=True)]

    def call_meanwhile(self, what: Callable[[], None] | None) -> None:
        """See `WorkerFleet.call_meanwhile`."""
        self._ways.call_meanwhile(what)

    @property
    def as_agreed(self) -> bool:
        """Whether this process makes samples by the pipelines that were agreed on with the agent."""
        return self._following.as_agreed

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, ticket: Ticket) -> Any:
        return self.__getitems__(ticket)[0]

    def __getitems__(self, ticket: Ticket) -> list[Any]:
        session, row, meter = self._of_this_process()
        if self._following.look():
            self._change(session, row)
        if self.draws and get_worker_info() is None and not in_main_thread():
            raise ConfigError(
                "num_workers must be at least 1 where a thread other than the main one takes the batches, got 0; "
                "give num_workers=1, or call iter() in that thread too: the ops draw from random generators that all "
                "threads of a process share"
            )
        row.begin(ticket.batch.iteration)
        if session is not None and self._looked != (found := (ticket.batch.iteration, settings())):
            if self._looked[0] != ticket.batch.iteration and not self.as_agreed:
                row.changed()  # which an epoch's beginning takes back
            self._looked = found
            self._look_at_settings(session, row)
        meter.begin()
        if self._slots is not None:
            self._slots.begin(len(ticket.indices))
        if session is not None:
            self._ways.trust(session, worker_number(), mounted=self._mounted)
        try:
            with isolated(self.draws):
                samples = self._read(ticket, row) if session is None else self._fetched(session, ticket)
        except Exception as error:
            error.__traceback__ = frames_for_user(error)
            raise error
        session, row, meter = self._here
        meter.count()
        if session is not None:
            self._statistics.shortest_net_s.array[worker_number()] = session.shortest_net_s
        return samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}

    def _change(self, session: Session | Fleet | None, row: Row) -> None:
        """Make samples by other steps from now on: what was requested by those of before is requested anew."""
        self._finisher.close()
        self._take_up()
        if session is None:
            return
        session.keep(())
        if not self.as_agreed:
            row.changed()

    def _read(self, ticket: Ticket, row: Row) -> list[Any]:
        """The samples of a batch, from files on this host."""
        wanted = self.chooser.wanted(ticket)
        return [self._finisher.finish(Reply(one, n), ticket.batch.epoch, row) for n, one in enumerate(wanted)]

    def _fetched(self, session: Session | Fleet, ticket: Ticket) -> list[Any]:
        """The samples of a batch. One that none of several agents can send, and this host cannot read, is waited for as
        a single agent is: as long as somebody comes, or is back, within `dead_after_s` since the sample before it.
        """
        samples: dict[int, Any] = {}
        while True:
            self._came_s = now_s()
            try:
                self._fetch(session, ticket, samples)
                return [samples[position] for position in range(len(ticket.indices))]
            except AgentUnreachable:
                asked, mounted = self._ways.asked(session), self._mounted
                end_s = self._came_s + session.lanes[0].terms.options.dead_after_s
                self.close()  # so that the next attempt begins with some patience
                if mounted or not self._ways.another_comes(asked, worker_number(), end_s):
                    raise
            another, _, meter = self._of_this_process()
            assert another is not None, "an agent that agreed once is not forgotten"
            session = another
            meter.begin()
            self._ways.trust(session, worker_number(), mounted=self._mounted)

    def _fetch(self, session: Session | Fleet, ticket: Ticket, samples: dict[int, Any]) -> None:
        """The samples of a batch that are not there yet, while those behind it are asked for.

        They are finished in order of arrival, or by position where code of the user's takes part: it may have a state.
        """
        _, row, meter = self._here
        batch = ticket.batch
        self._finisher.talk(session)
        if isinstance(session, Fleet):
            session.meanwhile = None if self._mounted else partial(self._ways.look_around, session, worker_number())
        behind = self._behind(batch)
        if self._asked_ahead.pop(batch, ticket) != ticket:
            session.keep(behind)  # another one was foreseen in its place
        session.keep([batch, *behind])
        unasked = deque(one for one in behind if not session.knows(one))
        self._ask_headers(session, ticket, behind)
        try:
            # A batch that is known was asked for while one before it was worked on.
            session.want(batch, () if session.knows(batch) else self._wanted(ticket))
            for position in range(session.missing(batch)):
                # The next batch is asked for in any case, those behind it as the window allows.
                while unasked and (len(unasked) == len(behind) or session.wants_more):
                    if not self._look_ahead(session, unasked[0]):
                        break
                    unasked.popleft()
                reply = session.next(batch, position if self._by_position else None)
                if reply.position in samples:
                    continue  # finished before another agent had to be waited for
                if reply.sample is not None:
                    nbytes = len(reply.payload)
                    note_agent(self._ways, session, self._statistics, self._live, reply.sample, nbytes)
                samples[reply.position] = self._finisher.finish(reply, batch.epoch, row)
                self._came_s = now_s()
                meter.sometimes()
        finally:
            session.keep(behind)
            for one in self._asked_ahead.keys() - behind:
                del self._asked_ahead[one]
            self._ways.note(session, worker_number())

    def _behind(self, batch: BatchId) -> list[BatchId]:
        """The batches whose tickets may be known that come to this worker, besides the one that it works on."""
        worker = get_worker_info()
        if worker is None or self.queued is None:
            return []
        last = batch.number + len(self.queued)
        numbers = range(batch.number, last, worker.num_workers)[1:]
        return [batch._replace(number=number) for number in numbers]

    def _look_ahead(self, session: Session | Fleet, batch: BatchId) -> bool:
        """Ask for a batch whose turn has not come; False if its ticket is not known by now."""
        assert self.queued is not None
        ticket = self.queued.get(batch.iteration, batch.number)
        if ticket is None:
            return False
        if session.awaits_headers:
            return False  # not long
        try:
            wanted = self._wanted(ticket)
        except Exception as error:  # of the user's dataset: raised when that batch is due, and not in this one
            if raised_by_handler(error):
                raise
            return True
        session.want(batch, wanted)
        self._asked_ahead[batch] = ticket
        return True

    def _wanted(self, ticket: Ticket) -> list[Wanted]:
        """What to ask for, sample by sample, with the programs of those whose headers are known."""
        wanted = self.chooser.wanted(ticket)
        return wanted if self._drawer is None else self._drawer.draw(wanted, ticket.batch.epoch)

    def _ask_headers(self, session: Session | Fleet, ticket: Ticket, behind: Sequence[BatchId]) -> None:
        """Ask for headers that programs need and nobody knows; wait for those of the batch that is due."""
        if self._drawer is None:
            return
        queued = [self.queued.get(one.iteration, one.number) for one in behind if self.queued is not None]
        for samples in self._drawer.lacking([ticket, *(one for one in queued if one is not None)], self.chooser):
            session.ask_headers(samples)
        if not session.knows(ticket.batch):
            session.await_headers(min(HEADERS_S, session.lanes[0].terms.options.dead_after_s))

    def _of_this_process(self) -> tuple[Session | Fleet | None, Row, Meter]:
        """This process's connection, counters and what counts; a forked copy of this object makes its own."""
        if steps := self._joined(self._following.agreed):
            self.close()
            self._following.agree(steps)
            self._take_up()
            self._looked = 0, {}
        pid = os.getpid()
        if self._process is None or self._process[0] != pid:
            session = self._ways.session(worker_number(), worker_count())
            if self._drawer is not None and session is not None:
                self._drawer.begin(session.lanes)
            self._mounted = session is not None and self._locations.all_here
            row = self._statistics.row(worker_number())
            self._process = (pid, session, row, Meter(session, row))
        return self._process[1:]

    @property
    def _here(self) -> tuple[Session | Fleet | None, Row, Meter]:
        """What `_of_this_process` has given last."""
        assert self._process is not None, "it comes first"
        return self._process[1:]

    def _look_at_settings(self, session: Session | Fleet, row: Row) -> None:
        """Leave ops to this process if it has set torch otherwise than the one that agreed with the agent.

        A `worker_init_fn` may have done so, or code of the user's since; what is spawned begins with torch's own
        settings. What has been asked for ahead, under others, is asked for again.
        """
        here, main = self._looked[1], self._settings
        self._differing = [name for name, value in here.items() if main.get(name) != value]
        steps, files = self._steps_now()
        row.kept(kept_here(self._differing, main, here) if steps != self._following.steps else "")
        if (steps, files) != self._taken:
            if self._differing:
                reason = f"torch is set otherwise in this worker: {self._differing}"
                log.warning(log_line("ops kept here", reason=reason))
            self._change(session, row)

    def close(self) -> None:
        """Close this process's connection, if it has one."""
        self._finisher.close()
        if self._process is not None and self._process[0] == os.getpid() and self._process[1] is not None:
            self._process[1].close()
        self._process = None
        if self._cache is not None:
            self._cache.close()


def _runs_users_code(source: Source, steps: Steps) -> bool:
    """Whether finishing a sample calls what the registry does not know, so that nobody knows whether it has a state."""
    known = isinstance(source.target, IntTargets | ObjectTargets)
    return not known or steps.target_transform is not None or bool(steps.chain.local_ops)


def _drawn_from(steps: Sequence[Steps]) -> tuple[str, ...]:
    """The generators that finishing a sample may draw from."""
    if any(one.target_transform is not None for one in steps):
        return GENERATORS  # nobody knows what a label's transform draws from
    drawn = {name for one in steps for name in one.chain.draws}
    return tuple(name for name in GENERATORS if name in drawn)
