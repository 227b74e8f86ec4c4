"""What each rank of `tests/e2e/test_ranks.py` does; says in one line of JSON what it has seen."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler, Subset

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.cache import worker_cache
from tests.support.cache_harm import harm_cache
from tests.support.loaders import PlainPictures, digest_of
from tests.support.pictures import train_transform
from tests.support.recorded import Own

BATCH = 3
KILLED_AT = 3


class Indexed(PlainPictures):
    """Whose label is the index."""

    def target(self, index: int) -> int:
        return index


def seen(batches: Any) -> list[list[Any]]:
    """(index, digest) of every sample."""
    return [
        [label, digest_of(image)]
        for images, labels in batches
        for image, label in zip(images, labels.tolist(), strict=True)
    ]


def sharded(root: Path, **more: Any) -> Any:
    return OffloadingDataLoader(Indexed(root, train_transform()), BATCH, shuffle=True, shard=True, **more)


def begin(root: Path, folder: Path) -> dict[str, Any]:
    """Ranks with generators of their own; the sharded epoch is stopped after two steps."""
    torch.manual_seed(distributed.get_rank())
    dataset = Indexed(root, train_transform())
    dealt = OffloadingDataLoader(dataset, BATCH, sampler=DistributedSampler(dataset))
    loader = sharded(root)
    found = {"dealt": seen(dealt), "seed": dealt.state_dict()["seed"], "sharded": seen(itertools.islice(loader, 2))}
    if distributed.get_rank() == 1:
        (folder / "state.json").write_text(json.dumps(loader.state_dict()))
    return found


def late(root: Path, folder: Path) -> dict[str, Any]:
    """An agent that is not there when the ranks begin, and comes in the middle of their first epoch."""
    options = OffloadOptions(connect_timeout_s=0.5, heartbeat_s=0.3, dead_after_s=5.0)
    policy, address = (folder / "policy").read_text(), (folder / "address").read_text()
    loader = sharded(root, seed=1, agent=address, policy=policy, options=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, used = [], False
        for number, batch in enumerate(loader):
            first += seen([batch])
            if number == 0:
                (folder / f"begun {distributed.get_rank()}").touch()
            while number == 0 and not (folder / "comes").exists():
                time.sleep(0.05)
        end_s = time.monotonic() + 60.0
        while not used and time.monotonic() < end_s:
            loader.set_epoch(0)
            again, report = seen(loader), loader.report().as_dict()
            used = report["wire_bytes"] > 0 and not report["fallbacks"] and again == first
    return {"seen": first, "used": used, "told": [str(one.message) for one in caught]}


def replicas(root: Path, folder: Path) -> dict[str, Any]:
    """Several agents, of which rank 0 kills the last in the middle of the epoch."""
    told = json.loads((folder / "agents").read_text())
    options = OffloadOptions(connect_timeout_s=0.5, heartbeat_s=0.3, dead_after_s=1.5)
    loader = sharded(root, seed=1, agent=told["addresses"], policy="all-off", num_workers=1, options=options)
    found = []
    for number, batch in enumerate(loader):
        found += seen([batch])
        if number == 1:
            if distributed.get_rank() == 0:
                os.kill(told["killed"], signal.SIGKILL)
            distributed.barrier()
    own, both = loader.report().as_dict(), loader.report(all_ranks=True).as_dict()
    loader.close()
    return {"seen": found, "own": own, "all": both}


def recorded(root: Path, folder: Path) -> dict[str, Any]:
    """A dataset of a class of its own, dealt by torch's sampler, at an agent that rank 0 kills in the second epoch."""
    told = json.loads((folder / "agents").read_text())
    options = OffloadOptions(connect_timeout_s=0.5, heartbeat_s=0.3, dead_after_s=1.5)
    seen_by: dict[str, Any] = {}
    for name, loads in (("expected", DataLoader), ("found", OffloadingDataLoader)):
        dataset = Own(root)
        dealt: Any = DistributedSampler(dataset, seed=4)
        more = {"agent": told["addresses"][0], "options": options} if name == "found" else {}
        loader: Any = loads(dataset, BATCH, sampler=dealt, num_workers=1, persistent_workers=True, **more)
        torch.manual_seed(distributed.get_rank())
        random.seed(distributed.get_rank())
        seen_by[name] = []
        for epoch in range(2):
            dealt.set_epoch(epoch)
            for number, batch in enumerate(loader):
                seen_by[name] += seen([batch])
                if more and (epoch, number) == (1, 1):
                    if distributed.get_rank() == 0:
                        os.kill(told["killed"], signal.SIGKILL)
                    distributed.barrier()
            if more and not epoch:
                seen_by["own"] = loader.report().as_dict()
    loader.close()
    return seen_by


def cached(root: Path, folder: Path) -> dict[str, Any]:
    """One cache of both, by two policies; the second time all that rank 0 has kept is damaged in mid-epoch."""
    worker_cache.YOUNG_S = worker_cache.BEHIND_S = 0.0  # the tree's files are new
    options = OffloadOptions(connect_timeout_s=20.0, cache=str(folder / "cache"), cache_gb=0.01)
    found: dict[str, Any] = {"seen": [], "cached": []}
    for policy in ("no-off", "auto", "no-off"):
        loader = sharded(
            root, seed=1, agent=(folder / "address").read_text(), policy=policy, num_workers=1, options=options
        )
        for epoch in range(3):
            loader.set_epoch(epoch)
            its = []
            for number, batch in enumerate(loader):
                its += seen([batch])
                if number == epoch == 1 and distributed.get_rank() == 0:
                    for what in ("flip", "truncate", "remove files"):
                        harm_cache(folder / "cache", what, 4, random.Random(what))
            found["seen"].append(its)
            found["cached"].append(loader.report().as_dict()["cached"])
        loader.close()
    return found


