"""A folder of files: what lies in it, and nothing outside it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence

from sophon_loader.errors import (
    AgentBusy,
    ConfigError,
    SampleError,
    SampleMissing,
    SampleOutsideExport,
    SampleUnreadable,
)
from sophon_loader.host.regular import read_to_end
from sophon_loader.wire.messages import NO_FILE, OUTSIDE
from storage_agent.host.descriptors import NONE_LEFT
from storage_agent.stores import refusals

_HAS_PROC = os.path.isdir("/proc/self/fd")


class Folder:
    """Reads files below a folder; see `Store`.

    A key may pass symlinks as long as the file it ends at lies in the folder, or links may lead out of it.

    Args:
        export: the export's name, for the texts of errors.
        location: the folder's path.
        max_file_nbytes: larger files are refused.
        links_out: whether links may lead anywhere.

    Example:
        >>> Folder("photos", "/data/photos", max_file_nbytes=1 << 28).size("cats/1.jpg")
        109648
    """

    def __init__(self, export: str, location: str, max_file_nbytes: int, *, links_out: bool = False) -> None:
        self._links_out = links_out
        self._export = export
        self._location = location
        self._root = os.path.realpath(location)
        self._max_file_nbytes = max_file_nbytes

    def check(self) -> None:
        """See that it is a folder with something in it, given as one that nobody means by accident.

        That of a loader's own agent, whose links may lead anywhere, no person has given. It is what holds all files of
        a dataset, so the whole file system where they lie on two disks, or a folder that only its owner may list.

        Raises:
            ConfigError: it is not.
        """
        _check_path(self._export, self._location)
        if not self._links_out:
            _check_folder(self._export, self._location)

    def describe(self) -> str:
        """The folder's real path."""
        return self._root

    def read(self, key: str) -> bytes:
        """The bytes of one file.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable.
        """
        return self.begin(key, self._max_file_nbytes)[0]

    def begin(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The beginning of one file, of `nbytes` or all that it has, and its size in bytes.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable.
        """
        path = self._joined(key)
        try:
            # O_NONBLOCK: opening a FIFO must not hang; fstat then refuses it.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._open_error(error, key) from error
        try:
            self._check_inside(key, path, descriptor)
            return self._read(descriptor, key, nbytes)
        except OSError as error:
            if isinstance(error, SampleError):
                raise
            raise self._open_error(error, key) from error
        finally:
            os.close(descriptor)

    def size(self, key: str) -> int:
        """The file's size in bytes; `NO_FILE` when there is none, `OUTSIDE` when it, or its key, leaves the folder.

        Whether a file lies at an absolute key or one with `..` is not said.
        """
        try:
            status = os.stat(self._joined(key))
            self._path(key)
        except SampleOutsideExport:
            return OUTSIDE
        except OSError:  # SampleMissing is one
            return NO_FILE
        if not stat.S_ISREG(status.st_mode):
            return NO_FILE
        if status.st_size:
            return status.st_size
        try:
            return len(self.read(key))  # mounts of object stores say 0 of all files
        except SampleError:
            return 0

    def expect(self, keys: Sequence[str], nbytes: int | None = None) -> None:
        """Nothing: files come as quickly as they are read."""

    def walk(self, prefix: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Like os.walk, following links, but neither out of the folder nor in circles; see `Store.walk`.

        Args:
            prefix: a folder's key; "" for the whole export.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable: of `prefix`.
        """
        top = self._path(prefix) if prefix else self._root
        waiting: list[tuple[str, str, tuple[str, ...]]] = [("", top, (top,))]
        while waiting:
            relative, path, above = waiting.pop()
            if above[-1] in above[:-1] or not self._may_serve(above[-1]):
                continue
            try:
                with os.scandir(path) as entries:
                    listed = [(entry, _is_folder(entry)) for entry in entries]
            except OSError as error:
                if path is top or error.errno in NONE_LEFT:
                    raise self._open_error(error, prefix) from error
                continue  # as os.walk does
            folders = [entry for entry, is_folder in listed if is_folder]
            files = [entry.name for entry, is_folder in listed if not is_folder]
            yield relative, [entry.name for entry in folders], files
            for entry in folders:
                real = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(above[-1], entry.name)
                waiting.append((os.path.join(relative, entry.name), entry.path, (*above, real)))

    def _joined(self, key: str) -> str:
        refusals.check_key(self._export, key)
        return f"{self._root}/{key}"

    def _path(self, key: str) -> str:
        """The real path of a key."""
        path = os.path.realpath(self._joined(key))
        if not self._may_serve(path):
            raise refusals.leaves(self._export, key)
        return path

    def _may_serve(self, path: str) -> bool:
        """Whether a real path lies where links may lead."""
        return self._links_out or _inside(path, self._root)

    def _check_inside(self, key: str, path: str, descriptor: int) -> None:
        # What has been opened is what is checked, so no link can be swapped in between; and one readlink is a
        # tenth of the price of realpath, which looks at every folder on the way.
        real = os.readlink(f"/proc/self/fd/{descriptor}") if _HAS_PROC else os.path.realpath(path)
        if not self._may_serve(real):
            raise refusals.leaves(self._export, key)

    def _read(self, descriptor: int, key: str, wanted: int) -> tuple[bytes, int]:
        status, most = os.fstat(descriptor), self._max_file_nbytes
        if not stat.S_ISREG(status.st_mode):
            raise refusals.no_file(self._export, key)
        # Of a file with 0 bytes, by what `stat` says, only the end tells the size.
        at_most = wanted if status.st_size and wanted < most else most
        data = b"" if status.st_size > most else read_to_end(descriptor, min(status.st_size, at_most), at_most)
        if (nbytes := max(status.st_size, len(data))) > most:
            raise refusals.too_large(self._export, key, nbytes, most)
        return data[:wanted], nbytes

    def _open_error(self, error: OSError, key: str) -> SampleMissing | SampleUnreadable | AgentBusy:
        if error.errno in NONE_LEFT:
            return refusals.no_descriptor()
        if isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ENAMETOOLONG:
            return refusals.missing(self._export, key)
        return refusals.unreadable(self._export, key, error.strerror)


def _check_path(export: str, path: str) -> None:
    """Refuse a folder that is empty, or relative without saying so: an unset variable or an unexpanded `~` makes such
    ones."""
    if not path:
        raise ConfigError(
            f"export {export!r} must be NAME=FOLDER with a folder, got {export + '='!r}; is a shell variable not set?"
        )
    if not path.startswith("/") and path.split("/")[0] not in (".", ".."):
        raise ConfigError(
            f"export {export!r} must be an absolute folder, or begin with ./; got {path!r}; an unset shell variable or "
            "an unexpanded ~ makes such a path"
        )


def _check_folder(export: str, path: str) -> None:
    where = os.path.abspath(path)
    if where.endswith((".tar", ".zip")) and os.path.isfile(path):
        raise ConfigError(f"export {export!r} must be a folder, got the file {where}; write {where[-3:]}://{where}")
    if not os.path.isdir(path):
        raise ConfigError(f"export {export!r} must be an existing folder, got {where}; correct it, or mount it first")
    try:
        with os.scandir(path) as entries:
            empty = next(entries, None) is None
    except OSError as error:
        raise ConfigError(
            f"export {export!r} must be a folder that the agent can read, got {where}: {error.strerror}; run the agent "
            "as a user who may"
        ) from error
    if where == os.sep:
        raise ConfigError(
            f"export {export!r} must be a folder of data, got the whole file system; is a variable before the / not "
            "set?"
        )
    if empty:
        raise ConfigError(
            f"export {export!r} must be a folder with something in it, got {where}, which is empty; is nothing mounted "
            "there?"
        )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
