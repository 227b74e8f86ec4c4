"""Which datasets can be offloaded, and what of them a loader worker needs: arrays that all workers share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset
from torchvision import get_image_backend
from torchvision.datasets import DatasetFolder, VisionDataset
from torchvision.datasets.folder import default_loader

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.errors import ConfigError
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.shared import SharedArray, SharedStrings

Transform = Callable[[Any], Any]


@runtime_checkable
class OffloadableDataset(Protocol):
    """A map-style dataset of image files that says where they lie.

    `dataset[i]` must be `(transform(image), target(i))`, `image` being the file `root/key(i)` as PIL RGB. `key` and
    `target` are called in the loader's workers, so they must not depend on what a worker does.
    """

    root: str
    transform: Transform | None

    def __len__(self) -> int: ...

    def key(self, index: int) -> str:
        """The path of sample `index` relative to `root`, with `/`."""

    def target(self, index: int) -> Any:
        """Its label, as the training loop gets it."""


@dataclass(frozen=True)
class Source:
    """One folder of files.

    Args:
        root: the folder on this host; None when it is only at the agent.
        keys: row -> path relative to `root`.
        target: row -> label, before `target_transform`.
        address: where the folder is, when it is only at an agent.
        promised: whether all this is only what an `OffloadableDataset` says of itself.
    """

    root: str | None
    keys: Any
    target: Callable[[int], Any]
    address: Address | None = None
    promised: bool = False


@dataclass(frozen=True)
class Offloadable:
    """A dataset taken apart: sample i is row `rows[i]` of source `sources[of[i]]`.

    `owners` are the datasets that the sources come from, whose transforms the main process reads at every epoch; they
    do not travel to spawned workers.
    """

    sources: tuple[Source, ...]
    of: SharedArray
    rows: SharedArray
    owners: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def locate(self, index: int) -> tuple[int, int]:
        """(source, row) of a sample."""
        return int(self.of.array[index]), int(self.rows.array[index])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "owners": ()}


class NotOffloadable(Exception):
    """Why a dataset runs as in a plain DataLoader; for reports, never raised at the user."""


def offloadable(dataset: Any) -> Offloadable:
    """Take a dataset apart.

    Raises:
        NotOffloadable: it is none of those that DESIGN names; the text says what is missing.
    """
    owned, of, rows = _parts(dataset)
    sources, owners = zip(*owned, strict=True) if owned else ((), ())
    return Offloadable(sources, SharedArray(of), SharedArray(rows), owners)


def _nodes(dataset: Any) -> Iterator[Any]:
    """A dataset, and those that Subset and ConcatDataset are made of, down to the ones that hold samples."""
    yield dataset
    inner = [dataset.dataset] if type(dataset) is Subset else dataset.datasets if type(dataset) is ConcatDataset else []
    for one in inner:
        yield from _nodes(one)


def owners(dataset: Any) -> list[Any]:
    """The datasets that hold the transforms."""
    return [node for node in _nodes(dataset) if type(node) not in (Subset, ConcatDataset)]


def look(dataset: Any) -> list[Any]:
    """What `offloadable` reads of a dataset, to be compared with what it will be later, by `same_look`.

    Holds the samples of folders one by one, so that a change in place shows as well.
    """
    return [part for node in _nodes(dataset) for part in _read_of(node)]


def _read_of(node: Any) -> list[Any]:
    if type(node) is Subset:
        return [node.dataset, _kept(node.indices)]
    if type(node) is ConcatDataset:
        return [_kept(node.datasets)]
    if isinstance(node, RemoteImageFolder):
        return [node.address, node.shared_keys, node.shared_targets]
    if isinstance(node, DatasetFolder):
        return [node.root, node.loader, get_image_backend(), _kept(node.samples)]
    return [node.root, len(node)] if isinstance(node, OffloadableDataset) else []


def same_look(one: list[Any], other: list[Any]) -> bool:
    """Whether two looks at a dataset found the same."""
    return len(one) == len(other) and all(map(_same_part, one, other))


def _same_part(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and isinstance(one, (list, str, int)) and bool(one == other)
    except ValueError:  # labels whose comparison is no truth value; the same objects were not compared
        return False


def _kept(values: Any) -> Any:
    """A copy of a sequence, as cheap to make and to compare as can be."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def transforms_of(owner: Any) -> tuple[Transform | None, Transform | None]:
    """The transform and the target transform of a dataset that a source comes from, as they are now."""
    # The protocol's target(index) is the label as the training loop gets it, whatever else the dataset has.
    labels = owner.target_transform if isinstance(owner, (DatasetFolder, RemoteImageFolder)) else None
    return owner.transform, labels


