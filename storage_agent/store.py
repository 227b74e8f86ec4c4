"""The only file that opens data: exports by name, and nothing outside them."""

from __future__ import annotations

import errno
import os
import reprlib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from sophon_loader.errors import SampleError, SampleMissing, SampleOutsideExport, SampleUnreadable, UnknownExport
from sophon_loader.wire.messages import NO_FILE, OUTSIDE

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The file names that torchvision's ImageFolder takes."""
MAX_KEY_NBYTES = 4096
_HAS_PROC = os.path.isdir("/proc/self/fd")


class Store:
    """Reads files of exported folders.

    A key is a relative path with `/`. It may pass symlinks as long as the file it ends at lies in the export.
    """

    def __init__(self, exports: Mapping[str, Path], max_file_nbytes: int) -> None:
        self._roots = {name: os.path.realpath(folder) for name, folder in exports.items()}
        self._max_file_nbytes = max_file_nbytes

    @property
    def names(self) -> list[str]:
        """The exports' names in alphabetical order."""
        return sorted(self._roots)

    def root(self, export: str) -> str:
        """The folder of an export.

        Raises:
            UnknownExport: there is none of that name.
        """
        try:
            return self._roots[export]
        except KeyError:
            raise UnknownExport(
                f"export must be one of {self.names}, got {reprlib.repr(export)}; "
                "start the agent with --export NAME=FOLDER or correct the address"
            ) from None

    def read(self, export: str, key: str) -> bytes:
        """The bytes of one file.

        Raises:
            UnknownExport, SampleMissing, SampleOutsideExport, SampleUnreadable.
        """
        path = self._joined(export, key)
        try:
            # O_NONBLOCK: opening a FIFO must not hang; fstat then refuses it.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise _open_error(error, export, key) from error
        try:
            self._check_inside(export, key, path, descriptor)
            nbytes = self._readable_size(os.fstat(descriptor), export, key)
            return _read(descriptor, nbytes)
        except OSError as error:
            if isinstance(error, SampleError):
                raise
            raise _open_error(error, export, key) from error
        finally:
            os.close(descriptor)

    def size(self, export: str, key: str) -> int:
        """The file's size in bytes; `NO_FILE` when there is none, `OUTSIDE` when it, or its key, leaves the export.

        Whether a file lies at an absolute key or one with `..` is not said.

        Raises:
            UnknownExport.
        """
        try:
            status = os.stat(self._joined(export, key))
            self._path(export, key)
        except SampleOutsideExport:
            return OUTSIDE
        except OSError:  # SampleMissing is one
            return NO_FILE
        return status.st_size if stat.S_ISREG(status.st_mode) else NO_FILE

    def tree(self, export: str, prefix: str) -> list[tuple[str, list[str]]]:
        """(class, its files) in the order in which torchvision's ImageFolder has them.

        Raises:
            UnknownExport, SampleMissing (no such folder), SampleOutsideExport.
        """
        top = self._path(export, prefix) if prefix else self.root(export)
        try:
            with os.scandir(top) as entries:
                classes = sorted(entry.name for entry in entries if _is_folder(entry))
        except OSError as error:
            raise _open_error(error, export, prefix) from error
        return [(name, self._files_below(export, os.path.join(top, name))) for name in classes]

    def _files_below(self, export: str, folder: str) -> list[str]:
        found = []
        for parent, names in sorted(self._walk(export, folder)):
            relative = "" if parent == folder else os.path.relpath(parent, folder) + "/"
            found += [relative + name for name in sorted(names) if name.lower().endswith(IMAGE_SUFFIXES)]
        return found

    def _walk(self, export: str, top: str) -> Iterator[tuple[str, list[str]]]:
        """(folder, its files) like os.walk, following links, but neither out of the export nor in circles."""
        root = self._roots[export]
        waiting: list[tuple[str, tuple[str, ...]]] = [(top, (os.path.realpath(top),))]
        while waiting:
            folder, above = waiting.pop()
            if above[-1] in above[:-1] or not _inside(above[-1], root):
                continue
            try:
                with os.scandir(folder) as entries:
                    listed = [(entry, _is_folder(entry)) for entry in entries]
            except OSError:
                continue  # as os.walk does
            yield folder, [entry.name for entry, is_folder in listed if not is_folder]
            for entry, is_folder in listed:
                if is_folder:
                    real = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(above[-1], entry.name)
                    waiting.append((entry.path, (*above, real)))

    def _joined(self, export: str, key: str) -> str:
        root = self.root(export)
        if not key or key.startswith("/") or "\0" in key or ".." in key.split("/"):
            text = f"key must be a path relative to export {export!r} without '..', got {key[:200]!r}"
            raise SampleOutsideExport(text)
        try:
            nbytes = len(os.fsencode(key))
        except UnicodeEncodeError:
            nbytes = MAX_KEY_NBYTES + 1
        if nbytes > MAX_KEY_NBYTES:
            raise SampleMissing(
                f"file must exist in export {export!r}, got {key[:40]!r}, which cannot be a file's name"
            )
        return f"{root}/{key}"

    def _path(self, export: str, key: str) -> str:
        """The real path of a key."""
        path = os.path.realpath(self._joined(export, key))
        if not _inside(path, self._roots[export]):
            raise _leaves(export, key)
        return path

    def _check_inside(self, export: str, key: str, path: str, descriptor: int) -> None:
        # What has been opened is what is checked, so no link can be swapped in between; and one readlink is a
        # tenth of the price of realpath, which looks at every folder on the way.
        real = os.readlink(f"/proc/self/fd/{descriptor}") if _HAS_PROC else os.path.realpath(path)
        if not _inside(real, self._roots[export]):
            raise _leaves(export, key)

    def _readable_size(self, status: os.stat_result, export: str, key: str) -> int:
        if not stat.S_ISREG(status.st_mode):
            raise SampleUnreadable(f"sample must be a regular file, got {key!r} of export {export!r}")
        if status.st_size > self._max_file_nbytes:
            raise SampleUnreadable(
                f"file must be at most {self._max_file_nbytes} bytes, got {status.st_size} for {key!r} of "
                f"export {export!r}; raise the agent's --max-file-mb"
            )
        return status.st_size


def _read(descriptor: int, nbytes: int) -> bytes:
    data = os.read(descriptor, nbytes)
    while len(data) < nbytes and (more := os.read(descriptor, nbytes - len(data))):
        data += more
    return data


def _leaves(export: str, key: str) -> SampleOutsideExport:
    return SampleOutsideExport(f"key must stay inside export {export!r}, got {key!r}, a link that leaves it")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _open_error(error: OSError, export: str, key: str) -> SampleMissing | SampleUnreadable:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ENAMETOOLONG:
        return SampleMissing(f"file must exist in export {export!r}, got {key[:200]!r}")
    return SampleUnreadable(f"file must be readable by the agent, got {key!r} of export {export!r}: {error.strerror}")
