"""The seed of a run: the given one, or the one that DataLoader would draw, for all ranks or for this rank alone.

If each index is dealt to one rank, all ranks use rank 0's seed, so a sample is the same on any rank. Under any other
sampler each rank has its own seed, as in torch, and its rank number belongs to the seed. Repeated augmentation, for
example, gives copies of a picture to several ranks, and the copies must differ.
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
"""Seconds that a rank waits for rank 0 to begin its first epoch. Rank 0 may still be listing the files of a large
dataset."""
_RANK = -3
"""Used in place of a sample's index. No sample has it, nor do the orders and workers of a run."""
_WRAPPERS = 8
"""Maximum depth to which samplers are searched for inner samplers."""
_asked: dict[str, int] = {}


def dealt_out_once(*samplers: Any) -> bool:
    """True if the samplers give each index to one rank.

    That holds for torch's DistributedSampler, and for samplers with a true attribute `gives_each_index_to_one_rank`,
    also inside other samplers.
    """
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
    """Return the seed of a rank that draws independently. Rank 0 has the seed of a process without ranks.

    Args:
        seed: base seed of the run.
        rank: number of the rank.
    """
    return with_rank(seed, rank) if rank else seed


def with_rank(seed: int, rank: int) -> int:
    """Derive a seed that differs from rank to rank.

    Args:
        seed: base seed of the run.
        rank: number of the rank.
    """
    return op_seed(Draw(seed, rank, _RANK), 0)


def drawn_seed(generator: torch.Generator | None, about: str) -> int:
    """Return, at every rank, the base seed that DataLoader is about to draw at rank 0, without drawing it.

    It goes through the store of the process group, so that no rank needs a collective.

    Args:
        generator: of the loader.
        about: describes the loader in a few words. The n-th call with this description gets the seed of rank 0's n-th
            call.

    Raises:
        ConfigError: rank 0 has not drawn a seed within `RANK_0_WAIT_S`.
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
    """Return this process's rank and the number of ranks."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def peeked_base_seed(generator: torch.Generator | None) -> int:
    """Return the base seed that DataLoader is about to draw, without drawing it.

    Under another default device torch draws its own seed there; ours is still the CPU's.
    """
    source = torch.default_generator if generator is None else generator
    # A copy is drawn from: resetting the generator itself would repeat numbers that another thread has drawn meanwhile.
    copied = torch.Generator(source.device)
    copied.set_state(source.get_state())
    return int(torch.empty((), dtype=torch.int64, device=source.device).random_(generator=copied).item())
