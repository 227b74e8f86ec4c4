"""The store reads what lies in its exports and nothing else, whatever the key."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.datasets import ImageFolder

from sophon_loader.errors import SampleError, SampleMissing, SampleOutsideExport, SampleUnreadable, UnknownExport
from storage_agent import store as store_module
from storage_agent.store import Store

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "x.jpg").write_bytes(b"pixels")
    (folder / "a" / "deep" / "y.png").write_bytes(b"more")
    (folder / "empty.jpg").touch()
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "data-too").mkdir()
    (tmp_path / "data-too" / "secret.jpg").write_bytes(b"secret")
    return folder


@pytest.fixture
def store(root: Path) -> Store:
    return Store({"d": root, "other": root / "a"}, LIMIT)


@pytest.fixture(params=["proc", "no proc"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With /proc, and as on a system without it."""
    if request.param == "no proc":
        monkeypatch.setattr(store_module, "_HAS_PROC", False)


# --- what may be read -----------------------------------------------------------------------------------------


def test_files_are_read_whole(store: Store, root: Path, anywhere: None) -> None:
    assert store.read("d", "a/x.jpg") == b"pixels"
    assert store.read("d", "a/deep/y.png") == b"more"
    assert store.read("other", "x.jpg") == b"pixels"
    assert store.read("d", "empty.jpg") == b""
    assert store.read("d", "./a//deep/./y.png") == b"more"
    assert [store.size("d", key) for key in ("a/x.jpg", "empty.jpg", "a/none.jpg")] == [6, 0, -1]
    assert store.names == ["d", "other"] and store.root("d") == str(root)


def test_a_link_within_the_export_is_followed(store: Store, root: Path, anywhere: None) -> None:
    (root / "link.jpg").symlink_to("a/x.jpg")
    (root / "absolute.jpg").symlink_to(root / "a" / "x.jpg")
    (root / "b").symlink_to("a/deep")
    (root / "a" / "up").symlink_to("..")
    for key in ("link.jpg", "absolute.jpg", "a/up/a/up/a/x.jpg"):
        assert store.read("d", key) == b"pixels" and store.size("d", key) == 6
    assert store.read("d", "b/y.png") == b"more"


def test_an_export_that_is_a_link(tmp_path: Path, root: Path, anywhere: None) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert Store({"d": tmp_path / "alias"}, LIMIT).read("d", "a/x.jpg") == b"pixels"


def test_an_export_of_everything() -> None:
    store = Store({"all": Path("/")}, 1 << 20)
    here = Path(__file__).resolve()
    assert store.read("all", str(here)[1:]) == here.read_bytes()


@pytest.mark.parametrize(
    "name", ["café.jpg", "日本.jpg", "a b\n.jpg", "\\x.jpg", "..x.jpg", "...", "a..b", "*.jpg", "~"]
)
def test_any_file_name(store: Store, root: Path, name: str) -> None:
    (root / name).write_bytes(b"1")
    assert store.read("d", name) == b"1" and store.size("d", name) == 1


def test_a_file_name_that_is_not_utf8(store: Store, root: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (root / "a" / name).write_bytes(b"1")
    assert store.read("d", f"a/{name}") == b"1" and store.size("d", f"a/{name}") == 1
    assert ("a", [name, "deep/y.png", "x.jpg"]) == (store.tree("d", "")[0][0], sorted(store.tree("d", "")[0][1]))


# --- what may not ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [
    "", "/", "/etc/passwd", "..", "../secret.jpg", "a/../../secret.jpg", "a/..", "a/../a/x.jpg", "a/x.jpg/..",
    "../data/a/x.jpg", "../data-too/secret.jpg", "//etc/passwd", "a\0", "\0", "a/x.jpg\0.png", "..\0",
])  # fmt: skip
def test_a_key_that_is_no_path_below_the_export(store: Store, key: str) -> None:
    with pytest.raises(SampleOutsideExport, match="key must be a path relative to export 'd'"):
        store.read("d", key)
    assert store.size("d", key) == -2
    if key:  # "" is the export itself
        with pytest.raises(SampleOutsideExport):
            store.tree("d", key)


