"""The copies of a dataset with a state of its own, as a plain loader's workers have them."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, _utils, get_worker_info

from sophon_loader.torch_internals.iterator_wrapper import Around
from sophon_loader.torch_internals.owned_workers import takes_a_batch


def keeps_state(dataset: Any) -> bool:
    """Whether a dataset says where it stands, in the words of torchdata's loader."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


@dataclass(frozen=True)
class Copy:
    """One worker's copy.

    Args:
        seed: the base seed of the workers and the number of this one, from which its random numbers follow; None
            before it was started.
        state: what it said of itself after its last batch, pickled; None before its first.
    """

    seed: tuple[int, int] | None = None
    state: bytes | None = None


class Copies:
    """What is known of the copies.

    A worker tells the state of its copy with each batch, and what has been prefetched does not count. A loader that
    goes on has as many workers. DataLoader deals batches out in turn from its first worker on; that one begins as the
    worker stood whose turn it was, and so on; before the next epoch workers that persist are put in their old order.

    Args:
        dataset: of the loader.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._given: tuple[list[Copy], int] | None = None
        self._newest: BatchesWithStates | None = None

    def __copy__(self) -> Copies:
        other = Copies(self._dataset)
        other._given = self._given
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_newest": None}

    @property
    def told(self) -> bool:
        """Whether workers tell the states of their copies."""
        return self._newest is not None

    @property
    def out_of_order(self) -> bool:
        """Whether workers that persist must be started anew for the next epoch: the first of them is another one than
        it was, or the epoch was left, and they have gone further than it.
        """
        return self._newest is not None and (self._newest.first > 0 or not self._newest.ended)

    def begun(self, loader: DataLoader[Any], begin: Callable[[], Any]) -> Any:
        """An iterator of a plain loader, whose workers are told where to begin and tell where they stand.

        Args:
            loader: whose workers are started by `begin`, or go on.
            begin: gives DataLoader's iterator.
        """
        workers = loader.num_workers
        if not workers or isinstance(self._dataset, IterableDataset) or not keeps_state(self._dataset):
            return begin()
        copies, first = self._given or ([Copy()] * workers, 0)
        if self._newest is not None and loader.persistent_workers and loader._iterator is not None:
            copies = self._newest.copies
        asked = loader.collate_fn, loader.worker_init_fn
        loader.collate_fn = _Telling(loader.collate_fn)
        loader.worker_init_fn = _Begin(loader.worker_init_fn, copies[first:] + copies[:first])
        try:
            batches = begin()
        finally:
            loader.collate_fn, loader.worker_init_fn = asked
        base = batches._base_seed
        copies = [copy if copy.seed else replace(copy, seed=(base, n)) for n, copy in enumerate(copies)]
        self._given, self._newest = None, BatchesWithStates(batches, copies, first)
        return self._newest

    def state(self, *, in_epoch: bool, persisting: bool) -> dict[str, Any] | None:
        """Of each copy, and from which one the next batch comes; None where all begin anew.

        Args:
            in_epoch: whether an epoch goes on.
            persisting: whether the workers go on with the next one.
        """
        found = self._given
        if found is None and self._newest is not None and (in_epoch or persisting):
            found = self._newest.copies, self._newest.turn if in_epoch else 0
        if found is None:
            return None
        copies, turn = found
        states = [None if copy.state is None else pickle.loads(copy.state) for copy in copies]
        return {"turn": turn, "seeds": [copy.seed and list(copy.seed) for copy in copies], "states": states}

    def load(self, state: dict[str, Any] | None) -> None:
        """Let the workers that are started next begin so.

        Args:
            state: what `state` gave.
        """
        self._newest, self._given = None, None
        if state is not None:
            seeds = [None if seed is None else tuple(seed) for seed in state["seeds"]]
            states = [None if one is None else pickle.dumps(one) for one in state["states"]]
            self._given = [*map(Copy, seeds, states)], state["turn"]

    def in_order(self) -> None:
        """Let the workers that are started next be those of now, in their old order."""
        self.load(self.state(in_epoch=False, persisting=True))


class BatchesWithStates(Around):
    """Batches of workers that tell the states of their copies.

    Args:
        batches: DataLoader's iterator; what else it has can be had here, too.
        copies: as the workers begin with them.
        first: of the copies, which DataLoader's first worker has.

    Attributes:
        ended: whether all batches have come.
    """

    def __init__(self, batches: Any, copies: list[Copy], first: int) -> None:
        super().__init__(batches)
        self.copies = list(copies)
        self.first = first
        self.ended = False
        self._ahead: deque[tuple[int, bytes] | None] = deque()
        self._passed = 0

    def __next__(self) -> Any:
        try:
            told = next(self._batches)
        except StopIteration:
            self.ended = True
            raise
        except BaseException as error:
            if takes_a_batch(error):
                self._ahead.append(None)
            raise
        self._ahead.append((told.worker, told.state))
        return told.batch

    def passed(self) -> None:
        """The training has had the next batch, or its failure."""
        self._passed += 1
        told = self._ahead.popleft() if self._ahead else None  # none where the sampler itself has failed
        if told is not None:
            worker, state = told
            n = (self.first + worker) % len(self.copies)
            self.copies[n] = replace(self.copies[n], state=state)

    @property
    def turn(self) -> int:
        """Of the copies, from which the next batch comes."""
        return (self.first + self._passed) % len(self.copies)


@dataclass
class _Telling:
    """The user's `collate_fn`, and with each batch the state of the copy that it was read from."""

    collate_fn: Callable[[Any], Any]

    def __call__(self, samples: Any) -> _Batch:
        info: Any = get_worker_info()
        batch = self.collate_fn(samples)
        return _Batch(batch, info.id, pickle.dumps(info.dataset.state_dict()))


@dataclass
class _Batch:
    """A batch and the state of the copy that it was read from."""

    batch: Any
    worker: int
    state: bytes

    def pin_memory(self, device: str | None = None) -> _Batch:
        """As DataLoader asks of what is neither a tensor nor a container."""
        return replace(self, batch=_utils.pin_memory.pin_memory(self.batch, device))  # type: ignore[no-untyped-call]


@dataclass
class _Begin:
    """The user's `worker_init_fn`, before which a worker draws from what another one has drawn from, and behind which
    its copy goes on where that one's stood."""

    worker_init_fn: Callable[[int], None] | None
    copies: list[Copy]

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        copy = self.copies[worker]
        if copy.state is None and copy.seed is not None:
            base, number = copy.seed
            seed = base + number  # as DataLoader seeds its workers
            random.seed(seed)
            torch.manual_seed(seed)
            np.random.seed(_utils.worker._generate_state(base, number))  # type: ignore[no-untyped-call]
            object.__setattr__(info, "seed", seed)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)
        if copy.state is not None:
            info.dataset.load_state_dict(pickle.loads(copy.state))
