"""What a seed stands for: a loader, and what goes wrong while it runs. Values only; `seeds.py` carries them out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.support.cache_harm import CACHE_HARM, CLOCK_JUMP

MOST_FILES = 64
"""Of the tree that all loaders read from."""
EPOCHS = 2
MOST_FAULTS = 4
BEFORE = -1
MISSING_SHARE = 0.2
"""Of the schedules, in which the agent is away as the loader begins, and comes later."""
STRIKES = ("drop", "double", "reorder", "truncate", "flip", "flip header")
"""Of messages; see `bench/bed/spoilt.py`."""
LASTING = ("stop", "stall", "delay", "slow", "slow disk", "away")
"""Faults that are undone some batches later."""
ALARM = "alarm"
"""Signals come while some batches are made, and their handler raises in the loader, whose loop goes on."""
LOUD_SHARE = 0.3
"""Of the schedules without workers, in which signals come."""
MOMENTARY = ("kill", "kill worker", "upgrade", "cut", "replace")
OF_CACHE = tuple(f"cache {what}" for what in CACHE_HARM)
CACHE_SHARE = 0.5
"""Of the schedules, in which files are kept; what is kept outlives them."""
ROSTER_SHARE = 0.5
"""Of the schedules whose policy allows it, in which a roster names the agent, and one that nobody reaches."""
RECORDED_SHARE = 0.6
"""Of the schedules whose policy and options allow it, in which the dataset is of a class of its own."""
ENCODINGS: tuple[Any, ...] = ("auto", "paper", ["webp"], ["pixels", "roi-jpeg"], ["file"])
POLICIES = ("no-off", "all-off", "resize-off", "sophon", "auto")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Args:
        at: before which batch of the run, from 0; `BEFORE` for before the loader is made.
        kind: one of `LASTING`, `MOMENTARY`, `OF_CACHE`, a clock jump, `ALARM`, or a strike.
        amount: batches that it lasts, messages or files that it concerns, or workers of the newer agent; from 1.
        to_agent: of a strike: messages to the agent, and not those from it.
    """

    at: int
    kind: str
    amount: int = 1
    to_agent: bool = False


@dataclass(frozen=True)
class Schedule:
    """A loader and its faults.

    Args:
        seed: of the run, and of what was drawn for this schedule.
        files: in the dataset.
        loader: arguments of OffloadingDataLoader.
        profile: whether there is one to write, to a disk that is full.
        faults: in the order in which they come.
        fused: whether C of our own may decode.
        cache: whether files are kept on this host.
        roster: whether a folder names the agent.
        recorded: whether the dataset is of a class of its own.

    Example:
        >>> Schedule.from_line(drawn(7).line()) == drawn(7)
        True
    """

    seed: int
    files: int
    loader: dict[str, Any]
    profile: bool = False
    faults: list[Fault] = field(default_factory=list)
    fused: bool = True
    cache: bool = False
    roster: bool = False
    recorded: bool = False

    def line(self) -> str:
        """As a line of text, to be kept."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_line(line: str) -> Schedule:
        """The inverse of `line`."""
        values = json.loads(line)
        return Schedule(**{**values, "faults": [Fault(**fault) for fault in values["faults"]]})


def drawn(seed: int) -> Schedule:
    """The schedule of a seed."""
    draw = random.Random(seed)
    files, batch_size = draw.randint(24, MOST_FILES), draw.randint(2, 8)
    workers = draw.randint(0, 2)
    loader = {
        "batch_size": batch_size,
        "num_workers": workers,
        "policy": draw.choice(POLICIES),
        "encodings": draw.choice(ENCODINGS),
        "shuffle": draw.random() < 0.5,
        "persistent_workers": workers > 0 and draw.random() < 0.5,
        "in_order": workers == 0 or draw.random() < 0.8,
    }
    batches = EPOCHS * -(-files // batch_size)
    faults = [_fault(draw, batches) for _ in range(draw.randint(1, MOST_FAULTS))]
    first = random.Random(f"{seed} begins")  # so that the faults of a seed stay what they were without this one
    if first.random() < MISSING_SHARE:
        faults.append(Fault(BEFORE, "away", first.randint(2, 1 + batches // 2)))
    fused = random.Random(f"{seed} decodes").random() < 0.5
    keeps = random.Random(f"{seed} keeps")
    if cache := keeps.random() < CACHE_SHARE:
        kinds = [keeps.choice((*OF_CACHE, CLOCK_JUMP)) for _ in range(keeps.randint(0, MOST_FAULTS))]
        faults += [Fault(keeps.randrange(batches), kind, keeps.randint(1, 16)) for kind in kinds]
    loud = random.Random(f"{seed} is loud")
    if loud.random() < LOUD_SHARE and not workers:  # tensors of workers come by sockets that a signal may leave open
        faults.append(Fault(loud.randrange(batches), ALARM, loud.randint(1, 8)))
    profile = draw.random() < 0.2
    roster = loader["policy"] != "sophon" and random.Random(f"{seed} roster").random() < ROSTER_SHARE
    faults.sort(key=lambda fault: fault.at)
    recorded = fused and loader["policy"] != "sophon" and random.Random(f"{seed} records").random() < RECORDED_SHARE
    return Schedule(seed, files, loader, profile, faults, fused, cache, roster, recorded)


def _fault(draw: random.Random, batches: int) -> Fault:
    at, amount = draw.randrange(batches), draw.randint(1, 4)
    to_agent = draw.random() < 0.5
    kind = draw.choice((*LASTING, *MOMENTARY, *STRIKES))
    return Fault(at, kind, amount, to_agent and kind in STRIKES)


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """The same with as few faults as it still fails with; one that needs luck to fail may keep more.

    Args:
        schedule: that fails.
        fails: runs one.
    """
    for fault in schedule.faults:
        fewer = [one for one in schedule.faults if one is not fault]
        smaller = Schedule(**{**vars(schedule), "faults": fewer})
        if fails(smaller):
            schedule = smaller
    return schedule
