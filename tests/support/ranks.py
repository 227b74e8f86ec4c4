"""What each rank of `tests/e2e/test_ranks.py` does; says in one line of JSON what it has seen."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from sophon_loader import OffloadingDataLoader
from tests.support.loaders import PlainPictures, digest_of
from tests.support.pictures import train_transform

BATCH = 3


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


def main(root: Path, folder: Path) -> None:
    """Ranks that begin with generators of their own; the sharded epoch is stopped, or gone on with."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(rank)
    state = folder / "state.json"
    found: dict[str, Any] = {"rank": rank}
    loader = sharded(root)
    if state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
        batches = list(loader)
        found["steps"] = len(batches)
        found["sharded"] = seen(batches)
    else:
        dataset = Indexed(root, train_transform())
        dealt = OffloadingDataLoader(dataset, BATCH, sampler=DistributedSampler(dataset))
        found["dealt"] = seen(dealt)
        found["seed"] = dealt.state_dict()["seed"]
        found["sharded"] = seen(itertools.islice(loader, 2))
        if rank == 1:
            state.write_text(json.dumps(loader.state_dict()))
    sys.stdout.write(json.dumps(found) + "\n")  # in one piece, as the ranks share it
    sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
