"""Every store gives the same of the same tree: bytes, sizes, walks, listings, errors; under threads, too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sophon_loader.errors import SampleError
from sophon_loader.wire.messages import NO_FILE, OUTSIDE
from storage_agent.reading.listing import classes_of, images_below
from storage_agent.stores.archives.archive import Archive
from storage_agent.stores.buckets.far import Far
from storage_agent.stores.buckets.fetcher import Fetcher
from storage_agent.stores.folder import Folder
from storage_agent.stores.store import Store
from tests.support import seaweed
from tests.support.archives import TAR_WRITERS, ZIP_WRITERS, location_of

LIMIT = 1000
NO_PIPE = ["tar-v7", "bsdtar-v7tar", *ZIP_WRITERS]
NO_LATIN = [name for name in ZIP_WRITERS if not name.startswith("zip-")]
SHORT = ["tar-v7", "bsdtar-v7tar"]
"""Writers whose form has room for 99 bytes of a name."""
SPLIT = ["tarfile-ustar", "tar-ustar", "bsdtar-ustar"]
"""Writers whose form has room for 155 bytes in front of a slash and 100 behind it."""
KEYS = [
    "a/x.jpg", "a/deep/y.png", "empty.jpg", "café/日本.jpg", "caf\udce9.jpg", "a b\n.jpg", "..x.jpg", "a-b/z.jpg",
    "\\x.jpg", "./a//deep/./y.png", "link.jpg", "a/up/a/up/a/x.jpg", "b/y.png", "hard.jpg", "full.jpg", "big.jpg",
    "notes.txt",
    # nothing, or no file
    "none.jpg", "a/none.jpg", "a", "a/", "a/deep", "nothing", "a/x.jpg/", "a/x.jpg/y.jpg", "A/x.jpg", "dangling.jpg",
    "loop.jpg", "pipe", "\udcff", "\ud800", "a/" * 3000 + "x.jpg", "x" * 300, "a/x", "a/x.jpg0",
    # outside
    "", "/", "/etc/passwd", "..", "../secret.jpg", "a/../a/x.jpg", "a\0", "a/x.jpg\0.png",
]  # fmt: skip
NAMES = {
    "short": "n" * 93 + ".jpg",  # 99 bytes behind the `./` of some writers
    "split": "s" * 99 + "/" + "t" * 53 + "/" + "n" * 96 + ".jpg",
    "long": "long/" + "d" * 120 + "/" + "n" * 200 + ".jpg",
    "long-utf8": "lang/" + "ü" * 110 + "/" + "日" * 70 + ".jpg",
    **{f"of {nbytes}": "n" * (nbytes - 4) + ".png" for nbytes in (*range(98, 103), 255)},
}
"""Names that forms of tar files write in ways of their own."""


def _names(writer: str) -> list[str]:
    """Those that a writer has room for."""
    return [*NAMES.values()][: 1 if writer in SHORT else 2 if writer in SPLIT else None]


def _grow(root: Path, names: list[str], *, pipe: bool, latin: bool) -> None:
    """A tree with everything that a folder may hold."""
    for folder in ("a/deep", "café", "nothing", "a-b", *(os.path.dirname(name) for name in names)):
        (root / folder).mkdir(parents=True, exist_ok=True)
    contents = {
        "a/x.jpg": b"pixels", "a/deep/y.png": b"more", "empty.jpg": b"", "café/日本.jpg": b"utf-8",
        "a b\n.jpg": b"blank", "..x.jpg": b"dots", "a-b/z.jpg": b"dash", "notes.txt": b"text",
        "\\x.jpg": b"slash", "full.jpg": bytes(LIMIT), "big.jpg": bytes(LIMIT + 1), }  # fmt: skip
    contents |= {name: b"%d" % number for number, name in enumerate(names)}
    if latin:
        contents[os.fsdecode(b"caf\xe9.jpg")] = b"latin"
    for name, data in contents.items():
        (root / name).write_bytes(data)
    for name, target in {
        "link.jpg": "a/x.jpg", "a/up": "..", "b": "a/deep", "dangling.jpg": "none", "loop.jpg": "loop.jpg",
        "a/out.jpg": "../../secret.jpg", "absolute.jpg": "/etc/hostname",
    }.items():  # fmt: skip
        (root / name).symlink_to(target)
    os.link(root / "a/x.jpg", root / "hard.jpg")
    if len(names) > 2:  # there is room for a link's target, too
        (root / "to-long.jpg").symlink_to(NAMES["long-utf8"])
        os.link(root / NAMES["long"], root / "hard-long.jpg")
    if pipe:
        os.mkfifo(root / "pipe")


def _as_objects(root: Path) -> None:
    """Make a tree one that objects can be: links are copies, folders are not empty, names can be printed."""
    for path in [*root.rglob("*")]:
        if path.is_symlink():
            target = Path(os.path.realpath(path))
            path.unlink()
            if target.is_relative_to(root) and path.name != "up" and target.exists():
                (shutil.copytree if target.is_dir() else shutil.copyfile)(target, path)
        elif "\n" in path.name or "\\" in path.name:
            path.unlink()
    (root / "nothing").rmdir()


@pytest.fixture(scope="module", params=[*TAR_WRITERS, *ZIP_WRITERS, pytest.param("s3", marks=pytest.mark.slow_start)])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Store]]:
    """The store of a folder, and that of an archive of it, or of its files as objects."""
    above = tmp_path_factory.mktemp("stores")
    (above / "secret.jpg").write_bytes(b"secret")
    root = above / "data"
    root.mkdir()
    writer = request.param
    if writer == "s3":
        _grow(root, [*NAMES.values()], pipe=False, latin=False)
        _as_objects(root)
        yield from _of_objects(root, above)
        return
    _grow(root, _names(writer), pipe=writer not in NO_PIPE, latin=writer not in NO_LATIN)
    location = location_of(root, above / "data", writer)
    archive = Archive("d", location, LIMIT, index_folder=above / "indexes")
    archive.check()
    yield Folder("d", str(root), LIMIT), archive


def _of_objects(root: Path, above: Path) -> Iterator[tuple[Store, Store]]:
    (above / "server").mkdir()
    with seaweed.for_tests(above / "server") as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        server.bucket("data")
        server.put_tree("data", root.parent)
        server.put("data", "data-too/secret.jpg", b"secret")
        fetcher = Fetcher()
        far = Far("d", "s3://data/data/", LIMIT, index_folder=above / "indexes", fetcher=fetcher)
        try:
            far.check()
            yield Folder("d", str(root), LIMIT), far
        finally:
            fetcher.close()


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except SampleError as error:
        return type(error), str(error)


def _walked(store: Store, prefix: str) -> list[tuple[str, list[str], list[str]]]:
    return sorted((name, sorted(folders), sorted(files)) for name, folders, files in store.walk(prefix))


def test_same_bytes_or_the_same_error(stores: tuple[Store, Store]) -> None:
    folder, archive = stores
    for key in [*KEYS, *NAMES.values()]:
        assert _outcome(lambda key=key: archive.read(key)) == _outcome(lambda key=key: folder.read(key)), key


@pytest.mark.parametrize("nbytes", [1, 4, LIMIT, 10 * LIMIT])
def test_same_beginnings(stores: tuple[Store, Store], nbytes: int) -> None:
    """Of the whole file's bytes, with its size; the errors are those of a whole read."""
    for store in stores:
        store.expect(KEYS[::2], nbytes)
        for key in KEYS:
            whole = _outcome(lambda key=key, store=store: store.read(key))
            wanted = (whole[:nbytes], len(whole)) if isinstance(whole, bytes) else whole
            assert _outcome(lambda key=key, store=store: store.begin(key, nbytes)) == wanted, key


