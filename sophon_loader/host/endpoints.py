"""Hosts of endpoints: whether their names are known, and whether they are reached by IPv6 alone."""

from __future__ import annotations

import functools
import math
import socket

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0
"""How long to wait before a family is tried anew that was refused; twice as long each time."""
_reached: dict[str, bool] = {}
"""Endpoint -> whether it was reached by IPv6, of those whose names have addresses of both families."""


class Family:
    """By IPv6 or by IPv4: how an endpoint is tried whose name has addresses of both, as `localhost` may have.

    ZeroMQ takes those of one family, and an agent may listen at one of them alone. One socket cannot connect to both,
    because it would deal its messages out in turn. So the other one is tried where nobody takes a connection.

    Args:
        endpoint: `tcp://host:port`; others have no host.

    Attributes:
        by_ipv6: what `zmq.IPV6` must be.
        has_both: whether there is another family to try.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        families = _known_families(endpoint)
        self.has_both = families == {socket.AF_INET, socket.AF_INET6}
        self.by_ipv6 = _reached.get(endpoint, False) if self.has_both else families == {socket.AF_INET6}
        self._pause_s, self._turn_at_s = 0.0, math.inf

    def refused(self, now_s: float) -> None:
        """Nobody has taken a connection."""
        if self.has_both and self._turn_at_s == math.inf:
            self._turn_at_s = now_s + self._pause_s

    def turned(self, now_s: float) -> bool:
        """Whether the other family is to be tried now, which `by_ipv6` then says; the first time at once."""
        if now_s < self._turn_at_s:
            return False
        self._turn_at_s = math.inf
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _MAX_PAUSE_S)
        self.by_ipv6 = not self.by_ipv6
        return True

    def connected(self) -> None:
        """Somebody has taken a connection; who they are does not matter here."""
        self._pause_s, self._turn_at_s = 0.0, math.inf

    def reached(self) -> None:
        """It was the agent. Other sockets of this process begin with this family."""
        if self.has_both:
            _reached[self._endpoint] = self.by_ipv6


def by_ipv6_alone(endpoint: str) -> bool:
    """Whether ZeroMQ must be told to use IPv6: it then finds no address of IPv4 for a name that has both.

    Args:
        endpoint: `tcp://host:port`; others have no host.
    """
    return _known_families(endpoint) == {socket.AF_INET6}


def unknown_host(endpoint: str) -> str:
    """Why the host of an endpoint cannot be found; "" where it can.

    Args:
        endpoint: `tcp://host:port`; others have no host.
    """
    try:
        _families(endpoint)
    except OSError as error:
        return f"{host_of(endpoint)!r}: {error.strerror or error}"
    return ""


def host_of(endpoint: str) -> str:
    """The host of `tcp://host:port`, without brackets."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _known_families(endpoint: str) -> frozenset[int]:
    try:
        return _families(endpoint)
    except OSError:  # ZeroMQ asks again, until there is one
        return frozenset()


@functools.lru_cache(maxsize=64)
def _families(endpoint: str) -> frozenset[int]:
    """Kept, because asking a name server may take seconds, and a connection that is made anew must not."""
    host = host_of(endpoint)
    if not endpoint.startswith("tcp://") or not host:
        return frozenset()
    return frozenset(found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
