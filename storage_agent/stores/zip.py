"""The members of a zip file, as Python's zipfile reads its directory. Runs in the process that indexes."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import IO

from sophon_loader.wire.limits import MAX_KEY_NBYTES
from storage_agent.stores.members import Members, Refused

_LOCAL = struct.Struct("<4s22xHH")
"""Its own header in front of a member: signature, bytes of the name, bytes of what else belongs to it."""
_ENCRYPTED = 1 | 1 << 6
_UTF8 = 1 << 11
_UNIX = 3
_STORE = "store pictures as they are: zip -0 -r NEW.zip FOLDER"


def read_zip(file: IO[bytes], nbytes: int, seen: Callable[[int], None]) -> Members:
    """All members of a zip file.

    Args:
        file: it.
        nbytes: its size.
        seen: is told how far one has come, in bytes.

    Raises:
        Refused: it is damaged, or holds what cannot be served.
    """
    members = Members(nbytes)
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                _add(file, member, members)
                seen(member.header_offset)
    except (zipfile.BadZipFile, OSError, ValueError, ArithmeticError, LookupError, struct.error) as error:
        raise Refused(f"it must be a whole zip file, got one that zipfile does not read: {error}") from error
    except NotImplementedError as error:
        raise Refused(f"it must be a zip file of a usual kind, got one that zipfile does not read: {error}") from error
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
        raise Refused(
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
        raise Refused(
            f"its link {member.filename[:200]!r} must have the CRC-32 that it notes, {member.CRC:08x}, got "
            f"{zlib.crc32(target):08x}; it is damaged: test it (unzip -t), and copy it again"
        )
    return target.decode("utf-8", "surrogateescape")


def _begin(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin; what stands in front of them differs from what the directory says of it."""
    if not 0 <= member.header_offset < 1 << 63:
        raise Refused(f"its members must lie within it, got {member.filename[:200]!r} at {member.header_offset}")
    file.seek(member.header_offset)
    header = file.read(_LOCAL.size)
    if len(header) < _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise Refused(f"it must be a whole zip file, got no header of {member.filename[:200]!r} where it should be")
    _, name_nbytes, extra_nbytes = _LOCAL.unpack(header)
    return int(member.header_offset + _LOCAL.size + name_nbytes + extra_nbytes)


def _name(member: zipfile.ZipInfo) -> str:
    """The name that `unzip` gives it: what a Unix program wrote without saying how is as it is on its disk."""
    if member.flag_bits & _UTF8 or member.create_system != _UNIX:
        return member.filename
    try:
        return member.orig_filename.partition("\0")[0].encode("cp437").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # its name in UTF-8 stands apart, and zipfile has taken that
        return member.filename
