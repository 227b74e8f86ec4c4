"""CPU time per sample of what neither decodes nor transforms: sockets, msgpack, random numbers, bookkeeping, copies.

    python -m bench.hotpath --json hotpath.json
    python -m bench.hotpath --policies no-off torch --rounds 5 --repeat 8

Agent and loaders run on the test bed (`bench/testbed.py`), each policy with a loader process of its own and one worker;
`torch` is torch's DataLoader on the files themselves. They take turns, epoch by epoch. CPU seconds are those of whole
processes, all threads included, read from the kernel's per-process clocks.

Loader: the worker and the main process, less the CPU time of op calls, of bitstream cuts, and of decoding webp and jxl.
Seeding before an op and telling where a crop will read are not taken off, nor is turning a payload of `file` or
`pixels` into a value, which copies. torch's figure is what loading, collating and queueing the same batches costs
there, less the default loader (which opens and decodes) and the transforms. Agent: its process tree, less what it
reports as its CPU seconds for reading, ops and encoding.

Bars: <= 150 us per sample at the loader, and at the agent. The loader's figure holds the collating and moving of the
batches, so it is shown beside it what is beyond torch's figure. The clocks around the ops cost something themselves,
`timing_us` in the JSON, which is not taken off.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table
from torch.utils.data import ConcatDataset, DataLoader
from tqdm import tqdm

from bench import record
from bench.link import WARM_EPOCHS, one_epoch, serve
from bench.loading import folder, our_loader, quiet, torch_loader
from bench.policies import WARM, loader_process, order, start_agent
from bench.testbed import LinkedHosts, LoopbackHosts, open_testbed
from sophon_loader import native
from sophon_loader.pipeline import chain
from sophon_loader.shared import SharedArray
from sophon_loader.workers import finishing

POLICIES = ("torch", "no-off", "resize-off", "auto")
BAR_US = 150.0
JUDGED = ("loader_us", "agent_us")
CODECS = ("webp", "jxl")
"""Encodings whose decoding is work and not a copy."""


def main() -> int:
    options = parser().parse_args()
    if options.role:
        serve_epochs(options)
        return 0
    data = (options.data or record.default_data()).resolve()
    with open_testbed(link_mbit=options.link_mbit or None) as bed:
        rows = compare(bed, data, options)
    summary = [summarise(policy, rows) for policy in options.policies]
    show(summary)
    settings = {"data": data.name, "link_mbit": options.link_mbit, "repeat": options.repeat}
    settings |= {"batch_size": options.batch_size, "bar_us": BAR_US}
    record.write(options.json, "bench.hotpath", {"settings": settings, "rounds": rows, "summary": summary})
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--link-mbit", type=float, default=100.0, help="0: not limited, and auto will not offload")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="how often an epoch goes through the pictures")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--role", choices=("loader",), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    return parser


# --- the loader's process ---------------------------------------------------------------------------------------------


class Stopwatch:
    """CPU time of one thread inside the calls it is put around, in memory that the main process reads.

    Args:
        seconds, calls: of one loader worker.
    """

    def __init__(self) -> None:
        self._values = SharedArray(np.zeros(2))

    @property
    def seconds(self) -> float:
        """Within the calls, so far."""
        return float(self._values.array[0])

    @property
    def calls(self) -> int:
        """How many there were."""
        return int(self._values.array[1])

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, measured."""
        values = self._values.array

        def measured(*arguments: Any, **named: Any) -> Any:
            started_s = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                values[0] += time.thread_time() - started_s
                values[1] += 1

        return measured

    def cost_s(self) -> float:
        """What measuring one call costs."""
        other = Stopwatch().around(lambda: None)
        started_s = time.thread_time()
        for _ in range(10_000):
            other()
        return (time.thread_time() - started_s) / 10_000


def measure_ops(watch: Stopwatch) -> None:
    """Put the watch around everything in this package that decodes or transforms."""
    replace(native, "crop", watch.around)
    replace(finishing, "decode", lambda decode: codecs_measured(watch, decode))
    replace(chain, "op_of", lambda op_of: lambda step: measured_op(watch, op_of(step)))
    replace(chain, "DECODE", lambda op: measured_op(watch, op))


