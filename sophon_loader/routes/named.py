"""What a user writes in place of the addresses of agents that a roster names: a folder, a Ray cluster, or a name."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence

from sophon_loader.client.address import Address
from sophon_loader.host.endpoints import host_of
from sophon_loader.routes.announced import Announced
from sophon_loader.routes.ray_actors import SCHEMES as RAY
from sophon_loader.routes.ray_actors import RayActors
from sophon_loader.routes.roster import Member, Resolved, Roster

FOLDER = "file://"
SCHEMES = (FOLDER, *RAY)
"""What a text begins with that is no address, but says by itself who the agents are."""


def parse_roster(text: str) -> Address:
    """`file:///FOLDER/EXPORT[/FOLDER]` or `ray://HEAD:8265/EXPORT[/FOLDER]` as an address that nobody connects to: its
    text and key are those of all agents that the folder or the cluster names.

    Raises:
        ConfigError: it has another form.
    """
    roster_of(address := Address(text.rstrip("/"), ""))
    return address


def names_roster(address: Address) -> bool:
    """Whether an address is that of a folder or a cluster, in which agents are found."""
    return address.endpoint.startswith(SCHEMES)


def has_name(address: Address) -> bool:
    """Whether an address has a host's name in it, which may come to have several addresses."""
    return _version_of(address) is None


def is_of_several(members: Sequence[Member]) -> bool:
    """Whether these are the addresses of several hosts: one host has an address of each family at most."""
    return max(Counter(_version_of(one.address) for one in members).values(), default=0) > 1


def roster_of(address: Address, *, wait_s: float = 0.0) -> Roster:
    """Who the agents are that such an address names.

    Args:
        address: as the user wrote it, with the key of all agents.
        wait_s: how long a look may take; 0 not to wait.
    """
    if address.endpoint.startswith(RAY):
        return RayActors(str(address), wait_s=wait_s)
    if address.endpoint.startswith(FOLDER):
        return Announced(str(address), keyed=address.token is not None, wait_s=wait_s)
    return Resolved(address, wait_s=wait_s)


def _version_of(address: Address) -> int | None:
    try:
        return ipaddress.ip_address(host_of(address.endpoint).partition("%")[0]).version
    except ValueError:
        return None
