"""What a long way to the storage costs: images per second by the round trip to the agent.

    python -m bench.latency --json latency.json
    python -m bench.latency --parts pictures --round-trips-ms 0 100 --rounds 2

Agent and loaders run on linked hosts (`bench/bed`; needs root), pinned to a core each, and every loader talks to the
agent through a relay of its own (`bench/bed/relay.py`), which holds bytes back by half a round trip in each direction;
at 0 ms, too, so that all pay for the relay's copying. The relays run on the agent's core. All loaders of a part take
turns, epoch by epoch, in an order that rotates every round; a figure is the ratio to the same loader at 0 ms in the
same round. Bar: >= 0.97.

Images per second are those from the first batch's arrival to the last one's. The time to the first batch, which a round
trip or two belongs to whatever anybody does, is told beside it.

Two parts. `pictures`: the usual training pipeline at 100 Mbit/s, beside what peers do over the same way (`bench/peers`;
they are made ready on demand, and listed with the reason where that cannot be done). `trivial`: 1 Gbit/s and
uncompressed pictures of 108 KB, as in bench.link.

What is on its way to a worker lies in batches that torch has handed to it, so `--batch-size` times `--prefetch` must
cover it: 1 Gbit/s over 100 ms takes 116 samples of 108 KB. A loader whose `report()` says that they do not is marked.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import arguments, record
from bench.bed import LinkedHosts
from bench.bed.relay import relaying
from bench.children import (
    AGENT_CORE,
    EXPORT,
    LOADER_CORE,
    PORT,
    Child,
    ChildFailed,
    Orders,
    child,
    start_agent,
    started,
)
from bench.epochs import FIRST_WARM, orders_of, told_by
from bench.link import TRIVIAL_MBIT, TRIVIAL_REPEAT, trivial_pictures
from bench.loading import folder, our_loader, quiet
from bench.peers.environments import Installed, Unavailable, install
from bench.peers.process import run_epoch
from bench.peers.systems import SYSTEMS, Client, Settings
from sophon_loader import OffloadingDataLoader
from sophon_loader.main.epoch import STARVED_NOTE

BAR = 0.97
PARTS = ("pictures", "trivial")
PEERS = tuple(name for name, system in SYSTEMS.items() if not system.ours and not system.remote_workers)
PEER_PORT, PORTS_EACH = 7000, 10
WARM_EPOCHS = 2
RELAY_ADDRESS = "127.0.0.1"
"""Of a relay, which runs on the loader's host."""
ANSWER_S = 300.0
"""For an epoch: a peer may wait for every sample."""


@dataclass(frozen=True)
class Case:
    """Who loads over which way.

    Args:
        system: a policy of ours, or a peer.
        round_trip_ms: to its server.
    """

    system: str
    round_trip_ms: float

    @property
    def name(self) -> str:
        return f"{self.system} over {self.round_trip_ms:g} ms"


@dataclass(frozen=True)
class Part:
    """What is loaded, and over which link.

    Args:
        name: `pictures` or `trivial`.
        data: an ImageFolder tree.
        link_mbit: rate of the link.
        repeat: how often an epoch of ours goes through the pictures.
        batch_size: samples per batch.
        prefetch: batches per worker that torch hands out ahead, of ours.
    """

    name: str
    data: Path
    link_mbit: float
    repeat: int
    batch_size: int
    prefetch: int


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    arguments.require_bed(bench, linked=True)
    ready, unavailable = installed(options.peers if "pictures" in options.parts else [], options.peers_venv.resolve())
    round_trips = sorted({0.0, *options.round_trips_ms})
    summary: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.parts:
            pictures = name == "pictures"
            part = Part(
                name=name,
                data=options.data if pictures else trivial_pictures(Path(temporary)),
                link_mbit=options.link_mbit if pictures else TRIVIAL_MBIT,
                repeat=options.repeat if pictures else TRIVIAL_REPEAT,
                batch_size=options.batch_size,
                prefetch=options.prefetch,
            )
            peers = ready if pictures else []
            measured = rows_of(part, options.policies, peers, round_trips, options.rounds, unavailable)
            rows += measured
            summary += summarise(part, measured)
    show(summary, unavailable)
    settings = {"data": options.data.name, "batch_size": options.batch_size, "prefetch": options.prefetch}
    found = {"settings": settings, "rounds": rows, "summary": summary, "unavailable": unavailable, "bar": BAR}
    record.write(options.output, found)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.latency", __doc__, pictures=True)
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+", "action": arguments.Distinct}
    add("--parts", default=list(PARTS), choices=PARTS, **several)
    add("--link-mbit", type=arguments.above_zero, default=100.0)
    add("--round-trips-ms", type=arguments.not_negative, default=[0.0, 10.0, 30.0, 100.0], metavar="MS", **several)
    add("--policies", type=arguments.policy(), default=["no-off", "auto"], metavar="NAME", **several)
    add("--peers", default=["http", "streaming"], choices=PEERS, nargs="*", action=arguments.Distinct, metavar="NAME")
    add("--peers-venv", type=Path, default=record.REPOSITORY / ".venv-peers", metavar="FOLDER")
    add("--rounds", type=arguments.count(), default=3)
    add(
        "--repeat",
        type=arguments.count(),
        default=4,
        help="How often an epoch of our loader goes through the pictures.",
    )
    add("--batch-size", type=arguments.count(), default=16)
    add("--prefetch", type=arguments.count(2), default=16)
    return parser


