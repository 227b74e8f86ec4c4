"""Real agents and real trainings under one of the rules of `fleet_rules`.

Each agent and each training is a process with a CPU quota of its own: an agent from when its worker is ready, because
that imports torch first, and a training from its first batch. A training sleeps for each step, so that it takes no
more than a known number of images/s. Agents announce themselves in a folder, in which loaders look for them.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.bed import LoopbackHosts
from bench.children import AGENT, EXPORT, START_S, Child, ChildFailed, child
from bench.fleet_rules import RULES, Rule, Seen
from bench.fleet_simulated import BATCH, Load, Outcome
from bench.live_runs import ENDLESS
from bench.record import REPOSITORY
from bench.streams import StreamSettings, rate, streaming
from sophon_loader.errors import AgentUnreachable
from sophon_loader.wire.announcement import announced
from storage_agent.command.status import ask_status
from storage_agent.fleet.fleet_size import LOOK_S
from storage_agent.fleet.wanted_files import read_wanted

POLL_S = 0.5
"""Seconds between two questions to a training about its progress."""
READY_S = 0.005
"""A batch that came within this was waiting for the training."""
DRAIN_S = 20.0
"""Time limit for an agent's end, in seconds."""
SETTLE_S, CALIBRATED_S = 12.0, 8.0


