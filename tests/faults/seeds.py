"""Runs the schedules of seeds: whatever goes wrong, every sample comes once, bit for bit as without an agent.

python -m tests.faults.seeds 17          that seed; if it fails, with fewer faults, and kept in `failed.jsonl`
python -m tests.faults.seeds 100 200     those from 100 to 199
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any
from unittest.mock import patch

import psutil
import torch
from torch.utils.data import Subset
from tqdm import tqdm

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.cache import worker_cache
from sophon_loader.errors import OffloadWarning
from sophon_loader.wire.entry import SUFFIX, AgentEntry
from tests.faults.schedules import (
    ALARM,
    BEFORE,
    EPOCHS,
    LASTING,
    MOST_FILES,
    OF_CACHE,
    STRIKES,
    Fault,
    Schedule,
    drawn,
    shrunk,
)
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.alarms import Alarms
from tests.support.cache_harm import CLOCK_JUMP, harm_cache, jump
from tests.support.loaders import samples_of
from tests.support.pictures import folder, make_tree
from tests.support.recorded import Own
from tests.support.relay import SpoiltRelay
from tests.support.warm import Warm

KEPT = Path(__file__).parent / "failed.jsonl"
"""Schedules that have failed once, one a line; `test_seeds.py` runs them first."""
OPTIONS = OffloadOptions(connect_timeout_s=5.0, heartbeat_s=0.2, dead_after_s=1.0, resend_after_s=0.5, window=16)
SLOW_DISK = """
import os, time

_open = os.open


def _slowly(path, *arguments, **others):
    if str(path).startswith({root!r}) and os.path.exists({switch!r}):
        time.sleep({pause_s})
    return _open(path, *arguments, **others)


os.open = _slowly
"""
"""A module that each Python of the agent loads first: while a file is there, others take long to open."""
SLOW_DISK_S = 0.1
DELAY_S = 0.05
SLOW_MBIT = 5.0
CACHE_GB = 0.004
"""Room for nearly all of the files."""
PATIENCE_S = 150.0
"""For an agent whose workers still import torch, on a machine that does much else."""
MOST_S = 400.0
"""A run that takes longer hangs."""
Samples = list[tuple[str, Any]]


class Scene:
    """A tree of pictures, an agent that serves it, and a relay before that; for one run after the other.

    Args:
        root: of the tree.
        agent: that serves it as `EXPORT`.
        relay: to the agent.
        slow_disk: a file with which the agent's disk is slow.
        full_disk: a folder in which nothing can be written.

    Attributes:
        cache: a folder for files that are kept, by one schedule after the other.
        roster: a folder that names the agent once it has been announced.
    """

    def __init__(self, root: Path, agent: Agent, relay: SpoiltRelay, slow_disk: Path, full_disk: Path) -> None:
        self.root = root
        self.slow_disk = slow_disk
        self.full_disk = full_disk
        self.agent = agent
        self.relay = relay
        self.cache = root.with_name("cache")
        self.roster = root.with_name("agents")
        self.roster.mkdir(mode=0o755)
        self._draw = random.Random(str(root.name))
        self._stopped = False

    @property
    def alive(self) -> bool:
        """Whether there is an agent that could answer."""
        return self.agent.process.poll() is None and not self._stopped

    def complete(self) -> bool:
        """Whether all workers are ready."""
        return self.agent.alive() and self.agent.status()["workers"] == self.agent.announcement.workers

    def idle(self) -> bool:
        """Whether everything is answered."""
        return self.agent.alive() and self.agent.status()["outstanding"] == 0

    def announce(self, nobodies: int = 1) -> None:
        """Write entries anew: the agent's, and those of so many that nobody reaches."""
        endpoints = {"relay": self.relay.endpoint} | {f"nobody-{n}": f"tcp://127.0.1.{n}:9" for n in range(nobodies)}
        for name, endpoint in endpoints.items():
            path = self.roster / f"{name}.new"
            path.write_text(AgentEntry([endpoint], "", [EXPORT]).text())
            path.replace(path.with_suffix(SUFFIX))

    def begin(self, fault: Fault) -> None:
        """Have something go wrong."""
        if fault.kind in STRIKES:
            self.relay.strike(fault.kind, fault.amount, fault.to_agent)  # type: ignore[arg-type]
        elif fault.kind == "cut":
            self.relay.cut()
        elif fault.kind == "stall":
            self.relay.stall()
        elif fault.kind == "delay":
            self.relay.delay_s = DELAY_S
        elif fault.kind == "slow":
            self.relay.mbit = SLOW_MBIT
        elif fault.kind == "slow disk":
            self.slow_disk.touch()
        elif fault.kind == "replace":
            self._replace(fault.amount)
        elif fault.kind in OF_CACHE:
            harm_cache(self.cache, fault.kind.removeprefix("cache "), fault.amount, self._draw)
        elif fault.kind == CLOCK_JUMP:
            jump(self.root, fault.amount, self._draw)
        elif self.alive:
            self._harm(fault)

    def _harm(self, fault: Fault) -> None:
        """Something that only an agent that runs can have."""
        if fault.kind == "stop":
            self._stopped = True
            self.agent.pause()
        elif fault.kind == "kill worker":
            for process in self._workers()[: fault.amount]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        elif fault.kind == "upgrade":
            self.agent.arguments = ("--end-with-stdin", "--workers", str(1 + fault.amount % 2))
            self.agent.end()
            self.agent.start()
        else:
            self.agent.kill()
            if fault.kind == "kill":
                self.agent.start()

    def undo(self, kind: str) -> None:
        """What has lasted long enough ends."""
        if kind == "stop" and self._stopped:
            self._stopped = False
            self.agent.go_on()
        elif kind == "away" and self.agent.process.poll() is not None:
            self.agent.start()
        elif kind == "stall":
            self.relay.go_on()
        elif kind == "delay":
            self.relay.delay_s = 0.0
        elif kind == "slow":
            self.relay.mbit = None
        elif kind == "slow disk":
            self.slow_disk.unlink(missing_ok=True)

    def heal(self) -> None:
        """All is well again."""
        for kind in ("stop", "away", "slow disk"):
            self.undo(kind)
        self.relay.calm()

    def _workers(self) -> list[psutil.Process]:
        """The agent's, which the forkserver has forked, a child of its own."""
        agent = psutil.Process(self.agent.pid)
        return [worker for child in agent.children() for worker in child.children()]

    def _replace(self, count: int) -> None:
        """Put files in place of others with the same bytes."""
        for path in sorted(self.root.rglob("*.jpg"))[:count]:
            copy = path.with_suffix(".new")
            shutil.copyfile(path, copy)
            os.replace(copy, path)


