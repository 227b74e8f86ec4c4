"""Loaders far away from their server: ours and those of peers, each behind a relay of its own (`bench/bed/relay.py`).

They run on linked hosts, all with the same pictures and the same number of workers. bench.latency compares them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.data import ConcatDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from bench.bed import LinkedHosts
from bench.bed.relay import relaying
from bench.children import AGENT_CORE, EXPORT, LOADER_CORE, PORT, Child, Orders, child, started
from bench.epochs import FIRST_WARM, orders_of, told_by
from bench.loading import folder, memory_peaks, our_loader, quiet
from bench.peers.environments import Installed
from bench.peers.process import run_epoch
from bench.peers.systems import SYSTEMS, Client, Settings
from sophon_loader import OffloadingDataLoader
from sophon_loader.epoch.epoch import AHEAD_NOTE, STARVED_NOTE

PEER_PORT, PORTS_EACH = 7000, 10
NONE = "none"
"""In place of a `prefetch_factor`: none is given."""
WARM_EPOCHS = 2
"""Number of epochs of a loader that settles."""
RELAY_ADDRESS = "127.0.0.1"
"""Address of a relay, which runs on the loader's host."""
ANSWER_S = 300.0
"""For an epoch: a peer may wait for every sample."""


@dataclass(frozen=True)
class Case:
    """A loader and its round trip.

    Args:
        system: one of our policies, or a peer.
        prefetch: batches per worker that torch hands out ahead, or `NONE`; for our loader.
        round_trip_ms: to its server.
        port: of the agent; of ours.
    """

    system: str
    prefetch: int | str
    round_trip_ms: float
    port: int = PORT

    @property
    def name(self) -> str:
        return f"{self.system}, prefetch {self.prefetch}, over {self.round_trip_ms:g} ms"


@dataclass(frozen=True)
class Part:
    """Samples to load, and the link.

    Args:
        name: `pictures` or `trivial`.
        data: an ImageFolder tree.
        link_mbit: rate of the link.
        repeat: number of times that an epoch of our loader goes through the pictures.
        batch_size: samples per batch.
        workers: of every loader.
    """

    name: str
    data: str
    link_mbit: float
    repeat: int
    batch_size: int
    workers: int

    @property
    def title(self) -> str:
        return f"{self.name}, batches of {self.batch_size}, {self.workers} worker{'s' * (self.workers > 1)}"


# --- the loader's process ---------------------------------------------------------------------------------------------


class _Client(Client):
    """Our loader, as `run_epoch` takes it."""

    def __init__(self, loader: OffloadingDataLoader[Any]) -> None:
        self.loader = loader

    def batches(self, epoch: int) -> OffloadingDataLoader[Any]:
        return self.loader


@contextmanager
def loader_far_away(address: str, part: dict[str, Any], case: dict[str, Any]) -> Iterator[Orders]:
    """Our loader. Orders: `profile`, `epoch` with its number, and `memory`, an epoch with its number, too; and `first`,
    the seconds until another loader, made for that, has its first batch.

    Args:
        address: of the agent, by its relay.
        part: the fields of the `Part`.
        case: those of the `Case`.
    """
    quiet()
    torch.manual_seed(0)
    loaded, told = Part(**part), Case(**case)
    if loaded.name == "trivial":
        dataset: Any = ConcatDataset([ImageFolder(loaded.data, v1.PILToTensor())] * loaded.repeat)
    else:
        dataset = folder(loaded.data, loaded.repeat)
    given = {
        "agent": address,
        "policy": told.system,
        "prefetch_factor": None if told.prefetch == NONE else told.prefetch,
    }
    loader = our_loader(dataset, loaded.workers, loaded.batch_size, **given)
    client = _Client(loader)

    def measure() -> dict[str, Any]:
        measured = run_epoch(client, "epoch", 0, time.perf_counter())
        notes = loader.report().notes
        return {**measured, **told_by(loader), "starved": STARVED_NOTE in notes, "ahead": looked_ahead(notes)}

    def first(_: str) -> float:
        another = our_loader(dataset, loaded.workers, loaded.batch_size, **given)
        since_s = time.perf_counter()
        next(iter(another))
        took_s = time.perf_counter() - since_s
        another.close()
        return took_s

    orders = orders_of(loader, measure)
    yield {**orders, "memory": lambda number: memory_peaks(lambda: orders["epoch"](number)), "first": first}
    loader.close()


def looked_ahead(notes: Sequence[str]) -> int:
    """Return the number of batches that a loader has looked ahead further than torch, by a report's notes."""
    before, _, behind = AHEAD_NOTE.partition("{}")
    found = [note.removeprefix(before).removesuffix(behind) for note in notes if note.startswith(before)]
    return int(found[0]) if found else 0


# --- the bench's process ----------------------------------------------------------------------------------------------


def warm(loader: Child, case: Case) -> None:
    """Have a loader settle: profile and rates of our loader, connections and caches of all."""
    ours = SYSTEMS[case.system].ours if case.system in SYSTEMS else True
    settles = ours and case.system != "no-off"
    if settles:
        loader.order("profile")
    for number in range(WARM_EPOCHS if settles else 1):
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
    """Our loader and its relay.

    Args:
        bed: an open bed with an agent.
        part: what is loaded.
        case: the policy, and the way.
    """
    with relay_to(bed, case.port, case.round_trip_ms) as port:
        address = f"tcp://{RELAY_ADDRESS}:{port}/{EXPORT}"
        settings = {"address": address, "part": asdict(part), "case": asdict(case)}
        with child(bed.loader_host, LOADER_CORE, loader_far_away, settings) as loader:
            yield loader


@contextmanager
def peer_server(bed: LinkedHosts, part: Part, each: Installed) -> Iterator[Settings]:
    """A peer's server, ready; gives its settings.

    Args:
        bed: an open bed.
        part: what is loaded.
        each: the peer.
    """
    with tempfile.TemporaryDirectory(prefix="sophon-peers-") as folder:
        told = Settings(
            system=each.system.name,
            data=part.data,
            folder=folder,
            address=bed.agent_host.address,
            port=PEER_PORT + PORTS_EACH * list(SYSTEMS).index(each.system.name),
            workers=part.workers,
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
        server: settings of its server.
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