class Agent:
    """An agent from its start to its end.

    Args:
        bed: on whose agent host it runs, alone.
        folder: in which it announces itself.
        data: that it serves.
        cores: its quota once it is ready.
    """

    def __init__(self, bed: LoopbackHosts, folder: Path, data: Path, cores: float) -> None:
        self.bed = bed
        self.begun_s, self.ready_s, self.ended_s = time.monotonic(), math.inf, math.inf
        self._cores = cores
        self._cpu_s = 0.0
        command = [*AGENT, "--log-level", "error", "--insecure", "--workers", "1", "--export", f"{EXPORT}={data}"]
        command += ["--bind", "tcp://127.0.0.1:0", "--announce", str(folder)]
        bed.agent_host.set_quota(None)
        self._process = bed.agent_host.popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        self._thread = threading.Thread(target=self._await, name="agent-ready", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """True if the agent serves."""
        return self.ready_s < math.inf

    def cpu_s(self) -> float:
        """CPU seconds since this was asked last, or since it was ready."""
        if not self.is_ready:
            return 0.0
        before, self._cpu_s = self._cpu_s, self.bed.agent_host.cpu_seconds() or 0.0
        return self._cpu_s - before

    def end(self) -> None:
        """Have it end; `seconds` goes on until it has."""
        self._process.terminate()
        self._thread = threading.Thread(target=self._reap, name="agent-ends", daemon=True)
        self._thread.start()

    def seconds(self) -> float:
        """From its start to its end, or until now."""
        return min(self.ended_s, time.monotonic()) - self.begun_s

    def wait(self, timeout_s: float) -> None:
        """Until it is ready or, behind `end`, has ended."""
        self._thread.join(timeout_s)

    def _await(self) -> None:
        address = announced(self._process).endpoint
        while time.monotonic() - self.begun_s < START_S and self._process.poll() is None:
            with suppress(AgentUnreachable):
                if ask_status(address, 2.0)["workers"]:
                    self.bed.agent_host.set_quota(self._cores)
                    self._cpu_s = self.bed.agent_host.cpu_seconds() or 0.0
                    self.ready_s = time.monotonic()
                    return
            time.sleep(0.2)

    def _reap(self) -> None:
        try:
            self._process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(DRAIN_S)
        self.ended_s = time.monotonic()


class Fleet:
    """The agents of a run; the newest is the first to go.

    Args:
        beds: twice as many as there may be agents, since those that end still have theirs.
        folder, data, cores: of every agent.
    """

    def __init__(self, beds: Sequence[LoopbackHosts], folder: Path, data: Path, cores: float) -> None:
        self._free = list(beds)
        self._folder, self._data, self._cores = folder, data, cores
        self.agents: list[Agent] = []
        self._leaving: list[Agent] = []
        self.all: list[Agent] = []

    def resize(self, number: int) -> None:
        """Start or end agents."""
        for one in [one for one in self._leaving if one.ended_s < math.inf]:
            self._leaving.remove(one)
            self._free.append(one.bed)
        while len(self.agents) > number:
            self._leaving.append(self.agents.pop())
            self._leaving[-1].end()
        while len(self.agents) < number and self._free:
            self.agents.append(Agent(self._free.pop(), self._folder, self._data, self._cores))
            self.all.append(self.agents[-1])

    def close(self) -> None:
        """End all, and wait for that."""
        self.resize(0)
        for one in self._leaving:
            one.wait(2 * DRAIN_S)


@dataclass(frozen=True)
class Trainer:
    """A process for one training after the other.

    Args:
        bed: on whose loader host it runs, alone.
        process: that makes a loader for each training.
        cores: its quota from a training's first batch to its end. Under a small one, forking workers and ending them
            takes a phase.
    """

    bed: LoopbackHosts
    process: Child
    cores: float


class Training:
    """A training from its begin to its end.

    Args:
        trainer: that has none at the moment.
        step_s: of a batch.
    """

    def __init__(self, trainer: Trainer, step_s: float) -> None:
        self._host, self._process, self._step_s = trainer.bed.loader_host, trainer.process, step_s
        self._cores = trainer.cores
        self.begun_s, self.ended_s = time.monotonic(), math.inf
        self.log: list[tuple[float, int, float]] = []
        self._seen = 0
        self._ending = threading.Event()
        self._pool = ThreadPoolExecutor(1, "training")
        self._done = self._pool.submit(self._run)

    def end(self) -> None:
        """Have it stop, which `join` waits for."""
        self.ended_s = time.monotonic()
        self._ending.set()

    def join(self) -> None:
        """Until it has stopped.

        Raises:
            ChildFailed: its process did.
        """
        self._pool.shutdown()
        self._done.result()

    def stall_s(self) -> float:
        """Seconds from begin to end by which its steps would have been done sooner, had it never waited. A step that
        takes longer because the process has used up its quota is a stall, too: loaders have taken that."""
        steps = sum(row[0] <= self.ended_s - self._step_s for row in self.log)
        return self.ended_s - self.begun_s - steps * self._step_s

    def news(self) -> list[tuple[float, float, int]]:
        """Return (seconds since the one before, wait for it, samples) of each batch since the last call."""
        rows, first = self.log, max(1, self._seen)
        self._seen = len(rows)
        pairs = zip(rows[first - 1 :], rows[first:], strict=False)
        return [(b[0] - a[0], b[0] - a[0] - (b[2] - a[2]), b[1] - a[1]) for a, b in pairs]

    def demanded(self) -> float | None:
        """Images/s that it would take; None before its second batch."""
        return BATCH / self._step_s if len(self.log) > 1 else None

    def _run(self) -> None:
        self._process.order("begin")
        self._process.order(f"step {1000 * self._step_s}")
        self._host.set_quota(self._cores)
        while not self._ending.wait(POLL_S):
            self.log = [tuple(row) for row in self._process.order("log 0")]
        self._host.set_quota(None)
        self.log = [tuple(row) for row in self._process.order("log 0")]
        self._process.order("stop")


@dataclass(frozen=True)
class Place:
    """Hosts and folders of runs.

    Args:
        folder: of the agents and of what loaders want.
        data: an ImageFolder tree.
        beds: for agents.
        trainers: as many as trainings may run.
        agent_cores: quota of an agent.
    """

    folder: Path
    data: Path
    beds: Sequence[LoopbackHosts]
    trainers: Sequence[Trainer]
    agent_cores: float

    def fleet(self, least: int) -> Fleet:
        """With its first agents, which are ready."""
        fleet = Fleet(self.beds, self.folder, self.data, self.agent_cores)
        fleet.resize(least)
        for one in fleet.agents:
            one.wait(START_S)
            if not one.is_ready:
                fleet.close()
                raise ChildFailed(f"an agent must be ready within {START_S:g} s, got none")
        return fleet


@contextmanager
def place(data: Path, trainings: int, most: int, agent_cores: float, loader_cores: float) -> Iterator[Place]:
    """Beds and loaders' processes, while the block runs.

    Args:
        data: an ImageFolder tree.
        trainings: that run at once, at most.
        most: agents, at most.
        agent_cores: quota of an agent.
        loader_cores: quota of a training with its loader.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-fleet-")))
        beds = [stack.enter_context(LoopbackHosts(None)) for _ in range(2 * most)]
        settings = asdict(StreamSettings("auto", str(data), ENDLESS, batch_size=BATCH))
        trainers = []
        for _ in range(trainings):
            bed = stack.enter_context(LoopbackHosts(None))
            told = {"address": f"file://{folder}/{EXPORT}", **settings}
            process = stack.enter_context(child(bed.loader_host, None, streaming, told))
            trainers.append(Trainer(bed, process, loader_cores))
        yield Place(folder, data, beds, trainers, agent_cores)


@dataclass(frozen=True)
class Calibration:
    """Rates of agents and loaders, known before any rule is asked.

    Args:
        images_per_s: of a training without a step that has an agent for itself.
        alone: the same without an agent.
        start_s: of the agent, until it was ready.
    """

    images_per_s: float
    alone: float
    start_s: float

    @property
    def adds(self) -> float:
        """Images/s that an agent adds to what a loader makes."""
        return self.images_per_s - self.alone


def calibrated(place: Place) -> Calibration:
    """By a training without a step, and an agent that ends.

    Args:
        place: in which nothing runs.
    """
    fleet = place.fleet(1)
    try:
        training = Training(place.trainers[0], 0.0)
        time.sleep(SETTLE_S + CALIBRATED_S)
        with_s = time.monotonic()
    finally:
        fleet.close()
    time.sleep(SETTLE_S + CALIBRATED_S)
    training.end()
    training.join()
    one, rates = fleet.all[0], [rate(training.log, end_s - CALIBRATED_S, end_s) for end_s in (with_s, training.ended_s)]
    return Calibration(rates[0], rates[1], one.ready_s - one.begun_s)


class Run:
    """One rule under one load.

    Args:
        place: in which nothing runs.
        load: the trainings.
        rule: asked every `LOOK_S`.
    """

    def __init__(self, place: Place, load: Load, rule: Rule) -> None:
        self._place, self._load, self._rule = place, load, rule
        self._fleet = place.fleet(load.least)
        self._trainings: list[Training] = []
        self._ended: list[Training] = []
        self._made, self._cpu_s = 0, 0.0
        """Images, and CPU seconds of agents, so far."""

    def run(self) -> Outcome:
        """All phases."""
        outcome, begun_s = Outcome(), time.monotonic()
        before_s = sum(one.seconds() for one in self._fleet.all)
        try:
            for index, number in enumerate(self._load.trainings):
                self._have(number)
                end_s = begun_s + sum(self._load.phases_s[: index + 1])
                while time.monotonic() < end_s:
                    wanted = max(self._load.least, min(self._load.most, self._rule.after(self._seen())))
                    outcome.changes += wanted != len(self._fleet.agents)
                    self._fleet.resize(wanted)
                    time.sleep(max(0.0, min(LOOK_S, end_s - time.monotonic())))
                outcome.agents.append(len(self._fleet.agents))
            outcome.agent_s = sum(one.seconds() for one in self._fleet.all) - before_s
            self._have(0)
        finally:
            self._fleet.close()
        for one in self._ended:
            one.join()
        outcome.stall_s = sum(one.stall_s() for one in self._ended)
        return outcome

    def starts_s(self) -> list[float]:
        """Return the start times in seconds of the agents that became ready."""
        return [one.ready_s - one.begun_s for one in self._fleet.all if one.is_ready]

    def _have(self, number: int) -> None:
        while len(self._trainings) > number:
            self._ended.append(self._trainings.pop())
            self._ended[-1].end()
        for trainer in self._place.trainers[len(self._trainings) : number]:
            self._trainings.append(Training(trainer, BATCH / self._load.demand))

    def _seen(self) -> Seen:
        news = [row for one in self._trainings for row in one.news()]
        self._made += sum(samples for _, _, samples in news)
        self._cpu_s += sum(one.cpu_s() for one in self._fleet.agents)
        demanded = [takes for one in self._trainings if (takes := one.demanded()) is not None]
        ready = sum(one.is_ready for one in self._fleet.agents)
        made = self._place.agent_cores * self._made / self._cpu_s if self._made and self._cpu_s else 0.0
        return Seen(
            now_s=time.monotonic(),
            present=len(self._fleet.agents),
            ready=ready,
            batch_s=sum(seconds for seconds, _, _ in news) / len(news) if news else None,
            queue=sum(wait_s < READY_S for _, wait_s, _ in news) / max(1, len(news)),
            trainings=len(self._trainings),
            demanded=demanded,
            agents=[made] * ready if made else [],
            wanted=read_wanted(str(self._place.folder)),
        )


def measured(place: Place, name: str, load: Load, scale: float) -> tuple[Outcome, list[float]]:
    """Return the outcome of a rule, and the seconds of its agents' starts.

    Args:
        place: in which nothing runs.
        name: of `RULES`.
        load: the trainings.
        scale: of the rule's waiting times.
    """
    run = Run(place, load, RULES[name](load.least, load.most, scale))
    return run.run(), run.starts_s()