def test_same_sizes(stores: tuple[Store, Store]) -> None:
    folder, archive = stores
    for key in [*KEYS, *NAMES.values()]:
        assert archive.size(key) == folder.size(key), key
    assert archive.size("big.jpg") == LIMIT + 1 and archive.size("none.jpg") == NO_FILE


def test_same_files(stores: tuple[Store, Store]) -> None:
    """Every file that is found in the folder, by the name under which it is found."""
    folder, archive = stores
    keys = [os.path.join(above, name) for above, _, files in folder.walk("") for name in files]
    assert keys
    for key in keys:
        assert archive.size(key) == folder.size(key), key
        assert _outcome(lambda key=key: archive.read(key)) == _outcome(lambda key=key: folder.read(key)), key


def test_links_that_leave_are_refused(stores: tuple[Store, Store]) -> None:
    if isinstance(stores[1], Far):
        return  # there are no links
    for store in stores:
        for key in ("a/out.jpg", "absolute.jpg"):
            with pytest.raises(SampleError, match="a link that leaves it"):
                store.read(key)
            assert store.size(key) == OUTSIDE


@pytest.mark.parametrize("prefix", ["", "a", "a/", "./a//deep", "a/deep/", "b", "a/up", "nothing", "café"])
def test_same_walks(stores: tuple[Store, Store], prefix: str) -> None:
    folder, archive = stores
    walked = _outcome(lambda: _walked(folder, prefix))
    assert _outcome(lambda: _walked(archive, prefix)) == walked
    assert isinstance(walked, list) or isinstance(archive, Far), walked


