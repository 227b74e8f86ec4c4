"""Paths of a dataset's files: in an agent's export, and on this host."""

from __future__ import annotations

import os
from itertools import takewhile

from sophon_loader.client.address import Address
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.errors import ConfigError


class Locations:
    """Paths of every sample's file, in an export and on this host.

    The folders of a dataset's sources lie in the address's folder as they lie in `common_root` on this host.

    Args:
        data: the dataset.
        address: the agent's address, whose folder corresponds to the common root; None without an agent. A key is then
            relative to its source's root.
        inner: folder below the common root, with its `/`, that corresponds to the address's folder instead. All files
            lie in it; `folders_inside` lists the candidates. ImageNet's root holds a folder `train`, and an export may
            be either.

    Attributes:
        place: (the address's folder, `inner`).

    Raises:
        ConfigError: a RemoteImageFolder or RemoteFiles names a folder that `address` does not hold.

    Example:
        >>> data = offloadable(ImageFolder("/data/photos/train"))
        >>> locations = Locations(data, Address.parse("tcp://fileserver:5555/photos/train"))
        >>> locations.key_in_export(0), locations.path_here(0)
        ('train/cat/1.jpg', '/data/photos/train/cat/1.jpg')
    """

    def __init__(self, data: Offloadable, address: Address | None, inner: str = "") -> None:
        self._data = data
        self._inner = inner
        self.place = ("" if address is None else address.folder, inner)
        self._folder = "" if address is None else address.key("")
        if address is None:
            self._folders = tuple("" for _ in data.sources)
        else:
            base = common_root(data)
            self._folders = tuple(_below(source, base, address) for source in data.sources)

    def key_in_export(self, index: int) -> str:
        """Path of a sample's file relative to the export, with `/`: the agent's name for it."""
        key = self._below_common_root(index)
        if not key.startswith(self._inner):
            raise ConfigError(
                f"key must be below {self._inner}, as the keys before it are, got {key!r}; export the folder above that"
            )
        return self._folder + key[len(self._inner) :]

    def _below_common_root(self, index: int) -> str:
        source, row = self._data.locate(index)
        key = self._folders[source] + self._data.sources[source].keys[row]
        return (self._data.given_roots.key_of(f"/{key}") or key) if self._data.given_roots else key

    def folders_inside(self) -> list[str]:
        """Folders below the common root that hold all files, the outermost first, each with its `/`."""
        shared: list[str] = []
        for index in range(len(self._data)):
            folder = self._below_common_root(index).split("/")[:-1]
            both = zip(shared if index else folder, folder, strict=False)
            shared = [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], both)]
            if not shared:
                break
        return ["/".join(shared[:depth]) + "/" for depth in range(1, len(shared) + 1)]

    def path_here(self, index: int) -> str | None:
        """Path of a sample's file on this host; None if only the agent has its folder."""
        number, row = self._data.locate(index)
        source = self._data.sources[number]
        return None if source.root is None else os.path.join(source.root, source.keys[row])

    def root_here(self, source: int) -> str | None:
        """Folder of a source on this host; None if only the agent has it."""
        return self._data.sources[source].root

    @property
    def all_here(self) -> bool:
        """True if the folders of all sources are on this host now."""
        if self._data.given_roots:
            return self._data.given_roots.mounted
        return all(source.root is not None and os.path.isdir(source.root) for source in self._data.sources)


def common_root(data: Offloadable) -> str | None:
    """Return the folder on this host that holds all sources; None if no source is on this host."""
    roots = [source.root for source in data.sources if source.root is not None]
    return os.path.commonpath([os.path.abspath(root) for root in roots]) if roots else None


def last_names(data: Offloadable) -> list[str]:
    """Return names that an export may use for a local dataset's folder: its last name, its last two, ...

    The list is empty for a dataset that names its own folder at an agent.
    """
    root = common_root(data)
    if root is None or any(source.address is not None for source in data.sources):
        return []  # a RemoteImageFolder or RemoteFiles names its own folder
    names = root.strip("/").split("/")
    return ["/".join(names[-count:]) for count in range(1, len(names) + 1) if names[-1]]


def _below(source: Source, base: str | None, address: Address) -> str:
    """Return the prefix of a source's keys in the address's folder: "" or a folder with its `/`."""
    named = [one for one in (*source.replicas, source.address) if one is not None and one.export == address.export]
    own = next((one for one in named if one.endpoint == address.endpoint), named[0] if named else None)
    if source.address is None:
        path = os.path.relpath(os.path.abspath(str(source.root)), base)
    elif own is None:
        path = ".."
    else:
        path = os.path.relpath(own.folder or ".", address.folder or ".")
    if path.split("/")[0] == "..":
        raise ConfigError(
            f"agent must be an address whose folder holds {source.address}, got {address}; leave the folder out of "
            "the address"
        )
    return "" if path == "." else f"{path}/"