def installed(names: Sequence[str], environments: Path) -> tuple[list[Installed], dict[str, str]]:
    """The peers that are ready, and why the others are not.

    Args:
        names: of peers.
        environments: folder of their environments.
    """
    ready, unavailable = [], {}
    for name in names:
        try:
            ready.append(install(SYSTEMS[name], environments))
        except Unavailable as reason:
            unavailable[name] = str(reason)
    return ready, unavailable


# --- the loader's process ---------------------------------------------------------------------------------------------


class _Client(Client):
    """A loader of ours, as `run_epoch` takes it."""

    def __init__(self, loader: OffloadingDataLoader[Any]) -> None:
        self.loader = loader

    def batches(self, epoch: int) -> OffloadingDataLoader[Any]:
        return self.loader


@contextmanager
def loader_far_away(
    address: str, policy: str, name: str, data: str, repeat: int, batch_size: int, prefetch: int
) -> Iterator[Orders]:
    """A loader with one worker. Orders: `profile`, and `epoch` with its number.

    Args:
        address: of the agent, by its relay.
        policy: its name.
        name, data, repeat, batch_size, prefetch: of the `Part`.
    """
    quiet()
    torch.manual_seed(0)
    if name == "trivial":
        dataset: Any = ConcatDataset([ImageFolder(data, v1.PILToTensor())] * repeat)
    else:
        dataset = folder(data, repeat)
    loader = our_loader(dataset, 1, batch_size, agent=address, policy=policy, prefetch_factor=prefetch)
    client = _Client(loader)

    def measure() -> dict[str, Any]:
        measured = run_epoch(client, "epoch", 0, time.perf_counter())
        return {**measured, **told_by(loader), "starved": STARVED_NOTE in loader.report().notes}

    yield orders_of(loader, measure)
    loader.close()


# --- the bench's process ----------------------------------------------------------------------------------------------


def rows_of(
    part: Part,
    policies: Sequence[str],
    peers: Sequence[Installed],
    round_trips_ms: Sequence[float],
    rounds: int,
    unavailable: dict[str, str],
) -> list[dict[str, Any]]:
    """All measured epochs of a part.

    Args:
        part: what is loaded.
        policies: of ours.
        peers: that are ready.
        round_trips_ms: 0 among them.
        rounds: epochs of each case.
        unavailable: the reasons of peers that fail are added.
    """
    with ExitStack() as stack:
        bed = stack.enter_context(LinkedHosts(part.link_mbit).open())
        start_agent(bed, part.data, cores=None)
        loaders: dict[str, tuple[Case, Child]] = {}
        for policy in policies:
            for round_trip_ms in round_trips_ms:
                case = Case(policy, round_trip_ms)
                loaders[case.name] = case, stack.enter_context(our_child(bed, part, case))
        for each in peers:
            try:
                server = stack.enter_context(peer_server(bed, part, each))
                for round_trip_ms in round_trips_ms:
                    case = Case(each.system.name, round_trip_ms)
                    loaders[case.name] = case, stack.enter_context(peer_child(bed, part, each, server, case))
            except ChildFailed as reason:
                unavailable[each.system.name] = str(reason)
        for case, loader in tqdm(loaders.values(), desc=f"{part.name}, warming up", file=sys.stderr):
            warm(loader, case)
        rows = []
        for number in tqdm(range(rounds), desc=part.name, file=sys.stderr):
            for name in record.in_turns(list(loaders), number):
                case, loader = loaders[name]
                row = loader.order(f"epoch {number}")
                later = (row["samples"] - part.batch_size) / (row["seconds"] - row["first_batch_s"])
                rows.append({"round": number, "part": part.name, **asdict(case), **row, "images_per_s": later})
                tqdm.write(f"  {part.name}, {name}: {later:.1f} images/s", file=sys.stderr)
        return rows


def warm(loader: Child, case: Case) -> None:
    """Have a loader settle: profile and rates of ours, connections and caches of all."""
    ours = SYSTEMS[case.system].ours if case.system in SYSTEMS else True
    if ours and case.system != "no-off":
        loader.order("profile")
    for number in range(WARM_EPOCHS if ours else 1):
        loader.order(f"epoch {FIRST_WARM + number}")


