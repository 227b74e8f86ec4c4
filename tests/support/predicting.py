"""Lightning's `predict`, which makes every loader anew: `python -m tests.support.predicting AGENT[,AGENT...] ROOT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from sophon_loader import OffloadingDataLoader
from tests.support.loaders import digest_of
from tests.support.pictures import eval_transform, folder


class Predicting(LightningModule):
    """Its predictions are digests of the samples."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def predict_step(self, batch: Any, number: int) -> list[str]:
        return [digest_of(image) for image in batch[0]]

    def predict_dataloader(self) -> Any:
        return self.make()


def main(agents: str, root: str) -> None:
    dataset = folder(Path(root), eval_transform())

    given: dict[str, Any] = {"agent": agents.split(","), "policy": "resize-off", "num_workers": 1, "seed": 7}

    def make() -> OffloadingDataLoader[Any]:
        return OffloadingDataLoader(dataset, batch_size=4, **given)

    for loader in (make(), None):  # passed to `predict`; from the module's own hook
        trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        predictions = trainer.predict(Predicting(make), loader)
        report = trainer.predict_dataloaders.report().as_dict()
        digests = [digest for batch in predictions or () for digest in batch]
        print(json.dumps({"choices": report["choices"], "seen": digests}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
