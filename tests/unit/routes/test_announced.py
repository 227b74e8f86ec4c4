"""Who the agents are by a folder: real folders, a clock that tests move, and entries written by hand."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sophon_loader.errors import ConfigError
from sophon_loader.routes import announced
from sophon_loader.routes.announced import MAX_SAID, Announced
from sophon_loader.routes.roster import MAX_MEMBERS
from sophon_loader.wire.entry import MAX_ENTRY_NBYTES, AgentEntry
from tests.support.agents import until
from tests.support.clocks import FakeClock
from tests.support.drawn import examples
from tests.support.held import nothing_more_held, threads_besides


class Folder:
    """A roster's folder, as agents write to it: each by a temporary name and a rename."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir(mode=0o755, parents=True)
        self._writes = 0

    def put(self, name: str, text: str | bytes | None = None, mode: int = 0o644) -> None:
        """Write an entry; its time of change is another one each time, and an hour ahead."""
        self._writes += 1
        temporary = self.path / ".temporary"
        said = entry(name).text() if text is None else text
        temporary.write_bytes(said.encode() if isinstance(said, str) else said)
        temporary.chmod(mode)
        os.utime(temporary, (0, time.time() + 3600 + self._writes))
        temporary.rename(self.path / f"{name}.json")

    def remove(self, name: str) -> None:
        (self.path / f"{name}.json").unlink()


def entry(name: str) -> AgentEntry:
    return AgentEntry([f"tcp://{name}:5555"], f"instance of {name}", ["imagenet", "other"])


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "run" / "agents")


class Reader:
    """A roster, its clock, and what it has said."""

    def __init__(self, folder: Folder, keyed: bool = False, behind: str = "imagenet/train", **more: Any) -> None:
        self.clock = FakeClock()
        self.said: list[str] = []
        self.roster = Announced(
            f"file://{folder.path}/{behind}", keyed=keyed, clock=self.clock, say=self.said.append, **more
        )

    def hosts(self, after_s: float = 0.0) -> list[str]:
        self.clock.now_s += after_s
        return [one.address.endpoint.removeprefix("tcp://").removesuffix(":5555") for one in self.roster.look()]


def test_an_entry(folder: Folder) -> None:
    folder.put("a")
    reader = Reader(folder)
    (found,) = reader.roster.look()
    assert str(found.address) == "tcp://a:5555/imagenet/train" and found.address.folder == "train"
    assert (found.instance, found.exports) == ("instance of a", ("imagenet", "other"))
    assert reader.roster.trouble == "" and reader.said == []


def test_two_jobs_on_one_folder(folder: Folder) -> None:
    """Each by a clock of its own, and one of them comes later."""
    folder.put("a")
    one, two = Reader(folder), Reader(folder, behind="other")
    one.hosts()
    assert one.hosts(29.0) == ["a"] and two.hosts() == ["a"]
    assert one.hosts(1.0) == [] and two.hosts(1.0) == ["a"]
    assert [str(member.address) for member in two.roster.look()] == ["tcp://a:5555/other"]
    folder.put("a")
    assert one.hosts() == two.hosts() == ["a"]


def test_clocks_of_agents_do_not_count(folder: Folder) -> None:
    """Files may be dated an hour ahead, as all here are, in 1970, or go back in time."""
    folder.put("a")
    reader = Reader(folder)
    reader.hosts()
    for at_s in (0, 2**31, 5, 4):
        os.utime(folder.path / "a.json", (0, at_s))
        assert reader.hosts(25.0) == ["a"], "it has been written"
    assert reader.hosts(29.0) == ["a"] and reader.hosts(1.0) == [] and reader.hosts(1000.0) == []


def test_agents_that_were_killed_long_ago_are_believed_for_thirty_seconds(folder: Folder) -> None:
    folder.put("a")
    os.utime(folder.path / "a.json", (0, 0))
    reader = Reader(folder)
    assert reader.hosts() == ["a"] and reader.hosts(30.0) == []


@pytest.mark.parametrize("behind", ["imagenet", "imagenet/train", "imagenet/train/deep/", "/imagenet"])
def test_the_last_existing_folder_is_the_roster(folder: Folder, behind: str) -> None:
    folder.put("a")
    (found,) = Reader(folder, behind=behind).roster.look()
    assert str(found.address) == f"tcp://a:5555/{behind.strip('/')}"


def test_a_folder_that_comes_later(tmp_path: Path) -> None:
    roster = Announced(f"file://{tmp_path}/run/agents/imagenet", keyed=False)
    assert list(roster.look()) == [] and f"no agent of 'run' is announced in {tmp_path}" in roster.trouble
    Folder(tmp_path / "run" / "agents").put("a")
    assert [str(one.address) for one in roster.look()] == ["tcp://a:5555/imagenet"] and roster.trouble == ""


