"""Checks for failures that are predictable before an agent makes keys, starts processes or reports that it serves."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Sequence

from sophon_loader.errors import AgentError, ConfigError
from sophon_loader.host.endpoints import host_of
from sophon_loader.host.installed import torch_wanted


def check_modules(names: Sequence[str]) -> None:
    """Check that modules of ops exist, and torch with them. None is imported, nor its package, which may import torch.

    Args:
        names: of modules, with dots if they are in packages.

    Raises:
        ConfigError: a module does not exist, or ops are named where torch or torchvision is missing.
    """
    if names and (wanted := torch_wanted(f"--ops {names[0]}")):
        raise ConfigError(f"{wanted}, or leave --ops out")
    for name in names:
        if not _is_there(name):
            raise ConfigError(
                f"ops must name modules that Python finds, got --ops {name}, which it does not find; set PYTHONPATH to "
                "the folder that holds it, or install its package"
            )


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return True
    path: Sequence[str] | None = None
    parts = name.split(".")
    if "" in parts:
        return False
    for count in range(1, len(parts) + 1):
        whole = ".".join(parts[:count])
        found = getattr(sys.modules.get(whole), "__spec__", None)
        for finder in sys.meta_path if found is None else ():
            if (found := finder.find_spec(whole, path)) is not None:
                break
        if found is None:
            return False
        path = found.submodule_search_locations
        if path is None and count < len(parts):
            return False
    return True


def check_address(endpoint: str) -> None:
    """Check that a TCP address can be bound, by binding it for a moment.

    Args:
        endpoint: `tcp://host:port`; other endpoints, and names of network interfaces, are not checked.

    Raises:
        AgentError: it cannot be bound.
    """
    if not endpoint.startswith("tcp://") or (host := host_of(endpoint)) in (name for _, name in socket.if_nameindex()):
        return
    port = endpoint.rpartition(":")[2].replace("*", "0")
    try:
        found = socket.getaddrinfo({"*": "0.0.0.0"}.get(host, host), port, type=socket.SOCK_STREAM)
        family, *_, address = min(found, key=lambda one: one[0])  # IPv4 where there is one, as ZeroMQ does
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the same
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        raise bind_refused(endpoint, error) from error


def bind_refused(endpoint: str, error: Exception) -> AgentError:
    """Return the error for an address that cannot be listened on.

    Args:
        endpoint: as given by the user.
        error: the reason.
    """
    why = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) == errno.EADDRINUSE:
        remedy = "choose another port, or end the program that listens there"
    else:
        remedy = "write 0.0.0.0 for all addresses of this host, or an address that `ip address` shows"
    return AgentError(f"--bind must be an address of this host with a free port, got {endpoint}: {why}; {remedy}")
