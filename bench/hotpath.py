"""CPU time per sample of what neither decodes nor transforms: sockets, msgpack, random numbers, bookkeeping, copies.

    python -m bench.hotpath --json hotpath.json
    python -m bench.hotpath --policies no-off torch --rounds 5 --repeat 8

Agent and loaders run on the test bed (`bench/bed`), each policy with a loader process of its own and one worker;
`torch` is torch's DataLoader on the files themselves. They take turns, epoch by epoch. CPU seconds are those of whole
processes, all threads included, read from the kernel's per-process clocks.

Loader: the worker and the main process, less the CPU time of op calls, of making pixels (with bitstream cuts), and of
decompressing. Seeding before an op is not taken off, nor is turning a payload of `file` or `pixels` into a value, which
copies. torch's figure is what loading, collating and queueing the same batches costs
there, less the default loader (which opens and decodes) and the transforms. Agent: its process tree, less what it
reports as its CPU seconds for reading, ops and encoding.

Bars: <= 150 us per sample at the loader, and at the agent. The loader's figure holds the collating and moving of the
batches, so the part beyond torch's figure is shown next to it. The clocks around the ops cost something themselves,
`timing_us` in the JSON, which is not taken off.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from torch.utils.data import ConcatDataset, DataLoader
from tqdm import tqdm

from bench import arguments, record
from bench.bed import Bed, open_testbed
from bench.children import LOADER_CORE, Orders, agent_address, child, start_agent
from bench.epochs import orders_of, warm_up
from bench.link import WARM_EPOCHS, one_epoch
from bench.loading import cpu_s, folder, our_loader, quiet, torch_loader, tree_cpu_s
from sophon_loader.host.shared import SharedArray
from sophon_loader.kinds.image.history import Node
from sophon_loader.kinds.image.source import DecodedPixels, PictureFile
from sophon_loader.pipeline import chain
from sophon_loader.pipeline.ends import PointwiseEnd
from sophon_loader.workers import finishing

POLICIES = ("torch", "no-off", "resize-off", "auto")
BAR_US = 150.0
JUDGED = ("loader_us", "agent_us")
CODECS = ("webp", "htj2k", "jpegls", "jxl", "lepton", "roi-lepton")
"""Encodings whose decoding is work and not a copy."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench)
    settings = {"data": str(options.data), "repeat": options.repeat, "batch_size": options.batch_size}
    with open_testbed(link_mbit=options.link_mbit or None) as bed:
        shaped = bed.shaped
        rows = compared(bed, options.policies, settings, options.rounds)
    summary = [summarise(policy, rows) for policy in options.policies]
    show(summary)
    settings |= {"data": options.data.name, "link_mbit": options.link_mbit, "shaped": shaped, "bar_us": BAR_US}
    record.write(options.output, {"settings": settings, "rounds": rows, "summary": summary})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.hotpath", __doc__, pictures=True)
    add = parser.add_argument
    add(
        "--link-mbit",
        type=arguments.rate,
        default=100.0,
        help="Rate of the wire in Mbit/s. With 0, no limit, auto will not offload.",
    )
    policy = arguments.policy("torch")
    add("--policies", nargs="+", type=policy, default=list(POLICIES), action=arguments.Distinct, metavar="NAME")
    add("--rounds", type=arguments.count(), default=3)
    add("--repeat", type=arguments.count(), default=3)
    add("--batch-size", type=arguments.count(), default=16)
    return parser


# --- the loader's process ---------------------------------------------------------------------------------------------


