"""Datasets in a few lines: `ImageFiles`, the base of all classes of image files, and `FileDataset`, two lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, MappingView, Set, Sized
from operator import index as as_int
from typing import Any

from torch.utils.data import Dataset

from sophon_loader.datasets.protocol import Source, Transform
from sophon_loader.datasets.sample_keys import keys_of
from sophon_loader.datasets.targets import targets_of
from sophon_loader.errors import ConfigError
from sophon_loader.kinds.image.opening import naming
from sophon_loader.pipeline.chain import decode


class ImageFiles(Dataset[Any]):
    """Base class for a dataset of image files that can be offloaded.

    Derive from it and give `root`, `__len__`, `key(index)` (the file's path below `root`) and `target(index)` (its
    label). `dataset[index]` is then `(transform(image), target(index))`, the image as PIL RGB.

    Example:
        class Birds(ImageFiles):
            def __init__(self, root, transform=None):
                self.root, self.transform = root, transform
                with open(f"{root}/birds.json") as file:
                    self.birds = json.load(file)

            def __len__(self):
                return len(self.birds)

            def key(self, index):
                return self.birds[index]["file"]  # "cats/1.jpg"

            def target(self, index):
                return self.birds[index]["species"]
    """

    root: str
    transform: Transform | None = None

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        me: Any = self
        path = os.path.join(self.root, me.key(index))
        with open(path, "rb") as file, naming(path):
            image = decode(file.read())
        return image if self.transform is None else self.transform(image), me.target(index)


class FileDataset(ImageFiles):
    """A dataset of image files and their labels, from two lists.

    Args:
        root: the folder that holds all files.
        files: paths of the files, relative to `root` with `/`, or absolute and below `root`.
        targets: labels in the same order: a list, an array (whose rows are the labels), a tensor or a column of a data
            frame. Integers of an array become int.
        transform: PIL RGB image -> what the training loop gets.
        target_transform: label -> what the training loop gets.

    Raises:
        ConfigError: labels and files differ in number or have no order, or a path is not below `root`.

    Example:
        table = pandas.read_csv("/data/birds/labels.csv")
        dataset = FileDataset("/data/birds", table["file"], table["species"], transform)
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        files: Iterable[str | os.PathLike[str]],
        targets: Iterable[Any],
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        self.root = os.fspath(root)
        self.transform = transform
        self.target_transform = target_transform
        self.shared_keys = keys_of(_one_each(files, "files"), self.root)
        _one_each(targets, "targets")
        labels = targets if isinstance(targets, Sized) else list(targets)
        if len(labels) != len(self.shared_keys):
            raise ConfigError(
                f"targets must be as many as files, got {len(labels)} labels and {len(self.shared_keys)} files; give "
                "each file one"
            )
        self.label = targets_of(labels)

    def __len__(self) -> int:
        return len(self.shared_keys)

    def key(self, index: int) -> str:
        """The path of sample `index`, relative to `root`."""
        return self.shared_keys[self._row(index)]

    def target(self, index: int) -> Any:
        """The label of sample `index`, as the training loop gets it."""
        label = self.label(self._row(index))
        return label if self.target_transform is None else self.target_transform(label)

    @property
    def targets(self) -> list[Any]:
        """All labels before `target_transform`; a new list at each access."""
        return [self.label(row) for row in range(len(self))]

    @property
    def source(self) -> Source:
        """The folder, keys and labels that can be offloaded."""
        return Source(self.root, self.shared_keys, self.label)

    def _row(self, index: int) -> int:
        index = as_int(index)  # by the rules of a list
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}, got {index}")
        return index % len(self)


def _one_each(values: Any, name: str) -> Any:
    """Check that `values` gives one value per sample, in order, and return it.

    Args:
        values: the user's value of the argument `name`.
        name: `files` or `targets`.

    Raises:
        ConfigError: its type gives something else when it is iterated over.
    """
    rule = f"{name} must be one value per file, in order, got a {type(values).__name__}"
    if isinstance(values, (str, bytes)):
        raise ConfigError(f"{rule}, which gives its characters; put it into a list")
    if hasattr(values, "columns"):
        raise ConfigError(f"{rule}, which gives its column names; give one column, or .to_numpy() for its rows")
    if isinstance(values, Mapping) and name == "targets":
        raise ConfigError(f"{rule}, which gives its keys; give a list of its values in the order of the files")
    if isinstance(values, Set) and not isinstance(values, MappingView):
        raise ConfigError(f"{rule}, which has another order in each run; give a list, sorted(...) for instance")
    return values
