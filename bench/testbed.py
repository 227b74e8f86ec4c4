"""Two hosts on one Linux machine, joined by a link of a known rate, each with a share of the CPU.

    with open_testbed(link_mbit=100) as bed:
        agent = bed.agent_host.popen(["sophon-agent", "serve", ...], quota_cores=1.0)
        address = f"tcp://{bed.agent_host.address}:5555"
        epoch = bed.loader_host.popen([sys.executable, "-m", "bench.some_epoch", address])

The link is a veth pair whose agent end is shaped by a token bucket (tbf); requests, the other way,
are not shaped. CPU quotas and CPU times come from one control group (v1 or v2) per host. Nothing
reaches a network outside of the machine.

What it does not do: delay, loss or reordering (that is netem, which many kernels lack), memory
limits, disks.

    python -m bench.testbed --link-mbit 100 [--json OUT]   measure the bed itself
    python -m bench.testbed --clean                        remove what a killed owner left behind

Everything a bed makes carries its owner's process id and start time in its name. That makes
clean-up a function of the name alone, which is why it also works half-way through set-up and from
another process.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, TypeVar

import zmq

# Both ends of the link live in namespaces of their own, so every bed can use the same addresses and
# interface name.
AGENT_ADDRESS, LOADER_ADDRESS, PREFIX_BITS = "10.77.0.1", "10.77.0.2", 30
INTERFACE = "wire0"
BURST_NBYTES = 128 * 1024
SHAPER_LATENCY_MS = 50

QUOTA_PERIOD_US = 100_000
MIN_QUOTA_CORES = 0.01  # the kernel refuses less than 1 ms in a period

# The stop ladder: children are asked, then killed; what they left behind is asked, then killed.
STOP_S, ORPHAN_S, KILL_S = 5.0, 2.0, 5.0
POLL_S = 0.005  # version 1 of control groups has nothing to wait on for a group to become empty
COMMAND_TIMEOUT_S = 10.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

REPOSITORY = Path(__file__).resolve().parent.parent
_bed_numbers = itertools.count()

# Joins the control groups before anything of the program runs; exec keeps the pid, so Popen.pid is
# the program's.
_JOIN_THEN_EXEC = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'


class TestBedUnavailable(RuntimeError):
    """This machine or user cannot provide linked hosts.

    Attributes:
        reason: What is missing.
        remedy: What the reader can do about it.
    """

    __test__ = False  # not a test class, whatever pytest makes of its name

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class InterfaceBytes(NamedTuple):
    """Bytes that an interface has counted since it was made, link-level headers included."""

    received: int
    sent: int


# --- control groups ---


@dataclass(frozen=True)
class ControlGroup:
    """A CPU control group, in the words of either version of the kernel's interface.

    Args:
        version: 1 or 2.
        roots: Where the hierarchies are mounted: [cpu, cpuacct] in version 1 (one entry when they
            are mounted together), one entry in version 2.
        name: Path below the roots, ``bed/host``.
    """

    version: int
    roots: tuple[Path, ...]
    name: str

    @property
    def directories(self) -> tuple[Path, ...]:
        """The group in each hierarchy; the first takes the quota, the last counts the usage."""
        return tuple(root / self.name for root in self.roots)

    def create(self) -> None:
        """Make the group and what is above it.

        Raises:
            TestBedUnavailable: the kernel refuses, as in most containers.
        """
        try:
            for root, directory in zip(self.roots, self.directories, strict=True):
                if self.version == 2:
                    _enable_cpu_controller(root)
                    directory.parent.mkdir(exist_ok=True)
                    _enable_cpu_controller(directory.parent)
                directory.mkdir(parents=True)
        except OSError as error:
            raise TestBedUnavailable(
                f"a control group (version {self.version}) cannot be made: {error}",
                "run as root on the host or in a container that may write to /sys/fs/cgroup",
            ) from error

    def set_quota(self, cores: float | None) -> None:
        """Limit the group to `cores` CPU seconds per second, all together; None: no limit."""
        if cores is not None and not cores >= MIN_QUOTA_CORES:
            raise ValueError(f"cores must be at least {MIN_QUOTA_CORES} or None, got {cores}")
        quota_us = None if cores is None else round(cores * QUOTA_PERIOD_US)
        directory = self.directories[0]
        if self.version == 2:
            (directory / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {QUOTA_PERIOD_US}")
        else:
            (directory / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (directory / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))

    def cpu_seconds(self) -> float:
        """CPU seconds, user and system, of all processes that are or were in the group."""
        directory = self.directories[-1]
        if self.version == 1:
            return int((directory / "cpuacct.usage").read_text()) / 1e9
        fields = dict(line.split() for line in (directory / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def pids(self) -> set[int]:
        """Processes in the group now."""
        found: set[int] = set()
        for directory in self.directories:
            with suppress(FileNotFoundError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def remove(self) -> None:
        """Remove the empty group and, when it was the last in it, the bed's group above it."""
        for directory in self.directories:
            _remove_group_directory(directory)
            if directory.parent.exists() and not any(path.is_dir() for path in directory.parent.iterdir()):
                _remove_group_directory(directory.parent)