def test_a_link_that_leaves_the_export(store: Store, root: Path, anywhere: None) -> None:
    (root / "a" / "out.jpg").symlink_to(root.parent / "secret.jpg")
    (root / "a" / "relative.jpg").symlink_to("../../secret.jpg")
    (root / "far").symlink_to(root.parent)
    (root / "twin").symlink_to(root.parent / "data-too")
    for key in ("a/out.jpg", "a/relative.jpg", "far/secret.jpg", "far", "twin/secret.jpg"):
        with pytest.raises(SampleOutsideExport, match="a link that leaves it"):
            store.read("d", key)
        assert store.size("d", key) == -2
    assert store.read("d", "far/data/a/x.jpg") == b"pixels"  # it comes back
    assert store.size("d", "far/data/a/x.jpg") == 6


def test_a_link_to_nothing_outside_is_no_file(store: Store, root: Path) -> None:
    (root / "gone.jpg").symlink_to("/none/of/this/exists.jpg")
    (root / "far").symlink_to(root.parent)
    assert [store.size("d", key) for key in ("gone.jpg", "far/gone.jpg", "far/secret.jpg")] == [-1, -1, -2]


def test_a_key_from_outside_tells_nothing_of_what_is_there(store: Store) -> None:
    assert {store.size("d", key) for key in ("/etc/passwd", "/etc/none", "../secret.jpg", "../none", "a/..")} == {-2}


@pytest.mark.parametrize("key", [
    "none.jpg", "a/none.jpg", "none/x.jpg", "a/x.jpg/y.jpg", "a/x.jpg/", "dangling", "A/x.jpg", "\udcff", "\ud800",
    "a/" * 3000 + "x.jpg", "x" * 300,
])  # fmt: skip
def test_a_file_that_is_not_there(store: Store, root: Path, key: str) -> None:
    (root / "dangling").symlink_to("none")
    with pytest.raises(SampleMissing, match="file must exist in export 'd'") as caught:
        store.read("d", key)
    assert len(str(caught.value)) < 500 and store.size("d", key) == -1


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [os.mkdir, _fifo, _socket, _loop], ids=lambda make: make.__name__.strip("_"))
def test_what_is_no_regular_file(store: Store, root: Path, make: Callable[[Path], None], anywhere: None) -> None:
    make(root / "x.jpg")
    with pytest.raises(SampleUnreadable):
        store.read("d", "x.jpg")
    assert store.size("d", "x.jpg") == -1


def test_a_file_over_the_limit(store: Store, root: Path) -> None:
    (root / "big.jpg").write_bytes(bytes(LIMIT + 1))
    (root / "full.jpg").write_bytes(bytes(LIMIT))
    with pytest.raises(SampleUnreadable, match=r"at most 1000 bytes, got 1001 .* raise the agent's --max-file-mb"):
        store.read("d", "big.jpg")
    assert store.read("d", "full.jpg") == bytes(LIMIT)
    assert store.size("d", "big.jpg") == LIMIT + 1


