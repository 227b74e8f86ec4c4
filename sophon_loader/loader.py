"""OffloadingDataLoader: the surface of torch's DataLoader, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm import tqdm

from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets import NotOffloadable, offloadable
from sophon_loader.decide.policies import Policy, policy_named
from sophon_loader.encodings.names import encoding_names
from sophon_loader.engine import Engine
from sophon_loader.errors import ConfigError
from sophon_loader.report import Report
from sophon_loader.tail import device_of
from sophon_loader.tickets import TicketSampler

PAPER_ENCODINGS = ("file", "pixels", "array")


class OffloadingDataLoader(DataLoader[Any]):
    """A DataLoader whose samples are preprocessed partly by a `storage_agent` next to the files.

    Takes every argument of `torch.utils.data.DataLoader`, and:

    Args:
        agent: where the files are served: `"tcp://fileserver:5555/imagenet"`, `"local"` (starts one on this host for
            as long as the loader lives; without a paced link, what would cross as a file is read by the loader
            itself), or None (no agent: files are read on this host).
        policy: `"auto"` (the cheapest plan for wire, loader CPU and agent CPU together), `"sophon"`, `"fastflow"`,
            `"no-off"`, `"all-off"`, `"resize-off"`, or an object with `name`, `needs_profile` and `plan(facts)`.
        encodings: what may be used on the wire: `"auto"` (every lossless one), `"paper"` (file, pixels, array), or a
            list of names.
        seed: of all random numbers of the pipeline. Default: what DataLoader would draw as its base seed, so that
            `torch.manual_seed` or `generator` reproduce a run.
        profile: a file: a profile that it holds is reused when dataset, pipeline, agent and versions match, else the
            first epoch measures and saves one there.
        tail: where the last ops (ToTensor, ConvertImageDtype, Normalize and their like) run: `"loader"`, with each
            sample; `"device"`, on the current accelerator, or the CPU if there is none, with whole batches, which come
            to it as bytes and are then left there; or a device. `report()` says why, if that cannot be done.
        options: limits and time-outs.

    A dataset that cannot be offloaded runs exactly as in DataLoader; `report()` says why. For one that can, sample i of
    epoch e is the same tensor whatever the agent, the policy, num_workers and batch_size are, because each op draws its
    random numbers from (seed, epoch, sample index, op position).

    Raises:
        ConfigError: an argument that cannot work. Errors of the agent come when an iteration begins.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        agent: str | Sequence[str] | None = None,
        policy: str | Policy = "auto",
        encodings: str | Sequence[str] = "auto",
        seed: int | None = None,
        profile: str | Path | None = None,
        tail: str | torch.device = "loader",
        options: OffloadOptions | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._seed = seed
        self._next_epoch = 0
        self._inner: DataLoader[Any] | None = None
        chosen = policy_named(policy)
        names = _encoding_names(encodings)
        address = _one_agent(agent)
        device = device_of(tail)
        self._plain_report = Report(policy=chosen.name, offloading=False)
        try:
            data = offloadable(dataset)
        except NotOffloadable as reason:
            self._engine = None
            untouched = () if device is None else (f"no op runs on {device}: the dataset cannot be taken apart",)
            self._plain_report.notes = (f"runs as a plain DataLoader: {reason}", *untouched)
        else:
            rows = max(1, num_workers)
            path = None if profile is None else Path(profile)
            self._engine = Engine(data, address, chosen, names, options or OffloadOptions(), rows, path, device)

    def __iter__(self) -> Any:
        if self._engine is None:
            return super().__iter__()
        if self._inner is None or not self.persistent_workers:
            self._inner = self._make_inner(self._engine)
        self._engine.begin(self._next_epoch, self._lag)
        self._next_epoch += 1
        batches = iter(self._inner)
        length = len(self) if _has_length(self._index_sampler) else 0
        return self._engine.watch(batches, length, self._tickets.sizes)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch` (they count up by themselves); tells a sampler that wants to know."""
        self._next_epoch = epoch
        for sampler in (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None)):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)
                return

    def profile(self, step: Callable[[Any], object] | None = None) -> Report:
        """Measure before training: one pass over the data without offloading, then plan for the epochs to come.

        Args:
            step: the training step, called with every batch, so that the GPU's rate is measured too. Use a copy of the
                model if its weights must not change.

        Leaves the epoch count and the generator's state as they were.
        """
        if self._engine is None:
            return self.report()
        source = torch.default_generator if self.generator is None else self.generator
        state, epoch = source.get_state(), self._next_epoch
        self._engine.profiling = True
        try:
            for batch in tqdm(self, desc="profiling", leave=False):
                if step is not None:
                    step(batch)
        finally:
            self._engine.profiling = False
            self._next_epoch = epoch
            source.set_state(state)
        return self.report()

    def report(self) -> Report:
        """What the last epoch did (or the running one so far); prints as a table, `.as_dict()` for machines."""
        return self._plain_report if self._engine is None else self._engine.report()

    def close(self) -> None:
        """End this loader's workers and its local agent now, not when it is collected."""
        workers: Any = getattr(self._inner, "_iterator", None)  # those that persist, also while an iterator is held
        if hasattr(workers, "_shutdown_workers"):
            workers._shutdown_workers()
        self._inner = None
        if self._engine is not None:
            self._engine.close()

    @property
    def _lag(self) -> int:
        """Batches that workers have asked for when one is delivered."""
        return self.num_workers * ((self.prefetch_factor or 1) + 1) + 1

    def _make_inner(self, engine: Engine) -> DataLoader[Any]:
        if self._seed is None:
            self._seed = _peek_base_seed(self.generator)
        batched = self._auto_collation
        # Without workers the main process is the only one; with in_order=False the next batch may go to any worker.
        ahead = max(1, self.num_workers) if self.in_order else 0
        dataset = engine.prepare(self._seed, self.collate_fn)
        tickets: Any
        self._tickets = tickets = TicketSampler(self._index_sampler, batched, engine.current, ahead)
        with warnings.catch_warnings():  # super().__init__ has already warned of too many workers
            warnings.simplefilter("ignore")
            return DataLoader(
                dataset,
                batch_size=None if not batched else 1,
                sampler=None if batched else tickets,
                batch_sampler=tickets if batched else None,
                num_workers=self.num_workers,
                collate_fn=engine.collate_fn,
                pin_memory=self.pin_memory,
                timeout=self.timeout,
                worker_init_fn=self.worker_init_fn,
                multiprocessing_context=self.multiprocessing_context if self.num_workers else None,
                generator=self.generator,
                prefetch_factor=self.prefetch_factor,
                persistent_workers=self.persistent_workers,
                in_order=self.in_order,
            )


def _peek_base_seed(generator: torch.Generator | None) -> int:
    """The base seed that DataLoader is about to draw, without drawing it."""
    source = torch.default_generator if generator is None else generator
    state = source.get_state()
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
    source.set_state(state)
    return seed


def _encoding_names(encodings: str | Sequence[str]) -> tuple[str, ...]:
    if encodings == "auto":
        return tuple(encoding_names())
    names = PAPER_ENCODINGS if encodings == "paper" else tuple(encodings)
    if (isinstance(encodings, str) and encodings != "paper") or set(names) - set(encoding_names()):
        raise ConfigError(f"encodings must be 'auto', 'paper' or a list out of {encoding_names()}, got {encodings!r}")
    return names


def _one_agent(agent: str | Sequence[str] | None) -> str | None:
    if agent is None or isinstance(agent, str):
        return agent
    if len(agent) != 1:
        raise ConfigError(f"agent must be one address for now, got {len(agent)}: {list(agent)}")
    return agent[0]


def _has_length(sampler: Any) -> bool:
    try:
        len(sampler)
    except (TypeError, NotImplementedError):
        return False
    return True
