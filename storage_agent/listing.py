"""ImageFolder's class tree, out of what any store walks."""

from __future__ import annotations

import contextlib

from sophon_loader.errors import SampleError
from storage_agent.stores.store import Store

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The file names that torchvision's ImageFolder takes."""


def image_classes(store: Store, prefix: str) -> list[tuple[str, list[str]]]:
    """(class, its files below it) in the order in which torchvision's ImageFolder has them.

    Args:
        store: of the export.
        prefix: the key of the folder whose folders are the classes; "" for the whole export.

    Raises:
        SampleMissing (no such folder), SampleOutsideExport, SampleUnreadable.
    """
    _, classes, _ = next(store.walk(prefix))
    above = f"{prefix.rstrip('/')}/" if prefix else ""
    return [(name, _images_below(store, above + name)) for name in sorted(classes)]


def _images_below(store: Store, folder: str) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(SampleError):  # a class that leaves the export, say, has no files
        for parent, _, names in sorted(store.walk(folder)):
            below = f"{parent}/" if parent else ""
            found += [below + name for name in sorted(names) if name.lower().endswith(IMAGE_SUFFIXES)]
    return found
