"""The two kinds of beds: hosts joined by a shaped link, and hosts on the loopback interface."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TypeVar

from bench.bed.cgroups import host_group
from bench.bed.hosts import INTERFACE, Host
from bench.bed.names import new_bed_name, remove_bed
from bench.bed.processes import STOP_SIGNALS, command, signals_held
from bench.bed.unavailable import TestBedUnavailable

AGENT_ADDRESS, LOADER_ADDRESS, PREFIX_BITS = "10.77.0.1", "10.77.0.2", 30
"""Addresses of every bed; both ends of a link are in separate namespaces."""
BURST_NBYTES = 128 * 1024
"""Least size of the token bucket."""
SHAPER_LATENCY_MS = 50
"""Maximum time in ms that a packet may wait for tokens before it is dropped."""

_B = TypeVar("_B", bound="_Bed")


class _Bed(ABC):
    """Base of both beds: life cycle, signals, clean-up. For one thread, in a `with` statement.

    SIGINT, SIGTERM and SIGHUP unwind the owner's stack while a bed is open, and never interrupt set-up or clean-up.
    SIGTERM and SIGHUP do so as SystemExit with the code 128 + number, unless the program handles them itself.
    """

    agent_host: Host
    loader_host: Host

    def __init__(self, link_mbit: float | None) -> None:
        _check_rate(link_mbit)
        self.link_mbit = link_mbit
        self.name = new_bed_name()
        self._owner_pid = os.getpid()
        self._is_open = False
        self._replaced: list[signal.Signals] = []

    @property
    @abstractmethod
    def shaped(self) -> bool:
        """True if the link has a limit that the kernel enforces."""

    @property
    @abstractmethod
    def agent_arguments(self) -> list[str]:
        """Arguments that the agent needs so that it sends no faster than the link would."""

    @abstractmethod
    def set_rate(self, mbit: float | None) -> None:
        """Give the link another rate from now on, in 10^6 bit/s on the wire; None: no limit."""

    @abstractmethod
    def _set_up(self) -> None: ...

    def open(self: _B) -> _B:
        """Make hosts and link; does nothing when open already.

        Raises:
            TestBedUnavailable: the machine refuses; what was made until then is removed.
        """
        if self._is_open:
            return self
        self._is_open = True
        atexit.register(self.close)  # covers the instant between open() and the caller's `with`
        try:
            self._replace_handlers()
            with signals_held():
                self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End every process of the bed and remove the bed; see `end_processes` for how long."""
        if not self._is_open or os.getpid() != self._owner_pid:
            return  # a forked child of the owner inherits the object, not the bed
        self._is_open = False
        try:
            with signals_held():
                remove_bed(self.name, [*self.agent_host.children, *self.loader_host.children])
        finally:
            self._restore_handlers()
            atexit.unregister(self.close)

    def __enter__(self: _B) -> _B:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _replace_handlers(self) -> None:
        """Turn signals that would end the owner at once into SystemExit; other handlers stay."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._exit)
                self._replaced.append(number)

    def _restore_handlers(self) -> None:
        while self._replaced:
            number = self._replaced.pop()
            if signal.getsignal(number) == self._exit:
                signal.signal(number, signal.SIG_DFL)

    def _exit(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner_pid:
            # A forked child of the owner dies as it would have without the bed.
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        raise SystemExit(128 + number)


class LinkedHosts(_Bed):
    """Two network namespaces joined by a veth pair, whose agent end sends at `link_mbit` at most.

    Args:
        link_mbit: Rate of the link in Mbit/s, headers included; None for no limit.

    Raises:
        TestBedUnavailable: not root, a tool is missing, or there are no control groups.
    """

    def __init__(self, link_mbit: float | None = 100.0) -> None:
        super().__init__(link_mbit)
        check_privileges()
        self.agent_host = self._host("agent", AGENT_ADDRESS)
        self.loader_host = self._host("loader", LOADER_ADDRESS)

    def _host(self, role: str, address: str) -> Host:
        return Host(role, address, f"{self.name}-{role}", host_group(self.name, role))

    @property
    def shaped(self) -> bool:
        return self.link_mbit is not None

    @property
    def agent_arguments(self) -> list[str]:
        return []

    def set_rate(self, mbit: float | None) -> None:
        _check_rate(mbit)
        if self._is_open:
            self._shape(mbit)
        self.link_mbit = mbit

    def link_bytes(self) -> int | None:
        """Bytes of the frames the agent's end has put on the link; None when it is not shaped.

        The shaper counts them: it starts at zero again after a time without a limit.
        """
        if not self.shaped:
            return None
        output = command("tc", "-netns", str(self.agent_host.namespace), "-json", "-stats", *_QDISC_SHOW)
        return int(json.loads(output)[0]["bytes"])

    def _set_up(self) -> None:
        agent, loader = str(self.agent_host.namespace), str(self.loader_host.namespace)
        for host in (self.agent_host, self.loader_host):
            assert host.group is not None
            host.group.create()
            command("ip", "netns", "add", str(host.namespace))
        pair = ("name", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", loader)
        command("ip", "-netns", agent, "link", "add", *pair)
        for host in (self.agent_host, self.loader_host):
            bring_up(str(host.namespace), host.address)
        self.set_rate(self.link_mbit)

    def _shape(self, mbit: float | None) -> None:
        in_agent = ("tc", "-netns", str(self.agent_host.namespace), "qdisc")
        if mbit is not None:
            # A timer refills the bucket: above 1 Gbit/s, 128 KiB would be gone before it fires.
            burst_nbytes = max(BURST_NBYTES, round(mbit * 1e6 / 8 * 0.001))
            bucket = f"rate {round(mbit * 1e6)}bit burst {burst_nbytes}b latency {SHAPER_LATENCY_MS}ms"
            command(*in_agent, "replace", "dev", INTERFACE, "root", "tbf", *bucket.split())
        elif '"tbf"' in command(*in_agent[:-1], "-json", *_QDISC_SHOW):
            command(*in_agent, "delete", "dev", INTERFACE, "root")


_QDISC_SHOW = ("qdisc", "show", "dev", INTERFACE, "root")


def bring_up(namespace: str, address: str) -> None:
    in_namespace = ("ip", "-netns", namespace)
    command(*in_namespace, "link", "set", "dev", "lo", "up")
    # No link-local IPv6 address: its announcements would be counted as traffic.
    command(*in_namespace, "link", "set", "dev", INTERFACE, "addrgenmode", "none")
    command(*in_namespace, "address", "add", f"{address}/{PREFIX_BITS}", "dev", INTERFACE)
    command(*in_namespace, "link", "set", "dev", INTERFACE, "up")


class LoopbackHosts(_Bed):
    """Both hosts on 127.0.0.1: no shaping, no wire bytes; the agent has to limit itself.

    CPU quotas and times work where control groups do; else `Host.cpu_seconds` is None, quotas have
    no effect, and only the programs themselves are ended at the close, not their descendants.

    Args:
        link_mbit: Rate that the agent is to keep to, in Mbit/s; None for no limit.
    """

    def __init__(self, link_mbit: float | None = 100.0) -> None:
        super().__init__(link_mbit)
        self.agent_host = Host("agent", "127.0.0.1", None, None)
        self.loader_host = Host("loader", "127.0.0.1", None, None)

    @property
    def shaped(self) -> bool:
        return False

    @property
    def agent_arguments(self) -> list[str]:
        return [] if self.link_mbit is None else ["--limit-mbit", f"{self.link_mbit:g}"]

    def set_rate(self, mbit: float | None) -> None:
        """Change `agent_arguments`; an agent that runs already keeps its rate."""
        _check_rate(mbit)
        self.link_mbit = mbit

    def _set_up(self) -> None:
        with suppress(TestBedUnavailable):
            groups = [host_group(self.name, host.role) for host in (self.agent_host, self.loader_host)]
            for group in groups:
                group.create()
            self.agent_host.group, self.loader_host.group = groups


def _check_rate(mbit: float | None) -> None:
    if mbit is not None and not mbit > 0:
        raise ValueError(f"mbit must be above 0, or None for no limit, got {mbit}")


def check_privileges() -> None:
    """Refuse a user or a machine that cannot have linked hosts; whether the kernel goes along shows at `open`.

    Raises:
        TestBedUnavailable: not root, or a tool is missing.
    """
    if os.geteuid() != 0:
        raise TestBedUnavailable(f"linked hosts need root, this is user id {os.geteuid()}", "run with sudo")
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("taskset", "util-linux")):
        if shutil.which(tool) is None:
            raise TestBedUnavailable(f"`{tool}` is not on the PATH", f"install {package}")
