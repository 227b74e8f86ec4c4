"""Texts that name a roster in place of agents' addresses: a folder, a Ray cluster, or a host name."""

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
"""Prefixes of texts that are not an address, but name the agents by themselves."""


def parse_roster(text: str) -> Address:
    """Return `file:///FOLDER/EXPORT[/FOLDER]` or `ray://HEAD:8265/EXPORT[/FOLDER]` as an address.

    It is never connected to: its text and key are those of all agents that the folder or the cluster names.

    Raises:
        ConfigError: the text has another form.
    """
    roster_of(address := Address(text.rstrip("/"), ""))
    return address


def names_roster(address: Address) -> bool:
    """Return True if an address is a folder or a cluster, in which agents are found."""
    return address.endpoint.startswith(SCHEMES)


def has_name(address: Address) -> bool:
    """Return True if an address contains a host's name, which may resolve to several addresses later."""
    return _version_of(address) is None


def is_of_several(members: Sequence[Member]) -> bool:
    """Return True if these are the addresses of several hosts: one host has an address of each family at most."""
    return max(Counter(_version_of(one.address) for one in members).values(), default=0) > 1


def roster_of(address: Address, *, wait_s: float = 0.0) -> Roster:
    """Return the roster that an address names.

    Args:
        address: as the user wrote it, with the key of all agents.
        wait_s: time limit of a look, in seconds; 0 not to wait.
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
