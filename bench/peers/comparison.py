"""The measurements: first batches, one epoch with two workers, and the rounds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from bench import record
from bench.bed import Host, LinkedHosts
from bench.children import AGENT_CORE, LOADER_CORE, PORT, Child, ChildFailed, start_agent, started
from bench.epochs import FIRST_WARM
from bench.peers.environments import Installed, Unavailable
from bench.peers.systems import SYSTEMS, Settings

FIRST_PORT, PORTS_EACH = 7000, 10
ANSWER_S = 120.0
"""For a start or an epoch; a system that takes longer is left out."""
AGENT_CORES = 1.0
CHECK = f"check {FIRST_WARM}"


class Comparison:
    """The measurements: cold starts, the rounds, and the same epoch with two workers.

    Args:
        bed: an open bed; its link has the rate of the rounds.
        data: an ImageFolder tree.
        batch_size: samples per batch.
        entries: the table by system; a system that fails gets its reason there and is left out from then on.
    """

    def __init__(self, bed: LinkedHosts, data: Path, batch_size: int, entries: dict[str, dict[str, Any]]) -> None:
        self.bed = bed
        self.link_mbit = bed.link_mbit
        self.data = data
        self.batch_size = batch_size
        self.entries = entries

    def run(self, ready: list[Installed], rounds: int) -> list[dict[str, Any]]:
        """The rows of all measured epochs.

        Args:
            ready: the systems.
            rounds: epochs of each.
        """
        with ExitStack() as stack:
            if not all(each.system.serves for each in ready):
                start_agent(self.bed, self.data, AGENT_CORES)
            self.bed.agent_host.set_quota(AGENT_CORES)
            for each in tqdm(ready, desc="servers", file=sys.stderr):
                with self.excusing(each.system.name):
                    stack.enter_context(self.server(each, workers=1))
            loaders = {}
            for each in tqdm(self.left(ready), desc="first batches", file=sys.stderr):
                with self.excusing(each.system.name):
                    loader = stack.enter_context(self.loader(each, workers=1))
                    self.first_batch(each, loader)
                    loaders[each.system.name] = loader
            self.bed.set_rate(None)  # digests take no longer than they must
            for each in tqdm(self.left(ready), desc="digests", file=sys.stderr):
                with self.excusing(each.system.name):
                    self.compare_workers(each, loaders[each.system.name])
            self.bed.set_rate(self.link_mbit)
            return self.rounds({each.system.name: loaders[each.system.name] for each in self.left(ready)}, rounds)

    def left(self, ready: list[Installed]) -> list[Installed]:
        """The systems that have not failed."""
        return [each for each in ready if not self.entries[each.system.name]["unavailable"]]

    @contextmanager
    def excusing(self, name: str) -> Iterator[None]:
        """Note why a system failed, and go on without it."""
        try:
            yield
        except (Unavailable, ChildFailed) as reason:
            self.entries[name]["unavailable"] = str(reason)

    def first_batch(self, each: Installed, loader: Child) -> None:
        """The time to the first batch; ours then profile, and have an epoch for their rates to settle."""
        entry = self.entries[each.system.name]
        entry["first_batch_s"] = loader.order("first 0")["first_batch_s"]
        if each.system.ours:
            loader.order("prepare")
            entry["one_worker"] = loader.order(CHECK)

    def compare_workers(self, each: Installed, loader: Child) -> None:
        """Run an epoch with one worker and, in a fresh process, with two, for comparison."""
        entry = self.entries[each.system.name]
        if not each.system.ours:
            entry["one_worker"] = loader.order(CHECK)
        with ExitStack() as stack:
            if each.system.remote_workers:
                stack.enter_context(self.server(each, workers=2))
            other = stack.enter_context(self.loader(each, workers=2))
            other.order("first 0")
            other.order("prepare")
            entry["two_workers"] = other.order(CHECK)

    def rounds(self, loaders: dict[str, Child], rounds: int) -> list[dict[str, Any]]:
        """The measured epochs, in turns.

        Args:
            loaders: by system.
            rounds: epochs of each.
        """
        rows: list[dict[str, Any]] = []
        progress = tqdm(total=rounds * len(loaders), desc="epochs", file=sys.stderr)
        for number in range(rounds):
            names = [name for name in loaders if not self.entries[name]["unavailable"]]
            for name in record.in_turns(names, number):
                with self.excusing(name):
                    rows.append({"system": name, "round": number, **self.measured(loaders[name], number)})
                progress.update()
        return rows

    def measured(self, loader: Child, number: int) -> dict[str, Any]:
        """One epoch, with what both hosts counted meanwhile."""
        before = self.counters()
        row: dict[str, Any] = loader.order(f"epoch {number}")
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
        """The server of a system, ready; ours on files is one agent for all policies and runs already."""
        if not each.system.serves:
            yield
            return
        with self.process(self.bed.agent_host, AGENT_CORE, each, "serve", workers):
            yield

    @contextmanager
    def loader(self, each: Installed, workers: int) -> Iterator[Child]:
        """A loader process of a system, its libraries imported."""
        with self.process(self.bed.loader_host, LOADER_CORE, each, "load", workers) as loader:
            yield loader

    @contextmanager
    def process(self, host: Host, core: int, each: Installed, role: str, workers: int) -> Iterator[Child]:
        """A process of a system that is ready, with a folder of its own.

        Args:
            host: where it runs.
            core: the CPU that it is pinned to.
            each: the system.
            role: a function of `bench/peers/process.py`.
            workers: of the loader, or of the server where workers are there.
        """
        with TemporaryDirectory(prefix="sophon-peers-") as folder:
            settings = asdict(self.settings(each, folder, workers))
            name = f"bench.peers.process:{role}"
            with started(host, core, str(each.python), name, settings, ANSWER_S, keep_errors=True) as child:
                yield child

    def settings(self, each: Installed, folder: str, workers: int) -> Settings:
        """Return the settings of a system's process."""
        port = FIRST_PORT + PORTS_EACH * list(SYSTEMS).index(each.system.name)
        if each.system.remote_workers:  # a second server in addition to the one with one worker
            port += PORTS_EACH // 2 * (workers - 1)
        return Settings(
            system=each.system.name,
            data=str(self.data),
            folder=folder,
            address=self.bed.agent_host.address,
            port=port if each.system.serves else PORT,
            workers=workers,
            batch_size=self.batch_size,
            nginx=each.programs.get("nginx"),
        )
