"""Hugging Face Accelerate: its Accelerator, with loaders that still offload.

accelerate's own wraps a loader it prepares around a DataLoader of torch's class over the same dataset (1.x:
`DataLoaderAdapter.base_dataloader`), and an agent would be lost. Here one of our loaders takes that place, with
accelerate's batch sampler, so sharding, placement on the device and gathering are accelerate's.
"""

from __future__ import annotations

from typing import Any

import accelerate

from sophon_loader.errors import ConfigError
from sophon_loader.loader import OWN, OffloadingDataLoader

_OF_TORCH = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip
"""Arguments of torch's DataLoader that have nothing to do with the order of the samples."""


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # where accelerate is not installed it has no type
    """accelerate's Accelerator: `prepare` and `skip_first_batches` keep an OffloadingDataLoader what it is."""

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **named: Any) -> Any:
        """See accelerate. The result has the loader's `report()` and `close()`, too."""
        if not isinstance(data_loader, OffloadingDataLoader) or isinstance(data_loader, _ADAPTED):
            return super().prepare_data_loader(data_loader, *arguments, **named)
        data_loader._is_kept = True
        return _over_ours(super().prepare_data_loader(data_loader, *arguments, **named), like=data_loader)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """See accelerate: returns the rest of the epoch that `dataloader` would begin now."""
        return skip_first_batches(dataloader, num_batches)


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """accelerate's function, for every loader: returns the rest of the epoch that `dataloader` would begin now. One
    that offloads still does, prepared or not.

    Args:
        dataloader: any loader; it stays as it is.
        num_batches: number of batches to leave out.

    Raises:
        ConfigError: the loader has `shard=True`.
    """
    skipping = accelerate.skip_first_batches(dataloader, num_batches)
    ours = getattr(dataloader, "base_dataloader", dataloader)
    if not isinstance(ours, OffloadingDataLoader):
        return skipping
    if ours is not dataloader:
        return _over_ours(skipping, like=ours)
    rest = _ours(skipping, like=ours)
    rest._place.dealt_out = ours._place.dealt_out
    rest.set_epoch(ours._place.next_epoch)
    return rest


def offloading(prepared: Any, **own: Any) -> Any:
    """Return a loader that accelerate has prepared, over one that offloads: same batches, sharding and device.

    For frameworks that make DataLoaders of torch's class themselves, and have accelerate prepare them.

    Args:
        prepared: result of accelerate's `prepare`, not iterated yet.
        own: arguments of OffloadingDataLoader that torch's class does not have: `agent`, `policy`, ...

    Returns:
        `prepared`, with the loader's `report()` and `close()`, too.

    Raises:
        ConfigError: see OffloadingDataLoader; or accelerate has not prepared the loader.

    Example:
        >>> loader = offloading(trainer_s_loader, agent="tcp://fileserver:5555/imagenet")
    """
    if not isinstance(prepared, _ADAPTED):
        raise ConfigError(
            f"a loader must be one that accelerate has prepared, got a {type(prepared).__name__}; give it what "
            "prepare() returned"
        )
    if left := sorted(set(own) - _OWN_OF_PREPARED):
        known = ", ".join(name for name in OWN if name in _OWN_OF_PREPARED)
        raise ConfigError(
            f"{', '.join(left)} must be left to accelerate, which has made the batches; only {known} may be given"
        )
    return _over_ours(prepared, like=prepared.base_dataloader, **own)


_ADAPTED = (accelerate.data_loader.DataLoaderShard, accelerate.data_loader.DataLoaderDispatcher)
_OWN_OF_PREPARED = {*OWN} - {"shard"}


def _ours(made: Any, like: Any, **own: Any) -> OffloadingDataLoader[Any]:
    """Return one of our loaders with the batches of another.

    Args:
        made: loader whose dataset and batches it has.
        like: loader whose other arguments it has.
        own: arguments in place of those of `like`, or in addition to them if `like` is torch's.

    Raises:
        ConfigError: `like` has `shard=True`: the samples would be dealt out twice, or in another order.
    """
    order = {"batch_sampler": made.batch_sampler}
    if made.batch_sampler is None:
        order = {"sampler": made.sampler, "batch_size": None}
    kind: Any = OffloadingDataLoader
    if isinstance(like, OffloadingDataLoader):
        if like.shard:
            raise ConfigError(
                "shard must be False where accelerate deals the samples out to the ranks, got True; leave it out"
            )
        kind, own = type(like), {name: getattr(like, name) for name in _OWN_OF_PREPARED} | own
    ours: OffloadingDataLoader[Any]
    ours = kind(made.dataset, **order, **{name: getattr(like, name) for name in _OF_TORCH}, **own)
    return ours


def _over_ours(prepared: Any, like: Any, **own: Any) -> Any:
    """Return a loader that accelerate has made, over one of our loaders with the same batches; see `_ours`."""
    ours = _ours(prepared.base_dataloader, like, **own)
    ours._place.dealt_out = True
    prepared.base_dataloader = ours
    prepared._is_accelerate_prepared = True
    tell_samplers = prepared.set_epoch

    def set_epoch(epoch: int) -> None:  # called before each iteration
        tell_samplers(epoch)
        ours.set_epoch(epoch)

    load_state = prepared.load_state_dict

    def load_state_dict(state_dict: dict[str, Any]) -> None:
        load_state(state_dict)
        prepared.iteration = ours._place.next_epoch  # which the next iteration calls `set_epoch` with

    prepared.set_epoch, prepared.load_state_dict = set_epoch, load_state_dict
    return prepared
