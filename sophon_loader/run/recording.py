"""The epochs of a dataset of any class whose pictures are deferred: torch's own loader over `RecordedDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from sophon_loader.host.shared import SharedArray
from sophon_loader.measures.counters import Totals
from sophon_loader.recording.containers import read_library
from sophon_loader.recording.opener import OURS, PLAIN
from sophon_loader.recording.recorded_dataset import RecordedDataset, ShownDataset


class Recording:
    """What came of the pictures of one loader's newest epoch."""

    def __init__(self) -> None:
        self._counts = SharedArray(np.zeros((1, 2), np.int64))
        self._before = np.zeros(2, np.int64)

    @contextmanager
    def shown_to(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Within, workers that the loader starts are given a `RecordedDataset`."""
        dataset, init = loader.dataset, loader.worker_init_fn
        if len(self._counts.array) < loader.num_workers:  # which somebody has assigned to
            self._counts = SharedArray(np.zeros((loader.num_workers, 2), np.int64))
        self._before = self._counts.array.sum(axis=0)
        read_library()
        known = loader.__dict__  # DataLoader allows nobody to assign to its dataset
        known["dataset"] = RecordedDataset(dataset, self._counts)
        known["worker_init_fn"] = ShownDataset(init)
        try:
            yield
        finally:
            known["dataset"], known["worker_init_fn"] = dataset, init

    def counted(self) -> Totals:
        """Pictures that our C has decoded (`fused`), and other ones that were opened (`unfused`)."""
        found = self._counts.array.sum(axis=0) - self._before
        return Totals(fused=int(found[OURS]), unfused=int(found[PLAIN]))