def test_a_file_without_permission(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    if os.geteuid() == 0:
        monkeypatch.setattr(store_module.os, "open", forbidden)  # root may read everything
    else:
        (root / "a" / "x.jpg").chmod(0)
    with pytest.raises(SampleUnreadable, match="Permission denied"):
        store.read("d", "a/x.jpg")


def test_a_disk_that_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> bytes:
        raise OSError(5, "Input/output error")

    descriptors = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(store_module.os, "read", broken)
    with pytest.raises(SampleUnreadable, match="Input/output error"):
        store.read("d", "a/x.jpg")
    assert set(os.listdir("/proc/self/fd")) == descriptors


def test_short_reads_are_put_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.read
    monkeypatch.setattr(store_module.os, "read", lambda descriptor, nbytes: real(descriptor, min(nbytes, 2)))
    assert store.read("d", "a/x.jpg") == b"pixels"


@pytest.mark.parametrize("export", ["", "D", "d/a", "../d", "none"])
def test_an_unknown_export(store: Store, export: str) -> None:
    for ask in (store.read, store.size, store.tree):
        with pytest.raises(UnknownExport, match=r"export must be one of \['d', 'other'\]"):
            ask(export, "x")


_PARTS = st.sampled_from(
    ["a", "deep", "x.jpg", "..", ".", "", "far", "up", "out.jpg", "\0", "\udc80", "data", "secret.jpg"]
)


@given(st.lists(_PARTS, max_size=7).map("/".join) | st.text(max_size=12))
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_key_reads_anything_else(root: Path, store: Store, key: str) -> None:
    if not (root / "far").is_symlink():
        (root / "far").symlink_to(root.parent)
        (root / "a" / "up").symlink_to("..")
        (root / "a" / "out.jpg").symlink_to(root.parent / "secret.jpg")
    try:
        data = store.read("d", key)
    except SampleError:
        return
    assert data in (b"pixels", b"more", b"")


# --- listings -------------------------------------------------------------------------------------------------


def _as_image_folder(root: Path) -> list[tuple[str, list[str]]]:
    folder = ImageFolder(root, allow_empty=True)
    listed: dict[str, list[str]] = {name: [] for name in folder.classes}
    for path, target in folder.samples:
        name = folder.classes[target]
        listed[name].append(os.path.relpath(path, root / name))
    return list(listed.items())


def test_a_tree_is_in_image_folders_order(tmp_path: Path) -> None:
    rng = random.Random(0)
    parts = ["a", "B", "b", "a-b", "a b", "é", "10", "9", "a.jpg", "Z", "a.", "~"]
    for _ in range(120):
        folder = tmp_path.joinpath("d", *(rng.choice(parts) for _ in range(rng.randint(1, 4))))
        folder.mkdir(parents=True, exist_ok=True)
        for name in rng.sample(["x.jpg", "y.PNG", "X.jpeg", "z.txt", "x.webp", "10.jpg", "9.jpg", ".jpg", "q.tiff"], 3):
            if not (folder / name).exists():
                (folder / name).touch()
    (tmp_path / "d" / "nothing").mkdir()
    (tmp_path / "d" / "top.jpg").touch()
    store = Store({"d": tmp_path / "d"}, LIMIT)
    assert store.tree("d", "") == _as_image_folder(tmp_path / "d")
    assert store.tree("d", "a") == _as_image_folder(tmp_path / "d" / "a")
    assert store.tree("d", "a/") == store.tree("d", "a")


def test_links_in_a_tree(root: Path) -> None:
    (root / "a" / "same.jpg").symlink_to("x.jpg")
    (root / "b").symlink_to("a")
    (root / "c").mkdir()
    (root / "c" / "deeper").symlink_to("../a/deep")
    Image.new("RGB", (1, 1)).save(root / "c" / "z.jpg")
    assert Store({"d": root}, LIMIT).tree("d", "") == _as_image_folder(root)


def test_a_tree_does_not_leave_the_export(root: Path) -> None:
    (root / "a" / "far").symlink_to(root.parent / "data-too")
    (root / "out").symlink_to(root.parent / "data-too")
    tree = dict(Store({"d": root}, LIMIT).tree("d", ""))
    assert tree == {"a": ["x.jpg", "deep/y.png"], "out": []}
    with pytest.raises(SampleOutsideExport):
        Store({"d": root}, LIMIT).tree("d", "out")


def test_a_tree_does_not_even_walk_outside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = root.parent / "data-too"
    (root / "a" / "far").symlink_to(outside)
    real, seen = os.scandir, list[str]()

    def scandir(path: str) -> object:
        seen.append(os.path.realpath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    Store({"d": root}, LIMIT).tree("d", "")
    assert seen and str(outside) not in seen


def test_a_tree_with_links_in_a_circle_ends(root: Path) -> None:
    for name in "abcdefgh":
        (root / name).mkdir(exist_ok=True)
        (root / name / "top").symlink_to("..")
    (root / "a" / "self").symlink_to(".")
    tree = dict(Store({"d": root}, LIMIT).tree("d", ""))
    assert list(tree) == list("abcdefgh")
    assert {"x.jpg", "deep/y.png"} <= set(tree["a"]) and sum(map(len, tree.values())) < 10_000


@pytest.mark.parametrize(
    ("prefix", "error"), [("none", SampleMissing), ("a/x.jpg", SampleMissing), ("..", SampleOutsideExport)]
)
def test_a_tree_of_what_is_no_folder(store: Store, prefix: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        store.tree("d", prefix)
