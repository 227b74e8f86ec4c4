"""What a user writes in place of an agent's address where a roster names the agents."""

from __future__ import annotations

from sophon_loader.client.address import Address
from sophon_loader.routes.announced import Announced
from sophon_loader.routes.roster import Roster

FOLDER = "file://"


def parse_folder(text: str) -> Address:
    """`file:///FOLDER/EXPORT[/FOLDER]` as an address that nobody connects to: its text and key are those of all agents
    that the folder names.

    Raises:
        ConfigError: it has another form.
    """
    Announced(text, keyed=True)
    return Address(text.rstrip("/"), "")


def names_folder(address: Address) -> bool:
    """Whether an address is that of a folder in which agents announce themselves."""
    return address.endpoint.startswith(FOLDER)


def roster_of(address: Address) -> Roster:
    """Who the agents of such an address are; its looks wait for nothing."""
    return Announced(str(address), keyed=address.token is not None, wait_s=0.0)
