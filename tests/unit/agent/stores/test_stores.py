"""A folder's store reads what lies in it and nothing else, whatever the key; an export is found by its name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from sophon_loader.errors import (
    ConfigError,
    SampleError,
    SampleMissing,
    SampleOutsideExport,
    SampleUnreadable,
    UnknownExport,
)
from storage_agent import stores as module
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.stores import folder, open_exports
from storage_agent.stores.folder import Folder
from storage_agent.stores.store import Store
from tests.support.drawn import examples
from tests.support.held import nothing_more_held
from tests.unit.agent.stores.folders import export_folder

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return export_folder(tmp_path)


@pytest.fixture
def store(root: Path) -> Store:
    return Folder("d", str(root), LIMIT)


@pytest.fixture(params=["proc", "no proc"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With /proc, and as on a system without it."""
    if request.param == "no proc":
        monkeypatch.setattr(folder, "_HAS_PROC", False)


# --- what may be read -----------------------------------------------------------------------------------------


def test_files_are_read_whole(store: Store, root: Path, anywhere: None) -> None:
    assert store.read("a/x.jpg") == b"pixels"
    assert store.read("a/deep/y.png") == b"more"
    assert Folder("other", str(root / "a"), LIMIT).read("x.jpg") == b"pixels"
    assert store.read("empty.jpg") == b""
    assert store.read("./a//deep/./y.png") == b"more"
    assert [store.size(key) for key in ("a/x.jpg", "empty.jpg", "a/none.jpg")] == [6, 0, -1]
    assert store.describe() == str(root)


def test_a_link_within_the_export_is_followed(store: Store, root: Path, anywhere: None) -> None:
    (root / "link.jpg").symlink_to("a/x.jpg")
    (root / "absolute.jpg").symlink_to(root / "a" / "x.jpg")
    (root / "b").symlink_to("a/deep")
    (root / "a" / "up").symlink_to("..")
    for key in ("link.jpg", "absolute.jpg", "a/up/a/up/a/x.jpg"):
        assert store.read(key) == b"pixels" and store.size(key) == 6
    assert store.read("b/y.png") == b"more"


def test_an_export_that_is_a_link(tmp_path: Path, root: Path, anywhere: None) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert Folder("d", str(tmp_path / "alias"), LIMIT).read("a/x.jpg") == b"pixels"


def test_an_export_of_everything() -> None:
    store = Folder("all", "/", 1 << 20)
    here = Path(__file__).resolve()
    assert store.read(str(here)[1:]) == here.read_bytes()


@pytest.mark.parametrize(
    "name", ["café.jpg", "日本.jpg", "a b\n.jpg", "\\x.jpg", "..x.jpg", "...", "a..b", "*.jpg", "~"]
)
def test_any_file_name(store: Store, root: Path, name: str) -> None:
    (root / name).write_bytes(b"1")
    assert store.read(name) == b"1" and store.size(name) == 1


def test_a_file_name_that_is_not_utf8(store: Store, root: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    (root / "a" / name).write_bytes(b"1")
    assert store.read(f"a/{name}") == b"1" and store.size(f"a/{name}") == 1
    assert name in next(store.walk("a"))[2]


# --- what may not ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [
    "", "/", "/etc/passwd", "..", "../secret.jpg", "a/../../secret.jpg", "a/..", "a/../a/x.jpg", "a/x.jpg/..",
    "../data/a/x.jpg", "../data-too/secret.jpg", "//etc/passwd", "a\0", "\0", "a/x.jpg\0.png", "..\0",
])  # fmt: skip
def test_a_key_that_is_no_path_below_the_export(store: Store, key: str) -> None:
    with pytest.raises(SampleOutsideExport, match="key must be a path relative to export 'd'"):
        store.read(key)
    assert store.size(key) == -2
    if key:  # "" is the export itself
        with pytest.raises(SampleOutsideExport):
            next(store.walk(key))


