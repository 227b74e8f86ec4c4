"""A Trainer of transformers that is stopped in the middle of an epoch, and one that goes on from its checkpoint.

    python -m tests.support.resuming tcp://127.0.0.1:5555/pictures prepared

Prints, for each, what every step was trained on.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from typing import Any

import torch
from torch import nn
from torchvision import transforms
from transformers import Trainer, TrainingArguments

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.integrations.transformers import offloading

BATCH, EPOCHS, STOPPED_AT = 4, 2, 8
GIVEN: dict[str, Any] = {"policy": "resize-off", "seed": 7}


class Module(nn.Module):
    """Notes what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.seen: list[str] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(hashlib.blake2b(pixel_values.numpy().tobytes(), digest_size=8).hexdigest())
        return {"loss": self.layer(pixel_values.mean((2, 3))).square().mean()}


def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    images, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


class Prepared(Trainer):
    """As the guide says: over what the Trainer has made."""

    agent = ""

    def get_train_dataloader(self) -> Any:
        return offloading(super().get_train_dataloader(), agent=self.agent, **GIVEN)


class Unprepared(Prepared):
    """A loader of its own."""

    def get_train_dataloader(self) -> Any:
        dataset: Any = self.train_dataset
        return OffloadingDataLoader(dataset, BATCH, num_workers=1, collate_fn=collate, agent=self.agent, **GIVEN)


def main(address: str, kind: str) -> None:
    crop = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, dataloader_num_workers=1,
            save_steps=STOPPED_AT, save_total_limit=2, report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        for checkpoint in (None, f"{folder}/checkpoint-{STOPPED_AT}"):
            dataset = RemoteImageFolder(address, transform=crop)
            training = {"prepared": Prepared, "unprepared": Unprepared}[kind](
                Module(), arguments, train_dataset=dataset, data_collator=collate
            )
            training.agent = address
            training.train(resume_from_checkpoint=checkpoint)
            print(json.dumps({"seen": training.model.seen}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
