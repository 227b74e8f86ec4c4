"""The agents of a loader that a roster names, as its runs meet them: they come and go while an epoch goes on."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from sophon_loader.client.address import Address
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import AgentUnreachable, ConfigError, SophonError, warn_user, without_frames
from sophon_loader.figures import counted
from sophon_loader.fleet.agent import Agent
from sophon_loader.fleet.agreement import Agreement
from sophon_loader.fleet.contact import Contact
from sophon_loader.fleet.contacts import Contacts, share_of
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.host.system import now_s
from sophon_loader.logs import log_line
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.report.agents import LEFT, REFUSED, AgentShare
from sophon_loader.routes.announced import Announced
from sophon_loader.routes.named import roster_of
from sophon_loader.routes.roster import Member, able, of_other_exports
from sophon_loader.settings import Settings

LOOK_EVERY_S = 10.0
"""How often the roster is looked at; at once where a connection is lost."""
_SOON_S = 2.0
"""The same while no agent serves."""
_OTHERS_S = 1.0
"""For so long, once one agent has agreed, a run that begins waits for the others."""
MAX_AGENTS = 64
"""That a loader uses at a time: each of its workers has a connection to each."""
_MAX_TOLD = 32
"""Agents that have left of which the report tells."""

log = logging.getLogger(__name__)


class Rostered(Contacts):
    """Used as a `Contact`. One that the roster names joins as soon as it has agreed, and one that it names no longer is
    asked for nothing more once another serves. So a roster that names nobody, or cannot be read, takes nobody away.

    One that cannot serve the dataset is left out, with a warning; it is tried again when it has been restarted. Where
    no other is named, its error is raised.

    Places are few. One whose agent has not agreed goes to the next that waits, once each has been tried; so entries
    that lead nowhere keep no agent out.

    Args:
        data: the dataset that the agents must serve together, each at least a part of it.
        settings: of the loader.
        named: what the user wrote, with the key of all agents.
    """

    def __init__(self, data: Offloadable, settings: Settings, named: Address) -> None:
        super().__init__(data, settings, ())
        self._named = named
        self._roster = roster_of(named)
        self._any = Agent(named, data, settings.options)
        self._places: list[SharedRoute] = []
        """What workers know of the agents, each of which has one of these."""
        self._free: deque[int] = deque(range(MAX_AGENTS))
        """Those that no agent has, the one that has been free for longest first."""
        self._rows: dict[Contact, int] = {}
        """Places of all that may serve yet: not of those that are refused."""
        self._members: dict[Contact, Member] = {}
        self._instances: dict[Contact, str] = {}
        """Of those in use, as they had it when they agreed."""
        self._yielded: dict[Address, int] = {}
        """When those that are still named gave their places to others, in turns."""
        self._turn = 0
        self._doubles: dict[Address, Contact] = {}
        """Addresses at which an agent was found that is known by another one."""
        self._run: tuple[Sequence[Chain], Seed, int]
        self._look_at_s = self._came_s = -math.inf
        self._gone: set[Contact] = set()
        self._told_gone = self._gone
        self._nobody: SophonError | None = None
        """The newest reason why nobody is named, or why one that is met no more has not agreed."""
        self._why = ""
        self._left: deque[AgentShare] = deque(maxlen=_MAX_TOLD)
        self._too_many = 0

    # --- as of one ------------------------------------------------------------------------------------------------

    @property
    def agent(self) -> Agent:
        """What stands for any of them: on another host, under the name that the user wrote."""
        return self._any

    def __str__(self) -> str:
        return str(self._named)

    @property
    def asked(self) -> bool:
        """Whether the run has an agent to ask, now or later."""
        return not self._why and len(self._data) > 0

    @property
    def routes(self) -> list[SharedRoute]:
        """Places for all that may come."""
        return self._places if self.asked else []

    @property
    def why_alone(self) -> str:
        """Why the run does without agents; "" otherwise."""
        return self._why

    @property
    def missing(self) -> str:
        """What was got last instead of agreements while the run was without an agent; "" if it never was."""
        return super().missing or (str(self._nobody) if self._began_without and self._nobody else "")

    @property
    def announced_in(self) -> str:
        """As of `Contact`."""
        return self._roster.folder if isinstance(self._roster, Announced) else ""

    def take(self) -> Agreement | None:
        """As of `Contacts`; a profile is of all agents that the roster names, whoever they are."""
        agreement = super().take()
        return None if agreement is None else replace(agreement, agent=str(self))

    def resize(self, processes: int) -> None:
        """Other processes load from now on."""
        if self._places:
            self._places = SharedRoute.all_for_workers(self._places, processes)
            self._run = (*self._run[:2], processes)
            for one, row in self._rows.items():
                one.move(self._places[row])

    def _start(self, chains: Sequence[Chain], seed: Seed, processes: int) -> None:
        self._why, self._look_at_s = "", -math.inf
        self._run = chains, seed, processes
        self._left.clear()
        terms = replace(self._any.proposed(chains, seed), roster=str(self))
        if self._places:
            self._places = SharedRoute.all_for_workers(self._places, processes, terms)
        else:
            samples = 0 if self._data.by_programs else len(self._data)
            self._places = SharedRoute.several(MAX_AGENTS, processes, terms, samples)
        self._instances.clear()
        for one in list(self._each):
            if one.why_alone:
                self._remove(one)
            else:
                one.start(chains, seed, processes, self._places[self._rows[one]])
        self._nobody = None

    # --- who is there ---------------------------------------------------------------------------------------------

    def _look(self, wait_s: float = 0.0) -> list[Contact]:
        self._follow()
        if not self._rows:
            time.sleep(wait_s)
        came = []
        for one in list(self._each):
            try:
                if one.look(wait_s / max(1, len(self._rows))):
                    came.append(one)
            except SophonError as error:
                self._refuse(one, error)
        return [one for one in came if not self._is_double(one)]

    def _follow(self) -> None:
        """Look at the roster if it is time, without waiting for what it says."""
        gone = {one for one in self._in_use if one.is_gone}
        now = now_s()
        due = now >= self._look_at_s or bool(gone - self._gone)
        self._gone = gone
        if not due and not self._roster.is_looking:
            return
        if due:
            self._look_at_s = now + (LOOK_EVERY_S if len(self._in_use) > len(gone) else _SOON_S)
        self._roster.met = [self._members[one].address for one in self._rows]
        members = self._roster.look(ask=due)
        if self._roster.is_looking and not self._roster.trouble:
            return
        if those := able(members):
            self._match(those)
        elif not self._each:
            self._nobody = AgentUnreachable(self._roster.trouble or of_other_exports(members))

    def _match(self, members: Sequence[Member]) -> None:
        """Have those that are named now be those that are met."""
        named = {one.address: one for one in members}
        for one in list(self._each):
            before = self._members[one]
            member = named.get(before.address)
            if member is None or (one.why_alone and member.instance != before.instance):
                if one not in self._in_use or any(not two.is_gone for two in self._in_use if two is not one):
                    self._remove(one)
            else:
                self._members[one] = member
                if one in self._gone - self._told_gone:
                    log.warning(log_line("agent gone", agent=one.agent, reason=f"{self} still names it"))
        self._told_gone = self._gone
        self._doubles = {
            address: one
            for address, one in self._doubles.items()
            if address in named and one in self._in_use and not one.is_gone
        }
        self._yielded = {address: turn for address, turn in self._yielded.items() if address in named}
        known = {one.address for one in self._members.values()} | self._doubles.keys()
        instances = {member.instance for one, member in self._members.items() if one in self._in_use}
        joining = [one for one in members if one.address not in known and one.instance not in instances - {""}]
        joining.sort(key=lambda member: self._yielded.get(member.address, 0))
        self._make_room(len(joining) - len(self._free))
        room = len(self._free)
        for member in joining[:room]:
            where = replace(member.address, token=self._named.token, keyed_as=self._named.endpoint)
            one = Contact(self._data, self._settings, where, is_one_of_several=True)
            row = self._free.popleft()
            self._each.append(one)
            self._rows[one], self._members[one] = row, member
            one.start(*self._run, self._places[row])
            log.info(log_line("agent named", agent=member.address, roster=self))
        self._too_many = len(joining[room:])

    def _make_room(self, wanted: int) -> None:
        """Take places of agents that were tried in vain, once each has been tried; those queue behind all others."""
        absent = [one for one in self._rows if not one.agreed and one not in self._in_use]
        if not all(one.error for one in absent):
            return
        for one in absent[: max(0, wanted)]:
            self._turn += 1
            self._yielded[self._members[one].address] = self._turn
            self._remove(one)

    def _is_double(self, one: Contact) -> bool:
        """Whether an agent that has agreed is one of those in use, at another address; then it is met no more."""
        assert one.agreed is not None, "it has just agreed"
        instance = one.agreed.terms.instance
        alike = (two for two, its in self._instances.items() if its == instance and two is not one)
        known = next((two for two in alike if not two.is_gone), None)
        if known is None:
            self._instances[one] = instance
            return False
        self._doubles[self._members[one].address] = known
        self._remove(one)
        return True

    def _remove(self, one: Contact) -> None:
        """Meet it no more."""
        one.leave()
        self._each.remove(one)
        if one in self._in_use:
            self._in_use.remove(one)
            self._left.append(replace(share_of(one), group=self._group_of(one), state=LEFT))
            self._add_bytes(self._bytes_of_gone, one)
            self._places[self._rows[one]].free()
            log.info(log_line("agent left", agent=one.agent, roster=self))
        elif one.error and not one.why_alone:
            self._nobody = one.error
        self._free_place(one)
        del self._members[one]
        self._instances.pop(one, None)

    def _free_place(self, one: Contact) -> None:
        if (row := self._rows.pop(one, None)) is not None:
            self._free.append(row)

    # --- those that are met ---------------------------------------------------------------------------------------

    @property
    def _all_tried(self) -> bool:
        if self.agreed is None:
            self._came_s = now_s()
        elif now_s() - self._came_s > _OTHERS_S:  # an address may lead nowhere; who comes later, joins
            return True
        if self._too_many and all(one.why_alone for one in self._each):  # others have yet to be tried
            return False
        return bool(self._each or self._nobody) and all(one.agreed or one.error for one in self._each)

    @property
    def _error(self) -> SophonError | None:
        refused = self._each[-1].error if self._each else None
        return next((one.error for one in reversed(self._each) if not one.why_alone), self._nobody or refused)

    def _of_all(self, error: SophonError) -> SophonError:
        return super()._of_all(error) if self._each else without_frames(error)

    def _use(self, those: Sequence[Contact]) -> None:
        for one in those:
            try:
                super()._use([one])
            except ConfigError as error:
                self._refuse(one, error)

    def _refuse(self, one: Contact, error: SophonError) -> None:
        """It cannot serve this dataset.

        Raises:
            SophonError: that error, where no other may serve it.
        """
        one.refuse(error)
        one.error = without_frames(error)
        self._instances.pop(one, None)
        one.shared = None
        self._free_place(one)
        if all(two.why_alone for two in self._each) and not self._too_many:
            self._why = one.why_alone
            raise error
        if self._too_many:
            self._look_at_s = -math.inf  # its place is free for one that waits
        if self._in_use:
            self._warn_of(one)

    def _warn_of(self, one: Contact) -> None:
        if self._is_new(f"{one.agent} {one.error}"):
            warn_user(f"The agent at {one.agent}, which {self} names, is not used: {one.error}")

    # --- what the user is told ------------------------------------------------------------------------------------

    def shares(self) -> tuple[list[AgentShare], list[str]]:
        """As of `Contacts`; also who has left, who is not used, and whether the roster can be read."""
        agents = [self._share_of(one) for one in self._each if one in self._in_use]
        refused = [one for one in self._each if one.why_alone]
        agents += [*self._left, *(AgentShare(str(one.agent), state=REFUSED, why=str(one.error)) for one in refused)]
        told = [*self._told_later]
        if self._too_many:
            told.append(f"{counted(self._too_many, 'agent')} are not used, since a loader has at most {MAX_AGENTS}")
        if self._in_use and self._roster.trouble:
            told.append(f"those agents are used that were known before: {self._roster.trouble}")
        return agents, told

    def _tell_yet_to_come(self) -> None:
        """Who cannot serve; whoever is missing may be about to leave the roster."""
        for one in self._each:
            if one.why_alone:
                self._warn_of(one)
