"""Rate of `num_workers="auto"` relative to the best fixed number: images per second of a job that goes on.

    python -m bench.workers --json workers.json

Three jobs over the same ImageFolder. `loader`: the workers are what limits. `step`: a training step that leaves the CPU
alone takes longer than one worker needs. `wire`: an agent behind a slow link. Each number of workers goes on for
`--seconds`, after a while in which they start; `auto` has `--settle` seconds to find its number, which may still change
in what is measured. A job's figure is the ratio to the best fixed number.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tqdm import tqdm

from bench import arguments, record
from bench.children import local_agent
from bench.loading import folder, quiet
from sophon_loader import OffloadingDataLoader

BATCH_SIZE = 16
STARTS_S = 3.0
STEP_S = 0.08
"""Length of the training step of a batch, in seconds; one worker takes some 0.03 s for it."""
LINK_MBIT = 20
JOBS = ("loader", "step", "wire")


def images_s(
    job: str, dataset: Any, agent: str | None, workers: int | Literal["auto"], settle_s: float, seconds: float
) -> tuple[float, list[int]]:
    """Images per second, and the numbers of workers that there were while that was measured.

    Args:
        job: one of `JOBS`.
        dataset: what is read.
        agent: its address; None where the files are read here.
        workers: as for the loader.
        settle_s, seconds: before it is measured, and for how long.
    """
    loader: OffloadingDataLoader[Any] = OffloadingDataLoader(
        dataset, BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=True, seed=0, agent=agent
    )
    batches: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(loader))
    try:
        delivered(job, batches, loader, settle_s)
        return delivered(job, batches, loader, seconds)
    finally:
        loader.close()


def delivered(job: str, batches: Iterator[Any], loader: Any, seconds: float) -> tuple[float, list[int]]:
    """Train for some seconds; see `images_s`."""
    started_s, samples = time.perf_counter(), 0
    numbers: list[int] = []
    for _, labels in batches:
        samples += len(labels)
        if numbers[-1:] != [int(loader.num_workers)]:
            numbers.append(int(loader.num_workers))
        if job == "step":
            time.sleep(STEP_S)
        if time.perf_counter() - started_s >= seconds:
            break
    return samples / (time.perf_counter() - started_s), numbers


def compared(job: str, dataset: Any, agent: str | None, options: Any) -> dict[str, Any]:
    """A job with every number of workers, round by round."""
    rows: list[dict[str, Any]] = []
    for number in tqdm(range(options.rounds), desc=job, file=sys.stderr):
        names = record.in_turns(["auto", *map(str, options.workers)], number)
        rates: dict[str, Any] = {}
        for name in names:
            settle_s = options.settle if name == "auto" else STARTS_S
            workers: int | Literal["auto"] = "auto" if name == "auto" else int(name)
            rates[name], numbers = images_s(job, dataset, agent, workers, settle_s, options.seconds)
            if name == "auto":
                found = numbers
        best = max(map(str, options.workers), key=lambda name: rates[name])
        rows.append({**rates, "best": int(best), "found": found, "ratio": rates["auto"] / rates[best]})
    names = ["auto", *map(str, options.workers), "ratio"]
    return {"job": job, "rounds": rows, "summary": {name: record.spread([row[name] for row in rows]) for name in names}}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per job, write the results."""
    options = arguments.parsed(parser(), argv)
    quiet()
    dataset = folder(options.data, options.repeat)
    with local_agent(options.data, "--limit-mbit", str(LINK_MBIT)) as (address, _):
        results = [compared(job, dataset, address if job == "wire" else None, options) for job in options.jobs]
    for result in results:
        ratio, rows = result["summary"]["ratio"], result["rounds"]
        rates = ", ".join(f"{name}: {middle['median']:.0f}" for name, middle in list(result["summary"].items())[:-1])
        print(f"auto / best fixed number, {result['job']}: {ratio['median']:.3f} ({ratio['min']:.3f} to "
              f"{ratio['max']:.3f} over {options.rounds} rounds); images/s {rates}; best "
              f"{[row['best'] for row in rows]}, auto had {[row['found'] for row in rows]}")  # fmt: skip
    record.write(options.output, results)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.workers", __doc__, pictures=True)
    add = parser.add_argument
    add("--rounds", type=arguments.count(), default=3)
    add("--repeat", type=arguments.count(), default=5)
    add("--seconds", type=arguments.number(1, "of 1 or more"), default=15.0)
    add("--settle", type=arguments.number(0, "of 0 or more"), default=25.0)
    workers: dict[str, Any] = {"type": arguments.count(), "action": arguments.Distinct, "metavar": "N"}
    add("--workers", nargs="+", default=[1, 2, 4], **workers)
    jobs: dict[str, Any] = {"choices": JOBS, "action": arguments.Distinct}
    add("--jobs", nargs="+", default=list(JOBS), **jobs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
