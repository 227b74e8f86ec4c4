"""Every store gives the same of the same tree: bytes, sizes, walks, listings, errors; under threads, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sophon_loader.errors import SampleError
from sophon_loader.wire.messages import NO_FILE, OUTSIDE
from storage_agent.listing import classes_of, images_below
from storage_agent.stores.archive import Archive
from storage_agent.stores.folder import Folder
from storage_agent.stores.store import Store
from tests.support.archives import TAR_WRITERS, ZIP_WRITERS, location_of

LIMIT = 1000
NO_LONG = ["tarfile-ustar", "tar-ustar", "tar-v7"]
"""Writers whose form has no room for long names."""
NO_PIPE = ["tar-v7", *ZIP_WRITERS]
NO_LATIN = ["zipfile"]
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
LONG = "long/" + "d" * 120 + "/" + "n" * 200 + ".jpg"


def _grow(root: Path, *, long: bool, pipe: bool, latin: bool) -> None:
    """A tree with everything that a folder may hold."""
    for name in ("a/deep", "café", "nothing", "a-b", "long/" + "d" * 120 if long else "a"):
        (root / name).mkdir(parents=True, exist_ok=True)
    contents = {
        "a/x.jpg": b"pixels", "a/deep/y.png": b"more", "empty.jpg": b"", "café/日本.jpg": b"utf-8",
        "a b\n.jpg": b"blank", "..x.jpg": b"dots", "a-b/z.jpg": b"dash", "notes.txt": b"text",
        "\\x.jpg": b"slash", "full.jpg": bytes(LIMIT), "big.jpg": bytes(LIMIT + 1), }  # fmt: skip
    if long:
        contents[LONG] = b"long"
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
    if pipe:
        os.mkfifo(root / "pipe")


@pytest.fixture(scope="module", params=[*TAR_WRITERS, *ZIP_WRITERS])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Store]:
    """The store of a folder, and that of an archive of it."""
    above = tmp_path_factory.mktemp("stores")
    (above / "secret.jpg").write_bytes(b"secret")
    root = above / "data"
    root.mkdir()
    writer = request.param
    _grow(root, long=writer not in NO_LONG, pipe=writer not in NO_PIPE, latin=writer not in NO_LATIN)
    location = location_of(root, above / "data", request.param)
    archive = Archive("d", location, LIMIT, index_folder=above / "indexes")
    archive.check()
    return Folder("d", str(root), LIMIT), archive


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except SampleError as error:
        return type(error), str(error)


def _walked(store: Store, prefix: str) -> list[tuple[str, list[str], list[str]]]:
    return sorted((name, sorted(folders), sorted(files)) for name, folders, files in store.walk(prefix))


def test_same_bytes_or_the_same_error(stores: tuple[Store, Store]) -> None:
    folder, archive = stores
    for key in [*KEYS, LONG]:
        assert _outcome(lambda key=key: archive.read(key)) == _outcome(lambda key=key: folder.read(key)), key


def test_same_sizes(stores: tuple[Store, Store]) -> None:
    folder, archive = stores
    for key in [*KEYS, LONG]:
        assert archive.size(key) == folder.size(key), key
    assert archive.size("big.jpg") == LIMIT + 1 and archive.size("none.jpg") == NO_FILE


def test_links_that_leave_are_refused(stores: tuple[Store, Store]) -> None:
    for store in stores:
        for key in ("a/out.jpg", "absolute.jpg"):
            with pytest.raises(SampleError, match="a link that leaves it"):
                store.read(key)
            assert store.size(key) == OUTSIDE


@pytest.mark.parametrize("prefix", ["", "a", "a/", "./a//deep", "a/deep/", "b", "a/up", "nothing", "café"])
def test_same_walks(stores: tuple[Store, Store], prefix: str) -> None:
    folder, archive = stores
    assert _walked(archive, prefix) == _walked(folder, prefix)


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
