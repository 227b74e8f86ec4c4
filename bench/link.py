"""How much of a link the loader uses, against a plain ZeroMQ stream of the same messages over the same link.

    python -m bench.link --json link.json
    python -m bench.link --parts trivial --workers 2 --rounds 5

Agent and loader run on linked hosts (`bench/testbed.py`; needs root), pinned to a core each. After every epoch a PUSH
socket beside the agent sends messages of exactly the sizes that the epoch's samples had, in the order in which they
came, to a PULL socket beside the loader. A round's figure is the ratio of the two rates.

Both rates are payload per second while the link carried everything but the first and the last batch, by the counter of
the agent's interface, sampled every few milliseconds. That is the one place where both can be measured alike: what a
loader counts, it counts when it takes a message out of a socket, which is up to a window of samples later. Headers and
acknowledgements of requests count against whoever has them.

Two parts. `pictures`: the usual training pipeline at --link-mbit; bar: >= 0.97. `trivial`: 1 Gbit/s and uncompressed
pictures of 108 KB that become tensors as they are, so that there is next to nothing to compute; bar: >= 0.90. A row of
pictures below its bar says nothing about the link when a host's core was busy for 90 % of the epoch: it is called
CPU-bound, and measured again on a link of half the rate.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zmq
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import ConcatDataset, DataLoader, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import record
from bench.loading import epoch, folder, our_loader, quiet
from bench.policies import TORCH, WARM, loader_process, order, start_agent, told_by
from bench.testbed import INTERFACE, REPOSITORY, LinkedHosts
from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.client.connection import Connection
from sophon_loader.wire.messages import Sample

BARS = {"pictures": 0.97, "trivial": 0.90}
TRIVIAL_MBIT = 1000.0
TRIVIAL_PICTURES, TRIVIAL_SIDE_PX, TRIVIAL_REPEAT = 300, 190, 16
BUSY = 0.9
SAMPLING_S = 0.005
WARM_EPOCHS = 2
"""After the profiling pass, so that the rates and with them the plan have settled."""
STREAM_HIGH_WATER_MARK = OffloadOptions().window
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Case:
    """What is compared with the stream."""

    part: str
    policy: str
    workers: int
    link_mbit: float


def main() -> int:
    options = parser().parse_args()
    if options.role:
        ROLES[options.role](options)
        return 0
    summary: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for part in options.parts:
            data = options.data or record.default_data() if part == "pictures" else trivial_pictures(Path(temporary))
            for case, measured in part_of_bench(part, data.resolve(), options):
                rows += [{**asdict(case), **row} for row in measured]
                summary.append(summarise(case, measured))
    show(summary)
    settings = {"batch_size": options.batch_size, "repeat": options.repeat, "trivial_repeat": TRIVIAL_REPEAT}
    record.write(options.json, "bench.link", {"settings": settings, "rounds": rows, "summary": summary, "bars": BARS})
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--parts", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--link-mbit", type=float, default=100.0, help="of the pictures' link")
    parser.add_argument("--policies", nargs="+", default=["no-off", "auto"], metavar="NAME")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="how often an epoch goes through the pictures")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--role", choices=list(ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    return parser


def trivial_pictures(folder: Path) -> Path:
    """A tree of pictures whose bytes are their pixels."""
    generator = np.random.default_rng(0)
    (folder / "noise").mkdir()
    for number in range(TRIVIAL_PICTURES):
        pixels = generator.integers(0, 256, (TRIVIAL_SIDE_PX, TRIVIAL_SIDE_PX, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "noise" / f"{number:04}.ppm")
    return folder


# --- the loader's process ---------------------------------------------------------------------------------------------


def serve_epochs(options: argparse.Namespace) -> None:
    """Run an epoch for each line of standard input, and print what it took and the sizes of its messages."""
    quiet()
    (part,), (policy,), (workers,) = options.parts, options.policies, options.workers
    if part == "trivial":
        dataset: Any = ConcatDataset([ImageFolder(str(options.data), v1.PILToTensor())] * options.repeat)
    else:
        dataset = folder(options.data, options.repeat)
    sizes = noted_sizes()
    loader = our_loader(dataset, workers, options.batch_size, agent=options.address, policy=policy)

    def measure() -> dict[str, Any]:
        sizes()  # of a profiling pass
        return {**one_epoch(loader), "sizes": sizes()}

    serve(loader, measure)


def serve(loader: DataLoader[Any], measure: Callable[[], dict[str, Any]]) -> None:
    """Answer each line of standard input: `profile`, or `epoch` and its number. `measure` runs an epoch."""
    ours = loader if isinstance(loader, OffloadingDataLoader) else None
    for line in sys.stdin:
        what, _, number = line.strip().partition(" ")
        row: dict[str, Any] = {}
        if what == "epoch":
            torch.manual_seed(int(number))  # the same order of samples in every loader's epoch of this number
            if ours is not None:
                ours.set_epoch(int(number))
            row = measure()
        elif ours is not None:
            ours.profile()
        print(json.dumps(row), flush=True)
    if ours is not None:
        ours.close()


def one_epoch(loader: DataLoader[Any]) -> dict[str, Any]:
    """One epoch whose training step takes no time."""
    seconds, samples = epoch(loader)
    told = told_by(loader) if isinstance(loader, OffloadingDataLoader) else TORCH
    return {"seconds": seconds, "samples": samples, **told}


_SIZE = struct.Struct("<I")


def noted_sizes() -> Callable[[], list[int]]:
    """Have loader workers note the size of every sample's payload; what is returned gives those since its last call."""
    # One open file, inherited by all workers, which so share its position: each note goes behind the one before.
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (as long-lived as the process)
    receive = Connection.receive

    def noting(connection: Connection, timeout_s: float) -> Any:
        received = receive(connection, timeout_s)
        if received is not None and isinstance(received[0], Sample) and get_worker_info() is not None:
            file.write(_SIZE.pack(len(received[1])))
        return received

    Connection.receive = noting  # type: ignore[assignment,method-assign]

    def take() -> list[int]:
        file.seek(0)
        sizes = [size for (size,) in _SIZE.iter_unpack(file.read())]
        file.seek(0)
        file.truncate()
        return sizes

    return take


