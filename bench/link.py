"""Share of a link that the loader uses, relative to a plain ZeroMQ stream of the same messages over the same link.

    python -m bench.link --json link.json
    python -m bench.link --parts trivial --workers 2 --rounds 5

Agent and loader run on linked hosts (`bench/bed`; needs root), pinned to a core each. After every epoch a PUSH socket
on the agent's host sends messages of exactly the sizes that the epoch's samples had, in the order in which they came,
to a PULL socket on the loader's. A round's figure is the ratio of the two rates.

Both rates are payload per second while the link carried everything but the first and the last batch, by the counter of
the agent's interface, sampled every few milliseconds. That is the one place where both can be measured alike: what a
loader counts, it counts when it takes a message out of a socket, which is up to a window of samples later. Headers and
acknowledgements of requests count against the side that has them.

Two parts. `pictures`: the usual training pipeline at --link-mbit; bar: >= 0.97. `trivial`: 1 Gbit/s and uncompressed
pictures of 108 KB that become tensors as they are, so that there is next to nothing to compute; bar: >= 0.90. A row of
pictures below its bar says nothing about the link when a host's core was busy for 90 % of the epoch: it is called
CPU-bound, and measured again on a link of half the rate.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch.utils.data import ConcatDataset, DataLoader, get_worker_info
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import arguments, record
from bench.bed import LinkedHosts
from bench.bed.stream import plain_stream
from bench.bed.watching import watched
from bench.children import LOADER_CORE, Child, Orders, agent_address, child, start_agent
from bench.epochs import orders_of, told_by, warm_up
from bench.loading import epoch, folder, our_loader, quiet
from sophon_loader.client.connection import Connection
from sophon_loader.client.window import FLOOR
from sophon_loader.wire.messages import Sample

BARS = {"pictures": 0.97, "trivial": 0.90}
TRIVIAL_MBIT = 1000.0
TRIVIAL_PICTURES, TRIVIAL_SIDE_PX, TRIVIAL_REPEAT = 300, 190, 16
BUSY = 0.9
WARM_EPOCHS = 2
"""After the profiling pass, so that the rates and with them the plan have settled."""
STREAM_HIGH_WATER_MARK = FLOOR
SPREADS = ("loader_mbit", "stream_mbit", "ratio", "seconds", "loader_busy", "agent_busy", "mean_nbytes")
"""Figures of a round; the summary has their median and range."""


@dataclass(frozen=True)
class Case:
    """A loader that is compared with the stream."""

    part: str
    policy: str
    workers: int
    link_mbit: float


@dataclass(frozen=True)
class Amount:
    """Size of a case's measurement.

    Args:
        rounds: epochs, each with its stream.
        repeat: number of times that an epoch goes through the pictures.
        batch_size: samples per batch.
    """

    rounds: int
    repeat: int
    batch_size: int


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    summary: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for part in options.parts:
            link_mbit = options.link_mbit if part == "pictures" else TRIVIAL_MBIT
            repeat = options.repeat if part == "pictures" else TRIVIAL_REPEAT
            data = options.data if part == "pictures" else trivial_pictures(Path(temporary))
            cases = [
                Case(part, policy, workers, link_mbit) for policy in options.policies for workers in options.workers
            ]
            amount = Amount(options.rounds, repeat, options.batch_size)
            for case, measured in compared(cases, data, amount):
                rows += [{**asdict(case), **row} for row in measured]
                summary.append(summarise(case, measured))
    show(summary)
    settings = {"data": options.data.name, "batch_size": options.batch_size, "repeat": options.repeat}
    settings["trivial_repeat"] = TRIVIAL_REPEAT
    record.write(options.output, {"settings": settings, "rounds": rows, "summary": summary, "bars": BARS})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.link", __doc__, pictures=True)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct}
    add("--parts", default=list(BARS), choices=list(BARS), **several)
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--policies", type=arguments.policy(), default=["no-off", "auto"], metavar="NAME", **several)
    add("--workers", type=arguments.count(), default=[1, 2, 4], metavar="N", **several)
    add("--rounds", type=arguments.count(), default=3)
    add("--repeat", type=arguments.count(), default=3)
    add("--batch-size", type=arguments.count(), default=16)
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


@contextmanager
def loader_noting_sizes(
    address: str, data: str, case: dict[str, Any], repeat: int, batch_size: int
) -> Iterator[Orders]:
    """A loader that tells the size of each of its messages. Orders: `profile`, and `epoch` with its number.

    Args:
        address: of the agent.
        data: an ImageFolder tree.
        case: the fields of a `Case`.
        repeat: how often an epoch goes through the pictures.
        batch_size: samples per batch.
    """
    quiet()
    told = Case(**case)
    if told.part == "trivial":
        dataset: Any = ConcatDataset([ImageFolder(data, v1.PILToTensor())] * repeat)
    else:
        dataset = folder(data, repeat)
    sizes = noted_sizes()
    loader = our_loader(dataset, told.workers, batch_size, agent=address, policy=told.policy)

    def measure() -> dict[str, Any]:
        sizes()  # of a profiling pass
        return {**one_epoch(loader), "sizes": sizes()}

    yield orders_of(loader, measure)
    loader.close()


def one_epoch(loader: DataLoader[Any]) -> dict[str, Any]:
    """One epoch whose training step takes no time."""
    seconds, samples = epoch(loader)
    return {"seconds": seconds, "samples": samples, **told_by(loader)}


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


# --- the bench's process ----------------------------------------------------------------------------------------------


def compared(cases: Sequence[Case], data: Path, amount: Amount) -> Iterator[tuple[Case, list[dict[str, Any]]]]:
    """Each case with its rounds; one that the CPU limits comes again, on a link of half the rate.

    Args:
        cases: all of one part.
        data: the part's pictures.
        amount: how much is measured of each.
    """
    link_mbit = cases[0].link_mbit
    with LinkedHosts(link_mbit).open() as bed, plain_stream(bed, STREAM_HIGH_WATER_MARK) as stream:
        start_agent(bed, data, cores=None)
        for case in tqdm(cases, desc=cases[0].part, file=sys.stderr):
            rows = rounds_of(bed, stream, data, case, amount)
            yield case, rows
            if summarise(case, rows)["verdict"] == "CPU-bound":
                slower = Case(case.part, case.policy, case.workers, link_mbit / 2)
                bed.set_rate(slower.link_mbit)
                yield slower, rounds_of(bed, stream, data, slower, amount)
                bed.set_rate(link_mbit)


def rounds_of(
    bed: LinkedHosts, stream: Callable[[Sequence[int]], float], data: Path, case: Case, amount: Amount
) -> list[dict[str, Any]]:
    """Epochs of a loader of its own, each followed by its stream.

    Args:
        bed: an open bed with an agent.
        stream: sends messages of the given bytes over the same link.
        data: the pictures.
        case: which loader.
        amount: how much is measured.
    """
    settings = {"address": agent_address(bed), "data": data, "case": asdict(case)}
    settings |= {"repeat": amount.repeat, "batch_size": amount.batch_size}
    with child(bed.loader_host, LOADER_CORE, loader_noting_sizes, settings) as loader:
        warm_up(loader, WARM_EPOCHS)
        rows = []
        for number in range(amount.rounds):
            row = {"round": number, **one_round(bed, stream, loader, number, amount.batch_size)}
            rows.append(row)
            tqdm.write(f"  {case}: {row['loader_mbit']:.1f} of {row['stream_mbit']:.1f} Mbit/s", file=sys.stderr)
        return rows


def one_round(
    bed: LinkedHosts, stream: Callable[[Sequence[int]], float], loader: Child, number: int, batch_size: int
) -> dict[str, Any]:
    """One epoch and its stream.

    Args:
        bed: an open bed.
        stream: sends messages of the given bytes.
        loader: takes `epoch`, and tells the sizes of its messages.
        number: of the epoch.
        batch_size: samples per batch.
    """
    hosts = {"loader": bed.loader_host, "agent": bed.agent_host}
    before = {name: host.cpu_seconds() or 0.0 for name, host in hosts.items()}
    with watched(bed) as seen:
        row = loader.order(f"epoch {number}")
    busy = {
        f"{name}_busy": ((host.cpu_seconds() or 0.0) - before[name]) / row["seconds"] for name, host in hosts.items()
    }
    sizes = row.pop("sizes")
    if len(sizes) != row["samples"]:
        raise RuntimeError(f"an epoch of {row['samples']} samples must have as many messages, got {len(sizes)}")
    loader_mbit = steady_mbit(sizes, batch_size, seen)
    with watched(bed) as seen:
        stream(sizes)
    stream_mbit = steady_mbit(sizes, batch_size, seen)
    rates = {"loader_mbit": loader_mbit, "stream_mbit": stream_mbit, "ratio": loader_mbit / stream_mbit}
    return {**row, **rates, **busy, "mean_nbytes": sum(sizes) / len(sizes)}


def steady_mbit(sizes: Sequence[int], batch_size: int, seen: Sequence[tuple[float, int]]) -> float:
    """Payload Mbit/s from the end of the first batch on the link to the beginning of the last.

    Args:
        sizes: payload of the messages in bytes, in order.
        batch_size: messages per batch.
        seen: (clock, bytes sent); the first is before the first message and the last after the last one.
    """
    times, counts = zip(*seen, strict=True)
    total = counts[-1] - counts[0]
    per_payload = total / sum(sizes)
    first, last = sum(sizes[:batch_size]), sum(sizes[-batch_size:])
    marks = [counts[0] + first * per_payload, counts[-1] - last * per_payload]
    begin_s, end_s = np.interp(marks, counts, times)
    return float((sum(sizes) - first - last) * 8e-6 / (end_s - begin_s))


def summarise(case: Case, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, ranges and the verdict of a case.

    Args:
        case: what was compared.
        rows: its rounds.
    """
    entry: dict[str, Any] = {**asdict(case), **{name: record.spread([row[name] for row in rows]) for name in SPREADS}}
    entry["bottleneck"] = rows[-1]["bottleneck"]
    entry["choices"] = rows[-1]["choices"]
    busiest = max(entry["loader_busy"]["median"], entry["agent_busy"]["median"])
    if entry["ratio"]["median"] >= BARS[case.part]:
        entry["verdict"] = "ok"
    elif case.part == "pictures" and busiest >= BUSY:
        entry["verdict"] = "CPU-bound"
    else:
        entry["verdict"] = "below"
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
