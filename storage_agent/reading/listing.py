"""Finds ImageFolder's class tree in any store's folders."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sophon_loader.errors import SampleError
from storage_agent.stores.store import IMAGE_SUFFIXES, Store


def classes_of(store: Store, prefix: str) -> dict[str, str]:
    """Return the classes below a folder, in the order of torchvision's ImageFolder: keys of their folders by name.

    Args:
        store: store of the export.
        prefix: key of the folder whose subfolders are the classes; "" for the whole export.

    Raises:
        SampleMissing, SampleOutsideExport, SampleUnreadable: the folder cannot be listed.
    """
    _, classes, _ = next(store.walk(prefix))
    above = f"{prefix.rstrip('/')}/" if prefix else ""
    return {name: above + name for name in sorted(classes)}


def images_below(store: Store, folder: str) -> Iterator[list[str]]:
    """Yield the image files below a class's folder, folder by folder in ImageFolder's order.

    Args:
        store: store of the export.
        folder: key of the folder.
    """
    with contextlib.suppress(SampleError):  # for instance, a class that leaves the export has no files
        found = []
        for one in store.walk(folder):
            found.append(one)
            yield []
        for parent, _, names in sorted(found):
            below = f"{parent}/" if parent else ""
            yield [below + name for name in sorted(names) if name.lower().endswith(IMAGE_SUFFIXES)]
