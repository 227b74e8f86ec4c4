"""The members of a tar file, as Python's tarfile reads them. Runs in the process that indexes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from typing import IO

from storage_agent.stores.archives.members import ArchiveRefused, Members

_MAX_READ_NBYTES = 128 << 10
"""Of a header with what belongs to it (long names, attributes): tarfile reads each whole, whatever size it claims."""
_STEP_NBYTES = 1 << 20
"""Of what is behind the end: zeros up to a whole record, of 10 KiB unless tar is told otherwise, or to any size."""
NO_END = "no zeros at the end: cut off between two members, perhaps; copy it again, unless its writer leaves them out"
_MAX_GLOBAL = 1000
"""Facts about all members that follow: tarfile applies each of them to each member."""
_DUMPED_FOLDER = b"D"
"""A folder with the names of what lies there, as GNU tar writes it with --listed-incremental."""
_MAGIC = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "zstd -d", b"\xfd7zXZ": "unxz", b"BZh": "bunzip2"}


def read_tar(file: IO[bytes], nbytes: int, seen: Callable[[int], None]) -> Members:
    """All members of a tar file.

    Args:
        file: it.
        nbytes: its size.
        seen: is told how far one has come, in bytes.

    Raises:
        ArchiveRefused: it is damaged, or holds what cannot be served.
    """
    for magic, command in _MAGIC.items():
        file.seek(0)
        if file.read(len(magic)) == magic:
            raise ArchiveRefused(f"it must not be compressed; unpack it with {command}")
    file.seek(0)
    members = Members(nbytes)
    try:
        with tarfile.open(
            fileobj=_Headers(file), mode="r:", encoding="utf-8", errors="surrogateescape", tarinfo=_Header
        ) as tar:
            _read(tar, members, seen)
            _check_end(file, tar.offset, members)
    except (tarfile.TarError, OSError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise ArchiveRefused(f"it must be a whole tar file, got one that tarfile does not read: {error}") from error
    return members


def _read(tar: tarfile.TarFile, members: Members, seen: Callable[[int], None]) -> None:
    last = -1
    while (member := tar.next()) is not None:
        tar.members.clear()  # type: ignore[attr-defined] # it keeps all that it has seen
        if not last < member.offset < tar.offset:
            raise ArchiveRefused(f"its headers must follow each other, got one at {member.offset} behind one at {last}")
        if len(tar.pax_headers) > _MAX_GLOBAL:
            raise ArchiveRefused(f"it must have at most {_MAX_GLOBAL} global headers, got more")
        last = member.offset
        _add(member, members)
        seen(last)


def _add(member: tarfile.TarInfo, members: Members) -> None:
    name = member.name
    if member.isdir() or member.type == _DUMPED_FOLDER:
        members.add_folder(name)
    elif member.issym():
        members.add_link(name, member.linkname)
    elif member.islnk():
        members.add_hard_link(name, member.linkname)
    elif member.issparse():
        members.leave_out(name, "sparse", "write the archive anew without --sparse; bsdtar: with --no-read-sparse")
    elif member.isreg():
        members.add_file(name, offset=member.offset_data, length=member.size)
    elif member.isdev():
        members.add_device(name)
    elif member.type != b"V":  # a label, which is no member
        members.leave_out(name, f"of type {member.type!r}", "write the archive anew")


def _check_end(file: IO[bytes], offset: int, members: Members) -> None:
    """See that it ends, by zeros or by its last member. tarfile also stops at what it does not understand."""
    file.seek(offset)
    end = file.read(tarfile.BLOCKSIZE)
    if end.strip(b"\0"):
        raise ArchiveRefused(
            f"it must be a whole tar file, got a damaged or cut off header at byte {offset}; copy it again"
        )
    if not end:
        members.doubts.append(NO_END)
    while step := file.read(_STEP_NBYTES):
        if step.count(0) == len(step):
            continue
        for at in range(0, len(step), tarfile.BLOCKSIZE):
            block = step[at : at + tarfile.BLOCKSIZE]
            if block.strip(b"\0"):
                if _is_header(block):
                    raise ArchiveRefused(
                        "it must be one archive, got another behind its end; join them with tar -A, not with cat"
                    )
                return


def _is_header(block: bytes) -> bool:
    """Whether a block is a member's header; those of old tars are told by their checksum alone."""
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return block[257:262] == b"ustar"
    return True


class _Header(tarfile.TarInfo):
    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        made = super().frombuf(buf, encoding, errors)
        if buf[257:265] == tarfile.GNU_MAGIC and made.type not in tarfile.GNU_TYPES:
            # tarfile takes what stands at a prefix's place for one: here, in backups, times of access and change
            name = bytes(buf[:100]).partition(b"\0")[0].decode(encoding, errors)
            made.name = name.rstrip("/") if made.isdir() else name
        if made.size < 0:
            raise ArchiveRefused(f"its members must have sizes, got {made.size} for {made.name[:200]!r}")
        return made


class _Headers(io.RawIOBase):
    """A file of which only headers are read."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _MAX_READ_NBYTES:
            raise ArchiveRefused(f"its headers must have at most {_MAX_READ_NBYTES} bytes, got one of {size}")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if not 0 <= offset < 1 << 63:
            raise ArchiveRefused(f"its members must end within it, got an end at byte {offset}")
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