# --- the plain stream -------------------------------------------------------------------------------------------------


def send(options: argparse.Namespace) -> None:
    """Send messages of the sizes on each line of standard input, and an empty one behind them."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set(zmq.SNDHWM, STREAM_HIGH_WATER_MARK)
        socket.set(zmq.LINGER, 0)
        socket.bind(options.address)
        print(socket.get_string(zmq.LAST_ENDPOINT), flush=True)
        for line in sys.stdin:
            sizes = json.loads(line)
            noise = memoryview(os.urandom(max(sizes)))
            for size in sizes:
                socket.send(noise[:size], copy=False)
            socket.send(b"")


def receive(options: argparse.Namespace) -> None:
    """Receive messages, and print a line for every empty one."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.set(zmq.RCVHWM, STREAM_HIGH_WATER_MARK)
        socket.connect(options.address)
        while True:
            if not len(socket.recv(copy=False)):
                print("done", flush=True)


ROLES: dict[str, Callable[[argparse.Namespace], None]] = {"loader": serve_epochs, "send": send, "receive": receive}


@contextlib.contextmanager
def plain_stream(bed: LinkedHosts) -> Iterator[Callable[[Sequence[int]], None]]:
    """Gives a function that sends messages of the given sizes from host to host, and waits until they are there."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    command = [sys.executable, "-m", "bench.link", "--role"]
    bind = ["--address", f"tcp://{bed.agent_host.address}:*"]
    with bed.agent_host.popen([*command, "send", *bind], cores={1}, **pipes) as sender:
        assert sender.stdin is not None and sender.stdout is not None
        endpoint = sender.stdout.readline().strip()
        with bed.loader_host.popen([*command, "receive", "--address", endpoint], cores={0}, **pipes) as receiver:
            assert receiver.stdout is not None

            def stream(sizes: Sequence[int]) -> None:
                assert sender.stdin is not None and receiver.stdout is not None
                sender.stdin.write(json.dumps(sizes) + "\n")
                sender.stdin.flush()
                if not receiver.stdout.readline():
                    raise SystemExit(f"the plain stream must arrive, but its receiver ended ({receiver.wait()})")

            try:
                yield stream
            finally:
                for process in (receiver, sender):
                    process.terminate()


# --- the link ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched(bed: LinkedHosts) -> Iterator[list[tuple[float, int]]]:
    """Collects (clock, bytes that the agent's interface has sent) until the block ends."""
    seen: list[tuple[float, int]] = []
    started, stop = threading.Event(), threading.Event()

    def watch() -> None:
        try:
            enter(str(bed.agent_host.namespace))  # this thread alone
            while True:
                seen.append((time.perf_counter(), sent_nbytes()))
                started.set()
                if stop.wait(SAMPLING_S):
                    break
            seen.append((time.perf_counter(), sent_nbytes()))
        finally:
            started.set()

    thread = threading.Thread(target=watch, name="watch-link")
    thread.start()
    started.wait()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
    if len(seen) < 2:
        raise SystemExit("the agent's interface must be readable, but watching it failed")


def enter(namespace: str) -> None:
    """Move the calling thread into a network namespace."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns failed")


def sent_nbytes() -> int:
    """What the link's interface in this thread's namespace has sent."""
    with open("/proc/thread-self/net/dev") as file:
        line = next(line for line in file if line.lstrip().startswith(f"{INTERFACE}:"))
    return int(line.split(":")[1].split()[8])


def steady_mbit(sizes: Sequence[int], batch_size: int, seen: Sequence[tuple[float, int]]) -> float:
    """Payload Mbit/s from the end of the first batch on the link to the beginning of the last.

    Args:
        sizes: payload of the messages, in order.
        seen: (clock, bytes sent), of which the first is before the first message and the last after the last one.
    """
    times, counts = zip(*seen, strict=True)
    total = counts[-1] - counts[0]
    per_payload = total / sum(sizes)
    first, last = sum(sizes[:batch_size]), sum(sizes[-batch_size:])
    marks = [counts[0] + first * per_payload, counts[-1] - last * per_payload]
    begin_s, end_s = np.interp(marks, counts, times)
    return float((sum(sizes) - first - last) * 8e-6 / (end_s - begin_s))


# --- the bench's process ----------------------------------------------------------------------------------------------


def part_of_bench(part: str, data: Path, options: argparse.Namespace) -> Iterator[tuple[Case, list[dict[str, Any]]]]:
    """The cases of one part and their rounds."""
    link_mbit = options.link_mbit if part == "pictures" else TRIVIAL_MBIT
    cases = [Case(part, policy, workers, link_mbit) for policy in options.policies for workers in options.workers]
    with LinkedHosts(link_mbit).open() as bed, plain_stream(bed) as stream:
        start_agent(bed, data, argparse.Namespace(agent_workers=1, agent_cores=None))
        for case in tqdm(cases, desc=part, file=sys.stderr):
            rows = rounds_of(bed, stream, data, case, options)
            yield case, rows
            if summarise(case, rows)["verdict"] == "CPU-bound":
                slower = Case(part, case.policy, case.workers, link_mbit / 2)
                bed.set_rate(slower.link_mbit)
                yield slower, rounds_of(bed, stream, data, slower, options)
                bed.set_rate(link_mbit)


def rounds_of(
    bed: LinkedHosts, stream: Callable[[Sequence[int]], None], data: Path, case: Case, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Epochs of a loader of its own, each followed by its stream."""
    repeat = options.repeat if case.part == "pictures" else TRIVIAL_REPEAT
    arguments = ["--parts", case.part, "--policies", case.policy, "--workers", str(case.workers)]
    arguments += ["--data", str(data), "--repeat", str(repeat), "--batch-size", str(options.batch_size)]
    with loader_process(bed, "bench.link", arguments) as process:
        order(process, "profile")
        for warm in range(WARM_EPOCHS):
            order(process, f"epoch {WARM + warm}")
        rows = []
        for number in range(options.rounds):
            row = {"round": number, **one_round(bed, stream, process, number, options.batch_size)}
            rows.append(row)
            tqdm.write(f"  {case}: {row['loader_mbit']:.1f} of {row['stream_mbit']:.1f} Mbit/s", file=sys.stderr)
        return rows


def one_round(
    bed: LinkedHosts,
    stream: Callable[[Sequence[int]], None],
    process: subprocess.Popen[Any],
    number: int,
    batch_size: int,
) -> dict[str, Any]:
    """One epoch and its stream."""
    hosts = {"loader": bed.loader_host, "agent": bed.agent_host}
    before = {name: host.cpu_seconds() or 0.0 for name, host in hosts.items()}
    with watched(bed) as seen:
        row = order(process, f"epoch {number}")
    busy = {
        f"{name}_busy": ((host.cpu_seconds() or 0.0) - before[name]) / row["seconds"] for name, host in hosts.items()
    }
    sizes = row.pop("sizes")
    if len(sizes) != row["samples"]:
        raise SystemExit(f"an epoch of {row['samples']} samples must have as many messages, got {len(sizes)}")
    loader_mbit = steady_mbit(sizes, batch_size, seen)
    with watched(bed) as seen:
        stream(sizes)
    stream_mbit = steady_mbit(sizes, batch_size, seen)
    rates = {"loader_mbit": loader_mbit, "stream_mbit": stream_mbit, "ratio": loader_mbit / stream_mbit}
    return {**row, **rates, **busy, "mean_nbytes": sum(sizes) / len(sizes)}


def summarise(case: Case, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, spreads and the verdict of a case."""
    names = ("loader_mbit", "stream_mbit", "ratio", "seconds", "loader_busy", "agent_busy", "mean_nbytes")
    entry: dict[str, Any] = {**asdict(case), **{name: record.spread([row[name] for row in rows]) for name in names}}
    entry["bottleneck"] = rows[-1]["bottleneck"]
    entry["choices"] = rows[-1]["choices"]
    busiest = max(entry["loader_busy"]["median"], entry["agent_busy"]["median"])
    if entry["ratio"]["median"] >= BARS[case.part]:
        entry["verdict"] = "ok"
    else:
        entry["verdict"] = "CPU-bound" if case.part == "pictures" and busiest >= BUSY else "below"
    return entry


def show(summary: list[dict[str, Any]]) -> None:
    """Print the summary."""
    columns = ("part", "link", "policy", "workers", "stream", "loader", "ratio", "KB", "limit", "busy cores", "bar")
    table = Table(*columns, title="payload Mbit/s on the link, loader against a plain stream")
    for entry in summary:
        ratio = entry["ratio"]
        table.add_row(
            entry["part"],
            f"{entry['link_mbit']:g}",
            entry["policy"],
            str(entry["workers"]),
            f"{entry['stream_mbit']['median']:.1f}",
            f"{entry['loader_mbit']['median']:.1f}",
            f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})",
            f"{entry['mean_nbytes']['median'] / 1000:.1f}",
            str(entry["bottleneck"]),
            f"{entry['loader_busy']['median']:.2f} + {entry['agent_busy']['median']:.2f}",
            f"{BARS[entry['part']]}: {entry['verdict']}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
