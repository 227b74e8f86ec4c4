"""Cost of faults: every kind at a random moment of an epoch on real pictures.

    python -m bench.faults --json faults.json

A loader under `all-off` reads an ImageFolder through an agent on this host, behind a relay that cuts, stalls and delays
connections, and loses, doubles, reorders, damages and cuts off messages. Each kind has an epoch, next to one without a
fault; their order changes by round, and the fault comes before a batch that is drawn. A row's figure is by how many
seconds its epoch was longer than the undisturbed one of its round. All epochs are the same epoch, so their digests must
be one: that of a loader without an agent. Equal digests are equal samples, each once, in one order.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from bench import arguments, record
from bench.bed.spoilt import SpoiltRelay
from bench.loading import folder, quiet
from sophon_loader import OffloadingDataLoader
from sophon_loader.wire.announcement import announced

EXPORT = "pictures"
UNDISTURBED = "none"
LASTS_S = 1.0
"""Duration in seconds of a fault that ends by itself."""
DELAY_S = 0.05
SEED = 11


class Agent:
    """An agent that can be killed and started again under its address.

    Args:
        data: the folder that it serves.
        workers: its worker processes.
    """

    def __init__(self, data: Path, workers: int) -> None:
        self._command = [sys.executable, "-m", "storage_agent", "serve", "--workers", str(workers)]
        self._command += ["--export", f"{EXPORT}={data}", "--log-level", "error", "--end-with-stdin", "--bind"]
        self.endpoint = "tcp://127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Start it; returns when it listens."""
        command = [*self._command, self.endpoint]
        self.process = subprocess.Popen(command, cwd=record.REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.endpoint = announced(self.process).endpoint

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def kill_workers(self) -> None:
        """End all of its worker processes, which the forkserver has forked, a child of its own."""
        for child in psutil.Process(self.process.pid).children():
            for worker in child.children():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()


class Faults:
    """The kinds, by name: each a function that has it happen, and returns when it is over.

    Args:
        agent: to be harmed.
        relay: to it.
    """

    def __init__(self, agent: Agent, relay: SpoiltRelay) -> None:
        self._agent = agent
        self._relay = relay
        self.kinds: Mapping[str, Callable[[], None]] = {
            "killed, started again": self._restart,
            "workers killed": agent.kill_workers,
            "stopped for a second": self._stop,
            "connections cut": relay.cut,
            "connections stalled for a second": self._stall,
            "connections delayed for a second": self._delay,
            "4 replies lost": lambda: relay.strike("drop", 4),
            "4 requests lost": lambda: relay.strike("drop", 4, to_agent=True),
            "4 replies doubled": lambda: relay.strike("double", 4),
            "4 replies out of order": lambda: relay.strike("reorder", 4),
            "a reply cut off": lambda: relay.strike("truncate"),
            "4 replies damaged": lambda: relay.strike("flip", 4),
            "4 headers damaged": lambda: relay.strike("flip header", 4),
        }

    def calm(self) -> None:
        """Undo what was asked for and has not happened."""
        self._relay.calm()

    def _restart(self) -> None:
        self._agent.kill()
        self._agent.start()

    def _stop(self) -> None:
        process = psutil.Process(self._agent.process.pid)
        process.suspend()
        time.sleep(LASTS_S)
        process.resume()

    def _stall(self) -> None:
        self._relay.stall()
        time.sleep(LASTS_S)
        self._relay.go_on()

    def _delay(self) -> None:
        self._relay.delay_s = DELAY_S
        time.sleep(LASTS_S)
        self._relay.delay_s = 0.0


def disturbed_epoch(loader: Any, at: int, fault: Callable[[], None] | None) -> dict[str, Any]:
    """Repeat the first epoch, with the fault during it.

    Args:
        loader: any of our loaders.
        at: number of the batch before which it begins.
        fault: causes the fault; None for none.
    """
    loader.set_epoch(0)
    digest = samples = 0
    thread = None if fault is None else threading.Thread(target=fault, name="fault")
    started_s = time.perf_counter()
    for number, (images, labels) in enumerate(loader):
        if number == at and thread is not None:
            thread.start()
        digest = zlib.crc32(labels.numpy(), zlib.crc32(images.numpy(), digest))
        samples += len(labels)
    seconds = time.perf_counter() - started_s
    if thread is not None:
        thread.join()
    told = loader.report().as_dict()
    counts = {name: told[name] for name in ("retries", "fallbacks", "degraded")}
    return {"seconds": seconds, "samples": samples, "digest": f"{digest:08x}", **counts}


@contextmanager
def _loaders(options: Any) -> Iterator[tuple[Any, Any, Faults]]:
    """One without an agent, one with, and what can go wrong with that."""
    dataset = folder(options.data, options.repeat)
    agent = Agent(options.data, workers=1)
    try:
        with SpoiltRelay(agent.endpoint) as relay:
            made: list[OffloadingDataLoader[Any]] = [
                OffloadingDataLoader(
                    dataset,
                    options.batch_size,
                    num_workers=workers,
                    persistent_workers=workers > 0,
                    agent=address,
                    policy="all-off",
                    seed=SEED,
                )
                for workers, address in ((0, None), (options.workers, relay.address(EXPORT)))
            ]
            try:
                yield made[0], made[1], Faults(agent, relay)
            finally:
                for loader in made:
                    loader.close()
    finally:
        agent.kill()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per kind, write the results; 1 if a digest differs."""
    options = arguments.parsed(parser(), argv)
    quiet()
    draw = random.Random(SEED)
    rows: list[dict[str, Any]] = []
    with _loaders(options) as (plain, loader, faults):
        expected = disturbed_epoch(plain, 0, None)
        disturbed_epoch(loader, 0, None)  # workers start, and the page cache is filled
        kinds = [UNDISTURBED, *faults.kinds]
        turns = [(number, kind) for number in range(options.rounds) for kind in record.in_turns(kinds, number)]
        for number, kind in tqdm(turns, unit="epoch", file=sys.stderr):
            at = draw.randrange(max(1, len(loader) // 2))
            row = disturbed_epoch(loader, at, faults.kinds.get(kind))
            faults.calm()  # what did not happen in this epoch must not in the next
            same = (row["digest"], row["samples"]) == (expected["digest"], expected["samples"])
            rows.append({"round": number, "kind": kind, "at": at, "same": same, **row})
    summary = []
    for kind in faults.kinds:
        lost_s = [
            row["seconds"] - other["seconds"]
            for row in rows
            for other in rows
            if (row["kind"], other["kind"]) == (kind, UNDISTURBED) and row["round"] == other["round"]
        ]
        same = all(row["same"] for row in rows if row["kind"] == kind)
        lost = record.spread(lost_s)
        summary.append({"kind": kind, "same": same, "lost_s": lost})
        print(f"{kind:33} {'the same samples' if same else 'OTHER SAMPLES'}, "
              f"{lost['median']:+6.2f} s ({lost['min']:+.2f} to {lost['max']:+.2f})")  # fmt: skip
    record.write(options.output, {"epochs": rows, "summary": summary})
    return 0 if all(row["same"] for row in rows) else 1


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.faults", __doc__, pictures=True)
    add = parser.add_argument
    add("--rounds", type=arguments.count(), default=3)
    add("--repeat", type=arguments.count(), default=2)
    add("--batch-size", type=arguments.count(), default=16)
    add("--workers", type=arguments.count(0), default=2, metavar="N")
    return parser


if __name__ == "__main__":
    sys.exit(main())
