"""ImageFolder's class tree, out of what any store walks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sophon_loader.errors import SampleError
from storage_agent.stores.store import IMAGE_SUFFIXES, Store


def classes_of(store: Store, prefix: str) -> dict[str, str]:
    """The classes below a folder, in the order in which torchvision's ImageFolder has them: name -> key of its folder.

    Args:
        store: of the export.
        prefix: the key of the folder whose folders are the classes; "" for the whole export.

    Raises:
        SampleMissing (no such folder), SampleOutsideExport, SampleUnreadable.
    """
    _, classes, _ = next(store.walk(prefix))
    above = f"{prefix.rstrip('/')}/" if prefix else ""
    return {name: above + name for name in sorted(classes)}


def images_below(store: Store, folder: str) -> Iterator[list[str]]:
    """The image files below the folder of a class, folder by folder in ImageFolder's order.

    Args:
        store: of the export.
        folder: its key.
    """
    with contextlib.suppress(SampleError):  # a class that leaves the export, say, has no files
        found = []
        for one in store.walk(folder):
            found.append(one)
            yield []
        for parent, _, names in sorted(found):
            below = f"{parent}/" if parent else ""
            yield [below + name for name in sorted(names) if name.lower().endswith(IMAGE_SUFFIXES)]