def _enable_cpu_controller(directory: Path) -> None:
    """Let the groups below `directory` have CPU quotas (version 2)."""
    # Stays on afterwards: another bed may be using it.
    control = directory / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")


def _remove_group_directory(path: Path) -> None:
    """Remove a control group, waiting for processes that have ended but are not yet out of it."""
    deadline = time.monotonic() + KILL_S
    while True:
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # A process that has been waited for may still be a moment away from leaving its group.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def find_cpu_hierarchy(mounts: str) -> tuple[int, tuple[Path, ...]]:
    """Find where CPU control groups are mounted.

    Args:
        mounts: The text of /proc/self/mounts.

    Returns:
        The version, and its roots as `ControlGroup` takes them.

    Raises:
        TestBedUnavailable: no hierarchy has the cpu controller.
    """
    first_version: dict[str, Path] = {}
    second_version: list[Path] = []
    for fields in map(str.split, mounts.splitlines()):
        path, kind, options = Path(fields[1]), fields[2], fields[3].split(",")
        if kind == "cgroup":
            first_version.update({name: path for name in ("cpu", "cpuacct") if name in options})
        elif kind == "cgroup2":
            second_version.append(path)
    if len(first_version) == 2:
        return 1, tuple(dict.fromkeys((first_version["cpu"], first_version["cpuacct"])))
    for path in second_version:
        with suppress(OSError):
            if "cpu" in (path / "cgroup.controllers").read_text().split():
                return 2, (path,)
    raise TestBedUnavailable(
        "no control group hierarchy with the cpu controller is mounted",
        "mount one, e.g. mount -t cgroup2 none /sys/fs/cgroup",
    )


def _host_group(bed: str, role: str) -> ControlGroup:
    version, roots = find_cpu_hierarchy(Path("/proc/self/mounts").read_text())
    return ControlGroup(version, roots, f"{bed}/{role}")


# --- commands, signals, processes ---


def _command(*argv: str) -> str:
    """Run a set-up command and return its output.

    Raises:
        TestBedUnavailable: it failed; the reason is the command and what it said.
    """
    # A session of its own: Ctrl-C in a terminal must not stop `ip` half-way.
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        raise TestBedUnavailable(
            f"`{shlex.join(argv)}` failed: {(done.stderr or done.stdout).strip()}",
            "run with CAP_NET_ADMIN and CAP_SYS_ADMIN on a kernel with veth and tbf",
        )
    return done.stdout