@contextmanager
def scene() -> Iterator[Scene]:
    """A scene of its own, in a folder for temporary files that is removed with it."""
    with ExitStack() as stack:
        above = Path(stack.enter_context(TemporaryDirectory()))
        root, modules, slow_disk = make_tree(above / "pictures", MOST_FILES), above / "modules", above / "slow disk"
        modules.mkdir()
        slowly = SLOW_DISK.format(root=str(root), switch=str(slow_disk), pause_s=SLOW_DISK_S)
        (modules / "sitecustomize.py").write_text(slowly)
        warm = stack.enter_context(closing(Warm(modules)))
        agent = stack.enter_context(agent_for(root, workers=2, warm=warm))
        agent.arguments = ("--end-with-stdin",)
        relay = stack.enter_context(SpoiltRelay(agent.endpoint))
        for name in ("YOUNG_S", "BEHIND_S"):  # the tree's files are new
            stack.enter_context(patch.object(worker_cache, name, 0.0))
        found = Scene(root, agent, relay, slow_disk, stack.enter_context(_full_disk(above / "full")))
        until(found.complete, "all workers are ready", PATIENCE_S)
        stack.callback(found.heal)  # a stopped agent would not end
        yield found


@contextmanager
def _full_disk(folder: Path) -> Iterator[Path]:
    """A disk of one page, which is taken; where none can be mounted (that needs root), a folder that cannot be made."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1", "tmpfs", folder], capture_output=True).returncode:
        yield Path("/dev/null/full")
        return
    try:
        (folder / "page").write_bytes(bytes(mmap.PAGESIZE))
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def run(schedule: Schedule, at: Scene) -> None:
    """Run a schedule.

    Args:
        schedule: what to run.
        at: where; it is whole again afterwards.

    Raises:
        AssertionError: a sample is lost, doubled, or another one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffloadWarning)
        alarms = Alarms(random.Random(f"{schedule.seed} rings"))
        expected = _epochs(schedule, at, None, {}, Alarms(random.Random()))
        try:
            address = f"file://{at.roster}/{EXPORT}" if schedule.roster else at.relay.address(EXPORT)
            found = _epochs(schedule, at, address, _events(schedule, at, alarms), alarms)
        finally:
            at.heal()
    most = [raised * schedule.loader["batch_size"] for raised in alarms.raised]
    check(found, expected, schedule.loader["in_order"], most)
    until(at.idle, "the agent has answered everything", PATIENCE_S)


