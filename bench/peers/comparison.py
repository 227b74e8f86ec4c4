"""The measurements: first batches, one epoch with two workers, and the rounds."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tqdm import tqdm

from bench import policies, record
from bench.peers.environments import Installed, Unavailable
from bench.peers.running import Process, process
from bench.peers.systems import SYSTEMS, Settings
from bench.testbed import LinkedHosts

FIRST_PORT, PORTS_EACH = 7000, 10
LOADER_CORE, SERVER_CORE = 0, 1


class Comparison:
    """The measurements: cold starts, the rounds, and the same epoch with two workers.

    Args:
        entries: the table by system; a system that fails gets its reason there and is left out from then on.
    """

    def __init__(self, bed: LinkedHosts, options: Namespace, entries: dict[str, dict[str, Any]]) -> None:
        self.bed = bed
        self.options = options
        self.entries = entries

    def run(self, ready: list[Installed]) -> list[dict[str, Any]]:
        """The rows of all measured epochs."""
        with ExitStack() as stack:
            if any(each.system.ours for each in ready):
                policies.start_agent(self.bed, self.options.data, Namespace(agent_workers=1, agent_cores=1.0))
            self.bed.agent_host.set_quota(1.0)
            for each in tqdm(ready, desc="servers", file=sys.stderr):
                with self.excusing(each.system.name):
                    stack.enter_context(self.server(each, workers=1))
            loaders = {}
            for each in tqdm(self.left(ready), desc="first batches", file=sys.stderr):
                with self.excusing(each.system.name):
                    loader = stack.enter_context(self.loader(each, workers=1))
                    self.started(each, loader)
                    loaders[each.system.name] = loader
            self.bed.set_rate(None)  # digests take no longer than they must
            for each in tqdm(self.left(ready), desc="digests", file=sys.stderr):
                with self.excusing(each.system.name):
                    self.compare_workers(each, loaders[each.system.name])
            self.bed.set_rate(self.options.link_mbit or None)
            return self.rounds({each.system.name: loaders[each.system.name] for each in self.left(ready)})

    def left(self, ready: list[Installed]) -> list[Installed]:
        return [each for each in ready if not self.entries[each.system.name]["unavailable"]]

    @contextmanager
    def excusing(self, name: str) -> Iterator[None]:
        """Note why a system failed, and go on without it."""
        try:
            yield
        except Unavailable as reason:
            self.entries[name]["unavailable"] = str(reason)

    def started(self, each: Installed, loader: Process) -> None:
        """The time to the first batch; ours then profile, and have an epoch for their rates to settle."""
        entry = self.entries[each.system.name]
        entry["first_batch_s"] = loader.order("first 0")["first_batch_s"]
        if each.system.ours:
            loader.order("prepare")
            entry["one_worker"] = loader.order(f"check {policies.WARM}")

    def compare_workers(self, each: Installed, loader: Process) -> None:
        """The same epoch with one worker and, in a fresh process, with two."""
        entry, check = self.entries[each.system.name], f"check {policies.WARM}"
        if not each.system.ours:
            entry["one_worker"] = loader.order(check)
        with ExitStack() as stack:
            if each.system.remote_workers:
                stack.enter_context(self.server(each, workers=2))
            other = stack.enter_context(self.loader(each, workers=2))
            other.order("first 0")
            other.order("prepare")
            entry["two_workers"] = other.order(check)

    def rounds(self, loaders: dict[str, Process]) -> list[dict[str, Any]]:
        """The measured epochs, in turns."""
        rows: list[dict[str, Any]] = []
        progress = tqdm(total=self.options.epochs * len(loaders), desc="epochs", file=sys.stderr)
        for number in range(self.options.epochs):
            names = [name for name in loaders if not self.entries[name]["unavailable"]]
            for name in record.in_turns(names, number):
                with self.excusing(name):
                    rows.append({"system": name, "round": number, **self.measured(loaders[name], number)})
                progress.update()
        return rows

    def measured(self, loader: Process, number: int) -> dict[str, Any]:
        """One epoch, with what both hosts counted meanwhile."""
        before = self.counters()
        row = loader.order(f"epoch {number}")
        spent = {name: value - before[name] for name, value in self.counters().items()}
        return {**row, **spent}

    def counters(self) -> dict[str, float]:
        sides = {"server_cpu_s": self.bed.agent_host, "loader_cpu_s": self.bed.loader_host}
        found: dict[str, float] = {name: host.cpu_seconds() or 0.0 for name, host in sides.items()}
        counted = self.bed.agent_host.interface_bytes()
        assert counted is not None
        return {**found, "interface_bytes": counted.sent}

    @contextmanager
    def server(self, each: Installed, workers: int) -> Iterator[None]:
        """The server of a system, ready; ours is one agent for all policies and runs already."""
        if each.system.ours:
            yield
            return
        with process(self.bed.agent_host, SERVER_CORE, each, "serve", self.settings(each, workers)):
            yield

    @contextmanager
    def loader(self, each: Installed, workers: int) -> Iterator[Process]:
        """A loader process of a system, its libraries imported."""
        with process(self.bed.loader_host, LOADER_CORE, each, "load", self.settings(each, workers)) as loader:
            yield loader

    def settings(self, each: Installed, workers: int) -> Settings:
        port = FIRST_PORT + PORTS_EACH * list(SYSTEMS).index(each.system.name)
        if each.system.remote_workers:  # a second server beside the one with one worker
            port += PORTS_EACH // 2 * (workers - 1)
        return Settings(
            system=each.system.name,
            data=str(self.options.data),
            folder="",
            address=self.bed.agent_host.address,
            port=policies.PORT if each.system.ours else port,
            workers=workers,
            batch_size=self.options.batch_size,
            nginx=each.programs.get("nginx"),
        )
