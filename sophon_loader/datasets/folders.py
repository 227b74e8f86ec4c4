"""Lists the folders of an export, for the error about an address that names none of them."""

from __future__ import annotations

from dataclasses import replace

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.errors import SampleError, SophonError

_TOLD = 20
"""Maximum number of folders in an error's text."""


def what_is_there(address: Address, options: OffloadOptions) -> str:
    """Return what an address could name: "the export has no folder 'smal'; it has: photos, small".

    Asks the agent to list the export, so call it for errors only.

    Args:
        address: an agent's address, whose folder may be missing.
        options: time-outs; an agent may take `dead_after_s` for its list.

    Returns:
        A clause of a sentence; "" if the agent does not answer.
    """
    named = address.folder.split("/") if address.folder else []
    for depth in range(len(named), -1, -1):
        above = replace(address, folder="/".join(named[:depth]))
        try:
            folders = _folders_in(above, options)
        except SampleError:  # there is no such folder
            continue
        except SophonError:
            return ""
        where = f"the folder {above.folder!r} of the export" if above.folder else "the export"
        told = ", ".join(folders[:_TOLD]) + (", ..." if len(folders) > _TOLD else "") if folders else "none"
        if depth == len(named):
            return f"{where} has the folders: {told}"
        return f"{where} has no folder {named[depth]!r}; it has: {told}"
    return ""


def _folders_in(address: Address, options: OffloadOptions) -> list[str]:
    connection = Connection(address, 1, options)
    try:
        return connection.listing(options.dead_after_s).folders
    finally:
        connection.close()
