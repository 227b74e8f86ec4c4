"""What of an archive's members is served: kept by name as they come, or refused, or left out and counted.

Runs in the process that indexes, never in one that holds keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sophon_loader.wire.limits import MAX_KEY_NBYTES
from storage_agent.stores.archives.index import FOLDER, LINK, MAX_LENGTH, OTHER, IndexEntry
from storage_agent.stores.store import IMAGE_SUFFIXES

MAX_MEMBERS = 1 << 24
"""Of one archive."""
UNPACKED = 1
"""Number of the container, in the index of one archive, that holds its unpacked pictures; 0 is the archive."""


class ArchiveRefused(Exception):
    """An archive cannot be served; the text says why, and what to do."""


class Members:
    """The members of one archive, by name; the last of a name counts, as it does for `tar` and `unzip`.

    Args:
        nbytes: of the archive.

    Example:
        >>> members = Members(10_240)
        >>> members.add_file("cats/1.jpg", offset=512, length=4096)
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._kept: dict[bytes, tuple[int, int, int, int | None] | bytes] = {}
        """Name -> (container, offset, length, CRC-32), or a link's target."""
        self.left_out = LeftOut()
        self.doubts: list[str] = []
        """Why it may not be the whole archive, though it can be read."""
        self._seen = 0

    def add_file(self, name: str, *, offset: int, length: int, crc: int | None = None, container: int = 0) -> None:
        """A regular file whose bytes lie in the archive as they are.

        Args:
            name: as the archive has it.
            offset, length: where its bytes lie.
            crc: the CRC-32 that the archive notes of them; None where it notes none.
            container: number of the file in which they lie, for an archive of several.

        Raises:
            ArchiveRefused: they do not, or the name leads out of the archive.
        """
        key = self._key(name)
        if min(offset, length) < 0 or offset + length > self._nbytes:
            raise ArchiveRefused(
                f"its member {_shown(name)} must end within its {self._nbytes} bytes, got {length} bytes at {offset}; "
                "it is cut off or damaged: copy it again"
            )
        if length > MAX_LENGTH:
            self._leave_out(key, name, "larger than 4 GiB", "serve it from a folder")
        elif key:
            self._kept[key] = (container, offset, length, crc)

    def add_unpacked(self, name: str, *, offset: int, length: int, crc: int) -> None:
        """A regular file whose bytes lie among the archive's unpacked pictures; see `add_file`."""
        key = self._key(name)
        if length > MAX_LENGTH:
            self._leave_out(key, name, "larger than 4 GiB", "serve it from a folder")
        elif key:
            self._kept[key] = (UNPACKED, offset, length, crc)

    def add_link(self, name: str, target: str) -> None:
        """A symbolic link. It is followed when a key is read, because a loop of folders has no end of names."""
        key, to = self._key(name), _encoded(target)
        if not to or b"\0" in to or len(to) > MAX_KEY_NBYTES:
            self._leave_out(key, name, "links without a usable target", "write the archive anew")
        elif key:
            self._kept[key] = to

    def add_hard_link(self, name: str, target: str) -> None:
        """Another name of an earlier member."""
        key, found = self._key(name), self._kept.get(self._key(target))
        if found is None:
            self._leave_out(key, name, "hard links to files that the archive does not have", "write the archive anew")
        elif key:
            self._kept[key] = found

    def add_folder(self, name: str) -> None:
        """A folder, which may be empty."""
        self._add_other(name, FOLDER)

    def add_device(self, name: str) -> None:
        """A pipe or device."""
        self._add_other(name, OTHER)

    def leave_out(self, name: str, why: str, remedy: str) -> None:
        """A member that cannot be served.

        Raises:
            ArchiveRefused: it is a picture.
        """
        self._leave_out(self._key(name), name, why, remedy)

    def __len__(self) -> int:
        return len(self._kept)

    def entries(self) -> Iterator[IndexEntry]:
        """What is kept, in the order of names."""
        for key in sorted(self._kept):
            kept = self._kept[key]
            if isinstance(kept, bytes):
                yield IndexEntry(key, LINK, target=kept)
            else:
                container, offset, length, crc = kept
                yield IndexEntry(key, container, offset, length, crc=crc)

    def _add_other(self, name: str, kind: int) -> None:
        if key := self._key(name):
            self._kept[key] = (kind, 0, 0, None)

    def _leave_out(self, key: bytes, name: str, why: str, remedy: str) -> None:
        self._kept.pop(key, None)
        self.left_out.add(key or _encoded(name), why, remedy)

    def _key(self, name: str) -> bytes:
        """The key of a name; empty for the archive itself (`./`)."""
        self._seen += 1
        if self._seen > MAX_MEMBERS:
            raise ArchiveRefused(f"it must have at most {MAX_MEMBERS} members, got more; make several archives of it")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise ArchiveRefused(
                f"its members must have relative names without '..', got {_shown(name)}; write it anew from inside the "
                "folder, as tar -C FOLDER . does"
            )
        key = _encoded("/".join(parts))
        if len(key) > MAX_KEY_NBYTES:
            self.left_out.add(key, f"names of more than {MAX_KEY_NBYTES} bytes", "shorten them")
            return b""
        return key


class LeftOut:
    """Members that are not served, by reason.

    Example:
        >>> left_out = LeftOut()
        >>> left_out.add(b"notes.txt", "compressed", "store it")
    """

    def __init__(self) -> None:
        self.reasons: dict[str, tuple[int, str]] = {}
        """Reason -> (how many, name of the first)."""

    def add(self, key: bytes, why: str, remedy: str) -> None:
        """Count one.

        Raises:
            ArchiveRefused: it is a picture.
        """
        name = key.decode("utf-8", "surrogateescape")
        if name.lower().endswith(IMAGE_SUFFIXES):
            raise ArchiveRefused(f"its picture {_shown(name)} cannot be served ({why}); {remedy}")
        self.join({why: (1, name)})

    def join(self, others: Mapping[str, tuple[int, str]]) -> None:
        """Count those of another one."""
        for why, (more, name) in others.items():
            count, first = self.reasons.get(why, (0, name))
            self.reasons[why] = count + more, first


def _encoded(name: str) -> bytes:
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character of UTF-16, in a hostile archive
        raise ArchiveRefused(f"its members must have names in UTF-8, got {_shown(name)}; write it anew") from None


def _shown(name: str) -> str:
    return repr(name[:200])
