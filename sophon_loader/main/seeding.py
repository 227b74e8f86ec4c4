"""The seed of a run that was given none: what DataLoader would draw, at rank 0 for all ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
from torch import distributed

from sophon_loader.errors import ConfigError

RANK_0_WAIT_S = 300.0
"""How long a rank waits for rank 0 to begin its first epoch, too; it may still list the files of a large dataset."""
_asked: dict[str, int] = {}


def drawn_seed(generator: torch.Generator | None, about: str) -> int:
    """The base seed that DataLoader is about to draw, without drawing it; where there are ranks, rank 0's.

    It goes through the store of the process group, so that no rank takes part in a collective.

    Args:
        generator: of the loader.
        about: the loader, in a few words; the n-th one of these words at a rank has the seed of rank 0's n-th.

    Raises:
        ConfigError: rank 0 has not drawn it within `RANK_0_WAIT_S`.
    """
    seed = _peeked_base_seed(generator)
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
            "seed=, or find out why rank 0 does not iterate over such a loader"
        ) from error


def rank_of_all() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _peeked_base_seed(generator: torch.Generator | None) -> int:
    """The base seed that DataLoader is about to draw, without drawing it."""
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    source.set_state(state)
    return seed
