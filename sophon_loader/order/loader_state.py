"""The position of a loader, and the content of its `state_dict`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch.utils.data import DistributedSampler, IterableDataset

from sophon_loader.errors import ConfigError, warn_user
from sophon_loader.order.dataset_copies import Copies, keeps_state
from sophon_loader.order.generators import States, packed, unpacked
from sophon_loader.order.order import REMEDY, Order
from sophon_loader.order.reading import Drawn, Position
from sophon_loader.order.sharding import ShardOrder, order_of
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Seed, preserved
from sophon_loader.ranks.seeding import (
    dealt_out_once,
    drawn_seed,
    peeked_base_seed,
    rank_of_all,
    seed_of_rank,
    with_rank,
)

_VERSION = 1
Numbers = Literal["op", "sample", "torch"]
"""Kind of the samples' random numbers: seeded for each op, seeded for each sample, or torch's own."""
_IN_WORDS: dict[Numbers, str] = {"op": "seeded for each op", "sample": "seeded for each sample", "torch": "torch's own"}


class LoaderState:
    """The position of a loader: its epoch, its place in it, and its seed.

    Args:
        dataset: of the loader.
        samplers: its sampler and batch sampler.
        generator: of the loader.
        seed: given by the user; None if not given.
        drop_last: of the loader.

    Attributes:
        next_epoch: number of the next iteration.
        seed: seed of the run at this rank; None until it is known.
        dealt_out: True if each index goes to one rank although the samplers do not say so.
        order: of the samplers.
        copies: of the dataset, in the workers of a plain loader.
        persisting: True if the next iteration draws no seed for its workers, because persistent ones existed when the
            state was taken.
        numbers: kind of the random numbers of the newest iteration, or of the one that a state continues; None until
            known.
    """

    def __init__(
        self,
        dataset: Any,
        samplers: tuple[Any, Any],
        generator: torch.Generator | None,
        seed: int | None,
        *,
        drop_last: bool,
    ) -> None:
        self._dataset = dataset
        self._samplers = samplers
        self._drop_last = drop_last
        self._given_seed = seed
        self.order = order_of(*samplers, generator, drop_last)
        self.copies = Copies(dataset)
        self.seed: int | None = None
        self.dealt_out = False
        self.next_epoch = 0
        self.persisting = False
        self.numbers: Numbers | None = None
        self._loaded_numbers: Numbers | None = None

    def __copy__(self) -> LoaderState:
        other = LoaderState.__new__(LoaderState)
        other.__dict__.update(self.__dict__)
        other.order, other.copies = copy.copy(self.order), copy.copy(self.copies)
        return other

    def of(self, sampler: Any, batch_sampler: Any) -> LoaderState:
        """Return this state, with the order of these samplers.

        Args:
            sampler, batch_sampler: the loader's current ones; timm's MultiEpochsDataLoader exchanges them.
        """
        if sampler is not self._samplers[0] or batch_sampler is not self._samplers[1]:
            before, self._samplers = self.order, (sampler, batch_sampler)
            self.order = order_of(sampler, batch_sampler, before.generators.of_loader, self._drop_last)
            self.order.start, self.order.epoch = before.start, before.epoch
        return self

    @property
    def of_all_ranks(self) -> bool:
        """True if all ranks have the same seed, or there is only one rank."""
        return rank_of_all()[1] == 1 or self.dealt_out or dealt_out_once(self.order.batch_sampler, self.order.sampler)

    def drawn_seed(self) -> int:
        """Return the seed of the run, and draw it if necessary.

        Raises:
            ConfigError: rank 0 does not report its seed.
        """
        self._take_given()
        if self.seed is None:
            generator = self.order.generators.of_loader
            if self.of_all_ranks:
                self.seed = drawn_seed(generator, f"{type(self._dataset).__name__} of {len(self._dataset)}")
            else:
                self.seed = seed_of_rank(peeked_base_seed(generator), rank_of_all()[0])
        return self.seed

    def _take_given(self) -> None:
        """Use the user's seed for the run, unless the run has a seed already."""
        if self.seed is None and self._given_seed is not None:
            rank = 0 if self.of_all_ranks else rank_of_all()[0]
            self.seed = seed_of_rank(self._given_seed, rank)

    def settle_numbers(self, found: Numbers) -> None:
        """Choose the kind of random numbers of the iteration that begins: the loaded state's, else the one found.

        The kind found for a dataset may depend on the host and the moment, while a run must keep one kind.

        Args:
            found: kind that follows from dataset and options.

        Raises:
            ConfigError: the loaded state promises identical batches, and the dataset's numbers are of another kind.
        """
        loaded = self._loaded_numbers
        if loaded is None or (loaded == "torch" and found == "op"):  # the class has become known: torch's do not go on
            self.numbers = found
            return
        if "op" in (loaded, found):
            remedy = f"load a state that was taken over this {type(self._dataset).__name__}"
            _same("random numbers must be", _IN_WORDS[loaded], _IN_WORDS[found], remedy)
        if loaded == "torch" and found == "sample" and self.order.newest is None:
            warn_user(
                f"seed={self._given_seed} does not reach the samples: their random numbers are torch's own, as when "
                "the loaded state was taken. Load no state to begin a run with that seed."
            )
        self.numbers = loaded

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next iteration, from its beginning, unless it is the one that a loaded state
        continues."""
        if epoch != self.next_epoch:
            self.order.start = Position()
        self.next_epoch = epoch
        for sampler in _told_epochs(self.order):
            sampler.set_epoch(epoch)

    @contextmanager
    def iterating(self) -> Iterator[None]:
        """Context in which an iteration over `order.epoch` begins, from `order.start`."""
        order = self.order
        order.epoch = self.next_epoch
        if isinstance(order, ShardOrder):
            order.sampler.run_seed, order.sampler.epoch = Seed(self.drawn_seed()), order.epoch
        # DataLoader draws a number as an iteration begins. In the one that goes on it has done so before.
        with preserved(("torch",) if order.start.drawn is not None else ()):
            yield
        self.persisting = False
        order.start, self.next_epoch = Position(), order.epoch + 1

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Context for an iteration from the beginning that leaves epoch count, position and generators unchanged."""
        order, epoch, persisting = self.order, self.next_epoch, self.persisting
        before, states = (order.start, order.newest, order.epoch), order.generators.take(("torch",))
        order.start = Position()
        try:
            yield
        finally:
            self.next_epoch, self.persisting = epoch, persisting
            order.start, order.newest, order.epoch = before
            order.generators.put(states)

    def state(self, workers: int, *, in_turn: bool, offloadable: bool, persisting: bool) -> dict[str, Any]:
        """Return the state as numbers and texts, a few KB for any dataset.

        Args:
            workers: number of the loader's workers.
            in_turn: True if batches are delivered in the sampler's order.
            persisting: True if there are workers that stay for the next epoch.
            offloadable: True if samples depend on the dataset's keys only, not on a state that it may have.

        Raises:
            ConfigError: the running epoch cannot be continued.
        """
        if isinstance(self._dataset, IterableDataset):
            return _iterable_state(self._dataset, workers)
        order = self.order
        self._take_given()
        epoch, position = self._standing(in_turn=in_turn)
        drawn = position.drawn
        return {
            "version": _VERSION,
            "sampler": _kind(order),
            "length": len(self._dataset),
            "seed": self.seed,
            "epoch": epoch,
            "samples": position.samples,
            "digest": position.digest,
            "missing": [list(stretch) for stretch in position.missing],
            "rank": rank_of_all()[0],
            "drawn": drawn and {"at_first": drawn.at_first, "at_iter": drawn.at_iter, "own": drawn.own},
            "own": None if drawn else order.own_state(),
            "sampler_epoch": next((one.epoch for one in _told_epochs(order) if isinstance(one.epoch, int)), None),
            "generators": packed(self._to_come(drawn)),
            "persisting": drawn is None and (persisting or self.persisting),
            "numbers": self.numbers,
            "dataset": None if offloadable or workers else _own_state(self._dataset),
            "copies": self.copies.state(in_epoch=self._in_epoch, persisting=persisting),
        }

    @property
    def _in_epoch(self) -> bool:
        reading = self.order.newest
        return reading is not None and not reading.ended and self.order.start == Position()

    def _standing(self, *, in_turn: bool) -> tuple[int, Position]:
        """Return the running or next epoch, and the position in it."""
        order, reading = self.order, self.order.newest
        if reading is None or not self._in_epoch:
            return self.next_epoch, order.start
        if not in_turn and (isinstance(order, ShardOrder) or self.copies.told):
            raise ConfigError(
                "in_order must be True for a state in the middle of an epoch where shard=True or each worker's dataset "
                "has a state, got False; take states between epochs: without order, chance decides which worker has "
                "which batch"
            )
        if reading.unrepeatable:
            raise ConfigError(
                f"sampler must be able to repeat its order for a state in the middle of an epoch, got {order.kind}, "
                f"{reading.unrepeatable}; {REMEDY}"
            )
        return order.epoch, reading.position

    def _to_come(self, drawn: Drawn | None) -> States:
        """Return the states of the generators that the next order will be drawn from, or, without a seed, the seed.

        If the current order has been drawn, the samplers' own generators are left out: they are set when it is drawn
        again.
        """
        order = self.order
        states = order.generators.take({*order.global_names, *(("torch",) if self.seed is None else ())})
        return {name: one for name, one in states.items() if name in GENERATORS or drawn is None}

    def load(self, state: Any, workers: int) -> None:
        """Let the next iteration continue where a state was taken; samplers and generators are set at once.

        Args:
            state: result of `state`, also of a loader with other workers, batches, policy or agent.
            workers: number of the loader's workers.

        Raises:
            ConfigError: it belongs to another dataset, seed or sampler, or is not a state.
        """
        dataset, order = self._dataset, self.order
        if isinstance(dataset, IterableDataset):
            _load_iterable_state(dataset, state)
            return
        if not isinstance(state, dict) or state.get("version") != _VERSION or "drawn" not in state:
            raise ConfigError(
                f"state must come from state_dict() of an OffloadingDataLoader of this release or an earlier one, got "
                f"{_shortly(state)}; load such a state"
            )
        _same(
            "dataset must have as many samples",
            state["length"],
            len(dataset),
            "load a state that was taken over this dataset",
        )
        _same(
            "sampler must be of the same class",
            state["sampler"],
            _kind(order),
            "give the loader the sampler that it had",
        )
        seed, given = state["seed"], self._given_seed
        if given is not None and seed is not None and seed != seed_of_rank(given, state["rank"]):
            _same("seed must be the same", seed, given, "give the loader that seed, or none")
        own, copies = state.get("dataset"), state.get("copies")
        if own is not None or copies is not None:
            rule = (
                f"num_workers must, because each copy of a {type(dataset).__name__} has a state of its own, be the same"
            )
            _same(rule, len(copies["states"]) if copies else 0, workers, "give the loader as many")
        for one in _told_epochs(order):
            if state["sampler_epoch"] is not None:
                one.set_epoch(state["sampler_epoch"])
        order.generators.put(unpacked(state["generators"]))
        order.global_names = tuple(name for name in GENERATORS if name in state["generators"])
        if state["own"] is not None:
            order.load_own_state(state["own"])
        rank = rank_of_all()[0]
        if seed is not None and state["rank"] != rank and not self.of_all_ranks:
            # A rank that goes by itself needs a seed of its own; what only rank 0 has saved is loaded by all.
            seed = None if given is not None else with_rank(seed, rank)
        self.seed = seed
        self.next_epoch = state["epoch"]
        self.persisting = bool(state.get("persisting"))
        self.numbers = self._loaded_numbers = state.get("numbers")
        self.copies.load(copies)
        if own is not None:
            dataset.load_state_dict(own)
        # Another rank's samplers may give other indices.
        digest = state["digest"] if state["rank"] == rank else ""
        missing = tuple((begin, end) for begin, end in state.get("missing", ()))
        drawn = state["drawn"] and Drawn(**state["drawn"])
        order.start, order.newest = Position(state["samples"], digest, drawn, missing), None


