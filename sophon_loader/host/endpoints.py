"""Hosts of endpoints: can their names be resolved, and are they reached by IPv6 only?"""

from __future__ import annotations

import functools
import math
import socket

_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0
"""Seconds before an address family that was refused is tried again; the pause doubles up to the second value."""
_reached: dict[str, bool] = {}
"""For endpoints with addresses of both families: True if the agent was last reached by IPv6."""


class Family:
    """Chooses IPv6 or IPv4 for an endpoint whose name has addresses of both, as `localhost` may have.

    ZeroMQ uses one family per socket, and an agent may listen on one of them only. A socket that connected to both
    would distribute its messages over both connections. So the other family is tried if the connection is refused.

    Args:
        endpoint: `tcp://host:port`; other endpoints have no host.

    Attributes:
        by_ipv6: value for `zmq.IPV6`.
        has_both: True if there is another family to try.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        families = _known_families(endpoint)
        self.has_both = families == {socket.AF_INET, socket.AF_INET6}
        self.by_ipv6 = _reached.get(endpoint, False) if self.has_both else families == {socket.AF_INET6}
        self._pause_s, self._turn_at_s = 0.0, math.inf

    def refused(self, now_s: float) -> None:
        """Note that no process accepts connections at the current family."""
        if self.has_both and self._turn_at_s == math.inf:
            self._turn_at_s = now_s + self._pause_s

    def turned(self, now_s: float) -> bool:
        """Switch to the other family if it is due; True if it was, and `by_ipv6` has changed. The first switch has no
        pause."""
        if now_s < self._turn_at_s:
            return False
        self._turn_at_s = math.inf
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _MAX_PAUSE_S)
        self.by_ipv6 = not self.by_ipv6
        return True

    def connected(self) -> None:
        """Note that a connection was accepted, by the agent or by another process."""
        self._pause_s, self._turn_at_s = 0.0, math.inf

    def reached(self) -> None:
        """Note that the accepted connection is the agent's. Other sockets of this process begin with this family."""
        if self.has_both:
            _reached[self._endpoint] = self.by_ipv6


def by_ipv6_alone(endpoint: str) -> bool:
    """True if ZeroMQ must be set to IPv6, because the name has no IPv4 address.

    With that setting ZeroMQ would find no IPv4 address of a name that has both.

    Args:
        endpoint: `tcp://host:port`; other endpoints have no host.
    """
    return _known_families(endpoint) == {socket.AF_INET6}


def unknown_host(endpoint: str) -> str:
    """Return the reason why an endpoint's host cannot be resolved; "" if it can.

    Args:
        endpoint: `tcp://host:port`; other endpoints have no host.
    """
    try:
        _families(endpoint)
    except OSError as error:
        return f"{host_of(endpoint)!r}: {error.strerror or error}"
    return ""


def host_of(endpoint: str) -> str:
    """Return the host of `tcp://host:port`, without brackets."""
    return endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def _known_families(endpoint: str) -> frozenset[int]:
    try:
        return _families(endpoint)
    except OSError:  # ZeroMQ asks again, until there is one
        return frozenset()


@functools.lru_cache(maxsize=64)
def _families(endpoint: str) -> frozenset[int]:
    """Resolve an endpoint's host to its address families. Cached: a name server may take seconds, and renewing a
    connection must not."""
    host = host_of(endpoint)
    if not endpoint.startswith("tcp://") or not host:
        return frozenset()
    return frozenset(found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