@dataclass(frozen=True)
class Pipeline:
    """What a dataset does to its samples, as it is now."""

    transform: Transform | None
    target_transform: Transform | None
    chain: Chain


def pipeline_of(owner: Any) -> Pipeline:
    """The pipeline of a dataset that a source comes from."""
    transform, target_transform = transforms_of(owner)
    return Pipeline(transform, target_transform, chain_of(transform))


def same_pipeline(before: Pipeline, now: Pipeline) -> bool:
    """Whether neither a transform was replaced nor the parameters of one were changed."""
    old, new = before.chain, now.chain
    # The objects too: one without a description, or behind such a one, may have been replaced in its Compose.
    return (
        before.transform is now.transform
        and before.target_transform is now.target_transform
        and len(old) == len(new)
        and all(one.call is other.call for one, other in zip(old.ops, new.ops, strict=True))
        and old.description == new.description
    )


_Parts = tuple[list[tuple[Source, Any]], NDArray[np.int16], NDArray[np.int32]]


def _parts(dataset: Any) -> _Parts:
    if type(dataset) is Subset:
        sources, of, rows = _parts(dataset.dataset)
        try:
            chosen = np.asarray(dataset.indices, dtype=np.int64).reshape(-1)
            return sources, of[chosen], rows[chosen]
        except (TypeError, ValueError, IndexError) as error:
            raise NotOffloadable(f"a Subset has indices that its dataset does not have: {error}") from error
    if type(dataset) is ConcatDataset:
        return _joined([_parts(part) for part in dataset.datasets])
    source, length = _source(dataset)
    return [(source, dataset)], np.zeros(length, np.int16), np.arange(length, dtype=np.int32)


def _joined(parts: list[_Parts]) -> _Parts:
    sources: list[tuple[Source, Any]] = []
    of, rows = [], []
    for more, its_of, its_rows in parts:
        of.append(its_of + len(sources))
        rows.append(its_rows)
        sources += more
    if len(sources) > np.iinfo(np.int16).max:
        raise NotOffloadable(f"a ConcatDataset of {len(sources)} folders is more than {np.iinfo(np.int16).max}")
    return sources, np.concatenate(of).astype(np.int16), np.concatenate(rows)


def _source(dataset: Any) -> tuple[Source, int]:
    if isinstance(dataset, RemoteImageFolder):
        _check_own(dataset, RemoteImageFolder)
        target = _IntTargets(dataset.shared_targets)
        return Source(None, dataset.shared_keys, target, dataset.address), len(dataset)
    if isinstance(dataset, DatasetFolder):
        return _folder(dataset), len(dataset)
    if isinstance(dataset, OffloadableDataset):
        return Source(str(dataset.root), _Calls(dataset.key), dataset.target, promised=True), len(dataset)
    raise NotOffloadable(
        f"{type(dataset).__name__} is not an ImageFolder, a Subset or ConcatDataset of such, a RemoteImageFolder, or a "
        "dataset with root, transform, key(index) and target(index)"
    )


def _check_own(dataset: Any, base: type) -> None:
    for name in ("__getitem__", "__len__", "__getitems__"):
        if getattr(type(dataset), name, None) is not getattr(base, name, None):
            raise NotOffloadable(f"{type(dataset).__name__} has a {name} of its own")


def _folder(dataset: Any) -> Source:
    _check_own(dataset, DatasetFolder)
    if dataset.loader is not default_loader or get_image_backend() != "PIL":
        raise NotOffloadable(f"{type(dataset).__name__} does not use torchvision's default loader with Pillow")
    root = os.fspath(dataset.root)
    below = os.path.join(root, "")
    try:
        keys = SharedStrings(map(itemgetter(0), dataset.samples), below)
    except ValueError as error:
        why = f"{type(dataset).__name__} has samples that do not lie below its root {root}"
        raise NotOffloadable(why) from error
    return Source(root, keys, _targets_of(dataset.samples))