def _told_epochs(order: Order) -> Iterator[Any]:
    """Yield the sampler with a `set_epoch`, if there is one."""
    for one in (order.sampler, order.batch_sampler, getattr(order.batch_sampler, "sampler", None)):
        if hasattr(one, "set_epoch"):
            yield one
            return


def _iterable_state(dataset: Any, workers: int) -> dict[str, Any]:
    """Return the state of an iterable dataset. Only the dataset knows its position, so it must be in this process."""
    if workers or not keeps_state(dataset):
        raise ConfigError(
            "a state needs a map-style dataset, or one with state_dict() and load_state_dict() and num_workers=0, "
            f"got {type(dataset).__name__} with num_workers={workers}; torchdata's StatefulDataLoader can ask workers "
            "for their states"
        )
    return {"version": _VERSION, "dataset": dataset.state_dict()}


def _own_state(dataset: Any) -> Any:
    """Return a map-style dataset's own state; None if it has none."""
    return dataset.state_dict() if keeps_state(dataset) else None


def _load_iterable_state(dataset: Any, state: Any) -> None:
    if not isinstance(state, dict) or "dataset" not in state or not hasattr(dataset, "load_state_dict"):
        raise ConfigError(
            f"state must come from a loader over a {type(dataset).__name__}, got {_shortly(state)}; load it into a "
            "loader over the dataset that it was taken from"
        )
    dataset.load_state_dict(state["dataset"])


def _kind(order: Order) -> str:
    source = order.source
    if isinstance(source, DistributedSampler) and not isinstance(order, ShardOrder):  # its shards are of so many ranks
        return f"{order.kind} over {source.num_replicas} ranks"
    return order.kind


def _same(rule: str, theirs: Any, ours: Any, remedy: str) -> None:
    if theirs != ours:
        raise ConfigError(f"{rule} as when the state was taken ({theirs}), got {ours}; {remedy}")


def _shortly(state: Any) -> str:
    return f"one with {sorted(map(str, state))[:8]}" if isinstance(state, dict) else type(state).__name__