class Stopwatch:
    """CPU time of one thread inside the calls it is put around, in memory that the main process reads.

    A call within another one is part of that.

    Args:
        seconds, calls: of one loader worker.
    """

    def __init__(self) -> None:
        self._values = SharedArray(np.zeros(2))
        self._within = False

    @property
    def seconds(self) -> float:
        """Within the calls, so far."""
        return float(self._values.array[0])

    @property
    def calls(self) -> int:
        """Number of calls."""
        return int(self._values.array[1])

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, measured."""
        values = self._values.array

        def measured(*arguments: Any, **named: Any) -> Any:
            if self._within:
                return function(*arguments, **named)
            self._within = True
            started_s = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._within = False
                values[0] += time.thread_time() - started_s
                values[1] += 1

        return measured

    def cost_s(self) -> float:
        """Return the CPU seconds of measuring one call."""
        other = Stopwatch().around(lambda: None)
        started_s = time.thread_time()
        for _ in range(10_000):
            other()
        return (time.thread_time() - started_s) / 10_000


def measure_ops(watch: Stopwatch) -> None:
    """Put the watch around everything in this package that decodes or transforms."""
    replace(Node, "made", watch.around)
    replace(Node, "picture", watch.around)
    replace(PointwiseEnd, "run", watch.around)
    replace(PictureFile, "held", watch.around)
    replace(DecodedPixels, "run", watch.around)
    replace(finishing, "decode", lambda decode: codecs_measured(watch, decode))
    replace(chain, "op_of", lambda op_of: lambda step: measured_op(watch, op_of(step)))
    replace(chain, "DECODE", lambda op: measured_op(watch, op))


def replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Wrap what a module or a class knows by that name."""
    setattr(owner, name, wrap(getattr(owner, name)))


def codecs_measured(watch: Stopwatch, decode: Callable[..., Any]) -> Callable[..., Any]:
    """The registry's `decode`, measured for encodings that are more than a copy."""
    measured = watch.around(decode)
    return lambda encoding, *rest: (measured if encoding in CODECS else decode)(encoding, *rest)


def measured_op(watch: Stopwatch, op: Any) -> Any:
    """The op with the watch around its call, which has the op's parameters: a table of its results depends on them."""
    call = watch.around(op.call)
    vars(call).update(getattr(op.call, "__dict__", {}))
    return dataclasses.replace(op, call=call)


@contextmanager
def timed_loader(address: str, policy: str, data: str, repeat: int, batch_size: int) -> Iterator[Orders]:
    """A loader that tells its CPU seconds. Orders: `profile`, and `epoch` with its number.

    Args:
        address: of the agent.
        policy: its name, or `torch`.
        data: an ImageFolder tree.
        repeat: how often an epoch goes through it.
        batch_size: samples per batch.
    """
    quiet()
    watch = Stopwatch()
    dataset = folder(data, repeat)
    if policy == "torch":
        one: Any = dataset.datasets[0] if isinstance(dataset, ConcatDataset) else dataset
        one.loader, one.transform = watch.around(one.loader), watch.around(one.transform)
        plain = torch_loader(dataset, 1, batch_size)
        yield orders_of(plain, lambda: measured_epoch(plain, watch))
        return
    measure_ops(watch)
    loader = our_loader(dataset, 1, batch_size, agent=address, policy=policy)
    yield orders_of(loader, lambda: measured_epoch(loader, watch))
    loader.close()


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


def io_cpu_s(pid: int) -> float:
    """CPU seconds of a process's ZeroMQ threads, which move bytes between sockets and messages."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text().startswith("ZMQbg")]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


# --- the bench's process ----------------------------------------------------------------------------------------------


def compared(bed: Bed, policies: list[str], settings: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """The rows of all measured epochs.

    Args:
        bed: an open bed.
        policies: names of the loaders.
        settings: what is the same for all of them, the arguments of `timed_loader`.
        rounds: epochs of each.
    """
    agent = start_agent(bed, Path(settings["data"]), cores=None)
    settings = {**settings, "address": agent_address(bed)}
    with ExitStack() as stack:
        loaders = {}
        for policy in policies:
            starting = child(bed.loader_host, LOADER_CORE, timed_loader, {**settings, "policy": policy})
            loaders[policy] = stack.enter_context(starting)
        for loader in tqdm(loaders.values(), desc="warming up", file=sys.stderr):
            warm_up(loader, WARM_EPOCHS)
        rows = []
        for number in tqdm(range(rounds), desc="rounds", file=sys.stderr):
            for name in record.in_turns(policies, number):
                before_s, before_io_s = tree_cpu_s(agent.pid), io_cpu_s(agent.pid)
                row = loaders[name].order(f"epoch {number}")
                row |= {"agent_s": tree_cpu_s(agent.pid) - before_s, "agent_io_s": io_cpu_s(agent.pid) - before_io_s}
                rows.append({"round": number, **row, **per_sample(row)})
        return rows


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
