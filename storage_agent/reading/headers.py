"""Headers of files, told from as little of each as holds it."""

from __future__ import annotations

from sophon_loader.errors import SampleError
from sophon_loader.kinds.image.header import begins_like_a_picture, header_of, pack
from storage_agent.stores.store import Store

BEGINNING_NBYTES = 64 << 10
"""What is read of a file first. Metadata may push a header further back; then the whole file is read."""


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
