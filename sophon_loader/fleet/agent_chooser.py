"""Whom the runs of a loader meet: the agent, several agents, or those that a roster names."""

from __future__ import annotations

import math

from sophon_loader.client.address import Address
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.fleet.agreement import own_addresses
from sophon_loader.fleet.contact import Contact
from sophon_loader.fleet.contacts import Contacts
from sophon_loader.fleet.rostered import LOOK_EVERY_S, Rostered
from sophon_loader.host.system import now_s
from sophon_loader.routes.named import has_name, is_of_several, names_roster, roster_of
from sophon_loader.routes.roster import Roster
from sophon_loader.settings import Settings, check_plans_for_several, check_several, plans_for_several

_FIRST_LOOK_S = 2.0
"""How long the first run waits to hear what addresses a name has; one that is found to have several later is taken for
several agents from the next run on."""


class AgentChooser:
    """Decides it as runs begin, because a name with one address may come to have several.

    Args:
        data: the dataset that is to be served.
        settings: of the loader.

    Attributes:
        contact: of the run.

    Raises:
        ConfigError: the dataset names several agents, and the policy plans for one.
    """

    def __init__(self, data: Offloadable, settings: Settings) -> None:
        self._data, self._settings = data, settings
        self._name: Address | None = None
        """Of an agent that may be several, while it is taken for one."""
        self._roster: Roster | None = None
        self._look_at_s = -math.inf
        self._several = False
        self.contact = self._contact()

    def _contact(self) -> Contact | Contacts:
        data, settings = self._data, self._settings
        agents = settings.agents or (own_addresses(data) if settings.agent is None else ())
        named = settings.agent or next(iter(agents), None)
        if isinstance(named, Address) and names_roster(named):
            check_plans_for_several(settings.policy, f"agents are named by {named}")
            return Rostered(data, settings, named)
        if len(agents) > 1:
            check_several(agents, settings.policy)
            return Contacts(data, settings, agents)
        if isinstance(named, Address) and has_name(named) and plans_for_several(settings.policy):
            self._name = named
        return Contact(data, settings)

    @property
    def is_another(self) -> bool:
        """Whether the next run should meet others than the one that goes on."""
        return self._several and self._name is not None

    def look(self) -> None:
        """Before each batch: look up the name, if it is time, without waiting for an answer."""
        if self._name is None or self._several:
            return
        self._roster = self._roster or roster_of(self._name)
        due = now_s() >= self._look_at_s
        if due:
            self._look_at_s = now_s() + LOOK_EVERY_S
        if due or self._roster.is_looking:
            self._several = is_of_several(self._roster.look(ask=due))

    def for_run(self) -> Contact | Contacts:
        """As a run begins: whom it meets."""
        if self._name is None:
            return self.contact
        if self._roster is None:
            self._look_at_s = now_s() + LOOK_EVERY_S
            self._roster = roster_of(self._name)
            self._several = is_of_several(roster_of(self._name, wait_s=_FIRST_LOOK_S).look())
        if self._several:
            self.contact, self._name = Rostered(self._data, self._settings, self._name), None
        return self.contact