@contextmanager
def relay_to(bed: LinkedHosts, port: int, round_trip_ms: float) -> Iterator[int]:
    """A relay on the loader's host to a port of the agent's, on the agent's core; gives the relay's port.

    Args:
        bed: an open bed.
        port: of the server.
        round_trip_ms: what the relay adds.
    """
    settings = {"address": bed.agent_host.address, "port": port, "round_trip_s": round_trip_ms / 1000}
    with child(bed.loader_host, AGENT_CORE, relaying, {**settings, "mbit": bed.link_mbit}) as relay:
        yield int(relay.order("port"))


@contextmanager
def our_child(bed: LinkedHosts, part: Part, case: Case) -> Iterator[Child]:
    """A loader of ours and its relay.

    Args:
        bed: an open bed with an agent.
        part: what is loaded.
        case: the policy, and the way.
    """
    with relay_to(bed, PORT, case.round_trip_ms) as port:
        settings = {name: value for name, value in asdict(part).items() if name != "link_mbit"}
        settings |= {"address": f"tcp://{RELAY_ADDRESS}:{port}/{EXPORT}", "policy": case.system}
        with child(bed.loader_host, LOADER_CORE, loader_far_away, settings) as loader:
            yield loader


@contextmanager
def peer_server(bed: LinkedHosts, part: Part, each: Installed) -> Iterator[Settings]:
    """A peer's server, ready; gives what it was told.

    Args:
        bed: an open bed.
        part: what is loaded.
        each: the peer.
    """
    with tempfile.TemporaryDirectory(prefix="sophon-peers-") as folder:
        told = Settings(
            system=each.system.name,
            data=str(part.data),
            folder=folder,
            address=bed.agent_host.address,
            port=PEER_PORT + PORTS_EACH * list(SYSTEMS).index(each.system.name),
            workers=1,
            batch_size=part.batch_size,
            nginx=each.programs.get("nginx"),
        )
        name = "bench.peers.process:serve"
        with started(bed.agent_host, AGENT_CORE, str(each.python), name, asdict(told), ANSWER_S, keep_errors=True):
            yield told


@contextmanager
def peer_child(bed: LinkedHosts, part: Part, each: Installed, server: Settings, case: Case) -> Iterator[Child]:
    """A peer's loader and its relay.

    Args:
        bed: an open bed.
        part: what is loaded.
        each: the peer.
        server: what its server was told.
        case: the way.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sophon-peers-"))
        port = stack.enter_context(relay_to(bed, server.port, case.round_trip_ms))
        told = {**asdict(server), "folder": folder, "address": RELAY_ADDRESS, "port": port}
        name = "bench.peers.process:load"
        yield stack.enter_context(
            started(bed.loader_host, LOADER_CORE, str(each.python), name, told, ANSWER_S, keep_errors=True)
        )


def summarise(part: Part, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Images per second and the ratio to 0 ms, case by case.

    Args:
        part: what was loaded.
        rows: its measured epochs.
    """
    rates = {(row["system"], row["round_trip_ms"], row["round"]): row["images_per_s"] for row in rows}
    summary = []
    for system, round_trip_ms in dict.fromkeys((row["system"], row["round_trip_ms"]) for row in rows):
        mine = [row for row in rows if (row["system"], row["round_trip_ms"]) == (system, round_trip_ms)]
        ratios = [row["images_per_s"] / rates[system, 0.0, row["round"]] for row in mine]
        entry = {
            "part": part.name,
            "link_mbit": part.link_mbit,
            "system": system,
            "round_trip_ms": round_trip_ms,
            "images_per_s": record.spread([row["images_per_s"] for row in mine]),
            "ratio": record.spread(ratios),
            "first_batch_s": record.spread([row["first_batch_s"] for row in mine]),
        }
        if "choices" in mine[-1]:
            entry |= {"choices": mine[-1]["choices"], "starved": any(row["starved"] for row in mine)}
            entry["verdict"] = "ok" if entry["ratio"]["median"] >= BAR else "below"
        summary.append(entry)
    return summary


def show(summary: Sequence[dict[str, Any]], unavailable: dict[str, str]) -> None:
    """Print the summary.

    Args:
        summary: of all parts.
        unavailable: peers that could not take part, and why.
    """
    columns = ("part", "link", "system", "round trip, ms", "images/s", "of 0 ms", "first batch, s", "bar")
    table = Table(*columns, title="images per second by round trip")
    for entry in summary:
        ratio = entry["ratio"]
        starved = ", look-ahead limits" if entry.get("starved") else ""
        table.add_row(
            entry["part"],
            f"{entry['link_mbit']:g}",
            entry["system"],
            f"{entry['round_trip_ms']:g}",
            f"{entry['images_per_s']['median']:.1f}",
            f"{ratio['median']:.3f} ({ratio['min']:.3f}-{ratio['max']:.3f})",
            f"{entry['first_batch_s']['median']:.2f}",
            f"{BAR}: {entry['verdict']}{starved}" if "verdict" in entry else "",
        )
    console = Console(width=130)
    console.print(table)
    for name, reason in unavailable.items():
        console.print(f"{name}: not available: {reason}")


if __name__ == "__main__":
    sys.exit(main())
