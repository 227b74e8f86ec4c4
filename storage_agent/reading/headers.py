"""Headers of files, told from as little of each as holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sophon_loader.errors import SampleError
from sophon_loader.kinds.image.header import begins_like_a_picture, header_of, pack
from storage_agent.stores.store import Store

BEGINNING_NBYTES = 64 << 10
"""What is read of a file first. Metadata may push a header further back; then the whole file is read."""
_AHEAD = 64
"""Files of which a store knows before they are read, for which one that is far needs as long as for one."""


def headers_at(store: Store, keys: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    """The size of each file and its packed header, as `Headers` has them, in the order of the keys.

    Args:
        store: where they lie.
        keys: their paths there.
    """
    for at in range(0, len(keys), _AHEAD):
        some = keys[at : at + _AHEAD]
        store.expect(some, BEGINNING_NBYTES)
        for key in some:
            yield header_at(store, key)


def header_at(store: Store, key: str) -> tuple[int, bytes]:
    """The size of a file and its packed header, as `Headers` has them.

    Args:
        store: where it lies.
        key: its path there.
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