def _targets_of(samples: Sequence[tuple[str, Any]]) -> Callable[[int], Any]:
    if set(map(type, map(itemgetter(1), samples))) <= {int}:
        return _IntTargets(SharedArray(np.fromiter(map(itemgetter(1), samples), np.int64, len(samples))))
    return _ObjectTargets([target for _, target in samples])


@dataclass(frozen=True)
class _IntTargets:
    values: SharedArray

    def __call__(self, row: int) -> int:
        return int(self.values.array[row])


@dataclass(frozen=True)
class _ObjectTargets:
    values: list[Any]

    def __call__(self, row: int) -> Any:
        return self.values[row]


@dataclass(frozen=True)
class _Calls:
    """The keys of an `OffloadableDataset`, as its `key` gives them."""

    function: Callable[[int], str]

    def __getitem__(self, row: int) -> str:
        """The key of a row.

        Raises:
            ConfigError: it is no path relative to the root.
        """
        key = self.function(row)
        if type(key) is not str:
            raise ConfigError(
                f"key({row}) must be text, got {key!r} of type {type(key).__name__}; return str(...) of it"
            )
        if key.startswith("/"):
            raise ConfigError(
                f"key({row}) must be a path relative to root, got the absolute {key!r}; leave out the root"
            )
        if ".." in key.split("/"):
            raise ConfigError(
                f"key({row}) must stay below root, got {key!r}; make root the folder that holds all files"
            )
        return key


class RemoteImageFolder(VisionDataset):  # type: ignore[misc]
    """torchvision's ImageFolder for a host that does not mount the data: the agent lists and sends the files.

    Args:
        agent: `tcp://host:port/export[/folder]`; the folder holds one subfolder per class.
        transform, target_transform: as ImageFolder's.
        options: time-outs.

    Has `classes`, `class_to_idx`, `samples`, `targets` and `imgs` as ImageFolder has them, in the same order; the paths
    in `samples` start with the agent's address. Indexing it fetches one file and works without OffloadingDataLoader.

    Raises:
        ConfigError: the address is malformed.
        AgentUnreachable, UnknownExport, SampleMissing: the listing cannot be had.
        FileNotFoundError: no classes, or a class without images (as ImageFolder).
    """

    def __init__(
        self,
        agent: str,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        *,
        options: OffloadOptions | None = None,
    ) -> None:
        super().__init__(agent, transform=transform, target_transform=target_transform)
        self.address = Address.parse(agent)
        self.options = options or OffloadOptions()
        self._connection: tuple[int, Connection] | None = None
        tree = self._listing()
        self.classes = [name for name, _ in tree]
        self.class_to_idx = {name: position for position, name in enumerate(self.classes)}
        counts = [len(names) for _, names in tree]
        self.shared_keys = SharedStrings([f"{name}/{file}" for name, files in tree for file in files])
        self.shared_targets = SharedArray(np.repeat(np.arange(len(counts), dtype=np.int64), counts))

    def _listing(self) -> list[tuple[str, list[str]]]:
        connection = Connection(self.address, window=1)
        try:
            connection.greet(self.options.connect_timeout_s)
            tree = connection.listing(10 * self.options.dead_after_s)
        finally:
            connection.close()
        if not tree:
            raise FileNotFoundError(f"Couldn't find any class folder in {self.address}.")
        if empty := [name for name, files in tree if not files]:
            raise FileNotFoundError(f"Found no valid file for the classes {', '.join(empty)} in {self.address}.")
        return tree

    def __len__(self) -> int:
        return len(self.shared_keys)

    @property
    def targets(self) -> list[int]:
        """The class index of every sample."""
        targets: list[int] = self.shared_targets.array.tolist()
        return targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(address of the file, class index) of every sample; made anew at each access."""
        return [(f"{self.address}/{self.shared_keys[i]}", t) for i, t in enumerate(self.targets)]

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """ImageFolder's other name for `samples`."""
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """One sample, with the file fetched from the agent and everything run here."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be below {len(self)}, got {index}")
        index %= len(self)
        data = self._own_connection().file(self.shared_keys[index], self.options.dead_after_s)
        # The transform draws from the caller's generators, as in any torchvision dataset.
        image = chain_of(None).run(data, 0, 1, Draw(0, 0, index))
        target: Any = int(self.shared_targets.array[index])
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )

    def _own_connection(self) -> Connection:
        if self._connection is None or self._connection[0] != os.getpid():
            self._connection = (os.getpid(), Connection(self.address, window=1))
        return self._connection[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}
