"""What a store of files is to the rest of the agent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The file names that torchvision's ImageFolder takes."""


class Store(Protocol):
    """The files of one export, by key: a relative path with `/`.

    Made once in the broker's process and once in each worker, cheaply and without looking at the data. `check` is
    called once, when the agent starts; `describe` by any thread; the others by reader threads and workers, several
    at a time, so a store that is not safe under threads keeps what it needs per thread.

    Args:
        export: its name, for the texts of errors.
        location: what stands behind `--export NAME=`.
        max_file_nbytes: larger files are refused.

    Example:
        class Memory:
            def __init__(self, export: str, location: str, max_file_nbytes: int) -> None:
                self._files = {"a/x.jpg": b"..."}

            def read(self, key: str) -> bytes:
                try:
                    return self._files[key]
                except KeyError:
                    raise SampleMissing(f"file must exist, got {key!r}") from None
            ...
    """

    def __init__(self, export: str, location: str, max_file_nbytes: int) -> None: ...

    def check(self) -> None:
        """See whether the location can be served.

        Raises:
            ConfigError: it cannot; the text says what to do.
        """

    def describe(self) -> str:
        """Where the files lie, in full, for people: the loader names it when the two ends disagree."""

    def read(self, key: str) -> bytes:
        """The bytes of one file.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable.
        """

    def begin(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The beginning of one file, of `nbytes` or all that it has, and its size in bytes.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable: as `read`, but for damage further on.
        """

    def size(self, key: str) -> int:
        """The file's size in bytes; `NO_FILE` when there is none, `OUTSIDE` when it, or its key, leaves the export."""

    def expect(self, keys: Sequence[str], nbytes: int | None = None) -> None:
        """Files that are read next, each once: a store from which they take long to come has them come meanwhile.

        Args:
            keys: of the files.
            nbytes: what `begin` will ask for of each; None where they are read whole.
        """

    def walk(self, prefix: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """(folder relative to `prefix`, names of its folders, names of its files), `prefix` itself first.

        Args:
            prefix: a folder's key; "" for the whole export.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable: of `prefix`. A folder below it that cannot be looked
                into is left out.
        """