def go_on(root: Path, folder: Path) -> dict[str, Any]:
    """The rest of that epoch; then an agent, whose address is there too, under two policies."""
    loader = sharded(root)
    loader.load_state_dict(json.loads((folder / "state.json").read_text()))
    batches = list(loader)
    address = (folder / "address").read_text()
    offloading = sharded(root, seed=1, agent=address, policy="resize-off")
    offloaded = seen(offloading)
    planned = sharded(root, seed=1, agent=address, policy="sophon")
    for _ in range(2):
        list(planned)
    return {
        "steps": len(batches),
        "sharded": seen(batches),
        "offloaded": offloaded,
        "own": offloading.report().as_dict(),
        "all": offloading.report(all_ranks=True).as_dict(),
        "planned": planned.report().as_dict(),
        "known": planned._engine.run.profiler.samples.coverage,
    }


def killed(root: Path, folder: Path) -> dict[str, Any]:
    """Rank 1 is killed in the middle of an epoch, and nobody tells the others."""
    loader = sharded(root, num_workers=1)
    for number, _ in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
        distributed.all_reduce(torch.ones(1))
        if number == KILLED_AT:
            pids = [one.pid for one in (psutil.Process(), *psutil.Process().children())]
            (folder / f"pids of {distributed.get_rank()}").write_text(json.dumps(pids))
            distributed.all_reduce(torch.ones(1))
            if distributed.get_rank() == 1:
                (folder / "killed").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Marked(list[int]):
    gives_each_index_to_one_rank = True


def copies(root: Path, folder: Path) -> dict[str, Any]:
    """Repeated augmentation: the copies of a picture go to different ranks."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)
    dataset = Indexed(root, train_transform())
    order = [index for index in range(len(dataset)) for _ in range(3)][rank::ranks]
    drawn = OffloadingDataLoader(dataset, BATCH, sampler=order, num_workers=1)
    given = OffloadingDataLoader(dataset, BATCH, sampler=order, seed=7)
    first = seen(itertools.islice(given, 2))
    found: dict[str, Any] = {
        "drawn": seen(drawn),
        "state": drawn.state_dict(),
        "given": first,
        "marked": seen(OffloadingDataLoader(dataset, BATCH, sampler=Marked(order))),
        "marked and given": seen(OffloadingDataLoader(dataset, BATCH, sampler=Marked(order), seed=7)),
        "all": drawn.report(all_ranks=True).as_dict(),
    }
    expected = seen(drawn)
    again = OffloadingDataLoader(dataset, BATCH, sampler=order)
    again.load_state_dict(found["state"])
    here = OffloadingDataLoader(dataset, BATCH, sampler=order, seed=7)
    here.load_state_dict(given.state_dict())
    fresh = OffloadingDataLoader(dataset, BATCH, sampler=order, seed=7)
    fresh.load_state_dict(OffloadingDataLoader(dataset, BATCH, sampler=order, seed=7).state_dict())
    found["resumed"] = seen(again) == expected and first + seen(here) == seen(fresh)
    told: list[Any] = [None] * ranks
    distributed.all_gather_object(told, found["state"])
    foreign = OffloadingDataLoader(dataset, BATCH, sampler=order)
    foreign.load_state_dict(told[0])
    return found | {"foreign": seen(foreign), "expected": expected}


def own(root: Path, folder: Path) -> dict[str, Any]:
    """Data of each rank's own, of unequal lengths; then rank 1 alone evaluates."""
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    dataset = Indexed(root, train_transform())
    mine = Subset(dataset, range(rank, len(dataset), ranks))
    begun_s = time.monotonic()
    found = {"mine": seen(OffloadingDataLoader(mine, BATCH)), "alone": []}
    if rank == 1:
        found["alone"] = seen(OffloadingDataLoader(dataset, BATCH))
        found["alone"] += seen(OffloadingDataLoader(dataset, BATCH, shuffle=True))
    return {**found, "took_s": time.monotonic() - begun_s}


def left(root: Path, folder: Path) -> dict[str, Any]:
    """Rank 0 ends before rank 1 asks for the report of both."""
    loader = sharded(root)
    list(loader)
    ended = folder / "rank 0 ends"
    distributed.barrier()
    if distributed.get_rank() == 0:
        ended.write_text(str(os.getpid()))
        return {}
    while not ended.exists() or not ended.read_text() or _runs(int(ended.read_text())):
        time.sleep(0.05)
    begun_s = time.monotonic()
    report = loader.report(all_ranks=True).as_dict()
    return {"ranks": report["ranks"], "notes": report["notes"], "took_s": time.monotonic() - begun_s}


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


DOES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "begin": begin,
    "cached": cached,
    "go_on": go_on,
    "late": late,
    "replicas": replicas,
    "killed": killed,
    "copies": copies,
    "own": own,
    "left": left,
    "recorded": recorded,
}


def main(what: str, root: Path, folder: Path) -> None:
    """Do one of `DOES`, and say what was seen."""
    distributed.init_process_group("gloo")
    told = json.dumps({"rank": distributed.get_rank(), **DOES[what](root, folder)})
    sys.stdout.write(told + "\n")  # in one piece, as the ranks share it
    sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
