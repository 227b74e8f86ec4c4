"""A loader's agent as its runs meet it: agreed with as one begins, joined later, or given up and tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.policies.fixed import NoOff
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.errors import warn_user
from sophon_loader.main.agent import Agent, Joining
from sophon_loader.main.agreement import Agreement, own_address
from sophon_loader.main.revival import Revival
from sophon_loader.main.run import no_op_for_agents
from sophon_loader.main.settings import Settings
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.routes.shared import SharedRoute
from sophon_loader.workers.counters import Totals


@dataclass(frozen=True)
class Found:
    """What a run begins with, each as in `Run`."""

    agreement: Agreement | None = None
    late: bool = False
    missing: str = ""


class Contact:
    """The one place in the main process that knows the agent of a loader, and whether it has come.

    Args:
        data: the dataset that the agent must serve.
        settings: of the loader.

    Attributes:
        agent: None where none was given.
        agreed: an agreement that has been made since the run began, and is not used yet.
        route: what the workers know of the agent; None where this run does without.

    Example:
        >>> contact = Contact(data, settings)
        >>> found = contact.begin(chains, seed, processes=2, alone="", needed=False)
        >>> if contact.look():  # before each batch
        ...     agreement = contact.take()
    """

    def __init__(self, data: Offloadable, settings: Settings) -> None:
        self._data = data
        self._settings = settings
        where = settings.agent or own_address(data)
        self.agent = None if where is None else Agent(where, data, settings.options)
        self.agreed: Agreement | None = None
        self.route: SharedRoute | None = None
        self._known: SharedRoute | None = None
        """Of the newest run that asked the agent: what workers have found out outlives it."""
        self._joining: Joining | None = None
        self._revival = Revival()
        self._warned_of: set[str] = set()

    # --- as a run begins --------------------------------------------------------------------------------------

    def why_alone(self, processes: int) -> str:
        """Why prices are not set for the agent that was asked for; "" if they are, or there is no such agent.

        Args:
            processes: that load.
        """
        if self.agent is None or not isinstance(self._settings.policy, PricingPolicy):
            return ""
        return self.agent.why_useless(processes)

    def begin(self, chains: Sequence[Chain], seed: Seed, processes: int, alone: str, *, needed: bool) -> Found:
        """Agree with the agent, or begin without it and look for it from then on.

        Args:
            chains: one per source of the dataset.
            seed: of the run.
            processes: that load.
            alone: why there should be no agent; "" otherwise.
            needed: whether nothing can be done without the agent.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: the agent cannot serve this dataset.
        """
        found = (
            Found() if self.agent is None else self._asked(self.agent, chains, seed, processes, alone, needed=needed)
        )
        asked = self.agent is not None and not alone and not isinstance(self._settings.policy, NoOff)
        if asked and (why := no_op_for_agents(chains)) and self._is_new("ops"):
            warn_user(f"No op runs at the agent: {why}.")
        return found

    def _asked(
        self, agent: Agent, chains: Sequence[Chain], seed: Seed, processes: int, alone: str, *, needed: bool
    ) -> Found:
        encodings, missing = self._settings.encodings, ""
        self.route = None
        if alone:
            agent.close()  # of a run with fewer processes
            return Found()
        if not len(self._data):
            return Found()
        terms = agent.proposed(chains, seed)
        self.route = self._known = (
            SharedRoute(processes, terms) if self._known is None else self._known.for_workers(processes, terms)
        )
        if isinstance(self._settings.policy, PricingPolicy) and agent.files_here:
            self._joining = agent.join(chains, encodings, seed, processes)
        else:
            found = agent.agree(chains, encodings, seed, processes, needed=needed)
            if not isinstance(found, Joining):
                self.route.agree(found.agreed)
                return Found(found)
            self._joining, missing = found, str(found.error)
        return Found(None, late=True, missing=missing)

    # --- while it goes on -------------------------------------------------------------------------------------

    def resize(self, processes: int) -> None:
        """Other processes load from now on."""
        if self.route is not None:
            self.route = self._known = self.route.for_workers(processes)

    @property
    def is_gone(self) -> bool:
        """Whether workers have given the agent up."""
        return self.route is not None and self.route.gone_s > 0

    def try_again(self, agreement: Agreement | None) -> None:
        """Try an agent that workers have given up, if it is time; see `Revival.look`."""
        if self.route is not None:
            self._revival.look(agreement, self.route)

    def look(self) -> bool:
        """Whether an agent that was looked for has just come; takes no time.

        Raises:
            AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset.
        """
        joining = self._joining
        return joining is not None and self._has_come(joining, joining.agreement)

    def wait(self) -> bool:
        """As `look`, and waits for it."""
        joining, agent = self._joining, self.agent
        if joining is None or agent is None:
            return False
        return self._has_come(joining, lambda: agent.await_joining(joining))

    def _has_come(self, joining: Joining, agreement: Callable[[], Agreement | None]) -> bool:
        self.agreed = agreement()
        if self.agreed is None:
            return False
        joining.close()
        self._joining = None
        return True

    def take(self) -> Agreement | None:
        """The agreement that is not used yet, to be used from now on; None if there is none."""
        agreement, self.agreed = self.agreed, None
        return agreement

    # --- what the user is told, once each ---------------------------------------------------------------------

    def tell_missing(self, why: str) -> None:
        """An epoch begins without an agent that is looked for.

        Args:
            why: what was got from it.
        """
        if self._is_new("missing"):
            warn_user(
                f"The agent at {self.agent} cannot be used yet: {why}. Files are read on this host until it comes. "
                "OffloadOptions(agent_missing=...) has the loader wait for it, or raise the error."
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
        if self._joining is not None:
            self._joining.close()
            self._joining = None
        self.agreed = None
        self._revival.close()

    def close(self) -> None:
        """End the agent, if this loader has started it; a later run starts it anew."""
        if self.agent is not None:
            self.agent.close()
