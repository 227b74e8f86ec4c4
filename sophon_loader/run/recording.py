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

    def notes(self) -> list[str]:
        """What became of the epoch's pictures, in sentences."""
        return picture_notes(self._found()) or ["pictures that it opens are decoded by our C"]

    def told_by(self, report: Report) -> Report:
        """A plain loader's report, with what became of the epoch's pictures: `fused` are those that our C has decoded,
        `unfused` the others."""
        found = self._found()
        ours, pillow = decoded_pictures(found)
        share = f"; {decoded_share(found)}" if ours + pillow else ""
        return replace(
            report,
            why_not=f"{report.why_not}{share}",
            totals=Totals(fused=ours, unfused=pillow),
            notes=(*report.notes, *self.notes()),
        )

    def _found(self) -> dict[Counted, int]:
        new = {one: count - self._before.get(one, 0) for one, count in self._counts.found().items()}
        return {one: count for one, count in new.items() if count > 0}
