"""One side of a bed: programs on it, its CPU quota and seconds, the bytes of its interface."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from bench.bed.cgroups import ControlGroup
from bench.bed.processes import command, signals_held

INTERFACE = "wire0"
"""Name of a host's end of the link. Hosts have namespaces of their own, so every bed can use the same."""
_JOIN_THEN_EXEC = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
"""Joins control groups before anything of the program runs; exec keeps the pid, so `Popen.pid` is the program's."""


class InterfaceBytes(NamedTuple):
    """Bytes that an interface has counted since it was made, link-level headers included."""

    received: int
    sent: int


class Host:
    """One side of a bed. Its processes share one control group as they would share a machine.

    Attributes:
        role: `agent` or `loader`.
        address: IPv4 address to bind or to connect to.
        namespace: Network namespace; None on the loopback bed.
        group: Control group; None without control groups (loopback bed only).
    """

    def __init__(self, role: str, address: str, namespace: str | None, group: ControlGroup | None) -> None:
        self.role = role
        self.address = address
        self.namespace = namespace
        self.group = group
        self.children: list[subprocess.Popen[Any]] = []

    def popen(
        self,
        argv: Sequence[str],
        *,
        cores: set[int] | None = None,
        quota_cores: float | None = None,
        **popen_kwargs: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program on this host; the bed ends it with its descendants when it closes.

        Args:
            argv: Program and arguments.
            cores: CPUs that it and its descendants may run on (they inherit it); None for all.
            quota_cores: CPU seconds per second of the *whole host*, as by `set_quota`; None leaves
                it as it is.
            popen_kwargs: For subprocess.Popen. By default the program gets a session of its own, so
                that Ctrl-C reaches the owner of the bed alone and the bed stops its programs in
                order.
        """
        if cores is not None and not cores:
            raise ValueError("cores must be None or name at least one CPU, got an empty set")
        if quota_cores is not None:
            self.set_quota(quota_cores)
        popen_kwargs.setdefault("start_new_session", True)
        with signals_held():  # a signal between fork and append would lose the child
            child = subprocess.Popen(self._wrapped(argv, cores), **popen_kwargs)
            self.children.append(child)
        return child

    def _wrapped(self, argv: Sequence[str], cores: set[int] | None) -> list[str]:
        wrapped = list(argv)
        if cores is not None:
            wrapped = ["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *wrapped]
        if self.namespace is not None:
            # Not `ip netns exec`: it mounts a fresh /sys, in which a program cannot see its own CPU quota.
            wrapped = ["nsenter", f"--net=/run/netns/{self.namespace}", *wrapped]
        if self.group is not None:  # outermost: these files cannot be seen from inside the namespace
            files = [str(directory / "cgroup.procs") for directory in self.group.directories]
            wrapped = ["/bin/sh", "-c", _JOIN_THEN_EXEC, "join", *files, "--", *wrapped]
        return wrapped

    def set_quota(self, cores: float | None) -> None:
        """Limit this host to `cores` CPU seconds per second from now on; None lifts the limit.

        Without control groups it says on stderr that there is no limit, and goes on.
        """
        if self.group is not None:
            self.group.set_quota(cores)
        elif cores is not None:
            print(
                f"test bed: no CPU quota on the {self.role} host: no control groups here",
                file=sys.stderr,
            )

    def cpu_seconds(self) -> float | None:
        """CPU seconds used here so far, by ended processes too; None without control groups."""
        return None if self.group is None else self.group.cpu_seconds()

    def interface_bytes(self) -> InterfaceBytes | None:
        """Bytes that this host's interface has counted; None on the loopback bed.

        With segmentation offload, which real network cards have as well, the interface counts one header per large
        packet (up to 64 KB), not one per Ethernet frame. It shows about 0.2 % above the payload where
        `LinkedHosts.link_bytes` shows about 4.6 %.
        """
        if self.namespace is None:
            return None
        output = command("ip", "-netns", self.namespace, "-json", "-stats", "link", "show", "dev", INTERFACE)
        counters = json.loads(output)[0]["stats64"]
        return InterfaceBytes(received=counters["rx"]["bytes"], sent=counters["tx"]["bytes"])