def test_a_link_that_leaves_the_export(store: Store, root: Path, anywhere: None) -> None:
    (root / "a" / "out.jpg").symlink_to(root.parent / "secret.jpg")
    (root / "a" / "relative.jpg").symlink_to("../../secret.jpg")
    (root / "far").symlink_to(root.parent)
    (root / "twin").symlink_to(root.parent / "data-too")
    for key in ("a/out.jpg", "a/relative.jpg", "far/secret.jpg", "far", "twin/secret.jpg"):
        with pytest.raises(SampleOutsideExport, match="a link that leaves it"):
            store.read(key)
        assert store.size(key) == -2
    assert store.read("far/data/a/x.jpg") == b"pixels"  # it comes back
    assert store.size("far/data/a/x.jpg") == 6


def test_links_that_may_lead_anywhere(root: Path, anywhere: None) -> None:
    """For a loader's own agent; keys still may not."""
    (root / "out.jpg").symlink_to(root.parent / "secret.jpg")
    (root / "far").symlink_to(root.parent / "data-too")
    store = Folder("d", str(root), LIMIT, links_out=True)
    secret = (root.parent / "secret.jpg").read_bytes()
    assert store.read("out.jpg") == secret and store.size("out.jpg") == len(secret)
    assert "far" in [name for name, _, _ in store.walk("")]
    for key in ("../secret.jpg", "/etc/passwd"):
        with pytest.raises(SampleOutsideExport):
            store.read(key)
        assert store.size(key) == -2


def test_a_link_to_nothing_outside_is_no_file(store: Store, root: Path) -> None:
    (root / "gone.jpg").symlink_to("/none/of/this/exists.jpg")
    (root / "far").symlink_to(root.parent)
    assert [store.size(key) for key in ("gone.jpg", "far/gone.jpg", "far/secret.jpg")] == [-1, -1, -2]


def test_a_key_from_outside_tells_nothing_of_what_is_there(store: Store) -> None:
    assert {store.size(key) for key in ("/etc/passwd", "/etc/none", "../secret.jpg", "../none", "a/..")} == {-2}


@pytest.mark.parametrize("key", [
    "none.jpg", "a/none.jpg", "none/x.jpg", "a/x.jpg/y.jpg", "a/x.jpg/", "dangling", "A/x.jpg", "\udcff", "\ud800",
    "a/" * 3000 + "x.jpg", "x" * 300,
])  # fmt: skip
def test_a_file_that_is_not_there(store: Store, root: Path, key: str) -> None:
    (root / "dangling").symlink_to("none")
    with pytest.raises(SampleMissing, match="file must exist in export 'd'") as caught:
        store.read(key)
    assert len(str(caught.value)) < 500 and store.size(key) == -1


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
        store.read("x.jpg")
    assert store.size("x.jpg") == -1


def test_a_file_over_the_limit(store: Store, root: Path) -> None:
    (root / "big.jpg").write_bytes(bytes(LIMIT + 1))
    (root / "full.jpg").write_bytes(bytes(LIMIT))
    with pytest.raises(SampleUnreadable, match=r"at most 1000 bytes, got 1001 .* raise the agent's --max-file-mb"):
        store.read("big.jpg")
    assert store.read("full.jpg") == bytes(LIMIT)
    assert store.size("big.jpg") == LIMIT + 1


