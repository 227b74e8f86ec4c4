"""Hosts of endpoints: whether their names are known, and whether they are reached by IPv6 alone."""

from __future__ import annotations

import functools
import socket


def by_ipv6_alone(endpoint: str) -> bool:
    """Whether ZeroMQ must be told to use IPv6: it then finds no address of IPv4 for a name that has both.

    Args:
        endpoint: `tcp://host:port`; others have no host.
    """
    try:
        return _families(endpoint) == {socket.AF_INET6}
    except OSError:  # ZeroMQ asks again, until there is one
        return False


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


@functools.lru_cache(maxsize=64)
def _families(endpoint: str) -> frozenset[int]:
    """Kept, because asking a name server may take seconds, and a connection that is made anew must not."""
    host = host_of(endpoint)
    if not endpoint.startswith("tcp://") or not host:
        return frozenset()
    return frozenset(found[0] for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
