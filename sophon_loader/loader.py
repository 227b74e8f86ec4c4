"""OffloadingDataLoader: the surface of torch's DataLoader, and nothing else."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from sophon_loader.client.options import LocalAgent, OffloadOptions
from sophon_loader.decide.policies import PolicyName
from sophon_loader.decide.policy import Policy, PricingPolicy
from sophon_loader.device.prefetch import ahead
from sophon_loader.encodings.catalogue import EncodingName
from sophon_loader.epoch.epoch import EpochIterator
from sophon_loader.errors import ConfigError, SophonError, frames_for_user, warn_user
from sophon_loader.host.system import cores_available
from sophon_loader.order.loader_state import LoaderState
from sophon_loader.order.look_ahead import TorchsPrefetch
from sophon_loader.order.sharding import shard_sampler
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.ranks.ranks import needs_group
from sophon_loader.report.report import Report
from sophon_loader.run.changing_workers import begun
from sophon_loader.run.engine import Engine
from sophon_loader.run.exporting import exporter_at
from sophon_loader.run.headspace import Headspace, measured_headspace
from sophon_loader.run.loader_use import watched
from sophon_loader.run.measured_pass import measured_pass
from sophon_loader.run.parts import Parts
from sophon_loader.run.plain_loader import ObservedPlain, end_plain_workers, plain_batches
from sophon_loader.run.progress import with_progress
from sophon_loader.run.torch_loader import TorchLoader
from sophon_loader.run.workforce import AutoWorkers, asked_for
from sophon_loader.settings import Settings
from sophon_loader.torch_internals.owned_workers import OwnedDataLoader, asked_by_torchs_iterator
from sophon_loader.torch_internals.untraced import untraced

OWN = ("agent", "policy", "encodings", "seed", "profile", "tail", "device_prefetch", "shard", "options")
"""The arguments that torch's class does not have."""
PASSED_BY = (
    "An iterator class of torch's was called on an OffloadingDataLoader. Its samples are made on this host, with "
    "torch's random numbers, and report() does not count them; call iter(loader) instead."
)
T_co = TypeVar("T_co", covariant=True)


