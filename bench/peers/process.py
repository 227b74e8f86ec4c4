"""Process of one system, run by the python of that system's environment; see `bench/children.py`.

`serve` makes what is to be served and serves it; it takes no orders. `load` takes

    prepare     what the system does once before it is measured (ours: profile)
    first N     the seconds to the first batch of epoch N, the loader's construction included if it is the first order
    epoch N     a whole epoch
    check N     a whole epoch, with digests of all batches and of their labels alone
"""

from __future__ import annotations

import importlib
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bench.children import Orders
from bench.peers.systems import SYSTEMS, Client, Settings


@contextmanager
def serve(**settings: Any) -> Iterator[Orders]:
    """The server of a system, ready; the arguments are those of `Settings`."""
    told = Settings(**settings)
    with _module_of(told).server(told):
        yield {}


@contextmanager
def load(**settings: Any) -> Iterator[Orders]:
    """The loader of a system, its libraries imported; the arguments are those of `Settings`."""
    told = Settings(**settings)
    module = _module_of(told)
    made: list[Client] = []

    def client() -> Client:
        if not made:
            made.append(module.open_client(told))
        return made[0]

    def run(what: str, number: str) -> dict[str, Any]:
        started_s = time.perf_counter()
        return run_epoch(client(), what, int(number), started_s)

    yield {
        "prepare": lambda _: client().prepare(),
        "first": lambda number: run("first", number),
        "epoch": lambda number: run("epoch", number),
        "check": lambda number: run("check", number),
    }
    for one in made:
        one.close()


def _module_of(settings: Settings) -> Any:
    return importlib.import_module(f"bench.peers.{SYSTEMS[settings.system].module}")


def run_epoch(client: Client, what: str, number: int, started_s: float) -> dict[str, Any]:
    """One epoch, up to the moment at which its last batch is there.

    Args:
        client: the system's loader.
        what: `first`, `epoch` or `check`.
        number: of the epoch.
        started_s: when it began, by `time.perf_counter`; the client may have been made since then.
    """
    first_s, arrived_s, samples, digest, labels_digest = 0.0, 0.0, 0, 0, 0
    shape: tuple[int, ...] = ()
    for images, labels in client.batches(number):
        arrived_s = time.perf_counter()
        first_s = first_s or arrived_s - started_s
        samples, shape = samples + len(labels), tuple(images.shape[1:])
        if what == "first":
            break
        if what == "check":
            digest = zlib.crc32(np.ascontiguousarray(images).data, digest)
            labels_digest = zlib.crc32(np.asarray(labels).astype(np.int64).data, labels_digest)
    row = {"seconds": arrived_s - started_s, "first_batch_s": first_s, "samples": samples, "shape": shape}
    if what == "check":
        row |= {"digest": f"{digest:08x}", "labels_digest": f"{labels_digest:08x}"}
    return row