def check(found: Sequence[Samples], expected: Sequence[Samples], in_order: bool, lost: Sequence[int] = ()) -> None:
    """Each sample of each epoch comes once, bit for bit, but for those of batches that a signal interrupted.

    Args:
        found: samples by epoch.
        expected: the same without an agent.
        in_order: whether their order counts.
        lost: samples that may lack, by epoch; none where it ends.

    Raises:
        AssertionError: it does not.
    """
    for epoch, (some, others) in enumerate(zip(found, expected, strict=True)):
        lacking = Counter(others) - Counter(some)
        if lacking.total() <= sum(lost[epoch : epoch + 1]):
            others = [one for one in others if one not in lacking]
        assert sorted(some) == sorted(others), f"epoch {epoch} must have each sample once"
        assert some == others or not in_order, f"epoch {epoch} must have its samples in their order"


def _events(schedule: Schedule, at: Scene, alarms: Alarms) -> dict[int, list[Callable[[], None]]]:
    """What to do before which batch of a run."""
    events: dict[int, list[Callable[[], None]]] = {}
    for fault in schedule.faults:
        if fault.kind == ALARM:
            events.setdefault(fault.at, []).append(partial(setattr, alarms, "on", True))
            events.setdefault(fault.at + fault.amount, []).append(partial(setattr, alarms, "on", False))
            continue
        events.setdefault(fault.at, []).append(partial(at.begin, fault))
        if fault.kind in LASTING:
            events.setdefault(fault.at + fault.amount, []).append(partial(at.undo, fault.kind))
    return events


def _dataset(schedule: Schedule, at: Scene) -> Any:
    """What the loader of a schedule reads; what samples move on `self` counts where their order is that of torch."""
    if not schedule.recorded:
        return folder(at.root)
    rings = any(fault.kind == ALARM for fault in schedule.faults)
    return Own(at.root, moves=schedule.loader["in_order"] and not rings)


def _epochs(
    schedule: Schedule, at: Scene, address: str | None, events: dict[int, list[Callable[[], None]]], alarms: Alarms
) -> list[Samples]:
    """What the loader of a schedule delivers, epoch by epoch."""
    random.seed(schedule.seed)
    generator = torch.Generator().manual_seed(schedule.seed)
    arguments = {**schedule.loader, "profile": at.full_disk / "profile.npz" if schedule.profile else None}
    keeps = address is not None and schedule.cache
    cache: dict[str, Any] = {"cache": str(at.cache), "cache_gb": CACHE_GB} if keeps else {}
    loader = OffloadingDataLoader(
        Subset(_dataset(schedule, at), range(schedule.files)),
        agent=address,
        seed=schedule.seed,
        options=replace(OPTIONS, fused=schedule.fused, **cache),
        generator=generator,
        **arguments,
    )
    found: list[Samples] = []
    number = 0
    at.announce()
    for event in events.get(BEFORE, ()):
        event()
    try:
        for _ in range(EPOCHS):
            found.append([])
            alarms.raised[len(found) - 1 :] = [0]
            batches = iter(loader)
            for _ in range(len(loader)):
                at.announce()
                for event in events.get(number, ()):
                    event()
                number += 1
                if (batch := alarms.next(batches)) is not None:
                    found[-1] += samples_of([batch])
            assert next(batches, None) is None, "no batch comes that the loader's length has not"
    finally:
        loader.close()
    return found


# --- from the command line --------------------------------------------------------------------------------------------


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """TimeoutError in a block that takes longer; every thread's stack is written to standard error before.

    Args:
        seconds: that it may take.
    """

    def late(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback()
        raise TimeoutError(f"a run must end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def failure(schedule: Schedule) -> str:
    """Run a schedule in a scene of its own; what went wrong, "" if nothing did."""
    try:
        with scene() as at, deadline(MOST_S):
            run(schedule, at)
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int, metavar="SEED")
    parser.add_argument("end", type=int, nargs="?", metavar="END")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + 1 if asked.end is None else asked.end)
    failed = []
    with ExitStack() as stack:
        at = stack.enter_context(scene())
        for seed in tqdm(seeds, unit="seed"):
            schedule = drawn(seed)
            try:
                with deadline(MOST_S):
                    run(schedule, at)
            except Exception:
                print(f"seed {seed} fails: {schedule.line()}\n{traceback.format_exc()}", file=sys.stderr)
                failed.append(schedule)
                stack.close()
                at = stack.enter_context(scene())
    print(f"{len(seeds) - len(failed)} of {len(seeds)} seeds pass")
    for schedule in failed:
        smaller = shrunk(schedule, lambda one: bool(failure(one)))
        print(f"seed {schedule.seed} is kept as {smaller.line()}", file=sys.stderr)
        with KEPT.open("a") as lines:
            lines.write(smaller.line() + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