def test_no_export_is_named(folder: Folder) -> None:
    with pytest.raises(ConfigError, match=r"must name an export behind the folder .*; write file:///FOLDER/EXPORT"):
        Announced(f"file://{folder.path}", keyed=False).look()


@pytest.mark.parametrize(
    "text", ["file://host/a/b", "file:a/b", "file:///", "/a/b", "file:///a/../b", "file:///a/\0/b"]
)
def test_other_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="agent must be the absolute path of a folder and an export, got"):
        Announced(text, keyed=False)


def test_what_is_known_stays_while_the_folder_is_away(folder: Folder, tmp_path: Path) -> None:
    """However long that is: no agent can have written to it then."""
    folder.put("a")
    reader = Reader(folder)
    assert reader.hosts() == ["a"]
    folder.path.rename(tmp_path / "away")
    for _ in range(5):
        assert reader.hosts(100.0) == ["a"] and "cannot be read: No such file" in reader.roster.trouble
    (tmp_path / "away").rename(folder.path)
    assert reader.hosts(100.0) == ["a"] and reader.roster.trouble == ""
    assert reader.hosts(30.0) == []


def test_a_slow_disk(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.open` stands for it. A look takes no longer than it may, and what comes late counts."""
    goes_on, slow, real = threading.Event(), threading.Event(), os.open

    def wait(*given: Any, **more: Any) -> int:
        if slow.is_set() and threading.current_thread().name == "roster-folder":
            goes_on.wait(30.0)
        return real(*given, **more)

    monkeypatch.setattr(os, "open", wait)
    folder.put("a")
    reader = Reader(folder, wait_s=0.5)
    assert reader.hosts() == ["a"]
    slow.set()
    folder.put("b")
    begun_s, threads = time.monotonic(), set(threading.enumerate())
    for _ in range(2):
        assert reader.hosts(50.0) == ["a"] and "its disk does not answer" in reader.roster.trouble
        assert len(threads_besides(threads)) == 1
    assert time.monotonic() - begun_s < 10.0
    slow.clear()
    goes_on.set()
    assert until(lambda: len(reader.hosts()) == 2 and reader.hosts(), "it is read") == ["a", "b"]
    assert reader.roster.trouble == ""


# --- hostile files --------------------------------------------------------------------------------------------


def _make_odd(folder: Folder, what: str) -> None:
    path = folder.path / "odd.json"
    match what:
        case "link":
            folder.path.parent.joinpath("target").write_text(entry("odd").text())
            path.symlink_to(folder.path.parent / "target")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                here = os.getcwd()
                try:
                    os.chdir(folder.path)  # since its path may be too long
                    made.bind("odd.json")
                finally:
                    os.chdir(here)
        case "device":
            path.symlink_to("/dev/zero")
        case "nothing":
            path.touch()
        case "long":
            path.write_text(entry("odd").text() + " " * MAX_ENTRY_NBYTES)
        case "sparse":
            with open(path, "wb") as file:
                file.truncate(1 << 40)
        case "deep":
            path.write_text("[" * 60_000)
        case "bytes":
            path.write_bytes(os.urandom(1000))
        case "transport":
            path.write_text(AgentEntry(["ipc:///tmp/x"], "i", []).text())
        case "source":
            path.write_text(AgentEntry(["tcp://evil:1;odd:5555"], "i", []).text())


ODD = [
    "link", "fifo", "folder", "socket", "device", "nothing", "long", "sparse", "deep", "bytes", "transport", "source"
]  # fmt: skip


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("what", ODD)
def test_odd_files_are_left_out_and_told_once(folder: Folder, what: str, keyed: bool) -> None:
    folder.put("a")
    _make_odd(folder, what)
    reader = Reader(folder, keyed=keyed)
    for _ in range(3):
        assert reader.hosts() == ["a"] and reader.roster.trouble == ""
    (line,) = reader.said
    assert line.startswith(f"entry left out file={folder.path}/odd.json reason=")


def test_other_names_are_not_entries(folder: Folder) -> None:
    for name in (".hidden.json", "notes.txt", "a.json.tmp", ".nfs0001", "wanted-job-0.json"):
        (folder.path / name).write_text(entry("odd").text())
    reader = Reader(folder)
    assert reader.hosts() == [] and reader.said == []


def test_a_broken_entry_is_that_of_before_until_it_is_old(folder: Folder) -> None:
    folder.put("a")
    reader = Reader(folder)
    reader.hosts()
    folder.put("a", "{")
    assert reader.hosts(29.0) == ["a"]
    folder.put("a", "[")
    assert reader.hosts(1.0) == []
    folder.put("a")
    assert reader.hosts() == ["a"] and len(reader.said) == 1


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o622])
def test_files_that_others_may_write(folder: Folder, mode: int) -> None:
    folder.put("a")
    folder.put("b", mode=mode)
    reader = Reader(folder)
    assert reader.hosts() == ["a"] == reader.hosts()
    (line,) = reader.said
    assert line.startswith("entry left out ") and f"others may write there (mode {mode:o}); chmod go-w" in line
    reader = Reader(folder, keyed=True)
    assert reader.hosts() == ["a", "b"] == reader.hosts()
    (line,) = reader.said
    assert line.startswith("entry may name a wrong agent ") and f"mode {mode:o}" in line


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_may_write(folder: Folder, mode: int) -> None:
    folder.put("a")
    folder.path.chmod(mode)
    reader = Reader(folder)
    assert reader.hosts() == []
    assert (
        f"{folder.path} is not believed without a key: others may write there (mode {mode:o})" in reader.roster.trouble
    )
    folder.path.chmod(0o755)
    assert reader.hosts() == ["a"] and reader.roster.trouble == ""
    folder.path.chmod(mode)
    folder.put("b")
    assert reader.hosts(100.0) == ["a"] and "is not believed" in reader.roster.trouble
    reader = Reader(folder, keyed=True)
    assert reader.hosts() == ["a", "b"] == reader.hosts() and reader.roster.trouble == ""
    (line,) = reader.said
    assert line.startswith(f"folder of agents may name wrong ones file={folder.path}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.put("a")
    folder.put("b")
    os.chown(folder.path / "b.json", 65534, -1)
    reader = Reader(folder)
    assert reader.hosts() == ["a"] and "it belongs to another user (uid 65534)" in reader.said[0]
    assert Reader(folder, keyed=True).hosts() == ["a", "b"]
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert Reader(folder).hosts() == ["a", "b"], "root's are believed"
    os.chown(folder.path, 12345, -1)
    reader = Reader(folder)
    assert reader.hosts() == [] and "another user (uid 12345)" in reader.roster.trouble


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many entries there may be."""
    monkeypatch.setattr(announced, "MAX_ENTRIES", 10)
    return 10


def test_more_entries_than_there_may_be(folder: Folder, few: int) -> None:
    """Those of agents that are met are read each time, the others by turns: the names decide nothing."""
    folder.put("zz")
    reader = Reader(folder)
    reader.roster.met = [one.address for one in reader.roster.look()]
    for n in range(3 * few):
        folder.put(f"{n:05}")
    seen: set[str] = set()
    for _ in range(100):
        found = reader.hosts(0.1)
        assert len(found) == few and found[-1] == "zz"
        seen |= {*found}
    assert len(seen) == 3 * few + 1, "each has been read at some look"
    assert reader.said == [f'entries left out file={folder.path} reason="there are more than {few}"']


def test_an_entry_that_comes_behind_many_is_read_by_a_loader_that_starts(folder: Folder, few: int) -> None:
    for n in range(2 * few):
        folder.put(f"{n:05}")
    folder.put("zz")
    reader = Reader(folder)
    until(lambda: "zz" in reader.hosts(), "its turn comes")


def test_one_that_is_missing_at_a_look_is_read_again_behind_many(folder: Folder, few: int) -> None:
    folder.put("zz")
    reader = Reader(folder)
    reader.roster.met = [one.address for one in reader.roster.look()]
    for n in range(2 * few):
        folder.put(f"{n:05}")
    reader.hosts()
    folder.remove("zz")
    assert "zz" not in reader.hosts()
    reader.roster.met = ()
    folder.put("zz")
    for _ in range(20):
        assert "zz" in reader.hosts()


def test_a_flood_of_wrong_entries_is_told_of_in_part(folder: Folder) -> None:
    reader = Reader(folder)
    for n in range(3 * MAX_SAID):
        (folder.path / f"{n}.json").write_text("{")
    reader.hosts()
    assert len(reader.said) == MAX_SAID + 1 and reader.said[-1].startswith("no more entries are told of")


def test_many_addresses_of_one_agent(folder: Folder) -> None:
    folder.put("a", AgentEntry(["tcp://a:5555", "tcp://b:5555"], "x", ["imagenet"]).text())
    reader = Reader(folder)
    assert [(one.address.endpoint, one.instance) for one in reader.roster.look()] == [
        ("tcp://a:5555", "x"), ("tcp://b:5555", "x")
    ]  # fmt: skip


def test_entries_of_many_addresses_leave_room_for_others(folder: Folder) -> None:
    """Each entry's first address comes before second ones."""
    for n in range(63):
        addresses = [f"tcp://a{n}-{more}:5555" for more in range(16)]
        folder.put(f"a{n:02}", AgentEntry(addresses, f"instance {n}", ["imagenet"]).text())
    folder.put("zz")
    found = Reader(folder).hosts()
    assert len(found) == MAX_MEMBERS and found[:2] == ["a0-0", "a1-0"] and found[63:65] == ["zz", "a0-1"]


def test_a_listing_that_lacks_a_file_that_is_being_replaced(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """As some file systems have it while names change (btrfs, NFS); here the listing is patched."""
    folder.put("a")
    reader = Reader(folder)
    reader.hosts()
    monkeypatch.setattr(announced.itertools, "islice", lambda found, most: [])
    known = reader.roster._read().files
    assert list(known) == ["a.json"]


def test_a_thousand_looks_leave_nothing(folder: Folder) -> None:
    """Agents come and go, entries are broken, and what is odd is there all the time."""
    _make_odd(folder, "fifo")
    reader = Reader(folder)
    reader.hosts()
    with nothing_more_held():
        for n in range(1000):
            name = f"n{n % 7}"
            folder.put(name, "{" if n % 3 == 0 else None)
            reader.hosts(1.0)
            if n % 2:
                folder.remove(name)
    assert len(reader.roster._known) <= 7


# --- drawn sequences ------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcd")


class Sequences(RuleBasedStateMachine):
    """The model: the time that looks have counted, and for each file the version that was good last, and since when."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="roster-"))
        self.folder = Folder(self.base / "agents")
        self.good_file = self.base / "good.json"
        self.good_file.write_text(entry("x").text())
        self.reader = Reader(self.folder)
        self.versions = 0
        self.files: dict[str, tuple[int, bool]] = {}
        """Name -> version, and whether it is good."""
        self.good: dict[str, tuple[int, int]] = {}
        """Name -> version, and when it was first seen, in counted seconds."""
        self.counted_s, self.began, self.away = 0, False, False

    def teardown(self) -> None:
        shutil.rmtree(self.base)

    def _clear(self, name: str) -> None:
        path = self.folder.path / f"{name}.json"
        if path.is_dir() and not path.is_symlink():
            path.rmdir()

    def _set(self, name: str, good: bool) -> None:
        self.versions += 1
        self.files[name] = self.versions, good

    @precondition(lambda self: not self.away)
    @rule(name=NAMES)
    def an_agent_writes(self, name: str) -> None:
        self._clear(name)
        self.folder.put(name)
        self._set(name, True)

    @precondition(lambda self: not self.away)
    @rule(name=NAMES, text=st.sampled_from(["", "{", "[]", "null", '{"addresses": ["ipc:///x"]}']))
    def a_file_is_broken(self, name: str, text: str) -> None:
        self._clear(name)
        self.folder.put(name, text)
        self._set(name, False)

    @precondition(lambda self: not self.away)
    @rule(name=NAMES)
    def others_may_write_it(self, name: str) -> None:
        self._clear(name)
        self.folder.put(name, mode=0o666)
        self._set(name, False)

    @precondition(lambda self: not self.away and self.files)
    @rule(name=NAMES, what=st.sampled_from(["link", "fifo", "folder"]))
    def something_else_takes_its_place(self, name: str, what: str) -> None:
        self.an_agent_leaves(name)
        path = self.folder.path / f"{name}.json"
        {"link": lambda: path.symlink_to(self.good_file), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[what]()
        self._set(name, False)

    @precondition(lambda self: not self.away)
    @rule(name=NAMES)
    def an_agent_leaves(self, name: str) -> None:
        if self.files.pop(name, None):
            self._clear(name)
            (self.folder.path / f"{name}.json").unlink(missing_ok=True)

    @precondition(lambda self: self.good)
    @rule()
    def the_folder_goes_or_comes(self) -> None:
        away, here = self.base / "away", self.folder.path
        (away if self.away else here).rename(here if self.away else away)
        self.away = not self.away

    @rule(seconds=st.lists(st.sampled_from([1, 10, 10, 10, 20, 29, 30, 31]), min_size=1, max_size=4))
    def looks(self, seconds: list[int]) -> None:
        for passed_s in seconds:
            self._look(passed_s)

    def _look(self, passed_s: int) -> None:
        if self.away:
            self.began = False
        else:
            self.counted_s += passed_s if self.began else 0
            self.began = True
            self.good = {name: seen for name, seen in self.good.items() if name in self.files}
            for name, (version, good) in self.files.items():
                if good and self.good.get(name, (0, 0))[0] != version:
                    self.good[name] = version, self.counted_s
        wanted = sorted(name for name, (_, since_s) in self.good.items() if self.counted_s - since_s < 30)
        assert self.reader.hosts(passed_s) == wanted
        assert bool(self.reader.roster.trouble) == (self.away or not wanted)


TestSequences = Sequences.TestCase
TestSequences.settings = examples(100, stateful_step_count=40, deadline=None)
