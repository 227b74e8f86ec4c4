"""Pictures that an archive holds only compressed, written once as they are. Runs in the process that indexes.

Reading one row through pyarrow costs its whole row group: 100 MB for a picture of 100 KB. In a file of their own, the
pictures are read like those of other archives, by one `pread`, and no process that holds keys has to run pyarrow.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

import xxhash

from storage_agent.stores.archives.index import NOT_THERE, UNFINISHED, ContainerVersion
from storage_agent.stores.archives.members import ArchiveRefused
from storage_agent.stores.archives.notes import WRITE_PLAIN


class UnpackedPictures:
    """The pictures of one archive that are unpacked, in a file that has its name once it is whole.

    The file is made with the first picture. It may take half of the disk space that is free then.

    Args:
        path: its name, in the folder of indexes.

    Example:
        >>> with UnpackedPictures(Path("/home/ann/.cache/sophon/indexes/5f0c.rows")) as unpacked:
        ...     unpacked.see_room(2_000_000)
        ...     offset = unpacked.add(picture)
        ...     version = unpacked.keep(modified_ns=1_700_000_000_000_000_000)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._room = shutil.disk_usage(path.parent).free // 2
        self._file: IO[bytes] | None = None
        self._made = ""
        self._places: dict[bytes, int] = {}
        """Digest -> where a picture of this row group lies."""
        self.nbytes = 0
        self.count = 0

    def __enter__(self) -> UnpackedPictures:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._made:
            with contextlib.suppress(OSError):
                os.unlink(self._made)

    def see_room(self, nbytes: int) -> None:
        """See that pictures have room, before any of them is unpacked.

        Args:
            nbytes: their size in bytes, about.

        Raises:
            ArchiveRefused: they have not.
        """
        if nbytes > self._room:
            raise ArchiveRefused(
                f"its compressed pictures must fit into half of the free space of {self._path.parent}, "
                f"{self._room} bytes, to be unpacked there, got {nbytes} bytes; give the agent an --index-folder with "
                f"more room, or {WRITE_PLAIN}"
            )

    def begin_group(self) -> None:
        """Forget where the pictures of the row group before lie."""
        self._places.clear()

    def add(self, value: bytes) -> int:
        """Write a picture unless its row group has an equal one already; the offset where it lies.

        Raises:
            ArchiveRefused: there is no room for it, or it cannot be written.
        """
        self.count += 1
        digest = xxhash.xxh3_128_digest(value)
        if (at := self._places.get(digest)) is not None:
            return at
        self.see_room(self.nbytes + len(value))
        try:
            if self._file is None:
                descriptor, self._made = tempfile.mkstemp(prefix=UNFINISHED, dir=self._path.parent)
                self._file = os.fdopen(descriptor, "wb")
            self._file.write(value)
        except OSError as error:  # not to be taken for one of reading the table
            raise ArchiveRefused(
                f"its compressed pictures must be unpacked into {self._path.parent}, got an error: {error}; give the "
                f"agent another --index-folder, or {WRITE_PLAIN}"
            ) from error
        at = self._places[digest] = self.nbytes
        self.nbytes += len(value)
        return at

    def keep(self, modified_ns: int) -> ContainerVersion:
        """Give the file its name; its version, `NOT_THERE` if nothing was unpacked.

        Args:
            modified_ns: the archive's time of change, which becomes that of the file. So equal archives have equal
                indexes, and one that is unpacked again does not differ for who reads the first one.

        Raises:
            OSError: it cannot be written.
        """
        if self._file is None:
            return NOT_THERE
        self._file.close()
        os.utime(self._made, ns=(modified_ns, modified_ns))
        version = ContainerVersion.of(os.stat(self._made))
        os.replace(self._made, self._path)
        self._made = ""
        return version
