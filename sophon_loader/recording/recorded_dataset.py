"""Wraps the user's dataset, so that an `Opener` defers the pictures that each sample opens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from torch.utils.data import Dataset, StackDataset, Subset, get_worker_info

from sophon_loader.errors import must_leave
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw, GeneratorStates, op_seed, preserved, seed_generators
from sophon_loader.recording.opener import Elsewhere, Opener, can_defer
from sophon_loader.recording.picture_counts import PictureCounts


class Streamed(NamedTuple):
    """An index that the sampler gives for another one: its sample has its own stream of random numbers.

    Args:
        index: as the user's sampler gives it.
        draw: seed of the global generators before the sample is made.
    """

    index: Any
    draw: Draw


class AskedAgents(Elsewhere, Protocol):
    """Agents, asked by one process while it makes samples."""

    def begin(self) -> None:
        """A sample begins, or a batch that the dataset makes in one call."""

    def end(self) -> None:
        """It has been made, or has failed."""


class RecordedDataset(Dataset[Any]):
    """The dataset that workers read instead of the user's. Each sample runs once, in the worker's order.

    If pixels of a picture cannot be made, its sample is thrown away, even if the user's code caught the error. It is
    made again as Pillow opens its files, from the same states of the global generators.

    An index may be a `Streamed`. Then the sample begins with generators seeded for it, and leaves them as they were. A
    batch made by the user's own `__getitems__` uses the seed of its first sample.

    Args:
        dataset: the user's; samples are made by its own `__getitem__` or `__getitems__`.
        counts: of pictures; each process adds to its own.
        defers: False to leave all pictures to Pillow.
        agents: of which pictures are asked first; None to read all files here.
    """

    def __init__(
        self, dataset: Any, counts: PictureCounts, *, defers: bool = True, agents: AskedAgents | None = None
    ) -> None:
        self._agents = agents
        self.dataset = dataset
        self._may_defer = defers
        self._counts = counts
        self._opener: Opener | None = None
        self._defers: bool | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opener": None, "_defers": None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name != "__getitems__":
            raise AttributeError(name)
        found = getattr(self.dataset, name)
        return self._of_batch if name == "__getitems__" and found else found

    def __getitem__(self, index: Any) -> Any:
        with _stream_of(index):
            return self._made(lambda: self.dataset[_plain(index)])

    def _of_batch(self, indices: Any) -> Any:
        if len(indices) and type(indices[0]) is Streamed and not _makes_batches(self.dataset):
            return [sample for one in indices for sample in self._together([one])]
        return self._together(indices)

    def _together(self, indices: Any) -> Any:
        with _stream_of(indices[0] if len(indices) else None):
            return self._made(lambda: self.dataset.__getitems__([_plain(one) for one in indices]))

    def _made(self, make: Callable[[], Any]) -> Any:
        if self._defers is None:
            worker = get_worker_info()
            self._opener = Opener(self._counts.of(0 if worker is None else worker.id), self._agents)
            self._defers = self._may_defer and can_defer()
        if not self._defers or self._opener is None:
            return make()
        if self._agents is None:
            return self._recorded(make, self._opener)
        self._agents.begin()
        try:
            return self._recorded(make, self._opener)
        finally:
            self._agents.end()

    def _recorded(self, make: Callable[[], Any], opener: Opener) -> Any:
        before = GeneratorStates(GENERATORS)
        with opener.opening() as pictures:
            try:
                found = make()
            except BaseException as error:
                if must_leave(error):
                    raise
                pictures.end()
                if not pictures.failed:
                    raise
        if not pictures.failed:
            return found
        pictures.left_to_pillow_again()
        before.put_back()
        return make()


def _makes_batches(dataset: Any) -> bool:
    """Return True if the user's own `__getitems__` makes batches; torch's classes only divide them."""
    method = getattr(type(dataset), "__getitems__", None)
    if method is Subset.__getitems__:
        return _makes_batches(dataset.dataset)
    if method is StackDataset.__getitems__:
        parts = dataset.datasets
        return any(map(_makes_batches, parts.values() if isinstance(parts, dict) else parts))
    return bool(getattr(dataset, "__getitems__", None))


def _plain(index: Any) -> Any:
    return index.index if type(index) is Streamed else index


@contextmanager
def _stream_of(index: Any) -> Iterator[None]:
    """Within the block, the global generators begin as an index says; else they go on."""
    if type(index) is not Streamed:
        yield
        return
    with preserved(GENERATORS):
        seed_generators(GENERATORS, op_seed(index.draw, 0))
        yield


class ShownDataset:
    """A `worker_init_fn` that first shows the user's dataset as `get_worker_info().dataset`, as DataLoader does.

    Args:
        init: the user's `worker_init_fn`, or None.
    """

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, RecordedDataset):
            # `object.__setattr__`, because torch forbids assignments to this object.
            object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._init is not None:
            self._init(worker)
