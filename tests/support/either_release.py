"""A loader of whichever release Python finds, against an agent; nothing else of the tests, which are of this release.

    python -c "$(cat tests/support/either_release.py)" ROOT ADDRESS

Prints a line of JSON for each dataset and policy: whether samples are those without an agent, and the last report.
"""

import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader

POLICIES = ("auto", "no-off", "resize-off", "all-off")
AUGMENT = transforms.Compose(
    [transforms.RandomResizedCrop(64), transforms.ColorJitter(0.4, 0.4, 0.4), transforms.ToTensor()]
)
EVAL = transforms.Compose([transforms.Resize(72), transforms.CenterCrop(64), transforms.ToTensor()])


class Own(Dataset[Any]):
    """A class that no release knows: the crop and all of a picture, and numbers of two other generators."""

    def __init__(self, root: str) -> None:
        self.files = sorted(str(path) for path in Path(root).rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index]).convert("RGB")
        return AUGMENT(image), EVAL(image), torch.tensor([random.random(), np.random.rand()])


def epochs(loader: Any) -> list[list[bytes]]:
    """Return the bytes of each batch of three epochs, under equal seeds of the process."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    return [[b"".join(part.numpy().tobytes() for part in batch) for batch in loader] for _ in range(3)]


def told(name: str, dataset: Any, agent: str, **arguments: Any) -> None:
    """Print what each policy gives for a dataset."""
    given = {"batch_size": 4, "num_workers": 1, **arguments}
    plain = DataLoader(dataset, batch_size=4, num_workers=1)
    if name == "drawn":  # the numbers are those of `seed`
        plain = OffloadingDataLoader(dataset, **given)
    expected = epochs(plain)
    for policy in POLICIES:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loader: Any = OffloadingDataLoader(dataset, agent=agent, policy=policy, **given)
            equal = epochs(loader) == expected
        report = loader.report()
        loader.close()
        facts = report.as_dict()
        line = {"dataset": name, "policy": policy, "equal": equal, "summary": report.summary, "notes": report.notes}
        line |= {key: facts.get(key) for key in ("choices", "fallbacks")}
        print(json.dumps({**line, "warned": [str(one.message) for one in warned]}), flush=True)


if __name__ == "__main__":
    root, agent = sys.argv[1:]
    told("fixed", ImageFolder(root, EVAL), agent)
    told("drawn", ImageFolder(root, AUGMENT), agent, seed=3)
    told("own", Own(root), agent)
