"""The members of a zip file, as Python's zipfile reads its directory. Runs in the process that indexes."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import IO

from sophon_loader.wire.limits import MAX_KEY_NBYTES
from storage_agent.stores.archives.members import ArchiveRefused, Members

_LOCAL = struct.Struct("<4s22xHH")
"""Its own header in front of a member: signature, bytes of the name, bytes of what else belongs to it."""
_ENCRYPTED = 1 | 1 << 6
_UTF8 = 1 << 11
_UNIX, _DOS = 3, 0
_EXTRA = struct.Struct("<HH")
"""Of a field of what belongs to a member: its kind, and the bytes that follow."""
_UNICODE_PATH = 0x7075
_OF_NAME = struct.Struct("<BI")
"""Of that field: its version, and the CRC-32 of the name that it stands for."""
_SIGNATURE = b"PK\3\4"
IN_FRONT = "other members in front, which are not served: several archives joined by cat, say; export them apart"
_STORE = "store pictures as they are: zip -0 -r NEW.zip FOLDER"


def read_zip(file: IO[bytes], nbytes: int, seen: Callable[[int], None]) -> Members:
    """All members of a zip file.

    Args:
        file: it.
        nbytes: its size.
        seen: is told how far one has come, in bytes.

    Raises:
        ArchiveRefused: it is damaged, or holds what cannot be served.
    """
    members = Members(nbytes)
    try:
        with zipfile.ZipFile(file) as archive:
            found = archive.infolist()
            _see_apart(found)
            for member in found:
                _add(file, member, members)
                seen(member.header_offset)
            _see_front(file, found, members)
    except (zipfile.BadZipFile, OSError, ValueError, ArithmeticError, LookupError, struct.error) as error:
        raise ArchiveRefused(f"it must be a whole zip file, got one that zipfile does not read: {error}") from error
    except NotImplementedError as error:
        raise ArchiveRefused(
            f"it must be a zip file of a usual kind, got one that zipfile does not read: {error}"
        ) from error
    return members


def _add(file: IO[bytes], member: zipfile.ZipInfo, members: Members) -> None:
    name, mode = _name(member), member.external_attr >> 16 if member.create_system == _UNIX else 0
    if name.endswith("/"):
        members.add_folder(name)
    elif member.flag_bits & _ENCRYPTED:
        members.leave_out(name, "encrypted", "write the archive anew without a password")
    elif member.compress_type != zipfile.ZIP_STORED:
        members.leave_out(name, "compressed", _STORE)
    elif member.compress_size != member.file_size:
        raise ArchiveRefused(
            f"its stored member {name[:200]!r} must have one size, got {member.compress_size} and {member.file_size}"
        )
    else:
        offset = _begin(file, member)
        if stat.S_ISLNK(mode):
            members.add_link(name, _target(file, member, offset))
        elif mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            members.add_device(name)
        else:
            members.add_file(name, offset=offset, length=member.file_size, crc=member.CRC)


def _target(file: IO[bytes], member: zipfile.ZipInfo, offset: int) -> str:
    """Where a link leads; the beginning of one that is too long."""
    file.seek(offset)
    target = file.read(min(member.file_size, MAX_KEY_NBYTES + 1))
    if len(target) == member.file_size and zlib.crc32(target) != member.CRC:
        raise ArchiveRefused(
            f"its link {member.filename[:200]!r} must have the CRC-32 that it notes, {member.CRC:08x}, got "
            f"{zlib.crc32(target):08x}; it is damaged: test it (unzip -t), and copy it again"
        )
    return target.decode("utf-8", "surrogateescape")


def _begin(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin; what stands in front of them differs from what the directory says of it."""
    if not 0 <= member.header_offset < 1 << 63:
        raise ArchiveRefused(f"its members must lie within it, got {member.filename[:200]!r} at {member.header_offset}")
    file.seek(member.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(_SIGNATURE):
        raise ArchiveRefused(
            f"it must be a whole zip file, got no header of {member.filename[:200]!r} where it should be"
        )
    _, name_nbytes, extra_nbytes = _LOCAL.unpack(header)
    return int(member.header_offset + _LOCAL.size + name_nbytes + extra_nbytes)


def _see_apart(found: Sequence[zipfile.ZipInfo]) -> None:
    """See that no two names of the directory are of one place, as unzip does; of the same bytes, say.

    Raises:
        ArchiveRefused: two are.
    """
    end, before = -1, ""
    for member in sorted(found, key=_place):
        if member.header_offset < end:
            raise ArchiveRefused(
                f"its members must lie apart, got {before[:200]!r} and {member.filename[:200]!r} at one place; write "
                "it anew"
            )
        before = member.filename
        end = member.header_offset + _LOCAL.size + max(0, member.compress_size)


def _place(member: zipfile.ZipInfo) -> int:
    return member.header_offset


def _see_front(file: IO[bytes], found: Sequence[zipfile.ZipInfo], members: Members) -> None:
    """Doubt an archive with members in front of its first one: unzip sees the last of several archives, too."""
    file.seek(0)
    if found and min(map(_place, found)) > 0 and file.read(4) == _SIGNATURE:
        members.doubts.append(IN_FRONT)


def _name(member: zipfile.ZipInfo) -> str:
    """The name that `unzip` gives it; programs of DOS may have written `\\` for `/`."""
    name = member.filename if member.flag_bits & _UTF8 else _name_in_bytes(member)
    return name.replace("\\", "/") if member.create_system == _DOS and "/" not in name else name


def _name_in_bytes(member: zipfile.ZipInfo) -> str:
    """A name that does not say what its bytes are: a Unix program has written them as they are on its disk."""
    try:
        raw = member.orig_filename.encode("cp437")
    except UnicodeEncodeError:  # its name in UTF-8 stands apart, and zipfile has taken that
        return member.filename
    if (name := _unicode_path(member.extra, raw)) is not None:
        return name
    return (
        raw.partition(b"\0")[0].decode("utf-8", "surrogateescape") if member.create_system == _UNIX else member.filename
    )


def _unicode_path(extra: bytes, raw: bytes) -> str | None:
    """The name in UTF-8 that stands apart, of the name that a member has; Python's zipfile takes it since 3.13 only."""
    while len(extra) >= _EXTRA.size:
        kind, nbytes = _EXTRA.unpack_from(extra)
        content, extra = extra[_EXTRA.size : _EXTRA.size + nbytes], extra[_EXTRA.size + nbytes :]
        if kind == _UNICODE_PATH and len(content) == nbytes > _OF_NAME.size:
            version, crc = _OF_NAME.unpack_from(content)
            if version == 1 and crc == zlib.crc32(raw):
                try:
                    return content[_OF_NAME.size :].decode()
                except UnicodeDecodeError:
                    return None
    return None
