"""Conditions of a loader, and their changes while it runs: link, quotas, other programs, the agent's disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.bed import LinkedHosts
from bench.bed.disks import Disk
from bench.bed.self_check import spinning
from bench.children import AGENT_CORE, LOADER_CORE, Child, child, start_agent
from bench.streams import StreamSettings, streaming_loader


@dataclass(frozen=True)
class Conditions:
    """Conditions of a loader.

    Args:
        link_mbit: rate of the link, Mbit/s.
        agent_cores: CPU quota of the agent's host, which has one core.
        loader_cores: of the loader's; None for no quota on its one core.
        step_ms: length of the training step of a batch, a sleep.
        disk_mb_s: at which the agent's disk is read, MB/s; None for no limit.
        busy: `loader` or `agent`: another process is busy on that host's core.
        second_job: True if another loader streams from the same agent, on the loader's host and core.

    Example:
        >>> str(Conditions(link_mbit=20))
        'link_mbit 20'
    """

    link_mbit: float = 100.0
    agent_cores: float = 1.0
    loader_cores: float | None = None
    step_ms: float = 0.0
    disk_mb_s: float | None = None
    busy: str = ""
    second_job: bool = False

    def __str__(self) -> str:
        values = [(one, getattr(self, one.name)) for one in fields(self)]
        return ", ".join(f"{one.name} {_text(value)}" for one, value in values if value != one.default) or "undisturbed"


UNDISTURBED = Conditions()


def _text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class Scene:
    """A bed with an agent, whose conditions can be set.

    Args:
        bed: an open one with an agent.
        disk: that the agent's files are on; None for this machine's.
        second: what the second job is; None where there never is one.

    Example:
        with opened(data) as scene:
            scene.set(Conditions(link_mbit=20))
    """

    def __init__(self, bed: LinkedHosts, disk: Disk | None, second: Child | None) -> None:
        self.bed = bed
        self._disk = disk
        self._second = second
        self._now = UNDISTURBED
        self._others: dict[str, ExitStack] = {}

    def set(self, wanted: Conditions) -> None:
        """Have the conditions be these from now on; returns when other programs have begun, or ended.

        The training step is the loader's own affair.
        """
        bed, now = self.bed, self._now
        if wanted.link_mbit != now.link_mbit:
            bed.set_rate(wanted.link_mbit)
        if wanted.agent_cores != now.agent_cores:
            bed.agent_host.set_quota(wanted.agent_cores)
        if wanted.loader_cores != now.loader_cores:
            bed.loader_host.set_quota(wanted.loader_cores)
        if wanted.disk_mb_s != now.disk_mb_s:
            assert self._disk is not None, "the agent's files must be on a disk of their own"
            self._disk.set_limit(None if wanted.disk_mb_s is None else wanted.disk_mb_s * 1e6)
        self._now = wanted
        for host, core in ((bed.loader_host, LOADER_CORE), (bed.agent_host, AGENT_CORE)):
            self._have(host.role, wanted.busy == host.role, partial(child, host, core, spinning, {}))
        self._have("second job", wanted.second_job, self._second_job)

    def _have(self, name: str, wanted: bool, start: Callable[[], AbstractContextManager[Any]]) -> None:
        """Start another program, or end it, where that is still to be done."""
        if wanted and name not in self._others:
            stack = self._others[name] = ExitStack()
            stack.enter_context(start())
        elif not wanted and name in self._others:
            self._others.pop(name).close()

    @contextmanager
    def _second_job(self) -> Iterator[None]:
        assert self._second is not None, "the second job's process must be there before"
        self._second.order("begin")
        try:
            yield
        finally:
            self._second.order("stop")

    def counters(self) -> dict[str, float]:
        """Return the sums so far: seconds, bytes on link and interface, CPU seconds, bytes from the disk."""
        machine = psutil.cpu_times()
        agent, loader = self.bed.agent_host, self.bed.loader_host
        sent = agent.interface_bytes()
        return {
            "clock_s": time.monotonic(),
            "link_bytes": float(self.bed.link_bytes() or 0),
            "interface_bytes": float(sent.sent if sent else 0),
            "agent_cpu_s": agent.cpu_seconds() or 0.0,
            "loader_cpu_s": loader.cpu_seconds() or 0.0,
            "machine_cpu_s": sum(machine) - machine.idle - machine.iowait,
            "disk_bytes": float(self._disk.read_nbytes() if self._disk else 0),
        }


def shares(
    conditions: Conditions, before: dict[str, float], after: dict[str, float], step_share: float
) -> dict[str, float]:
    """By resource the share of its limit that was used, the most used first.

    Args:
        conditions: that held all the time.
        before: counters at its start.
        after: counters at its end.
        step_share: share of the time that training steps took.
    """
    used = {name: after[name] - before[name] for name in before}
    seconds = used["clock_s"]
    disk_s = 0.0 if conditions.disk_mb_s is None else used["disk_bytes"] / (conditions.disk_mb_s * 1e6)
    found = {
        "gpu": step_share,
        "wire": used["link_bytes"] * 8e-6 / conditions.link_mbit / seconds,
        "loader-cpu": used["loader_cpu_s"] / min(1.0, conditions.loader_cores or 1.0) / seconds,
        "agent-cpu": used["agent_cpu_s"] / min(1.0, conditions.agent_cores) / seconds,
        "agent-disk": disk_s / seconds,
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def elsewhere_cores(before: dict[str, float], after: dict[str, float]) -> float:
    """CPU seconds per second of what is not on the bed: other programs, and the kernel for all of them.

    Args:
        before: counters.
        after: counters, later.
    """
    used = {name: after[name] - before[name] for name in before}
    return (used["machine_cpu_s"] - used["agent_cpu_s"] - used["loader_cpu_s"]) / used["clock_s"]


@contextmanager
def opened(data: Path, *, own_disk: bool = False, second: StreamSettings | None = None) -> Iterator[Scene]:
    """A bed with an agent, in undisturbed conditions.

    Args:
        data: the ImageFolder tree that the agent serves.
        own_disk: whether its files are on a disk that can be limited.
        second: what the second job is; None where there never is one.
    """
    with ExitStack() as stack:
        disk = stack.enter_context(Disk(data)) if own_disk else None
        bed = stack.enter_context(LinkedHosts(UNDISTURBED.link_mbit).open())
        if disk is None:
            start_agent(bed, data, UNDISTURBED.agent_cores)
        else:
            agent = start_agent(bed, disk.folder, UNDISTURBED.agent_cores, within=disk.mounting)
            disk.follow(agent.pid, bed)
        job = None if second is None else stack.enter_context(streaming_loader(bed, second))
        scene = Scene(bed, disk, job)
        yield scene
        scene.set(UNDISTURBED)
