"""The user's dataset, each of whose samples is made while an `Opener` defers the pictures that it opens."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from sophon_loader.errors import must_leave
from sophon_loader.recording.opener import Opener, can_defer
from sophon_loader.recording.picture_counts import PictureCounts


class RecordedDataset(Dataset[Any]):
    """What workers read in place of the user's dataset. Each sample runs once, in the worker's order.

    A sample in which pixels of a picture cannot be made is thrown away, whatever the user's code did with the error.
    It is made again as Pillow opens its files, from the same states of the global generators.

    Args:
        dataset: the user's; samples are made by its own `__getitem__` or `__getitems__`.
        counts: of pictures; each process adds to its own.
    """

    def __init__(self, dataset: Any, counts: PictureCounts) -> None:
        self.dataset = dataset
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
        return self._made(lambda: self.dataset[index])

    def _of_batch(self, indices: Any) -> Any:
        return self._made(lambda: self.dataset.__getitems__(indices))

    def _made(self, make: Callable[[], Any]) -> Any:
        if self._defers is None:
            worker = get_worker_info()
            self._opener = Opener(self._counts.of(0 if worker is None else worker.id))
            self._defers = can_defer()
        if not self._defers or self._opener is None:
            return make()
        before = _States()
        with self._opener.opening() as pictures:
            try:
                found = make()
            except BaseException as error:
                if not pictures.failed or must_leave(error):
                    raise
        if not pictures.failed:
            return found
        pictures.left_to_pillow_again()
        before.put_back()
        return make()


class _States:
    """Of the global generators, as they are when this is made."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()

    def put_back(self) -> None:
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)


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
            object.__setattr__(info, "dataset", info.dataset.dataset)  # which torch means nobody to assign to
        if self._init is not None:
            self._init(worker)