@contextmanager
def _signals_held() -> Iterator[None]:
    """Put the stop signals off until the block has ended, then deliver them.

    Handlers, not a signal mask: a mask would be inherited by the children, and the signal would
    reach another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread runs Python's signal handlers
        return
    arrived: list[int] = []
    previous = {number: signal.signal(number, lambda n, _: arrived.append(n)) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for arrived_number in dict.fromkeys(arrived):
            signal.raise_signal(arrived_number)


def _end_children(children: Iterable[subprocess.Popen[Any]]) -> None:
    """Terminate children and wait STOP_S seconds for them together, then kill the rest."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.terminate()
    deadline = time.monotonic() + STOP_S
    for child in running:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
    for child in running:
        child.kill()
    deadline = time.monotonic() + KILL_S
    for child in running:
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: remove() will say so
            child.wait(max(0.0, deadline - time.monotonic()))


def _empty_groups(groups: Sequence[ControlGroup], number: signal.Signals, timeout_s: float) -> None:
    """Signal every process in the groups, new ones too, until none is left or the time is up."""
    deadline = time.monotonic() + timeout_s
    signalled: set[int] = set()
    while time.monotonic() < deadline:
        left = {pid for group in groups for pid in group.pids()}
        if not left:
            return
        for pid in left - signalled:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        signalled |= left
        time.sleep(POLL_S)


def _end_processes(children: Sequence[subprocess.Popen[Any]], groups: Sequence[ControlGroup]) -> None:
    """End children and what they left in the groups, in STOP_S + ORPHAN_S + 2 KILL_S at most.

    The children go first and alone: an agent stops its own workers, and multiprocessing's resource
    tracker must outlive both to free their shared memory.
    """
    _end_children(children)
    _empty_groups(groups, signal.SIGTERM, ORPHAN_S)
    _empty_groups(groups, signal.SIGKILL, KILL_S)


# --- names, owners, clean-up ---

_BED_NAME = re.compile(r"sophonbed-(?P<pid>\d+)-(?P<started>\d+)-\d+")
_ROLES = ("agent", "loader")


