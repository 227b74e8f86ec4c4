"""The copies that a plain loader's workers have of a dataset with its own state."""

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
    """True if a dataset has `state_dict` and `load_state_dict`, as torchdata's loader expects them."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


@dataclass(frozen=True)
class Copy:
    """One worker's copy of the dataset.

    Args:
        seed: (base seed of the workers, number of this worker), which determine its random numbers; None before the
            worker was started.
        state: pickled state of the copy after its last batch; None before its first.
    """

    seed: tuple[int, int] | None = None
    state: bytes | None = None


class Copies:
    """The states of the copies, as far as the main process knows them.

    A worker sends the state of its copy with each batch; prefetched batches do not count. A loader that continues must
    have as many workers. DataLoader deals batches out in turn, beginning with its first worker. So that worker begins
    with the copy whose turn it was, and so on. Before the next epoch, persistent workers are put back into their old
    order.

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
        """True if workers send the states of their copies."""
        return self._newest is not None

    @property
    def out_of_order(self) -> bool:
        """True if persistent workers must be restarted for the next epoch.

        Either the first of them is another one than before, or the epoch was abandoned and they have gone beyond it.
        """
        return self._newest is not None and (self._newest.first > 0 or not self._newest.ended)

    def begun(self, loader: DataLoader[Any], begin: Callable[[], Any]) -> Any:
        """Return an iterator of a plain loader whose workers begin with the given states and send their own.

        Args:
            loader: the loader; its workers are started by `begin`, or persist.
            begin: returns DataLoader's iterator.
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
        """Return the state of each copy and the turn of the next batch; None if all copies begin afresh.

        Args:
            in_epoch: True in the middle of an epoch.
            persisting: True if the workers stay for the next epoch.
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
        """Let the workers that are started next begin with these states.

        Args:
            state: result of `state`.
        """
        self._newest, self._given = None, None
        if state is not None:
            seeds = [None if seed is None else tuple(seed) for seed in state["seeds"]]
            states = [None if one is None else pickle.dumps(one) for one in state["states"]]
            self._given = [*map(Copy, seeds, states)], state["turn"]

    def in_order(self) -> None:
        """Let the workers that are started next continue from the current ones, in their old order."""
        self.load(self.state(in_epoch=False, persisting=True))


class BatchesWithStates(Around):
    """Batches from workers that send the states of their copies.

    Args:
        batches: DataLoader's iterator; its other attributes are available here, too.
        copies: the copies as the workers begin with them.
        first: index of the copy that DataLoader's first worker has.

    Attributes:
        ended: True once all batches were delivered.
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
        """Note that the training has received the next batch, or its error."""
        self._passed += 1
        told = self._ahead.popleft() if self._ahead else None  # none where the sampler itself has failed
        if told is not None:
            worker, state = told
            n = (self.first + worker) % len(self.copies)
            self.copies[n] = replace(self.copies[n], state=state)

    @property
    def turn(self) -> int:
        """Index of the copy that makes the next batch."""
        return (self.first + self._passed) % len(self.copies)


@dataclass
class _Telling:
    """A `collate_fn` that calls the user's and adds the state of the copy that the batch was read from."""

    collate_fn: Callable[[Any], Any]

    def __call__(self, samples: Any) -> _Batch:
        info: Any = get_worker_info()
        batch = self.collate_fn(samples)
        return _Batch(batch, info.id, pickle.dumps(info.dataset.state_dict()))


@dataclass
class _Batch:
    """A batch, its worker's number, and the state of the copy that it was read from."""

    batch: Any
    worker: int
    state: bytes

    def pin_memory(self, device: str | None = None) -> _Batch:
        """Pin the batch. DataLoader calls this for objects that are neither tensors nor containers."""
        return replace(self, batch=_utils.pin_memory.pin_memory(self.batch, device))  # type: ignore[no-untyped-call]


@dataclass
class _Begin:
    """A `worker_init_fn` that continues a copy in a new worker, around the user's `worker_init_fn`.

    Before the user's function it sets the random numbers of the copy's first worker, if the copy has made no batch yet.
    After it, it loads the copy's state, if there is one.
    """

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
