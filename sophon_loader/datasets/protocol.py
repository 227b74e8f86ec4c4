"""The protocol of a dataset that can be offloaded, and the form of a dataset that was taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch.utils.data import ConcatDataset, Subset

from sophon_loader.client.address import Address
from sophon_loader.datasets.given_roots import NOT_GIVEN, GivenRoots
from sophon_loader.datasets.sample_keys import Calls
from sophon_loader.errors import ConfigError
from sophon_loader.host.shared import SharedArray
from sophon_loader.wire.fields import short

Transform = Callable[[Any], Any]


@runtime_checkable
class OffloadableDataset(Protocol):
    """Members that a map-style dataset of image files needs to be offloaded.

    `dataset[i]` must equal `(transform(image), target(i))`, where `image` is the file `root/key(i)` as PIL RGB. The
    loader's workers call `key` and `target`, so these must not depend on anything that changes in a worker.

    Example:
        class Pairs(torch.utils.data.Dataset):
            def __init__(self, root, pairs, transform=None):
                self.root, self.pairs, self.transform = root, pairs, transform

            def __len__(self):
                return len(self.pairs)

            def key(self, index):
                return self.pairs[index][0]  # "cats/1.jpg"

            def target(self, index):
                return self.pairs[index][1]

            def __getitem__(self, index):
                image = Image.open(os.path.join(self.root, self.key(index))).convert("RGB")
                return self.transform(image) if self.transform else image, self.target(index)
    """

    root: str
    transform: Transform | None

    def __len__(self) -> int: ...

    def key(self, index: int) -> str:
        """Path of sample `index` relative to `root`, with `/`."""

    def target(self, index: int) -> Any:
        """Label of sample `index`, as the training loop gets it."""


class Keys(Protocol):
    """Paths of a source's files, relative to its root, by row."""

    def __getitem__(self, row: int) -> str:
        """Path of a row, with `/`."""

    def fingerprint(self) -> bytes:
        """Hash of all paths, or of as much as is known without asking for each."""


@dataclass(frozen=True)
class Source:
    """One folder of files.

    Args:
        root: the folder on this host; None if only the agent has it.
        keys: row -> path relative to `root`.
        target: row -> label, before `target_transform`.
        address: the folder's address, if only an agent has it.
        promised: True if all this is only a claim, by an `OffloadableDataset` or a rule of its class, so that it is
            compared with the dataset's own samples.
        replicas: addresses of all agents that have this folder, `address` among them, if there are several.
        roster: the folder that names the agents, `address` among them, if there is one.
    """

    root: str | None
    keys: Keys
    target: Callable[[int], Any]
    address: Address | None = None
    promised: bool = False
    replicas: tuple[Address, ...] = ()
    roster: Address | None = None


@dataclass(frozen=True)
class Offloadable:
    """A dataset of N samples, taken apart: sample i is row `row_of[i]` of source `sources[source_of[i]]`.

    Args:
        sources: the folders that hold its files.
        source_of: int16[N].
        row_of: int32[N].
        owners: the dataset of each source. The main process reads their transforms at every epoch; they do not travel
            to spawned workers.
        outermost: the class of the user's dataset.
        whole: the dataset itself, which does not travel either.
        by_programs: True if these are some files of a dataset of any class (`opened_files.py`), whose pictures are
            asked for by programs alone.
        given_roots: where they lie in the export, as the user has given it; keys are then absolute paths without the
            first `/`.
    """

    sources: tuple[Source, ...]
    source_of: SharedArray
    row_of: SharedArray
    owners: tuple[Any, ...]
    outermost: type = object
    whole: Any = None
    by_programs: bool = False
    given_roots: GivenRoots = NOT_GIVEN

    def __len__(self) -> int:
        return len(self.row_of)

    def position(self, index: Any) -> int:
        """Return the sample that an index of the sampler names, in [0, N).

        Raises:
            TypeError, IndexError, ValueError: the index is invalid, as torch's dataset would raise.
            ConfigError: the index is negative, and this dataset does not count it from the end, as a list does.
        """
        length = len(self)
        if type(index) is not int:
            raise TypeError(
                f"indices of the sampler must all be integers if the first one is, got {short(index)}; give integers, "
                "or use torch's DataLoader"
            )
        if not -length <= index < length:
            error = ValueError if index < 0 and self.outermost is ConcatDataset else IndexError
            raise error(f"index of the sampler must be below {length}, got {index}")
        if index < 0 and self.outermost not in (Subset, ConcatDataset):
            keys = self.sources[0].keys
            if isinstance(keys, Calls) and (why := keys.unlike(index, length)):
                raise ConfigError(
                    f"index of the sampler must not be negative where {why}, got {index}; give {index % length}"
                )
        return index % length

    def locate(self, index: int) -> tuple[int, int]:
        """Return (source, row) of a sample."""
        return int(self.source_of.array[index]), int(self.row_of.array[index])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "owners": (), "whole": None}


class NotOffloadable(Exception):
    """Reason why a dataset runs as in a plain DataLoader; for reports, never raised at the user."""
