"""A loader's agent as its runs meet it: agreed with as one begins, joined later, or given up and tried again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from sophon_loader.client.address import Address
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.policies.fixed import NoOff
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.errors import SophonError, may_come, raised_by_handler, warn_user, without_frames
from sophon_loader.fleet.agent import Agent, Meeting
from sophon_loader.fleet.agreement import Agreement, own_addresses
from sophon_loader.fleet.recheck import Recheck
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.host.system import now_s
from sophon_loader.logs import log_line
from sophon_loader.measures.counters import Totals
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.unknown import no_op_for_agents
from sophon_loader.report.agents import AgentShare
from sophon_loader.routes.standing import Route, Standing
from sophon_loader.routes.waiting import Wait
from sophon_loader.settings import Settings

_LOOK_S = 0.1
"""Where an agreement is waited for, this long at a time, so that an agent that ends is noticed."""
_GONE = "workers have given it up"

log = logging.getLogger(__name__)


class _Trial(Protocol):
    """`Meeting` or `Recheck`."""

    def answered(self, wait_s: float = 0.0) -> bool: ...

    def close(self) -> None: ...


def can_read_here(data: Offloadable, settings: Settings, *, needed: bool) -> bool:
    """Whether a run may begin without an agent that is missing.

    Args:
        data: the dataset.
        settings: of the loader.
        needed: whether nothing can be done without the agent.
    """
    here = settings.options.agent_missing == "read-here" and not needed
    return here and Locations(data, None).all_here


class Contact:
    """The one place in the main process that knows the agent of a loader, and where it stands.

    Nothing runs here, no thread and no process: a trial is on its way between two looks.

    Args:
        data: the dataset that the agent must serve.
        settings: of the loader.
        where: the agent; None for that of the settings, or of the dataset.
        is_one_of_several: whether others may have files that it lacks.

    Attributes:
        agent: None where none was given.
        where: its address or settings.
        error: what the newest trial has come to, if that failed.
        samples: of the dataset, where others may have files that it lacks; else 0.
        shared: what the workers know of the agent; None where this run does without.
        agreed: an agreement that has been made since the run began, and is not used yet.
        missing: what was got last from an agent on another host while the run was without it; "" where it was there.

    Example:
        >>> contact = Contact(data, settings)
        >>> agreement = contact.begin(chains, seed, processes=2, needed=False)
        >>> if contact.look():  # before each batch
        ...     agreement = contact.take()
    """

    def __init__(
        self, data: Offloadable, settings: Settings, where: Address | None = None, *, is_one_of_several: bool = False
    ) -> None:
        self._data = data
        self.samples = len(data) if is_one_of_several and not data.by_programs else 0
        self._settings = settings
        self.where = chosen = where or settings.agent or next(iter(own_addresses(data)), None)
        self.agent = (
            None if chosen is None else Agent(chosen, data, settings.options, is_one_of_several=is_one_of_several)
        )
        self.shared: SharedRoute | None = None
        self.agreed: Agreement | None = None
        self.missing = ""
        self._known: SharedRoute | None = None
        """Of the newest run that asked the agent: what workers have found out outlives it."""
        self._route = Route(Standing.NONE, now_s())
        self._trial: _Trial | None = None
        self._spent_s = 0.0
        """In this trial, longer than was said."""
        self.error: SophonError | None = None
        self._meet: Callable[[], Meeting]
        self._agreement: Agreement | None = None
        """The newest one."""
        self._looks = False
        """Whether a run goes on."""
        self._warned_of: set[str] = set()

    @property
    def name(self) -> str:
        """What the user reads."""
        return "the local agent" if str(self.agent) == "local" else f"the agent at {self.agent}"

    @property
    def asked(self) -> bool:
        """Whether the run has an agent to ask, now or later."""
        return self._route.standing not in (Standing.NONE, Standing.USELESS)

    @property
    def routes(self) -> list[SharedRoute]:
        """Those that workers take; none where the run does without an agent."""
        return [] if self.shared is None else [self.shared]

    @property
    def is_gone(self) -> bool:
        """Whether workers have given the agent up."""
        return self.shared is not None and self.shared.gone_s > 0

    @property
    def why_alone(self) -> str:
        """Why the run does without the agent that was given; "" otherwise."""
        return self._route.why if self._route.standing is Standing.USELESS else ""

    @property
    def note(self) -> str:
        """What a user should know of where the agent stands; "" while it serves."""
        if self._route.standing is not Standing.STARTING:
            return self.why_alone
        if self.missing:
            return f"files are read on this host until the agent comes: {self.missing}"
        return (
            "the agent is starting, and until it answers the loader reads the files itself; for short epochs, "
            "start one beforehand (sophon-agent serve) and give its address"
        )

    # --- as a run begins --------------------------------------------------------------------------------------

    def _useless(self, processes: int) -> str:
        """Why prices are not set for the agent that was asked for; "" if they are, or there is no such agent."""
        if self.agent is None or not isinstance(self._settings.policy, PricingPolicy):
            return ""
        return self.agent.why_useless(processes)

    @property
    def cores(self) -> float | None:
        """Of the agent that the run has agreed with; None before it has."""
        return None if self._agreement is None else self._agreement.agent_cores

    @property
    def cores_of_one(self) -> float | None:
        """Cores of an agent on another host, of several in the mean; None before one has agreed."""
        return None if self.agent is None or self.agent.is_own else self.cores

    @property
    def announced_in(self) -> str:
        """The folder in which the agents announce themselves; "" where none is known."""
        return ""

    def fits(self, processes: int) -> bool:
        """Whether a run that begins with so many processes would have the agent if this one has it."""
        return (self._route.standing is Standing.USELESS) == bool(self._useless(processes))

    def begin(self, chains: Sequence[Chain], seed: Seed, processes: int, *, needed: bool) -> Agreement | None:
        """Agree with the agent, or begin without it and look for it from then on.

        Args:
            chains: one per source of the dataset.
            seed: of the run.
            processes: that load, and share this host's cores with a local agent.
            needed: whether nothing can be done without the agent.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        self.start(chains, seed, processes)
        agent, settings = self.agent, self._settings
        if agent is None or not self.asked:
            return None
        if not (isinstance(settings.policy, PricingPolicy) and agent.files_here):
            try:
                self._await(leave=can_read_here(self._data, settings, needed=needed))
            except Exception:
                agent.close()
                raise
        if not isinstance(settings.policy, NoOff) and (why := no_op_for_agents(chains)) and self._is_new("ops"):
            warn_user(f"No op but decoding can run at the agent: {why}.")
        if (agreement := self.take()) is not None:
            self.missing = ""
            self.tell_workers()
        return agreement

    def start(self, chains: Sequence[Chain], seed: Seed, processes: int, place: SharedRoute | None = None) -> None:
        """Begin a run, and wait for nothing: `look` finds out where the agent stands.

        Args:
            chains: one per source of the dataset.
            seed: of the run.
            processes: that load, and share this host's cores with a local agent.
            place: what workers are to know the agent by; None to make that.

        Raises:
            ConfigError: the agent cannot serve this dataset, whatever it says.
        """
        agent, settings = self.agent, self._settings
        self.shared, self.agreed, self.missing, self.error, self._agreement = None, None, "", None, None
        self._route = Route(Standing.STARTING if agent and len(self._data) else Standing.NONE, now_s())
        if agent is None or not self.asked:
            return
        if useless := self._useless(processes):
            self._route.refused(useless)
            agent.close()  # of a run with fewer processes
            return
        self._looks = True
        terms, known = agent.proposed(chains, seed), self._known
        if place is None:
            place = (
                SharedRoute(processes, terms, samples=self.samples)
                if known is None
                else known.for_workers(processes, terms)
            )
        self.shared = self._known = place
        self._meet = lambda: agent.meet(chains, settings.encodings, seed, processes)

    def tell_workers(self) -> None:
        """Have the workers use the agent, which has agreed."""
        assert self.shared is not None and self._agreement is not None, "who has agreed was asked"
        self.shared.agree(self._agreement.agreed)

    def resize(self, processes: int) -> None:
        """Other processes load from now on."""
        if self.shared is not None:
            self.move(self.shared.for_workers(processes))

    def move(self, place: SharedRoute) -> None:
        """Workers know the agent by another place from now on, in which all is that was known."""
        self.shared = self._known = place

    # --- while it goes on -------------------------------------------------------------------------------------

    def look(self, wait_s: float = 0.0) -> bool:
        """See where the agent stands: try one that is missing, or that workers have given up, if it is time.

        Takes no time but for the look at a few files of an agent that has come.

        Args:
            wait_s: for how long to wait for its answer.

        Returns:
            Whether an agreement has been made just now; `take` gives it.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset.
        """
        route, shared = self._route, self.shared
        if shared is not None and route.serves and (gone_s := shared.gone_s):
            route.given_up(gone_s, _GONE)
        if not (self._looks and route.awaited):
            return False
        if self._trial is None and not route.due(now_s()):
            time.sleep(wait_s)
            return False
        began_s = now_s()
        try:
            trial = self._trial = self._trial or self._new_trial()
            answered = trial.answered(wait_s)
        except Exception as error:
            if raised_by_handler(error):
                raise
            self._failed(error, max(0.0, now_s() - began_s - wait_s))
            return False
        self._spent_s += max(0.0, now_s() - began_s - wait_s)
        return answered and self._has_answered(trial)

    def wait(self) -> bool:
        """As `look`, and waits for an agent that is missing."""
        return self._route.standing is Standing.STARTING and self._await(leave=False)

    def _await(self, *, leave: bool) -> bool:
        """Whether an agreement has been made; `leave` to go on without once a trial has failed."""
        told, wait = None, Wait(str(self.agent), self._settings.options)
        try:
            while not self.look(_LOOK_S):
                if self.error is not told and self.error is not None:
                    if leave:
                        return False
                    told = self.error
                    wait.goes_on(without_frames(told))
        except BaseException:
            self.leave_trial()
            raise
        return True

    def leave_trial(self) -> None:
        """Wait for its answer no longer; the next look that is due begins another."""
        if self._trial is not None:
            self._end_trial()
            self._route.failed(now_s(), "it was left")

    def refuse(self, error: Exception) -> None:
        """The agent cannot serve this dataset, whatever it says: it is not used in this run.

        Args:
            error: why.
        """
        self._route.refused(f"the agent could not be started or reached: {error}")

    def _new_trial(self) -> _Trial:
        self._route.trial_begins()
        self._spent_s = 0.0
        return self._meet() if self._agreement is None else Recheck(self._agreement)

    def _has_answered(self, trial: _Trial) -> bool:
        self._end_trial()
        self._route.answered(now_s())
        if isinstance(trial, Recheck):
            assert self.shared is not None, "it was given up by workers, which had it"
            self.shared.back(trial.began_s)
            log.info(log_line("agent answers again", agent=self.agent))
            return False
        assert isinstance(trial, Meeting) and trial.agreement is not None, "what has been answered is agreed on"
        found = self.agreed = self._agreement = trial.agreement
        log.info(log_line("agent agreed", agent=found.agent, encodings=",".join(found.encodings)))
        return True

    def _failed(self, error: Exception, spent_s: float) -> None:
        """A trial has failed.

        Raises:
            Exception: that one, if the agent will never agree.
        """
        self._end_trial()
        first = self._agreement is None
        own = self.agent is None or self.agent.is_own
        if not isinstance(error, SophonError) or (first and (own or not may_come(error))):
            self.refuse(error)
            raise error
        if first:
            self.missing = str(error)
        self.error = without_frames(error)
        self._route.failed(now_s(), str(error), self._spent_s + spent_s)
        log.info(log_line("agent missing" if first else "agent still gone", reason=error))

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()
            self._trial = None

    def take(self) -> Agreement | None:
        """The agreement that is not used yet, to be used from now on; None if there is none."""
        agreement, self.agreed = self.agreed, None
        return agreement

    def loop_waited(self, awaited_s: float) -> None:
        """As of `Contacts`: one agent has no groups."""

    def group_bytes(self) -> dict[str, int]:
        """As of `Contacts`: one agent has no groups."""
        return {}

    def shares(self) -> tuple[list[AgentShare], list[str]]:
        """As of `Contacts`: of one agent the report says it all."""
        return [], []

    # --- what the user is told, once each ---------------------------------------------------------------------

    def tell_missing(self) -> None:
        """An epoch begins without an agent that is missing."""
        if self._is_new("missing"):
            warn_user(
                f"The agent at {self.agent} cannot be used yet: {self.missing}. Files are read on this host until it "
                "comes. OffloadOptions(agent_missing=...) has the loader wait for it, or raise the error."
            )

    def tell_fallbacks(self, totals: Totals) -> None:
        """Samples have been read here that the agent was asked for, if any.

        Args:
            totals: of the epoch so far.
        """
        if totals.fallbacks > totals.refused:
            self._tell_fallbacks("does not answer, or sends nothing usable. Files are read on this host until it does")
        if totals.refused:
            self._tell_fallbacks(
                "answers, but cannot read a file that this host can read. Such files are read here (the log names them)"
            )

    def _tell_fallbacks(self, what: str) -> None:
        if self._is_new(what):
            warn_user(f"The agent at {self.agent} {what}; report() counts them as fallbacks.")

    def _is_new(self, what: str) -> bool:
        """Whether the user has not been told so before; from now on that has been done."""
        known = what in self._warned_of
        self._warned_of.add(what)
        return not known

    # --- the end ----------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """A run ends: neither look for the agent nor try it, until another begins."""
        self._looks = False
        self._end_trial()
        self.agreed = None

    def close(self) -> None:
        """End the agent, if this loader has started it; a later run starts it anew."""
        if self.agent is not None:
            self.agent.close()
