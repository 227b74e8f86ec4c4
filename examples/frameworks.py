"""One training, in seven frameworks: what each needs so that its samples still come from the storage agent.

    python -m examples.frameworks lightning tcp://fileserver:5555/imagenet /mnt/imagenet/train
    torchrun --nproc-per-node 2 -m examples.frameworks accelerate tcp://fileserver:5555/imagenet /mnt/imagenet/train

The last line of each rank is JSON: whether samples were preprocessed at the agent, how many came in which encoding, and
a digest of all samples, which is the same for every framework and any number of ranks that divides the dataset.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from typing import Any

import torch
from torch import nn
from torchvision import datasets, transforms

from sophon_loader import OffloadingDataLoader

SEED = 7


class Net(nn.Module):
    """A small classifier that adds up digests of the samples that it is trained on."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, classes))
        self.seen = 0

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        for image, label in zip(images.cpu(), labels.tolist(), strict=True):
            content = hashlib.blake2b(image.contiguous().numpy().tobytes() + bytes([label % 256]), digest_size=8)
            self.seen = (self.seen + int.from_bytes(content.digest(), "big")) % (1 << 64)
        return nn.functional.cross_entropy(self.layers(images), labels)


def plain(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            net.loss(images, labels).backward()
            optimizer.step()
    return loader


def lightning(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    """Nothing to do: the Trainer makes loaders of the same class, with the same arguments."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return self.net.loss(*batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    trainer = Trainer(
        max_epochs=epochs, accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)
    return trainer.train_dataloader


def fabric(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    """Nothing to do."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=devices)
    fabric.launch()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    _, optimizer = fabric.setup(net, optimizer)
    batches: Any = fabric.setup_dataloaders(loader)
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            fabric.backward(net.loss(images, labels))
            optimizer.step()
    return batches._dataloader  # what Fabric moves to the device the batches of


def accelerate(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    """One import: this Accelerator keeps the loader's class where accelerate's own makes a DataLoader of torch's."""
    from sophon_loader.integrations.accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    _, optimizer, batches = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01), loader)
    for _ in range(epochs):
        for images, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(net.loss(images, labels))
            optimizer.step()
    return batches


def ignite(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    """Nothing to do, with DeterministicEngine neither."""
    from ignite.engine import DeterministicEngine

    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(engine: Any, batch: Any) -> None:
        optimizer.zero_grad()
        net.loss(*batch).backward()
        optimizer.step()

    engine = DeterministicEngine(step)
    engine.run(loader, max_epochs=epochs)
    return engine.state.dataloader


def fastai(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    """Nothing to do: a Learner takes loaders of torch's class as they are."""
    from fastai.basics import SGD, DataLoaders, Learner

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images  # the loss, which digests them, passes them through the layers

    learner = Learner(DataLoaders(loader, []), Module(), loss_func=net.loss, opt_func=SGD, lr=0.01)
    with learner.no_logging():
        learner.fit(epochs)
    return learner.dls.train


def transformers(loader: OffloadingDataLoader[Any], net: Net, epochs: int, devices: int) -> Any:
    """Its Trainer makes a loader from a dataset; `offloading` has that one's samples come from the agent."""
    from transformers import Trainer, TrainingArguments

    from sophon_loader.integrations.transformers import offloading

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net.loss(pixel_values, labels)}

    class Training(Trainer):
        def get_train_dataloader(self) -> Any:
            given = {"agent": loader.agent, "policy": loader.policy, "seed": loader.seed}
            self.batches = offloading(super().get_train_dataloader(), **given)
            return self.batches

    def collate(samples: list[Any]) -> dict[str, torch.Tensor]:
        images, labels = zip(*samples, strict=True)
        return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=loader.batch_size or 1, learning_rate=0.01,
            dataloader_num_workers=loader.num_workers, save_strategy="no", report_to="none", disable_tqdm=True,
            use_cpu=True,
        )  # fmt: skip
        training = Training(Module(), arguments, train_dataset=loader.dataset, data_collator=collate)
        training.train()
    return training.batches


FRAMEWORKS = {one.__name__: one for one in (plain, lightning, fabric, accelerate, ignite, fastai, transformers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("agent", help="tcp://host:port/export, or local")
    parser.add_argument("data", help="the same folder as mounted here")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--devices", type=int, default=int(os.environ.get("WORLD_SIZE", "1")), help="ranks")
    options = parser.parse_args()

    transform = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    dataset = datasets.ImageFolder(options.data, transform)
    loader = OffloadingDataLoader(
        dataset, batch_size=4, shuffle=True, num_workers=options.workers, agent=options.agent, policy=options.policy,
        seed=SEED,
    )  # fmt: skip
    torch.manual_seed(SEED)
    net = Net(len(dataset.classes))
    used = FRAMEWORKS[options.framework](loader, net, options.epochs, options.devices)
    report = used.report().as_dict()
    print(report_line(options.framework, report, net.seen) + "\n", end="", flush=True)  # one write: ranks share it


def report_line(framework: str, report: dict[str, Any], seen: int) -> str:
    told = {name: report[name] for name in ("offloading", "epoch", "choices", "policy")}
    return json.dumps({"framework": framework, **told, "digest": f"{seen:016x}"})


if __name__ == "__main__":
    main()
