"""A training loop whose data comes from a storage agent.

On the file server:   sophon-agent serve --export imagenet=/data/imagenet --bind tcp://0.0.0.0:5555
On the compute node:  the two lines that it prints, which copy the key, and
                      python examples/train.py tcp://fileserver:5555/imagenet /mnt/imagenet/train
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torchvision import datasets, transforms
from tqdm import tqdm

from sophon_loader import OffloadingDataLoader, RemoteImageFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agent", help="Address of the agent's export: tcp://host:port/export.")
    parser.add_argument(
        "data", nargs="?", help="The same folder as mounted here. Without it the agent lists and reads all files."
    )
    parser.add_argument("--epochs", type=int, default=2, help="Epochs to train (default: %(default)s).")
    parser.add_argument("--workers", type=int, default=2, help="Worker processes of the loader (default: %(default)s).")
    options = parser.parse_args()

    transform = transforms.Compose(
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    dataset = (
        datasets.ImageFolder(options.data, transform) if options.data else RemoteImageFolder(options.agent, transform)
    )
    loader = OffloadingDataLoader(  # was: DataLoader(
        dataset, batch_size=32, shuffle=True, num_workers=options.workers, agent=options.agent
    )
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(3 * 56 * 56, len(dataset.classes)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        for images, labels in tqdm(loader, desc=f"epoch {epoch}", disable=None):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(loader.report())
    loader.close()


if __name__ == "__main__":
    main()
