"""The only package that opens data: exports by name, each in a store that its location names."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from pathlib import Path

from sophon_loader.errors import ConfigError, UnknownExport
from storage_agent.host.agent_settings import AgentSettings, Indexed
from storage_agent.stores.archives.archive import Archive
from storage_agent.stores.archives.indexing import indexed
from storage_agent.stores.buckets.far import SCHEMES, Far
from storage_agent.stores.buckets.fetcher import Fetcher
from storage_agent.stores.folder import Folder
from storage_agent.stores.store import Store

STORES: dict[str, type[Store]] = {
    "": Folder,
    **dict.fromkeys(("tar", "zip", "parquet", "mds", "lance"), Archive),
    **dict.fromkeys(SCHEMES, Far),
}
"""The store of each scheme, the part of a location in front of `://`; "" is a location without one."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")
_MEANT = re.compile(r"(tar|zip|parquet|mds|lance|s3|gs|az):")
"""What is meant as a location with a scheme, and lacks slashes."""


class Exports:
    """The exports of an agent, by name.

    Example:
        >>> exports = open_exports(AgentSettings({"photos": "/data/photos"}, "tcp://127.0.0.1:0", workers=1))
        >>> exports["photos"].read("cats/1.jpg")
    """

    def __init__(self, stores: Mapping[str, Store], fetcher: Fetcher) -> None:
        self._stores = dict(stores)
        self.fetcher = fetcher
        self.names = sorted(stores)

    def __getitem__(self, export: str) -> Store:
        """The store of an export.

        Raises:
            UnknownExport: there is none of that name.
        """
        try:
            return self._stores[export]
        except KeyError:
            raise UnknownExport(
                f"export must be one of {self.names}, got {reprlib.repr(export)}; "
                "start the agent with --export NAME=FOLDER or correct the address"
            ) from None

    def is_far(self, export: str) -> bool:
        """Whether an export's files take long to come, however quickly they are read: `fetch` has them come before."""
        return isinstance(self._stores.get(export), Far)

    def fetch(self, export: str, key: str) -> None:
        """Have a file of a far export at hand for the next `read` of it, which also tells what has gone wrong."""
        store = self._stores[export]
        assert isinstance(store, Far), store
        store.fetch(key)

    def check(self) -> None:
        """See whether all of them can be served.

        Raises:
            ConfigError: one cannot.
        """
        for store in self._stores.values():
            store.check()

    def indexed(self) -> dict[str, Indexed]:
        """Name -> index, of the exports that have one and have been checked: for `AgentSettings.indexed`."""
        archives = {name: store for name, store in self._stores.items() if isinstance(store, Archive)}
        return {name: store.found for name, store in archives.items() if store.found is not None}

    def describe(self) -> dict[str, str]:
        """Name -> where the files lie."""
        return {name: self._stores[name].describe() for name in self._stores}

    def close(self) -> None:
        """End the process that reads far stores, if `check` has started one."""
        self.fetcher.close()


def make_index(location: str, folder: Path | None) -> str:
    """The index of archives, made if there is none; the listing of a bucket, made anew. Its path.

    Args:
        location: what stands behind `--export NAME=`.
        folder: where indexes are kept; None for the usual one.

    Raises:
        ConfigError: there can be none.
    """
    scheme, slashes, _ = location.partition("://")
    made = STORES.get(scheme) if slashes else None
    if made is Archive:
        return indexed("NAME", location, folder)[0].index
    if made is Far:
        fetcher = Fetcher()
        try:
            return str(Far("NAME", location, 0, index_folder=folder, fetcher=fetcher).keep_listing())
        finally:
            fetcher.close()
    known = ", ".join(f"{scheme}://" for scheme in STORES if scheme)
    raise ConfigError(f"what is indexed must be one of {known} and a path, got {location!r}; folders need no index")


def open_exports(settings: AgentSettings) -> Exports:
    """The exports that the settings name, without looking at the data; see `Exports.check`.

    Raises:
        ConfigError: a location has a scheme that no store is for.
    """
    stores: dict[str, Store] = {}
    fetcher = Fetcher()
    for name, location in settings.exports.items():
        match = _SCHEME.match(location)
        made = STORES.get(match.group(1) if match else "")
        if made is None or (match is None and _MEANT.match(location)):
            known = ", ".join(f"{scheme}://" for scheme in STORES if scheme)
            raise ConfigError(f"export {name!r} must be a folder or one of {known}, got {location!r}")
        given = (name, location, settings.max_file_nbytes)
        if made is Folder:
            stores[name] = Folder(*given, links_out=settings.links_out)
        elif made is Archive:
            found = settings.indexed.get(name)
            stores[name] = Archive(*given, index_folder=settings.index_folder, found=found)
        elif made is Far:
            found = settings.indexed.get(name)
            stores[name] = Far(*given, index_folder=settings.index_folder, found=found, fetcher=fetcher)
        else:
            stores[name] = made(*given)
    return Exports(stores, fetcher)
