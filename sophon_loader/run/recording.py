"""The epochs of a dataset of any class whose pictures are deferred: torch's own loader over `RecordedDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from sophon_loader.measures.counters import Totals
from sophon_loader.recording.picture_counts import Counted, PictureCounts
from sophon_loader.recording.picture_notes import decoded_pictures, decoded_share, picture_notes
from sophon_loader.recording.recorded_dataset import RecordedDataset, ShownDataset
from sophon_loader.report.report import Report


class Recording:
    """What came of the pictures of one loader's newest epoch."""

    def __init__(self) -> None:
        self._counts = PictureCounts(workers=1)
        self._before: dict[Counted, int] = {}

    @contextmanager
    def shown_to(self, loader: DataLoader[Any]) -> Iterator[None]:
        """Within, workers that the loader starts are given a `RecordedDataset`."""
        dataset, init = loader.dataset, loader.worker_init_fn
        if loader._iterator is None:  # else its workers persist, and go on counting where they have begun
            self._counts = PictureCounts(max(1, loader.num_workers))
        self._before = self._counts.found()
        known = loader.__dict__  # DataLoader allows nobody to assign to its dataset
        known["dataset"] = RecordedDataset(dataset, self._counts)
        known["worker_init_fn"] = ShownDataset(init)
        try:
            yield
        finally:
            known["dataset"], known["worker_init_fn"] = dataset, init

    def told_by(self, report: Report) -> Report:
        """A plain loader's report, with what became of the epoch's pictures: `fused` are those that our C has decoded,
        `unfused` the others."""
        now = self._counts.found()
        found = {one: count - self._before.get(one, 0) for one, count in now.items()}
        found = {one: count for one, count in found.items() if count > 0}
        ours, pillow = decoded_pictures(found)
        if not ours + pillow:
            return replace(report, notes=(*report.notes, "pictures that it opens are decoded by our C"))
        return replace(
            report,
            why_not=f"{report.why_not}; {decoded_share(found)}",
            totals=Totals(fused=ours, unfused=pillow),
            notes=(*report.notes, *picture_notes(found)),
        )
