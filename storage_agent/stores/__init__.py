"""The only package that opens data: exports by name, each in a store that its location names."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping
from functools import partial

from sophon_loader.errors import ConfigError, UnknownExport
from storage_agent.settings import Settings
from storage_agent.stores.folder import Folder
from storage_agent.stores.store import Store

STORES: dict[str, type[Store]] = {"": Folder}
"""The store of each scheme, the part of a location in front of `://`; "" is a location without one."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")


class Exports:
    """The exports of an agent, by name.

    Example:
        >>> exports = open_exports(Settings({"photos": "/data/photos"}, "tcp://127.0.0.1:0", workers=1))
        >>> exports["photos"].read("cats/1.jpg")
    """

    def __init__(self, stores: Mapping[str, Store]) -> None:
        self._stores = dict(stores)
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

    def check(self) -> None:
        """See whether all of them can be served.

        Raises:
            ConfigError: one cannot.
        """
        for store in self._stores.values():
            store.check()

    def describe(self) -> dict[str, str]:
        """Name -> where the files lie."""
        return {name: self._stores[name].describe() for name in self._stores}


def open_exports(settings: Settings) -> Exports:
    """The exports that the settings name, without looking at the data; see `Exports.check`.

    Raises:
        ConfigError: a location has a scheme that no store is for.
    """
    stores = {}
    makers: dict[str, Callable[[str, str, int], Store]] = {**STORES, "": partial(Folder, links_out=settings.links_out)}
    for name, location in settings.exports.items():
        match = _SCHEME.match(location)
        scheme = match.group(1) if match else ""
        if scheme not in STORES:
            known = ", ".join(f"{scheme}://" for scheme in STORES if scheme)
            raise ConfigError(f"export {name!r} must be a folder{known and ' or one of '}{known}, got {location!r}")
        stores[name] = makers[scheme](name, location, settings.max_file_nbytes)
    return Exports(stores)
