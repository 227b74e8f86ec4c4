"""Hugging Face Accelerate: its Accelerator, with loaders that still offload.

accelerate's own wraps a loader it prepares around a DataLoader of torch's class over the same dataset (1.x:
`DataLoaderAdapter.base_dataloader`), and an agent would be lost. Here that place is taken by a loader of ours with the
batch sampler that accelerate has made, so sharding, placement on the device and gathering are accelerate's.
"""

from __future__ import annotations

from typing import Any

import accelerate

from sophon_loader.loader import OWN, OffloadingDataLoader

_OF_TORCH = (
    "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip
"""Arguments of torch's DataLoader that have nothing to do with the order of the samples."""


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # where accelerate is not installed it has no type
    """accelerate's Accelerator: `prepare` and `skip_first_batches` keep an OffloadingDataLoader what it is."""

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **named: Any) -> Any:
        """As of accelerate. What comes back has the loader's `report()` and `close()`, too."""
        if not isinstance(data_loader, OffloadingDataLoader) or isinstance(data_loader, _ADAPTED):
            return super().prepare_data_loader(data_loader, *arguments, **named)
        data_loader._is_kept = True
        return _with_ours(super().prepare_data_loader(data_loader, *arguments, **named), data_loader)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """As of accelerate: the rest of the epoch that `dataloader` would begin now."""
        skipping = super().skip_first_batches(dataloader, num_batches)
        ours = getattr(dataloader, "base_dataloader", None)
        return _with_ours(skipping, ours) if isinstance(ours, OffloadingDataLoader) else skipping


_ADAPTED = (accelerate.data_loader.DataLoaderShard, accelerate.data_loader.DataLoaderDispatcher)


def _with_ours(prepared: Any, loader: OffloadingDataLoader[Any]) -> Any:
    """What accelerate has made, over a loader of ours with the same batches."""
    made = prepared.base_dataloader
    order = {"batch_sampler": made.batch_sampler}
    if made.batch_sampler is None:
        order = {"sampler": made.sampler, "batch_size": None}
    ours = type(loader)(
        made.dataset,
        **order,
        **{name: getattr(loader, name) for name in (*_OF_TORCH, *OWN)},
    )
    prepared.base_dataloader = ours
    prepared._is_accelerate_prepared = True
    tell_samplers = prepared.set_epoch

    def set_epoch(epoch: int) -> None:  # called before each iteration
        tell_samplers(epoch)
        ours.set_epoch(epoch)

    prepared.set_epoch = set_epoch
    return prepared