def _start_ticks(pid: int) -> int | None:
    """Start of a process, in clock ticks after boot, which tells a reused pid apart; or None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def _new_bed_name() -> str:
    return f"sophonbed-{os.getpid()}-{_start_ticks(os.getpid())}-{next(_bed_numbers)}"


def _namespaces() -> set[str]:
    """Names of all network namespaces of the machine."""
    if shutil.which("ip") is None:
        return set()
    return {line.split()[0] for line in _command("ip", "netns", "list").splitlines() if line.strip()}


def _remove_bed(name: str, children: Sequence[subprocess.Popen[Any]] = ()) -> None:
    """End the processes of a bed and remove whatever carries its name."""
    groups: list[ControlGroup] = []
    with suppress(TestBedUnavailable):
        groups = [_host_group(name, role) for role in _ROLES]
    with ExitStack() as stack:  # each step is tried, whatever becomes of the others
        for group in groups:
            stack.callback(group.remove)
        for namespace in sorted(_namespaces() & {f"{name}-{role}" for role in _ROLES}):
            stack.callback(_command, "ip", "netns", "delete", namespace)
        _end_processes(children, groups)


def clean_leftovers() -> list[str]:
    """Remove the beds whose owner is dead, with the processes still running in them.

    Returns:
        The names of the beds removed.
    """
    found = set(_namespaces())
    with suppress(TestBedUnavailable):
        for root in find_cpu_hierarchy(Path("/proc/self/mounts").read_text())[1]:
            found.update(path.name for path in root.iterdir() if path.is_dir())
    owners = {match[0]: match for match in map(_BED_NAME.match, found) if match}
    dead = [name for name, m in owners.items() if _start_ticks(int(m["pid"])) != int(m["started"])]
    for name in sorted(dead):
        _remove_bed(name)
    return sorted(dead)


# --- hosts ---


class Host:
    """One side of a bed. Its processes share one control group as they would share a machine.

    Attributes:
        role: ``agent`` or ``loader``.
        address: IPv4 address to bind or to connect to.
        namespace: Network namespace; None on the loopback bed.
        group: Control group; None where control groups cannot be had (loopback bed only).
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
        with _signals_held():  # a signal between fork and append would lose the child
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

        With segmentation offload, which real network cards have as well, the interface counts one
        header per large packet (up to 64 KB), not one per Ethernet frame: about 0.2 % above the
        payload where `LinkedHosts.link_bytes` shows about 4.6 %.
        """
        if self.namespace is None:
            return None
        output = _command("ip", "-netns", self.namespace, "-json", "-stats", "link", "show", "dev", INTERFACE)
        counters = json.loads(output)[0]["stats64"]
        return InterfaceBytes(received=counters["rx"]["bytes"], sent=counters["tx"]["bytes"])


# --- beds ---


_B = TypeVar("_B", bound="_Bed")


class _Bed(ABC):
    """What both beds share: life cycle, signals, clean-up. For one thread, in a `with` statement.

    SIGINT, SIGTERM and SIGHUP unwind the owner's stack while a bed is open (SIGTERM and SIGHUP as
    SystemExit with the code 128 + number, unless the program handles them itself), and never
    interrupt set-up or clean-up.
    """

    agent_host: Host
    loader_host: Host

    def __init__(self, link_mbit: float | None) -> None:
        _check_rate(link_mbit)
        self.link_mbit = link_mbit
        self.name = _new_bed_name()
        self._owner_pid = os.getpid()
        self._is_open = False
        self._replaced: list[signal.Signals] = []

    @property
    @abstractmethod
    def shaped(self) -> bool:
        """Whether the link has a limit that the kernel enforces."""

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
            with _signals_held():
                self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End every process of the bed and remove the bed; see `_end_processes` for how long."""
        if not self._is_open or os.getpid() != self._owner_pid:
            return  # a forked child of the owner inherits the object, not the bed
        self._is_open = False
        try:
            with _signals_held():
                _remove_bed(self.name, [*self.agent_host.children, *self.loader_host.children])
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
        _check_privileges()
        self.agent_host = self._host("agent", AGENT_ADDRESS)
        self.loader_host = self._host("loader", LOADER_ADDRESS)

    def _host(self, role: str, address: str) -> Host:
        return Host(role, address, f"{self.name}-{role}", _host_group(self.name, role))

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
        output = _command("tc", "-netns", str(self.agent_host.namespace), "-json", "-stats", *_QDISC_SHOW)
        return int(json.loads(output)[0]["bytes"])

    def _set_up(self) -> None:
        agent, loader = str(self.agent_host.namespace), str(self.loader_host.namespace)
        for host in (self.agent_host, self.loader_host):
            assert host.group is not None
            host.group.create()
            _command("ip", "netns", "add", str(host.namespace))
        pair = ("name", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", loader)
        _command("ip", "-netns", agent, "link", "add", *pair)
        for host in (self.agent_host, self.loader_host):
            _bring_up(str(host.namespace), host.address)
        self.set_rate(self.link_mbit)

    def _shape(self, mbit: float | None) -> None:
        in_agent = ("tc", "-netns", str(self.agent_host.namespace), "qdisc")
        if mbit is not None:
            # A timer refills the bucket: above 1 Gbit/s, 128 KiB would be gone before it fires.
            burst_nbytes = max(BURST_NBYTES, round(mbit * 1e6 / 8 * 0.001))
            bucket = f"rate {round(mbit * 1e6)}bit burst {burst_nbytes}b latency {SHAPER_LATENCY_MS}ms"
            _command(*in_agent, "replace", "dev", INTERFACE, "root", "tbf", *bucket.split())
        elif '"tbf"' in _command(*in_agent[:-1], "-json", *_QDISC_SHOW):
            _command(*in_agent, "delete", "dev", INTERFACE, "root")


_QDISC_SHOW = ("qdisc", "show", "dev", INTERFACE, "root")


def _bring_up(namespace: str, address: str) -> None:
    in_namespace = ("ip", "-netns", namespace)
    _command(*in_namespace, "link", "set", "dev", "lo", "up")
    # No link-local IPv6 address: its announcements would be counted as traffic.
    _command(*in_namespace, "link", "set", "dev", INTERFACE, "addrgenmode", "none")
    _command(*in_namespace, "address", "add", f"{address}/{PREFIX_BITS}", "dev", INTERFACE)
    _command(*in_namespace, "link", "set", "dev", INTERFACE, "up")


class LoopbackHosts(_Bed):
    """Both hosts on 127.0.0.1: no shaping, no wire bytes; the agent has to limit itself.

    CPU quotas and times work where control groups do; else `Host.cpu_seconds` is None, quotas have
    no effect, and only the programs themselves are ended at the close, not their descendants.

    Args:
        link_mbit: Rate that the agent is told to keep to, in Mbit/s; None for no limit.
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
            groups = [_host_group(self.name, host.role) for host in (self.agent_host, self.loader_host)]
            for group in groups:
                group.create()
            self.agent_host.group, self.loader_host.group = groups


def _check_rate(mbit: float | None) -> None:
    if mbit is not None and not mbit > 0:
        raise ValueError(f"mbit must be above 0, or None for no limit, got {mbit}")


def _check_privileges() -> None:
    """Raise TestBedUnavailable when namespaces and shaping cannot work here."""
    if os.geteuid() != 0:
        raise TestBedUnavailable(f"linked hosts need root, this is user id {os.geteuid()}", "run with sudo")
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("taskset", "util-linux")):
        if shutil.which(tool) is None:
            raise TestBedUnavailable(f"`{tool}` is not on the PATH", f"install {package}")


def open_testbed(link_mbit: float | None = 100.0) -> LinkedHosts | LoopbackHosts:
    """Open linked hosts or, where they cannot be had, loopback hosts; a line on stderr says why.

    Pass ``bed.agent_arguments`` to the agent in either case, and count payload instead of wire
    bytes when ``bed.shaped`` is false or `Host.interface_bytes` returns None.

    Args:
        link_mbit: Rate of the link in Mbit/s; None for no limit.

    Returns:
        An open bed, to be used in a `with` statement.
    """
    try:
        return LinkedHosts(link_mbit).open()
    except TestBedUnavailable as error:
        bed = LoopbackHosts(link_mbit)
        advice = (
            f"pass {shlex.join(bed.agent_arguments)} to the agent" if bed.agent_arguments else "no limit was asked for"
        )
        print(f"test bed: loopback, link not shaped ({advice}): {error}", file=sys.stderr)
        return bed.open()


# --- self-check: does the bed deliver what it promises? ---

MESSAGE_NBYTES = 110_000  # the mean file of the ImageNet sample set
WARM_UP_SHARE = 0.1
HIGH_WATER_MARK = 16
CHILD_TIMEOUT_S = 20.0
UNSHAPED_MBIT_GUESS = 8000.0


@dataclass(frozen=True)
class StreamResult:
    """One stream of messages from agent to loader.

    Args:
        payload_nbytes: Message bytes, all of them.
        payload_mbit: Rate of the message bytes after the warm-up, Mbit/s.
        interface_nbytes: What the agent's interface counted as sent; None on the loopback bed.
        link_nbytes: What the shaper let through; None when not shaped.
    """

    payload_nbytes: int
    payload_mbit: float
    interface_nbytes: int | None
    link_nbytes: int | None


@dataclass(frozen=True)
class QuotaResult:
    """CPU seconds per second that a busy loop got; used_cores is None without control groups."""

    quota_cores: float
    used_cores: float | None


def child_argv(*role: str) -> list[str]:
    """Command of a helper process of the self-check; run it in `REPOSITORY`."""
    return [sys.executable, "-m", "bench.testbed", "--role", *role]


def measure_stream(bed: LinkedHosts | LoopbackHosts, seconds: float) -> StreamResult:
    """Push ZeroMQ messages from the agent's host to the loader's for about `seconds` seconds."""
    rate_mbit = bed.link_mbit if bed.shaped and bed.link_mbit else UNSHAPED_MBIT_GUESS
    count = max(20, round(rate_mbit * 1e6 / 8 * seconds / MESSAGE_NBYTES))
    before, link_before = bed.agent_host.interface_bytes(), _link_bytes(bed)
    options: dict[str, Any] = {"cwd": REPOSITORY, "stdout": subprocess.PIPE, "text": True}
    with bed.agent_host.popen(child_argv("send", bed.agent_host.address, str(count)), **options) as sender:
        assert sender.stdout is not None
        endpoint = sender.stdout.readline().strip()
        with bed.loader_host.popen(child_argv("receive", endpoint, str(count)), **options) as receiver:
            output, _ = receiver.communicate(timeout=seconds + CHILD_TIMEOUT_S)
        if receiver.returncode or sender.wait(CHILD_TIMEOUT_S):
            raise RuntimeError(f"the stream broke off: sender {sender.returncode}, receiver {receiver.returncode}")
    after, link_after = bed.agent_host.interface_bytes(), _link_bytes(bed)
    return StreamResult(
        payload_nbytes=count * MESSAGE_NBYTES,
        payload_mbit=float(output),
        interface_nbytes=None if before is None or after is None else after.sent - before.sent,
        link_nbytes=None if link_before is None or link_after is None else link_after - link_before,
    )


def _link_bytes(bed: LinkedHosts | LoopbackHosts) -> int | None:
    return bed.link_bytes() if isinstance(bed, LinkedHosts) else None


def measure_quota(host: Host, quota_cores: float, seconds: float) -> QuotaResult:
    """Run a busy loop under a quota for `seconds` seconds, then lift the quota."""
    argv = child_argv("spin", str(seconds + CHILD_TIMEOUT_S))
    options: dict[str, Any] = {"cwd": REPOSITORY, "stdout": subprocess.PIPE, "text": True}
    with host.popen(argv, quota_cores=quota_cores, **options) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the interpreter is up
        cpu_s, clock_s = host.cpu_seconds(), time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        used_s, elapsed_s = host.cpu_seconds(), time.monotonic() - clock_s
        child.kill()
    host.set_quota(None)
    return QuotaResult(quota_cores, None if cpu_s is None or used_s is None else (used_s - cpu_s) / elapsed_s)


def _send(address: str, count: str) -> None:
    """Role of the agent's child: bind, print the endpoint, send `count` messages."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set(zmq.SNDHWM, HIGH_WATER_MARK)
        socket.set(zmq.SNDTIMEO, round(CHILD_TIMEOUT_S * 1000))
        socket.set(zmq.LINGER, round(CHILD_TIMEOUT_S * 1000))
        socket.bind(f"tcp://{address}:*")
        print(socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"), flush=True)
        message = os.urandom(MESSAGE_NBYTES)
        for _ in range(int(count)):
            socket.send(message, copy=False)


def _receive(endpoint: str, count: str) -> None:
    """Role of the loader's child: receive `count` messages, print Mbit/s after the warm-up."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.set(zmq.RCVHWM, HIGH_WATER_MARK)
        socket.set(zmq.RCVTIMEO, round(CHILD_TIMEOUT_S * 1000))
        socket.set(zmq.LINGER, 0)
        socket.connect(endpoint)
        warm_up = max(1, round(int(count) * WARM_UP_SHARE))
        for _ in range(warm_up):
            socket.recv(copy=False)
        start = time.perf_counter()
        nbytes = sum(len(socket.recv(copy=False)) for _ in range(int(count) - warm_up))
        print(nbytes * 8 / 1e6 / (time.perf_counter() - start))


def _spin(seconds: str) -> None:
    """Role of a busy child: print a line, then use all the CPU that it gets."""
    print("spinning", flush=True)
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        pass


_CHILD_ROLES: dict[str, Callable[..., None]] = {"send": _send, "receive": _receive, "spin": _spin}


def _first_line(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, cwd=REPOSITORY, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.splitlines()), None)


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _circumstances(arguments: Sequence[str]) -> dict[str, Any]:
    """Commit, machine, versions and command, without a host name or a path."""
    kernel = re.match(r"[\d.]+", platform.release())
    return {
        "commit": _first_line("git", "rev-parse", "HEAD"),
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "kernel": kernel[0] if kernel else None,
        },
        "versions": {
            "python": platform.python_version(),
            "pyzmq": zmq.pyzmq_version(),
            "libzmq": zmq.zmq_version(),
            "iproute2": _first_line("ip", "-Version"),
        },
        "command": shlex.join(["python", "-m", "bench.testbed", *arguments]),
    }


@dataclass(frozen=True)
class Finding:
    """One line of the self-check's table; `holds` is None where nothing is expected."""

    what: str
    value: str
    expected: str
    holds: bool | None


def judge(link_mbit: float | None, stream: StreamResult, quota: QuotaResult) -> list[Finding]:
    """Compare measurements with what the bed promises at `link_mbit` (None: not shaped)."""
    # 1448 bytes of payload in a frame of 1514, less ZeroMQ's 9 bytes for each message.
    expected_mbit = None if link_mbit is None else link_mbit * 1448 / 1514
    rows = [
        Finding(
            "payload, Mbit/s",
            f"{stream.payload_mbit:.1f}",
            "-" if expected_mbit is None else f"{expected_mbit:.1f} +- 2 %",
            None if expected_mbit is None else abs(stream.payload_mbit / expected_mbit - 1) <= 0.02,
        )
    ]
    for what, nbytes, limit in (
        ("interface bytes / payload bytes", stream.interface_nbytes, 1.06),
        ("bytes on the link / payload bytes", stream.link_nbytes, 1.06),
    ):
        ratio = None if nbytes is None else nbytes / stream.payload_nbytes
        holds = None if ratio is None else 1 <= ratio <= limit
        rows.append(Finding(what, "not counted" if ratio is None else f"{ratio:.4f}", f"1 to {limit}", holds))
    used = quota.used_cores
    rows.append(
        Finding(
            f"cores used at a quota of {quota.quota_cores}",
            "not counted" if used is None else f"{used:.3f}",
            f"{quota.quota_cores} +- 0.05",
            None if used is None else abs(used - quota.quota_cores) <= 0.05,
        )
    )
    return rows


def _print_table(rows: Sequence[Finding]) -> None:
    for row in rows:
        verdict = {True: "ok", False: "NOT AS EXPECTED", None: ""}[row.holds]
        print(f"{row.what:36} {row.value:>12}   {row.expected:14} {verdict}".rstrip())


def _self_check(link_mbit: float | None, seconds: float, out: Path | None, arguments: Sequence[str]) -> int:
    with open_testbed(link_mbit) as bed:
        shaped = bed.shaped
        stream = measure_stream(bed, seconds)
        quota = measure_quota(bed.agent_host, 0.5, seconds)
    rows = judge(link_mbit if shaped else None, stream, quota)
    _print_table(rows)
    if out is not None:
        result: dict[str, Any] = {
            "link_mbit": link_mbit,
            "shaped": shaped,
            "message_nbytes": MESSAGE_NBYTES,
        }
        result |= {"stream": asdict(stream), "quota": asdict(quota), **_circumstances(arguments)}
        out.write_text(json.dumps(result, indent=2) + "\n")
    return int(any(row.holds is False for row in rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.testbed", description="Check or clean up the test bed.")
    parser.add_argument("--link-mbit", type=float, metavar="MBIT", help="rate of the link (default: not limited)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=4.0,
        help="length of each measurement (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the measurements to this file")
    parser.add_argument("--clean", action="store_true", help="remove beds whose owner is dead, and do nothing else")
    parser.add_argument("--role", nargs="+", help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit status: 0, or 1 when the bed is not as expected."""
    options = _parser().parse_args(arguments)
    if options.role:
        name, *values = options.role
        _CHILD_ROLES[name](*values)
        return 0
    if options.clean:
        removed = clean_leftovers()
        print("\n".join(f"removed {name}" for name in removed) or "nothing to remove")
        return 0
    return _self_check(options.link_mbit, options.seconds, options.json, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
