"""Random seeds for as long as is asked, and whether anything grows meanwhile: `make soak MINUTES=30`.

    python -m tests.faults.soak --minutes 30 --json soak.json

Seeds go by turns to two agents. One of them is never killed, and lives through all of it like the host process. After
each run descriptors, pipes, threads, processes and memory of those two are counted, and temporary files. At the end,
what has been counted in the second half must be flat: a line through it must not rise by more than a share of its mean
and a small number.

The host process also trains all the time, with one loader and the agent that lives. Its roster names more and more
agents that nobody reaches, a few in the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
from tqdm import tqdm

from bench.record import stamp, write_json
from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import OffloadWarning
from tests.faults.schedules import MOST_FILES, Schedule, drawn
from tests.faults.seeds import MOST_S, OPTIONS, PATIENCE_S, Scene, deadline, run, scene
from tests.support.agents import EXPORT, until
from tests.support.loaders import samples_of
from tests.support.pictures import folder

SHARE = 0.1
"""How much of its mean a count may rise over the second half."""
MORTAL = ("kill", "away", "upgrade")
MARGINS = {"descriptors": 8, "pipes": 3, "threads": 4, "processes": 3, "mb": 40, "files": 3}
"""And how much besides, by the end of its name."""
IDLE_S = 0.2
NOBODIES = 3
"""Agents that nobody reaches, of the training: few, as a trial on its way has eight descriptors and two threads."""


def spared(schedule: Schedule) -> Schedule:
    """The same with cut connections in place of agents that end."""
    faults = [replace(one, kind="cut") if one.kind in MORTAL else one for one in schedule.faults]
    return replace(schedule, faults=faults)


class Training:
    """One that lasts as long as the soak, an epoch after each seed.

    Args:
        at: where.
    """

    def __init__(self, at: Scene) -> None:
        self._at = at
        self._loader = OffloadingDataLoader(
            folder(at.root),
            agent=f"file://{at.roster}/{EXPORT}",
            options=replace(OPTIONS, connect_timeout_s=0.3),
            seed=1,
            batch_size=4,
            num_workers=1,
            policy="all-off",
        )

    def epoch(self, share: float) -> None:
        """Run an epoch.

        Args:
            share: of the soak that has passed.
        """
        self._at.announce(1 + int(share * NOBODIES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OffloadWarning)
            assert len(samples_of(self._loader)) == MOST_FILES

    def close(self) -> None:
        """End it."""
        self._loader.close()


def counted(at: Scene) -> dict[str, float]:
    """What the host process and the agent of a scene hold now.

    Raises:
        AssertionError: the agent goes on working, though nobody asks it for anything.
    """
    until(at.complete, "workers that were killed are replaced", PATIENCE_S)
    gc.collect()
    host, agent = psutil.Process(), psutil.Process(at.agent.pid)
    until(lambda: sleeps(agent), "an agent that nobody asks sleeps", PATIENCE_S)
    workers = [one for one in host.children() if "storage_agent" not in " ".join(one.cmdline())]
    family = {"loader": (host, workers), "agent": (agent, agent.children(recursive=True))}
    found: dict[str, float] = {}
    for name, (process, children) in family.items():
        found[f"{name}_descriptors"] = process.num_fds()
        found[f"{name}_pipes"] = pipes_of(process)
        found[f"{name}_threads"] = process.num_threads()
        found[f"{name}_processes"] = len(children)
        found[f"{name}_mb"] = process.memory_info().rss / 1e6
        found[f"{name}_children_mb"] = sum(_rss_mb(one) for one in children)
    return found | {"temporary_files": len(os.listdir(tempfile.gettempdir()))}


def pipes_of(process: psutil.Process) -> int:
    """How many ends of pipes a process has."""
    found = 0
    for one in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, as that of the folder itself
            found += os.readlink(one).startswith("pipe:")
    return found


def sleeps(process: psutil.Process) -> bool:
    """Whether a process does next to nothing for a moment."""
    before = process.cpu_times()
    time.sleep(IDLE_S)
    after = process.cpu_times()
    return after.user + after.system - before.user - before.system < IDLE_S / 2


def _rss_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 1e6
    except psutil.NoSuchProcess:
        return 0.0


def risen(name: str, values: Sequence[float]) -> float:
    """By how much a count rises over the second half of a soak beyond what it may; 0 or less where it is flat.

    Args:
        name: of the count; its end decides what it may.
        values: in order, at even distances.
    """
    half = np.asarray(values[len(values) // 2 :])
    if len(half) < 2:
        return 0.0
    slope = float(np.polyfit(np.arange(len(half)), half, 1)[0])
    return slope * len(half) - SHARE * float(half.mean()) - MARGINS[name.rpartition("_")[2]]


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="default %(default)s")
    parser.add_argument(
        "--first", type=int, default=time.time_ns() % 10**9, metavar="SEED", help="default: by the clock"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all that was counted")
    asked = parser.parse_args()
    rows: list[dict[str, float]] = []
    failed: list[int] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # a short path, as those of sockets must be
        tempfile.tempdir = os.environ["TMPDIR"] = temporary
        with (
            scene() as mortal,
            scene() as lasting,
            closing(Training(lasting)) as training,
            tqdm(total=round(60 * asked.minutes), unit="s") as bar,
        ):
            seed, end_s = asked.first, time.monotonic() + 60 * asked.minutes
            while (left_s := end_s - time.monotonic()) > 0:
                try:
                    with deadline(MOST_S):
                        run(*((drawn(seed), mortal) if seed % 2 else (spared(drawn(seed)), lasting)))
                        training.epoch(1 - left_s / (60 * asked.minutes))
                except Exception:
                    print(f"seed {seed} fails\n{traceback.format_exc()}", file=sys.stderr)
                    failed.append(seed)
                rows.append({"seed": seed, "seconds": 60 * asked.minutes - left_s, **counted(lasting)})
                seed += 1
                bar.set_postfix(seeds=len(rows), failed=len(failed))
                bar.update(round(rows[-1]["seconds"]) - bar.n)
        tempfile.tempdir = None
    counts = [name for name in rows[0] if name not in ("seed", "seconds")]
    rising = {name: round(by, 3) for name in counts if (by := risen(name, [row[name] for row in rows])) > 0}
    summary = {"seeds": len(rows), "failed": failed, "rising": rising, "first": rows[0], "last": rows[-1]}
    print(json.dumps(summary, indent=1))
    if asked.json is not None:
        command = f"python -m tests.faults.soak --minutes {asked.minutes:g} --first {asked.first}"
        write_json(asked.json, {**stamp(command), **summary, "rows": rows})
    return 1 if failed or rising else 0


if __name__ == "__main__":
    sys.exit(main())
