"""Several agents of a loader that hold its files together, as its runs meet them: one `Contact` each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from sophon_loader.client.address import Address
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.policies.fixed import NoOff
from sophon_loader.errors import ConfigError, SophonError, warn_user
from sophon_loader.fleet.agent import Agent
from sophon_loader.fleet.agreement import Agreement
from sophon_loader.fleet.contact import Contact, can_read_here
from sophon_loader.fleet.groups import group_of
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.host.system import now_s
from sophon_loader.measures.counters import Totals
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.unknown import no_op_for_agents
from sophon_loader.report.agents import MISSING, SILENT, AgentShare
from sophon_loader.routes.waiting import Wait
from sophon_loader.settings import Settings

_LOOK_S = 0.05
"""Where agreements are waited for, this long at a time for each agent."""


class Contacts:
    """Used as a `Contact`. A run begins as soon as one agent has agreed and each other has, or has failed at it once;
    one that comes later takes its share of the samples from then on.

    Args:
        data: the dataset that the agents must serve together, each at least a part of it.
        settings: of the loader.
        agents: each given once.
    """

    def __init__(self, data: Offloadable, settings: Settings, agents: Sequence[Address]) -> None:
        self._data = data
        self._settings = settings
        self._each = [Contact(data, settings, where, is_one_of_several=True) for where in agents]
        self._in_use: list[Contact] = []
        """Those that the workers have been told of."""
        self._began_without = False
        """Whether the run has begun with no agent."""
        self._told_later: list[str] = []
        """Notes on the agents that came when others were used already."""
        self._warned_of: set[str] = set()
        self._bytes_of_gone: dict[str, int] = {}
        """As of `group_bytes`, of agents that have left."""

    # --- as of one ------------------------------------------------------------------------------------------------

    @property
    def agent(self) -> Agent | None:
        """The first one; all are on other hosts."""
        return self._each[0].agent

    @property
    def name(self) -> str:
        """What the user reads."""
        return f"the agents at {self}"

    def __str__(self) -> str:
        return ", ".join(str(one.agent) for one in self._each)

    @property
    def asked(self) -> bool:
        """Whether the run has an agent to ask, now or later."""
        return any(one.asked for one in self._each)

    @property
    def routes(self) -> list[SharedRoute]:
        """Those that workers take; none where the run does without agents."""
        return [route for one in self._each for route in one.routes]

    @property
    def agreed(self) -> Agreement | None:
        """An agreement that has been made since the run began, and is not used yet; None while one is used."""
        return None if self._in_use else next((one.agreed for one in self._each if one.agreed is not None), None)

    @property
    def is_gone(self) -> bool:
        """Whether workers have given all of them up."""
        return bool(self._in_use) and all(one.is_gone for one in self._in_use)

    @property
    def why_alone(self) -> str:
        """Why the run does without the agents that were given; "" otherwise."""
        return next((one.why_alone for one in self._each if one.why_alone), "")

    @property
    def missing(self) -> str:
        """What was got last instead of agreements while the run was without an agent; "" if it never was."""
        return "; ".join(one.missing for one in self._each if one.missing) if self._began_without else ""

    @property
    def note(self) -> str:
        """What a user should know while no agent is used; `shares` tells of each by itself."""
        if self.why_alone or self._in_use or not self.missing:
            return self.why_alone
        return f"files are read on this host until an agent comes: {self.missing}"

    @property
    def cores_of_one(self) -> float | None:
        """As of `Contact`."""
        cores = [one.cores for one in self._in_use if one.cores is not None]
        return sum(cores) / len(cores) if cores else None

    @property
    def announced_in(self) -> str:
        """As of `Contact`."""
        return ""

    def fits(self, processes: int) -> bool:
        """Whether a run that begins with so many processes would have the agents if this one has them."""
        return not self.why_alone

    def begin(self, chains: Sequence[Chain], seed: Seed, processes: int, *, needed: bool) -> Agreement | None:
        """As `Contact.begin`, with all agents at once.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: one cannot serve this dataset.
        """
        self._in_use, self._told_later, self._began_without = [], [], False
        self._bytes_of_gone = {}
        self._start(chains, seed, processes)
        if not self.asked:
            return None
        self._await(leave=can_read_here(self._data, self._settings, needed=needed))
        if not isinstance(self._settings.policy, NoOff) and (why := no_op_for_agents(chains)) and self._is_new("ops"):
            warn_user(f"No op but decoding can run at an agent: {why}.")
        agreement = self.take()
        self._began_without = agreement is None
        if agreement is not None:
            self.tell_workers()
        return agreement

    def _start(self, chains: Sequence[Chain], seed: Seed, processes: int) -> None:
        """As `Contact.start`, of all."""
        for one in self._each:
            one.start(chains, seed, processes)

    def _await(self, *, leave: bool) -> bool:
        """Whether one has agreed; `leave` to go on without once all have failed."""
        told, wait = None, Wait(str(self), self._settings.options)
        try:
            while True:
                self._look(_LOOK_S)
                if not self._all_tried:
                    continue
                if self.agreed is not None:
                    return True
                error = self._error
                if leave or error is None:
                    return False
                if error is not told:
                    told = error
                    wait.goes_on(self._of_all(error))
        except BaseException:
            for one in self._each:
                one.leave_trial()
            raise

    def _look(self, wait_s: float = 0.0) -> list[Contact]:
        """Look at each; those that have just agreed."""
        return [one for one in self._each if one.look(wait_s)]

    @property
    def _all_tried(self) -> bool:
        """Whether each has agreed, or has failed at it once."""
        return all(one.agreed or one.error for one in self._each)

    @property
    def _error(self) -> SophonError | None:
        """The newest one, where all have failed."""
        return self._each[-1].error

    def _of_all(self, error: SophonError) -> SophonError:
        return type(error)("; ".join(dict.fromkeys(str(one.error) for one in self._each)))

    def resize(self, processes: int) -> None:
        """Other processes load from now on."""
        for one in self._each:
            one.resize(processes)

    def look(self) -> bool:
        """As `Contact.look`; one that comes while another is used is used at once.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: one cannot serve this dataset.
        """
        came = self._look()
        if came and self._in_use:
            found = [one.agreed for one in came if one.agreed is not None]
            self._use(came)
            self._told_later += [f"agent {agreement.agent}: {note}" for agreement in found for note in agreement.notes]
            return False
        return bool(came)

    def wait(self) -> bool:
        """As `look`, and waits for one while all are missing."""
        return not self._in_use and self._await(leave=False)

    def take(self) -> Agreement | None:
        """The agreements that are not used yet, as one, to be used from now on; None if there is none."""
        return None if self.agreed is None else together([one.agreed for one in self._each if one.agreed is not None])

    def tell_workers(self) -> None:
        """Have the workers use the agents that have agreed."""
        self._use([one for one in self._each if one.agreed is not None])
        self._tell_yet_to_come()

    def _tell_yet_to_come(self) -> None:
        for one in self._each:
            if one not in self._in_use and one.missing and self._is_new(str(one.agent)):
                warn_user(
                    f"The agent at {one.agent} cannot be used yet: {one.missing}. The other agents do its part until "
                    "it comes."
                )

    def _use(self, those: Sequence[Contact]) -> None:
        for one in those:
            agreement = one.take()
            assert agreement is not None, "it has just agreed"
            before = self._in_use[0].shared.agreed() if self._in_use and self._in_use[0].shared else None
            if before is not None and before.place[1] != agreement.agreed.place[1]:
                error = ConfigError(
                    f"all agents must export the same folder of the dataset, got {self._in_use[0].agent}, which holds "
                    f"{before.place[1] or 'all of it'!r}, and {one.agent}, which holds "
                    f"{agreement.agreed.place[1] or 'all of it'!r}; add the folder to one of the addresses"
                )
                one.refuse(error)
                raise error
            one.tell_workers()
            self._in_use.append(one)

    # --- what the user is told ------------------------------------------------------------------------------------

    def loop_waited(self, awaited_s: float) -> None:
        """The training has waited for batches for so long in this epoch, s: what keeps a rank's bytes in its group."""
        if self._settings.options.group and (routes := self.routes):
            routes[0].awaited_s = awaited_s

    def group_bytes(self) -> dict[str, int]:
        """Bytes that agents have sent since the run began, by this rank's group and theirs; none without groups."""
        found = self._bytes_of_gone.copy()
        for one in self._each:
            self._add_bytes(found, one)
        return found

    def _add_bytes(self, found: dict[str, int], one: Contact) -> None:
        options = self._settings.options
        if options.group and one.shared is not None and isinstance(one.where, Address):
            pair = f"{options.group} from {self._group_of(one) or 'no group'}"
            found[pair] = found.get(pair, 0) + one.shared.sent()[1]

    def shares(self) -> tuple[list[AgentShare], list[str]]:
        """What each agent has sent since the run began and where it stands now; and notes on those that came later."""
        return [self._share_of(one) for one in self._each if one.shared is not None], self._told_later

    def _share_of(self, one: Contact) -> AgentShare:
        share = replace(share_of(one), group=self._group_of(one))
        if self._in_use and one not in self._in_use and one.missing:
            return replace(share, state=MISSING, why=one.missing)
        return replace(share, state=SILENT) if one.is_gone else share

    def _group_of(self, one: Contact) -> str:
        return group_of(one.where.endpoint, self._settings.options.groups) if isinstance(one.where, Address) else ""

    def tell_missing(self) -> None:
        """An epoch begins without an agent, since all are missing."""
        if self._is_new("missing"):
            warn_user(
                f"The agents at {self} cannot be used yet: {self.missing}. Files are read on this host until one "
                "comes. OffloadOptions(agent_missing=...) has the loader wait for it, or raise the error."
            )

    def tell_fallbacks(self, totals: Totals) -> None:
        """As `Contact.tell_fallbacks`."""
        if totals.fallbacks and self._is_new("fallbacks"):
            warn_user(
                f"None of the agents at {self} sends what was asked for. Files are read on this host until one does; "
                "report() counts them as fallbacks."
            )

    def _is_new(self, what: str) -> bool:
        known = what in self._warned_of
        self._warned_of.add(what)
        return not known

    # --- the end --------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """A run ends: neither look for the agents nor try them, until another begins."""
        for one in self._each:
            one.leave()

    def close(self) -> None:
        """Nothing is this loader's own."""


def share_of(one: Contact) -> AgentShare:
    """What an agent has sent since the run began, and lacks, and when and how often it was lost."""
    name, shared = str(one.agent), one.shared
    if shared is None:
        return AgentShare(name, of_samples=one.samples)
    lost_at = time.time() - (now_s() - shared.lost_s) if shared.lost_s else 0.0
    told = AgentShare(name, *shared.sent(), lacks=shared.lacked, of_samples=one.samples)
    return replace(told, lost_at=lost_at, losses=shared.losses)


def together(agreements: Sequence[Agreement]) -> Agreement:
    """Several agreements as one: files lie where the first has them; cores add up; what all know may be used."""
    first = agreements[0]
    return replace(
        first,
        reach=tuple(map(max, zip(*(one.reach for one in agreements), strict=True))),
        agent_cores=sum(one.agent_cores for one in agreements),
        encodings=tuple(name for name in first.encodings if all(name in one.encodings for one in agreements)),
        notes=tuple(dict.fromkeys(note for one in agreements for note in one.notes)),
        agent=", ".join(one.agent for one in agreements),
    )