def test_a_file_without_permission(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    if os.geteuid() == 0:
        monkeypatch.setattr("os.open", forbidden)  # root may read everything
    else:
        (root / "a" / "x.jpg").chmod(0)
    with pytest.raises(SampleUnreadable, match="Permission denied"):
        store.read("a/x.jpg")


def test_a_disk_that_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> bytes:
        raise OSError(5, "Input/output error")

    with nothing_more_held():
        monkeypatch.setattr("os.read", broken)
        with pytest.raises(SampleUnreadable, match="Input/output error"):
            store.read("a/x.jpg")


@pytest.mark.skipif(not os.path.exists("/proc/sys/kernel/ostype"), reason="no /proc")
def test_a_file_of_which_stat_says_0_bytes() -> None:
    """As on mounts of object stores."""
    store = Folder("d", "/proc/sys/kernel", LIMIT)
    assert store.read("ostype") == b"Linux\n" and store.size("ostype") == 6
    with pytest.raises(SampleUnreadable, match=r"at most 3 bytes, got 6 for 'ostype'"):
        Folder("d", "/proc/sys/kernel", 3).read("ostype")


@pytest.mark.skipif(not os.path.exists("/proc/sys/kernel/ostype"), reason="no /proc")
def test_the_beginning_of_a_file_of_which_stat_says_0_bytes() -> None:
    assert Folder("d", "/proc/sys/kernel", LIMIT).begin("ostype", 3) == (b"Lin", 6)


def test_a_beginning_takes_one_short_read_of_a_long_file(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "long.jpg").write_bytes(bytes(LIMIT))
    real, asked = os.read, list[int]()

    def read(descriptor: int, nbytes: int) -> bytes:
        asked.append(nbytes)
        return real(descriptor, nbytes)

    monkeypatch.setattr("os.read", read)
    assert store.begin("long.jpg", 10) == (bytes(10), LIMIT)
    assert len(asked) == 1 and asked[0] <= 11


def test_short_reads_are_put_together(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.read
    monkeypatch.setattr("os.read", lambda descriptor, nbytes: real(descriptor, min(nbytes, 2)))
    assert store.read("a/x.jpg") == b"pixels"


_PARTS = st.sampled_from(
    ["a", "deep", "x.jpg", "..", ".", "", "far", "up", "out.jpg", "\0", "\udc80", "data", "secret.jpg"]
)


@given(st.lists(_PARTS, max_size=7).map("/".join) | st.text(max_size=12))
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_key_reads_anything_else(root: Path, store: Store, key: str) -> None:
    if not (root / "far").is_symlink():
        (root / "far").symlink_to(root.parent)
        (root / "a" / "up").symlink_to("..")
        (root / "a" / "out.jpg").symlink_to(root.parent / "secret.jpg")
    try:
        data = store.read(key)
    except SampleError:
        return
    assert data in (b"pixels", b"more", b"")


# --- walking --------------------------------------------------------------------------------------------------


def test_a_walk_begins_at_its_folder(store: Store) -> None:
    assert sorted(store.walk("")) == [("", ["a"], ["empty.jpg"]), ("a", ["deep"], ["x.jpg"]), ("a/deep", [], ["y.png"])]
    assert list(store.walk("a")) == [("", ["deep"], ["x.jpg"]), ("deep", [], ["y.png"])]
    assert list(store.walk("a/deep/")) == [("", [], ["y.png"])]


@pytest.mark.parametrize(
    ("prefix", "error"), [("none", SampleMissing), ("a/x.jpg", SampleMissing), ("..", SampleOutsideExport)]
)
def test_a_walk_of_what_is_no_folder(store: Store, prefix: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        next(store.walk(prefix))


def test_a_folder_that_cannot_be_looked_into(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: str) -> object:
        if path.endswith("deep"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    assert [name for name, _, _ in store.walk("")] == ["", "a"], "as os.walk has it"
    with pytest.raises(SampleUnreadable, match="Permission denied"):
        next(store.walk("a/deep"))


def test_a_walk_does_not_leave_the_export(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = root.parent / "data-too"
    (root / "a" / "far").symlink_to(outside)
    real, seen = os.scandir, list[str]()

    def scandir(path: str) -> object:
        seen.append(os.path.realpath(path))
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    assert ("a", ["deep", "far"], ["x.jpg"]) in [(name, sorted(below), files) for name, below, files in store.walk("")]
    assert seen and str(outside) not in seen


# --- exports --------------------------------------------------------------------------------------------------


def _settings(**exports: str) -> AgentSettings:
    return AgentSettings(exports, "tcp://127.0.0.1:0", workers=1, max_file_nbytes=LIMIT)


def test_exports_by_name(root: Path) -> None:
    exports = open_exports(_settings(z=str(root), b=str(root / "a")))
    assert exports.names == ["b", "z"] and exports.describe() == {"z": str(root), "b": str(root / "a")}
    assert exports["b"].read("x.jpg") == exports["z"].read("a/x.jpg") == b"pixels"


@pytest.mark.parametrize("export", ["", "D", "d/a", "../d", "none"])
def test_an_unknown_export(root: Path, export: str) -> None:
    with pytest.raises(UnknownExport, match=r"export must be one of \['d', 'other'\]"):
        open_exports(_settings(d=str(root), other=str(root / "a")))[export]


class Memory:
    """A store of one file."""

    def __init__(self, export: str, location: str, max_file_nbytes: int) -> None:
        self.made = (export, location, max_file_nbytes)

    def check(self) -> None:
        raise ConfigError("no memory")

    def describe(self) -> str:
        return "memory"

    def read(self, key: str) -> bytes:
        return b"1"

    def begin(self, key: str, nbytes: int) -> tuple[bytes, int]:
        return b"1", 1

    def size(self, key: str) -> int:
        return 1

    def walk(self, prefix: str) -> Iterator[tuple[str, list[str], list[str]]]:
        yield "", [], ["x.jpg"]


def test_another_store_is_a_class_and_a_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.STORES, "memory", Memory)
    exports = open_exports(_settings(d=str(root), m="memory://here"))
    assert exports["m"].read("any") == b"1" and exports.describe() == {"d": str(root), "m": "memory"}
    store = exports["m"]
    assert isinstance(store, Memory) and store.made == ("m", "memory://here", LIMIT)
    with pytest.raises(ConfigError, match="no memory"):
        exports.check()
    with pytest.raises(ConfigError, match="az://, memory://, got 'hdfs://bucket'"):
        open_exports(_settings(x="hdfs://bucket"))


@pytest.mark.parametrize(
    "location",
    ["hdfs://bucket", "file:///data", "memory://", "tar:/x.tar", "zip:x.zip", "parquet:x", "mds:x", "lance:x", "s3:x"],
)
def test_a_scheme_that_no_store_is_for(location: str) -> None:
    known = "tar://, zip://, parquet://, mds://, lance://, s3://, gs://, az://"
    with pytest.raises(ConfigError, match=f"export 'x' must be a folder or one of {known}, got '{location}'"):
        open_exports(_settings(x=location))


# --- what may be exported -------------------------------------------------------------------------------------


def _check(location: Path | str) -> None:
    Folder("d", str(location), LIMIT).check()


def test_the_folder_of_an_export(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    _check(tmp_path)
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(ConfigError, match=f"export 'd' must be an existing folder, got {path}"):
            _check(path)


@pytest.mark.parametrize("scheme", ["tar", "zip"])
def test_an_archive_without_its_scheme(tmp_path: Path, scheme: str) -> None:
    path = tmp_path / f"x.{scheme}"
    path.touch()
    with pytest.raises(ConfigError, match=f"must be a folder, got the file {path}; write {scheme}://{path}"):
        _check(path)


def test_an_empty_folder_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    with pytest.raises(ConfigError, match=r"export 'd' must be a folder with something in it, got .*/mnt, .* mounted"):
        _check(tmp_path / "mnt")
    (tmp_path / "mnt" / ".hidden").mkdir()
    _check(tmp_path / "mnt")


def test_the_whole_file_system_is_no_export() -> None:
    with pytest.raises(ConfigError, match="export 'd' must be a folder of data, got the whole file system"):
        _check("/")


def test_what_a_loaders_own_agent_serves_no_person_has_given() -> None:
    store = Folder("local", "/", 1 << 20, links_out=True)
    store.check()
    assert store.size(__file__[1:]) == os.path.getsize(__file__)


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", forbidden)  # root may read everything
    with pytest.raises(ConfigError, match=r"export 'd' must be a folder that the agent can read, .*Permission denied"):
        _check(tmp_path)


@pytest.mark.parametrize("text", [".", "./data", "..", "../data", "./~", "./x y", "./"])
def test_a_folder_that_says_where_it_is(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("here/data", "here/~", "here/x y", "data"):
        (tmp_path / name / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    _check(text)


@pytest.mark.parametrize(
    "text", ["data", "data/train", "~", "~/data", "~user", "$DATA", ".data", "...", "..data/x", " "]
)
def test_a_folder_that_may_be_an_accident(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _check(text)
    rule = f"export 'd' must be an absolute folder, or begin with ./; got {text!r}; an unset shell variable"
    assert str(caught.value).startswith(rule)


def test_no_folder_at_all() -> None:
    rule = "export 'd' must be NAME=FOLDER with a folder, got 'd='; is a shell variable"
    with pytest.raises(ConfigError, match=rule):
        _check("")
