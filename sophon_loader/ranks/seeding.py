"""The seed of a run: given, or what DataLoader would draw; for all ranks, or for this one alone.

Where each index is dealt out to one rank, all ranks have rank 0's seed, so a sample is the same whichever rank has it.
Under any other sampler each rank goes by itself, as in torch, and its number belongs to the seed: repeated augmentation
gives the copies of a picture to several ranks, and they must differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DistributedSampler

from sophon_loader.errors import ConfigError
from sophon_loader.pipeline.randomness import Draw, op_seed

RANK_0_WAIT_S = 300.0
"""How long a rank waits for rank 0 to begin its first epoch, too; it may still list the files of a large dataset."""
_RANK = -3
"""In place of a sample's index, which no sample has, nor the orders and workers of a run."""
_WRAPPERS = 8
"""Samplers within samplers that are looked at."""
_asked: dict[str, int] = {}


def dealt_out_once(*samplers: Any) -> bool:
    """Whether each index of these goes to one rank: under torch's DistributedSampler, or one that says so by an
    attribute `gives_each_index_to_one_rank`, be it wrapped by others or not."""
    return any(
        getattr(one, "gives_each_index_to_one_rank", isinstance(one, DistributedSampler)) is True
        for sampler in samplers
        for one in _within(sampler, _WRAPPERS)
    )


def _within(sampler: Any, depth: int) -> Iterator[Any]:
    if sampler is None or not depth:
        return
    yield sampler
    for name in ("sampler", "batch_sampler"):
        yield from _within(getattr(sampler, name, None), depth - 1)


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of a rank that goes by itself; rank 0 has that of a process without ranks."""
    return with_rank(seed, rank) if rank else seed


def with_rank(seed: int, rank: int) -> int:
    """A seed that no other rank makes of this one."""
    return op_seed(Draw(seed, rank, _RANK), 0)


def drawn_seed(generator: torch.Generator | None, about: str) -> int:
    """The base seed that DataLoader is about to draw at rank 0, without drawing it, at every rank.

    It goes through the store of the process group, so that no rank takes part in a collective.

    Args:
        generator: of the loader.
        about: the loader, in a few words; the n-th one of these words at a rank has the seed of rank 0's n-th.

    Raises:
        ConfigError: rank 0 has not drawn it within `RANK_0_WAIT_S`.
    """
    seed = peeked_base_seed(generator)
    rank, ranks = rank_of_all()
    if ranks == 1:
        return seed
    number = _asked[about] = _asked.get(about, 0) + 1
    name = f"sophon_loader seed {about} {number}"
    store = distributed.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(name, str(seed))
        return seed
    try:
        store.wait([name], timedelta(seconds=RANK_0_WAIT_S))
        return int(store.get(name))
    except RuntimeError as error:
        raise ConfigError(
            f"rank 0 must draw a seed for {about} within {RANK_0_WAIT_S:g} s, got none; give every rank the same "
            "seed=, or find out why rank 0 does not iterate over such a loader. A rank that iterates alone, or over "
            "data of another length, needs a sampler that is no DistributedSampler, and no shard=True"
        ) from error


def rank_of_all() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def peeked_base_seed(generator: torch.Generator | None) -> int:
    """The base seed that DataLoader is about to draw, without drawing it.

    Under another default device torch draws its own there; ours is still the CPU's.
    """
    source = torch.default_generator if generator is None else generator
    # By a copy: to set the generator itself back would repeat what another thread has drawn from it meanwhile.
    copied = torch.Generator(source.device)
    copied.set_state(source.get_state())
    return int(torch.empty((), dtype=torch.int64, device=source.device).random_(generator=copied).item())