def replace(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Wrap what a module knows by that name."""
    setattr(module, name, wrap(getattr(module, name)))


def codecs_measured(watch: Stopwatch, decode: Callable[..., Any]) -> Callable[..., Any]:
    """The registry's `decode`, measured for encodings that are more than a copy."""
    measured = watch.around(decode)
    return lambda encoding, *rest: (measured if encoding in CODECS else decode)(encoding, *rest)


def measured_op(watch: Stopwatch, op: Any) -> Any:
    """The op with the watch around its call, or around what takes its place on a part of a picture."""
    crop = None if op.crop is None else MeasuredCrop(watch, op.crop)
    return dataclasses.replace(op, call=watch.around(op.call), crop=crop)


class MeasuredCrop:
    """A crop whose `finish` is measured; locating the region is bookkeeping."""

    def __init__(self, watch: Stopwatch, crop: Any) -> None:
        self.locate = crop.locate
        self.finish = watch.around(crop.finish)


def serve_epochs(options: argparse.Namespace) -> None:
    """Run an epoch for each line of standard input, and print what it took."""
    quiet()
    (policy,) = options.policies
    watch = Stopwatch()
    dataset = folder(options.data, options.repeat)
    if policy == "torch":
        one: Any = dataset.datasets[0] if isinstance(dataset, ConcatDataset) else dataset
        one.loader, one.transform = watch.around(one.loader), watch.around(one.transform)
        loader = torch_loader(dataset, 1, options.batch_size)
    else:
        measure_ops(watch)
        loader = our_loader(dataset, 1, options.batch_size, agent=options.address, policy=policy)
    serve(loader, lambda: measured_epoch(loader, watch))


def measured_epoch(loader: DataLoader[Any], watch: Stopwatch) -> dict[str, Any]:
    """One epoch, and the CPU seconds that the worker, the main process and the ops took in it."""
    before = (*worker_cpu_s(), time.process_time(), watch.seconds, watch.calls)
    row = one_epoch(loader)
    after = (*worker_cpu_s(), time.process_time(), watch.seconds, watch.calls)
    worker_s, io_s, main_s, ops_s, calls = (end - start for start, end in zip(before, after, strict=True))
    times = {"worker_s": worker_s, "io_s": io_s, "main_s": main_s, "ops_s": ops_s}
    return {**row, **times, "timing_s": calls * watch.cost_s()}


def worker_cpu_s() -> tuple[float, float]:
    """CPU seconds of this process's loader workers so far, and those of their ZeroMQ threads alone."""
    pids = [child.pid for child in multiprocessing.active_children() if child.pid is not None]
    return sum(map(cpu_s, pids)), sum(map(io_cpu_s, pids))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, by the kernel's clock of it (psutil counts in ticks of 10 ms)."""
    return time.clock_gettime(~pid << 3 | 2)


def io_cpu_s(pid: int) -> float:
    """CPU seconds of a process's ZeroMQ threads, which move bytes between sockets and messages."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().startswith("ZMQbg")]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


# --- the bench's process ----------------------------------------------------------------------------------------------


def compare(bed: LinkedHosts | LoopbackHosts, data: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of all measured epochs."""
    agent = start_agent(bed, data, argparse.Namespace(agent_workers=1, agent_cores=None))
    common = ["--data", str(data), "--repeat", str(options.repeat), "--batch-size", str(options.batch_size)]
    with contextlib.ExitStack() as stack:
        loaders = {
            name: stack.enter_context(loader_process(bed, "bench.hotpath", [*common, "--policies", name]))
            for name in options.policies
        }
        for process in tqdm(loaders.values(), desc="warming up", file=sys.stderr):
            order(process, "profile")
            for warm in range(WARM_EPOCHS):
                order(process, f"epoch {WARM + warm}")
        rows = []
        for number in tqdm(range(options.rounds), desc="rounds", file=sys.stderr):
            for name in record.in_turns(options.policies, number):
                before_s, before_io_s = tree_cpu_s(agent.pid), io_cpu_s(agent.pid)
                row = order(loaders[name], f"epoch {number}")
                row |= {"agent_s": tree_cpu_s(agent.pid) - before_s, "agent_io_s": io_cpu_s(agent.pid) - before_io_s}
                rows.append({"round": number, **row, **per_sample(row)})
        return rows


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    return cpu_s(pid) + sum(cpu_s(child.pid) for child in psutil.Process(pid).children(recursive=True))


def per_sample(row: dict[str, Any]) -> dict[str, float]:
    """The times of a row in microseconds per sample."""
    us = 1e6 / row["samples"]
    worker_us, main_us = (row["worker_s"] - row["ops_s"]) * us, row["main_s"] * us
    times = {"loader_us": worker_us + main_us, "worker_us": worker_us, "worker_io_us": row["io_s"] * us}
    times |= {"main_us": main_us, "ops_us": row["ops_s"] * us, "timing_us": row["timing_s"] * us}
    if row["agent_cpu_s"] is not None:
        agent_ops_s = row["agent_cpu_s"] - row["agent_upkeep_s"]
        agent_us, agent_ops_us = (row["agent_s"] - agent_ops_s) * us, agent_ops_s * us
        times |= {"agent_us": agent_us, "agent_io_us": row["agent_io_s"] * us, "agent_ops_us": agent_ops_us}
    return times


def summarise(policy: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians and spreads of a policy, and what it pays beyond torch's DataLoader in the same rounds."""
    mine = [row for row in rows if row["policy"] == policy]
    names = [name for name in mine[0] if name.endswith("_us")]
    entry: dict[str, Any] = {"policy": policy, **{name: record.spread([row[name] for row in mine]) for name in names}}
    entry["choices"] = mine[-1]["choices"]
    torchs = {row["round"]: row["loader_us"] for row in rows if row["policy"] == "torch"}
    if torchs:
        entry["beyond_torch_us"] = record.spread([row["loader_us"] - torchs[row["round"]] for row in mine])
    return entry


COLUMNS = {
    "loader": "loader_us",
    "- worker": "worker_us",
    "- - its I/O": "worker_io_us",
    "- main": "main_us",
    "beyond torch": "beyond_torch_us",
    "agent": "agent_us",
    "- its I/O": "agent_io_us",
    "(loader's ops)": "ops_us",
    "(agent's ops)": "agent_ops_us",
}


def show(summary: list[dict[str, Any]]) -> None:
    """Print the summary, a line per figure."""
    title = f"microseconds of CPU per sample outside of decoding and transforms; bar <= {BAR_US:g}"
    table = Table("", *(entry["policy"] for entry in summary), title=title)
    for what, name in COLUMNS.items():
        table.add_row(what, *(_cell(name, entry) for entry in summary))
    Console(width=130).print(table)


def _cell(name: str, entry: dict[str, Any]) -> str:
    if name not in entry:
        return ""
    values = entry[name]
    text = f"{values['median']:.0f} ({values['min']:.0f}-{values['max']:.0f})"
    if name not in JUDGED or entry["policy"] == "torch":
        return text
    return f"{text} {'ok' if values['median'] <= BAR_US else 'above'}"


if __name__ == "__main__":
    sys.exit(main())
