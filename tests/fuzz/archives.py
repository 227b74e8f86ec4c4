"""What reads archives that anybody has written: members come out in order and within the archive, or it is refused."""

from __future__ import annotations

import io
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from sophon_loader.errors import SampleError
from storage_agent.host.agent_settings import Indexed
from storage_agent.stores.archives.archive import Archive
from storage_agent.stores.archives.index import (
    FOLDER,
    LINK,
    OTHER,
    BadIndex,
    ContainerVersion,
    Index,
    IndexEntry,
    write_index,
)
from storage_agent.stores.archives.mds import read_shard
from storage_agent.stores.archives.members import ArchiveRefused, Members
from storage_agent.stores.archives.shards import Shard
from storage_agent.stores.archives.tar import read_tar
from storage_agent.stores.archives.zip import read_zip
from tests.support.mds import shard_of

Reader = Callable[[IO[bytes], int, Callable[[int], None]], Members]
BLOCK = 512


def run_tar(data: bytes) -> None:
    """As it is, and with the checksums that its headers should have."""
    for one in (data, _summed(data)):
        _read(read_tar, one)


def run_zip(data: bytes) -> None:
    """As it is."""
    _read(read_zip, data)


def run_mds(data: bytes) -> None:
    """A shard of three samples, of a picture and a label each."""
    shard = Shard("s.mds", len(data), 3, [None, 8], 0)
    _read(lambda file, nbytes, seen: read_shard(file, nbytes, seen, shard), data)


def run_index(data: bytes) -> None:
    """A file in place of an index: what is read of it is an entry, or an error that says so."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.index"
        path.write_bytes(data)
        try:
            index = Index(path)
        except BadIndex:
            return
        if len(index) < 1000:
            index.find(b"a/x.jpg")
        try:
            index.check()
        except BadIndex:
            return
        _use(Archive("d", "tar:///x.tar", 1000, found=Indexed(str(path), ("/dev/null",) * len(index.containers))))


def _read(reader: Reader, data: bytes) -> None:
    try:
        entries = [*reader(io.BytesIO(data), len(data), lambda at: None).entries()]
    except ArchiveRefused as refused:
        assert len(str(refused)) < 2000
        return
    assert [one.name for one in entries] == sorted({one.name for one in entries})
    for entry in entries:
        assert b".." not in entry.name.split(b"/") and not entry.name.startswith(b"/") and b"\0" not in entry.name
        assert entry.container in (LINK, FOLDER, OTHER) or entry.offset + entry.length <= len(data)
    with tempfile.TemporaryDirectory() as folder:
        path, archive = Path(folder) / "x.index", Path(folder) / "x.tar"
        archive.write_bytes(data)
        write_index(path, [ContainerVersion.of(archive.stat())], entries)
        found = [one._replace(position=-1) for one in Index(path)]
        assert found == [one if one.container < OTHER else one._replace(offset=0) for one in _written(entries)]
        _use(Archive("d", f"tar://{archive}", 1000, found=Indexed(str(path), (str(archive),))))


def _written(entries: list[IndexEntry]) -> Iterator[IndexEntry]:
    for one in entries:
        yield one._replace(length=0, offset=0) if one.container == LINK else one


def _use(store: Archive) -> None:
    """Walk and read it all, as far as that ends soon."""
    for number, (folder, _, files) in enumerate(store.walk("")):
        for name in files[:50]:
            key = f"{folder}/{name}" if folder else name
            try:
                data = store.read(key)
            except SampleError:
                continue
            assert store.size(key) == len(data)
        if number > 50:
            return


def _summed(data: bytes) -> bytes:
    made = bytearray(data)
    for at in range(0, len(made) - BLOCK + 1, BLOCK):
        header = made[at : at + BLOCK]
        if header[257:262] == b"ustar":
            made[at + 148 : at + 156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)
    return bytes(made)


# --- seeds ------------------------------------------------------------------------------------------------------------


def tar_seeds() -> Iterator[bytes]:
    """Each form, with everything that a header may say."""
    yield _tar(tarfile.GNU_FORMAT, ("a/x.jpg", {}), ("n" * 120 + ".jpg", {}), ("b", {"type": tarfile.DIRTYPE}))
    yield _tar(tarfile.PAX_FORMAT, ("é/x.jpg", {"pax_headers": {"comment": "x"}}), ("y" * 120, {}))
    links = ("l", {"type": tarfile.SYMTYPE, "linkname": "a"}), ("h", {"type": tarfile.LNKTYPE, "linkname": "a/x.jpg"})
    yield _tar(tarfile.USTAR_FORMAT, ("a/x.jpg", {}), *links, ("p", {"type": tarfile.FIFOTYPE}))
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "s", "GNU.sparse.realsize": "9"}
    yield _tar(tarfile.PAX_FORMAT, ("s", {"pax_headers": sparse}))
    yield _tar(tarfile.GNU_FORMAT, ("s", {"type": tarfile.GNUTYPE_SPARSE}), ("a/x.jpg", {}))


def _tar(form: int, *members: tuple[str, dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for name, fields in members:
            header = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(header, field, value)
            header.size = 6 if header.isreg() and "linkname" not in fields else 0
            tar.addfile(header, io.BytesIO(b"pixels"))
    return file.getvalue().rstrip(b"\0").ljust(BLOCK, b"\0") + bytes(2 * BLOCK)


def zip_seeds() -> Iterator[bytes]:
    """Stored and compressed members, links, zip64, a comment."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a/x.jpg", b"pixels")
        made.writestr("é.jpg", b"pixels")
        made.writestr("notes.txt", bytes(200), zipfile.ZIP_DEFLATED)
        link = zipfile.ZipInfo("l")
        link.create_system, link.external_attr = 3, 0o120777 << 16
        made.writestr(link, "a")
        with made.open("z.jpg", "w", force_zip64=True) as member:
            member.write(b"pixels")
        made.comment = b"comment"
    yield file.getvalue()


def mds_seeds() -> Iterator[bytes]:
    """Pictures of some lengths."""
    yield shard_of([[b"\xff\xd8\xff" + bytes(nbytes), bytes(8)] for nbytes in (0, 1, 300)])


def index_seeds() -> Iterator[bytes]:
    """One of an archive with all kinds of entries."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.index"
        entries = [
            IndexEntry(b"a/x.jpg", 0, 512, 6),
            IndexEntry(b"a/y.jpg", 0, 518, 6, crc=0),
            IndexEntry(b"b", FOLDER),
            IndexEntry(b"l", LINK, target=b"a"),
            IndexEntry(b"p", OTHER),
        ]
        write_index(path, [ContainerVersion(1024, 1)], entries)
        yield path.read_bytes()
        write_index(path, [], [])
        yield path.read_bytes()
