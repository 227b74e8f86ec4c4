"""Groups of agents, such as a rack or a rail: a rank asks those of its own as long as they keep up.

They do while the training does not wait for batches, or the worker not for replies. So a share of the keys goes to all
agents: it rises while both wait for more than `_WAITS` of the time, up to all keys, and falls while one of them waits
for less than `_IDLE`. A job that its training step limits stays in its group, and so does one that its own CPU limits;
one that the wire limits uses all wires.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence

from xxhash import xxh3_64_intdigest

from sophon_loader.host.endpoints import host_of

_LOOK_S = 0.25
"""How often the share is changed."""
_WAITS, _IDLE = 0.2, 0.05
_UP, _DOWN = 0.2, 0.05
"""Of the share, at each look: all keys after 1.25 s of waiting, none 5 s after that ends."""


def group_of(endpoint: str, groups: Mapping[str, Sequence[str]]) -> str:
    """The group of an agent; "" if it is of none.

    Args:
        endpoint: `tcp://host:port`.
        groups: the members of each by its name: endpoints, hosts, or networks such as `10.1.0.0/16`.
    """
    host = host_of(endpoint)
    return next((name for name, members in groups.items() if any(_is(endpoint, host, one) for one in members)), "")


def _is(endpoint: str, host: str, member: str) -> bool:
    if member.removeprefix("tcp://").strip("[]") == host or f"tcp://{member.removeprefix('tcp://')}" == endpoint:
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(member)
    except ValueError:  # one of the two is a name
        return False


class Preference:
    """Which keys a worker asks of its own group alone.

    Args:
        own: per agent, whether it is of the group; all False where there are no groups.

    Attributes:
        share: of the keys that goes to all agents, 0 to 1; 1 without an agent of the group.

    Example:
        >>> preference = Preference([True, False])
        >>> preference.see(now_s=10.0, waited_s=0.0, awaited_s=0.0)
        >>> preference.keeps("cat/1.jpg")
        True
    """

    def __init__(self, own: Sequence[bool]) -> None:
        self.own = frozenset(number for number, one in enumerate(own) if one)
        self.share = 0.0 if self.own else 1.0
        self._since_s, self._waited_s, self._awaited_s = 0.0, 0.0, 0.0

    def see(self, now_s: float, waited_s: float, awaited_s: float) -> None:
        """Time has passed.

        Args:
            now_s: the time, s.
            waited_s: for which the worker has waited for replies so far, s.
            awaited_s: for which the training has waited for batches so far, s.
        """
        seconds = now_s - self._since_s
        if not self.own or seconds < _LOOK_S:
            return
        waited = min(waited_s - self._waited_s, awaited_s - self._awaited_s)
        if self._since_s:
            looks = min(seconds / _LOOK_S, 1 / _UP)
            if waited > _WAITS * seconds:
                self.share = min(1.0, self.share + _UP * looks)
            elif waited < _IDLE * seconds:
                self.share = max(0.0, self.share - _DOWN * looks)
        self._since_s, self._waited_s, self._awaited_s = now_s, waited_s, awaited_s

    def keeps(self, key: str) -> bool:
        """Whether a key is for the group alone; the same ones first of all as the share rises."""
        if self.share in (0.0, 1.0):
            return not self.share
        return xxh3_64_intdigest(key.encode(errors="surrogateescape")) >= self.share * 2.0**64