@pytest.mark.parametrize("prefix", ["none", "a/x.jpg", "..", "/", "x" * 5000, "dangling.jpg"])
def test_same_errors_of_walks(stores: tuple[Store, Store], prefix: str) -> None:
    folder, archive = stores
    told = _outcome(lambda: next(archive.walk(prefix)))
    assert isinstance(told, tuple) and told == _outcome(lambda: next(folder.walk(prefix)))


@pytest.mark.parametrize("prefix", ["", "a"])
def test_same_listings(stores: tuple[Store, Store], prefix: str) -> None:
    folder, archive = (
        [(name, [*images_below(store, key)]) for name, key in classes_of(store, prefix).items()] for store in stores
    )
    assert [(name, [one for some in files for one in some]) for name, files in archive] == [
        (name, [one for some in files for one in some]) for name, files in folder
    ]


def test_threads(stores: tuple[Store, Store]) -> None:
    folder, archive = stores
    keys = ["a/x.jpg", "a/deep/y.png", "full.jpg", "b/y.png", "empty.jpg"] * 40
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(archive.read, keys)) == list(map(folder.read, keys))


def test_shards_that_webdataset_writes(tmp_path: Path) -> None:
    """Its writer, with its own encoders, several samples to a shard."""
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    names = ["000000", "a b/000001", "été/日本.part", "n" * 120, "d" * 160 + "/" + "n" * 120]
    folder = tmp_path / "folder"
    with webdataset.ShardWriter(f"{tmp_path}/part-%d.tar", maxcount=3, verbose=0) as writer:
        for number, name in enumerate(names):
            files = {"jpg": b"pixels%d" % number, "cls": b"%d" % number, "meta.json": b'{"n": 7}', "txt": "é".encode()}
            told = {"cls": number, "meta.json": {"n": 7}, "txt": "é"}  # the rest is encoded by itself
            writer.write({"__key__": name, **files, **told})
            for extension, data in files.items():
                path = folder / f"part-{number // 3}" / f"{name}.{extension}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
    here = Folder("d", str(folder), LIMIT)
    archives = Archive("d", f"tar://{tmp_path}/part-{{0..1}}.tar", LIMIT, index_folder=tmp_path / "indexes")
    archives.check()
    assert _walked(archives, "") == _walked(here, "")
    keys = [os.path.join(above, name) for above, _, files in here.walk("") for name in files]
    assert len(keys) == 4 * len(names)
    for key in keys:
        assert (archives.size(key), archives.read(key)) == (here.size(key), here.read(key)), key
