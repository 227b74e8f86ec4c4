"""Reads the headers of files from as few bytes of each as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sophon_loader.errors import SampleError
from sophon_loader.kinds.image.header import begins_like_a_picture, header_of, pack
from storage_agent.stores.store import Store

BEGINNING_NBYTES = 64 << 10
"""Bytes of a file that are read first. If metadata pushes the header further back, the whole file is read."""
_AHEAD = 64
"""Number of files that are announced to the store before they are read. A far store needs as long for all as for
one."""


def headers_at(store: Store, keys: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """Yield (size, packed header) of each file in the order of the keys, as in `Headers`.

    Args:
        store: store that holds them.
        keys: their paths in the store.
    """
    for at in range(0, len(keys), _AHEAD):
        some = keys[at : at + _AHEAD]
        store.expect(some, BEGINNING_NBYTES)
        for key in some:
            yield header_at(store, key)


def header_at(store: Store, key: str) -> tuple[int, bytes]:
    """Return (size, packed header) of a file, as in `Headers`.

    Args:
        store: store that holds it.
        key: its path in the store.
    """
    try:
        data, nbytes = store.begin(key, BEGINNING_NBYTES)
    except SampleError:
        return store.size(key), b""
    header = header_of(data)
    if header is None and len(data) < nbytes and begins_like_a_picture(data):
        try:
            header = header_of(store.read(key))
        except SampleError:
            return nbytes, b""
    return nbytes, b"" if header is None else pack(header)