class OffloadingDataLoader(OwnedDataLoader[T_co]):
    """A DataLoader whose samples are partly preprocessed by a `storage_agent` next to the files.

    It takes every argument of `torch.utils.data.DataLoader`, and these:

    Args:
        agent: address of the agent that serves the files, `"tcp://fileserver:5555/imagenet"`. For several agents,
            which hold the same files: a list of addresses; the folder in which they announce themselves, and their
            export, `"file:///shared/run/agents/imagenet"`; or the head of their Ray cluster,
            `"ray://head:8265/imagenet"` (`docs/several-agents.md`). With `"local"` or a `LocalAgent` an agent starts on
            this host, and lives as long as the loader. None: no agent. With `"local"` the loader reads plain files
            itself (unless the link is paced). Under `"auto"` it does not wait for that agent, and starts none
            if its own processes may use every core.
        policy: name of a policy: `"auto"` (the cheapest plan for network, loader CPU and agent CPU together),
            `"sophon"`, `"fastflow"`, `"fastflow-every"`, `"no-off"`, `"all-off"` or `"resize-off"`. Or an object
            with `name` and `tariff(facts, traffic)`, or with `name`, `needs_profile` and `plan(facts)`
            (`sophon_loader.decide.policy`).
        encodings: forms in which values may be sent, under every policy: `"auto"` (every lossless one), `"paper"`
            (file, pixels, array), or a list of names. `file` is always allowed.
        seed: seed of all random numbers of the pipeline. Default: DataLoader's base seed, so that `torch.manual_seed`
            or `generator` reproduce a run.
        profile: path of a file for measurements. It is reused if dataset, pipeline, agent and versions match; else the
            first epoch measures (under `"auto"`, some samples) and saves them there.
        tail: device of the last ops (ToTensor, ConvertImageDtype, Normalize and the like). With `"loader"` they
            run with each sample. With `"device"` they run on whole batches, on the current accelerator, or on the CPU
            if there is none. Batches are copied to it as bytes, and stay there. Or name a device. If it
            cannot be done, `report()` says why.
        num_workers: also `"auto"`: a few at first, more while that makes loading faster, fewer if some are idle, at
            most two per core. They change within an epoch, or between epochs under policies that plan for each
            sample. The attribute is the current number. A dataset that cannot be offloaded gets one per core.
        device_prefetch: number of batches, with their targets, that are copied to the accelerator and finished there
            ahead of the step.
        shard: True deals the samples out to the ranks of `torch.distributed`, in place of a sampler: each sample once
            per epoch, in equal steps. The last two batches of an epoch may be shorter.
        options: limits and time-outs.
        snapshot_every_n_steps: accepted for torchdata's StatefulDataLoader, and ignored: `state_dict()` is exact at
            every step.

    A dataset that cannot be offloaded is loaded exactly as by DataLoader; `report()` says why. For any other dataset,
    sample i of epoch e is the same tensor for every agent, policy, num_workers and batch_size. For that, each op draws
    its random numbers from (seed, epoch, sample index, occurrence in the epoch, op position).

    A copy (pickled, deep, or in another process) goes on at the original's position, with its own workers and local
    agent. Every argument is an attribute of the same name, so that frameworks can make an equal loader from them; none
    can be assigned later.

    Raises:
        ConfigError: an argument that cannot work. Errors of the agent are raised when an iteration begins, or with its
            next batch if the loader did not wait for the agent.

    Example:
        loader = OffloadingDataLoader(ImageFolder("/mnt/imagenet/train", transform), batch_size=256, shuffle=True,
                                      num_workers=8, agent="tcp://fileserver:5555/imagenet")

    Warns:
        OffloadWarning: once, if an agent is given and nothing is offloaded, if files are read here because the
            agent is silent, or if the loader is deleted and was never iterated over.
    """

    _is_kept = False
    """True if the framework that makes loaders of another class from this one is known to put it back."""
    _passed_by: tuple[str, ...] = ()
    """A note for reports, once torch's iterator classes have read this loader's samplers."""

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
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
        snapshot_every_n_steps: int | None = 1,
        agent: str | LocalAgent | Sequence[str] | None = None,
        policy: PolicyName | str | Policy | PricingPolicy = "auto",
        encodings: Literal["auto", "paper"] | Sequence[EncodingName | str] = "auto",
        seed: int | None = None,
        profile: str | Path | None = None,
        tail: Literal["loader", "device"] | str | torch.device = "loader",
        device_prefetch: int = 0,
        shard: bool = False,
        options: OffloadOptions | None = None,
    ) -> None:
        if shard:
            sampler, shuffle = shard_sampler(dataset, sampler, batch_sampler, shuffle), None
        iterable = isinstance(dataset, IterableDataset)
        number, self._workforce = asked_for(num_workers, cores_available(), iterable=iterable)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            number,
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
        if prefetch_factor is None and self.prefetch_factor is not None:
            self.prefetch_factor = TorchsPrefetch(self.prefetch_factor)
        self.agent, self.policy, self.encodings, self.seed = agent, policy, encodings, seed
        self.profile, self.tail, self.shard, self.options = profile, tail, shard, options
        self.device_prefetch, self.snapshot_every_n_steps = device_prefetch, snapshot_every_n_steps
        self._settings = Settings.checked(agent, policy, encodings, seed, profile, tail, device_prefetch, options)
        samplers = self.sampler, self.batch_sampler
        self._followed_place = LoaderState(dataset, samplers, generator, self._settings.seed, drop_last=drop_last)
        self._inner: TorchLoader | None = None
        self._pid = os.getpid()
        self._parts = Parts(self, self._settings)
        self._use = watched(self, agent)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN and "_settings" in self.__dict__:
            raise ConfigError(
                f"{name} must be given to the constructor, got an assignment of {value!r}; make a new loader with it"
            )
        super().__setattr__(name, value)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Asked by accelerate before it puts a DataLoader of torch's own class in place of this one.

        Raises:
            ConfigError: the user asked for something that torch's class would lose.
        """
        if self._is_kept or self._engine is None or (self._settings.agent is None and self._settings.tail is None):
            return False
        raise ConfigError(
            "an OffloadingDataLoader must be prepared by sophon_loader's Accelerator, got accelerate's own, which "
            "would read all files on this host; write `from sophon_loader.integrations.accelerate import "
            "Accelerator`"
        )

    @property
    def bs(self) -> int:
        """First attribute that fastai's `to_distributed` reads; an AttributeError that says why there is none."""
        raise AttributeError(
            "fastai's to_distributed must be given loaders of fastai's class, got an OffloadingDataLoader; instead, "
            "wrap the model in DistributedDataParallel and give the loader shard=True"
        )

    @property
    def _engine(self) -> Engine | None:
        """Driver of the epochs; None for a dataset that is loaded plainly."""
        return self._parts.engine

    def __getstate__(self) -> dict[str, Any]:
        """Return DataLoader's state, without objects of this process: a copy has its own workers and agent."""
        left = ("_inner", "_parts", "_pid")
        return {name: value for name, value in self.__dict__.items() if name not in left} | {"_iterator": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._inner, self._followed_place = None, copy.copy(self._followed_place)
        self._pid = os.getpid()
        self._parts = Parts(self, self._settings, warn=False)
        self._use.shared_by(self)

    def _leave_to_parent(self) -> None:
        """Begin again, as a pickled copy does, if this is a forked copy of the process that made this loader.

        Its workers, agent, connections and shared counters are the parent's, which keeps using them.
        """
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._inner = self._iterator = None
        self._followed_place = copy.copy(self._followed_place)
        self._parts.leave_to_parent()

    @untraced
    def __iter__(self) -> Any:
        return self._get_iterator()

    @untraced
    def _get_iterator(self) -> Any:
        """Return the iterator for `iter()`; subclasses in frameworks call this, or wrap it, as with DataLoader."""
        try:
            batches = self._iterate()
            return with_progress(batches) if self._settings.options.progress else batches
        except SophonError as error:
            error.__traceback__ = frames_for_user(error)
            raise error

    @property
    def _place(self) -> LoaderState:
        """State of this loader: its position in epochs and sampler."""
        return self._followed_place.of(self.sampler, self.batch_sampler)

    @property
    def _index_sampler(self) -> Any:
        """The sampler that DataLoader reads."""
        if isinstance(self.dataset, IterableDataset):
            return super()._index_sampler
        if self._engine is not None and asked_by_torchs_iterator():
            self._passed_by = (PASSED_BY,)
            warn_user(PASSED_BY)
        return self._parts.streamed_order or self._place.order

    def _iterate(self, *, measuring: bool = False) -> Any:
        """Return the batches of the next epoch; `measuring` to run it without offloading."""
        self._use.note()
        self._leave_to_parent()
        if self._settings.options.metrics_port is not None:
            exporter_at(self._settings.options.metrics_port)
        if isinstance(self.dataset, IterableDataset):
            self._parts.log_plain()
            return ahead(self.iterate_plainly(), self._settings.device_prefetch, self._settings.tail)
        with self._place.iterating():
            return self._batches(measuring)

    def _batches(self, measuring: bool) -> Any:
        order = self._place.order
        workforce = self._workforce if isinstance(self.num_workers, AutoWorkers) and not measuring else None
        if workforce is not None and self._engine is not None:
            self.num_workers = AutoWorkers(workforce.at_epoch())
        persist = self._inner is not None and self.persistent_workers
        keep = self._inner is not None and persist and self._inner.workers == self.num_workers > 0
        keep |= self._engine is None and self._iterator is not None
        if not keep:  # workers that go on have the dataset as it was when they started, as in DataLoader
            self._parts.follow(self, order)
        self._place.settle_numbers(self._parts.numbers)
        alone = not self._place.of_all_ranks
        if self._engine is None:
            self._inner = None
            self._parts.log_plain()
            with self._parts.recorded(self, self._place):
                asking = self._parts.asking
                if asking is not None:
                    epoch = asking.begin(order.epoch, self._lag, share=order.share_of(asking.samples), alone=alone)
                    if self._settings.options.metrics_port is not None:
                        exporter_at(self._settings.options.metrics_port).add(asking.counted)
                plain = plain_batches(self, self.iterate_plainly, self._place, self._settings, in_turn=self._in_turn)
                if asking is None:
                    return plain
                return ObservedPlain(self._parts.observer(epoch), epoch, plain, order.length)
        if not keep:
            seed = Seed(self._place.drawn_seed())
            unasked = (persist and workforce is not None) or self._place.persisting
            if self._inner is not None and unasked:
                self._inner.end()
            self._inner = TorchLoader(self, self._engine, seed, order, unasked=unasked, needs_agent=measuring)
        assert self._inner is not None
        share = order.share_of(len(self._engine.data))
        epoch = self._engine.begin(order.epoch, self._lag, measuring=measuring, share=share, alone=alone)
        self._use.begun(self._settings, self._engine, epoch.account)
        if self._settings.options.metrics_port is not None:
            exporter_at(self._settings.options.metrics_port).add(self._engine.counted)
        epoch.partial = order.start.samples > 0
        batches = begun(workforce, epoch, self._inner, order.length, self._engine.may_change, self)
        tail = self._engine.run.split.tail
        if self.device_prefetch:
            batches, tail = ahead(batches, self._settings.device_prefetch, self._settings.tail, tail), None
        return EpochIterator(self._parts.observer(epoch), epoch, batches, order.length, tail)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`, also for a sampler with `set_epoch`; epochs count up by themselves."""
        self._place.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's position, also in the middle of an epoch: a few KB to save with the model's state.

        A loader over the same dataset that loads this state goes on with the very next batch. It may have other
        workers, batches, policy, encodings or agent, and with `shard=True` other ranks. Batches that were prefetched
        and not delivered are loaded again. See docs/determinism.md.

        Raises:
            ConfigError: the sampler draws in a way that cannot be repeated, or an iterable dataset does not report its
                position. Or `in_order` is False with `shard=True` or with a dataset whose copies in workers have
                states.
        """
        offloadable = self._engine is not None
        persisting = self.persistent_workers and (self._inner if offloadable else self._iterator) is not None
        return self._place.state(
            self.num_workers, in_turn=self._in_turn, offloadable=offloadable, persisting=persisting
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on at the position at which a loader returned this state: the next iteration is the rest of that epoch.

        `len()` of the loader and of that iterator stays that of a whole epoch, as in torchdata's loader. The generators
        from which the order is drawn are set back, torch's global one too if the order is drawn from it.

        Raises:
            ConfigError: the state is of another dataset, seed or sampler. If the sampler does not repeat its indices,
                or the dataset draws its random numbers otherwise, the next iteration raises it.
        """
        self._place.load(state_dict, self.num_workers)
        self._end_workers()

    def measure(self, step: Callable[[Any], object] | None = None) -> Report:
        """Measure before training, in one pass over the data whose results serve the epochs to come.

        Policies that plan for each sample offload nothing in it. `auto` needs no such pass; it measures while it runs.
        The report's `throughput` is SOPHON's stage 1: samples/s that GPU, I/O and CPU could reach, each by itself.

        Args:
            step: the training step, called with every batch, so that the GPU is measured too. Use a copy of the model
                if its weights must not change.

        The epoch count and the generator's state stay as they were.
        """
        if self._engine is None:
            return self.report()
        with self._aside():
            batches = self._iterate(measuring=True)
            if self._engine is not None:  # else the dataset has turned out to do more than its parts
                measured_pass(batches, self._engine, step)
        return self.report()

    def headspace(self, step: Callable[[Any], object], batches: int = 16) -> Headspace:
        """Return the samples/s that the training step could take, measured by replaying batches, and those that it
        gets.

        Args:
            step: the training step, called with every batch. Use a copy of the model if its weights must not change.
            batches: number of batches to hold in memory and replay; the step's current rate is measured over as
                many.

        The epoch count and the generator's state stay as they were.

        Raises:
            ConfigError: the dataset cannot be offloaded, or an epoch has too few batches.
        """
        with self._aside():
            return measured_headspace(self._iterate(), step, batches, self._lag, type(self.dataset).__name__)

    def report(self, all_ranks: bool = False) -> Report:
        """Return the report of the last epoch, or the running one: prints as a table, `.as_dict()` is plain data.

        Args:
            all_ranks: True for the sum over the ranks of `torch.distributed`, of this rank's last epoch. After its end,
                any rank may ask; before it, all must, at the same step. A rank that does not answer is left out
                after 30 s, with a note. A plain DataLoader has no counters to add up.

        If a framework iterates over a loader that it has made from this one, the report is of that loader's epochs,
        and a note says so. Epochs of copies in other processes are reported there only.

        Raises:
            ConfigError: `all_ranks` without an initialised `torch.distributed`.
        """
        if all_ranks:
            needs_group()
        if self._engine is None:
            return self._parts.plain_report
        report = self._use.report(self._settings, self._engine, all_ranks=all_ranks)
        return replace(report, notes=(*report.notes, *self._passed_by)) if self._passed_by else report

    def close(self) -> None:
        """End this loader's workers and its local agent now, not when Python collects it."""
        self._end_workers()
        self._use.note()
        self._parts.close()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Iterate without a trace: torch draws a number where it starts workers, and none where they persist."""
        self._leave_to_parent()
        persist = self.persistent_workers and self._inner is not None
        try:
            with self._place.aside():
                yield
        finally:
            if self.persistent_workers:
                self._end_workers()
                self._place.persisting |= persist

    def _end_workers(self) -> None:
        """End persistent workers, also while an iterator is held."""
        if self._inner is not None:
            self._inner.end()
        self._inner = None
        end_plain_workers(self)

    @property
    def _in_turn(self) -> bool:
        """True if batches come in the sampler's order."""
        return self.in_order or self.num_workers < 2

    @property
    def _lag(self) -> int:
        """Number of batches that have been asked for when one is delivered."""
        workers = self.num_workers if self._inner is None else self._inner.workers
        ahead = self._place.order.look_ahead.batches
        return workers * ((self.prefetch_factor or 1) + 1) + 1 + ahead + self._settings.device_prefetch
