"""An agent's entry in a folder: what it says, that it comes and goes, and that nothing of others is harmed."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from sophon_loader.errors import ConfigError
from sophon_loader.wire.entry import AgentEntry
from storage_agent.fleet import announcing
from storage_agent.fleet.announcing import Announcer, announced_address, check_folder
from storage_agent.host.log import EventLog
from tests.support.agents import until

ENTRY = AgentEntry(["tcp://fileserver:5555"], "5f0c", ["d"])
NAME = "sophon-agent-fileserver_5555.json"


def _announcer(folder: Path, entry: AgentEntry = ENTRY) -> Announcer:
    return Announcer(folder, entry, EventLog())


@pytest.mark.parametrize(("endpoint", "announce_as", "address"), [
    ("tcp://127.0.0.1:5555", "", "tcp://127.0.0.1:5555"), ("tcp://[::1]:5555", "", "tcp://[::1]:5555"),
    ("tcp://10.0.0.7:5555", "fileserver", "tcp://fileserver:5555"),
    ("tcp://0.0.0.0:5555", "fileserver:6666", "tcp://fileserver:6666"),
    ("tcp://[::]:5555", "[2001:db8::7]", "tcp://[2001:db8::7]:5555"),
    ("tcp://0.0.0.0:5555", "", "tcp://{host}:5555"), ("tcp://[::]:5555", "", "tcp://{host}:5555"),
])  # fmt: skip
def test_what_is_announced(endpoint: str, announce_as: str, address: str) -> None:
    assert announced_address(endpoint, announce_as) == address.format(host=socket.gethostname())


def test_a_host_without_a_usable_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a host;1")
    with pytest.raises(ConfigError, match="must be tcp://HOST:PORT, got 'tcp://a host;1:5555'; give --announce-as"):
        announced_address("tcp://0.0.0.0:5555")


def test_an_entry_comes_and_goes(tmp_path: Path) -> None:
    announcer = _announcer(tmp_path)
    announcer.start()
    until(announcer.path.exists, "the entry is there")
    assert announcer.path == tmp_path / NAME and AgentEntry.parse(announcer.path.read_text()) == ENTRY
    assert announcer.path.stat().st_mode & 0o777 == 0o644
    announcer.leave()
    until(lambda: not announcer.path.exists(), "the entry has gone")
    announcer.close()
    announcer.close()
    assert os.listdir(tmp_path) == []


def test_an_agent_that_never_served_leaves_nothing(tmp_path: Path) -> None:
    _announcer(tmp_path).close()
    assert os.listdir(tmp_path) == []


def test_the_entry_of_another_at_the_same_address_stays(tmp_path: Path) -> None:
    old, new = _announcer(tmp_path), _announcer(tmp_path, AgentEntry(ENTRY.addresses, "0d1e", ["d"]))
    old.start()
    until(old.path.exists, "the old one's entry")
    new.start()
    until(lambda: "0d1e" in new.path.read_text(), "the new one's takes its place")
    old.close()
    assert "0d1e" in new.path.read_text()
    new.close()
    assert os.listdir(tmp_path) == []


def test_what_killed_agents_have_left_is_removed(tmp_path: Path) -> None:
    names = [".sophon-agent-x7", "sophon-agent-a_1.json", "sophon-agent-b_2.json", "notes.json", "c.json"]
    for name in names:
        (tmp_path / name).touch()
    now_s = (tmp_path / names[0]).stat().st_mtime
    for name in set(names) - {names[2]}:
        os.utime(tmp_path / name, (0, now_s - 90_000))
    os.utime(tmp_path / names[2], (0, now_s - 80_000))
    announcer = _announcer(tmp_path)
    announcer.start()
    try:
        until(lambda: not (tmp_path / names[1]).exists(), "the old entry has gone")
        until(lambda: sorted(os.listdir(tmp_path)) == ["c.json", "notes.json", names[2], NAME], "and nothing else")
    finally:
        announcer.close()


def test_a_folder_that_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says once that it is not announced, and once that it is again."""
    monkeypatch.setattr(announcing, "REWRITTEN_S", 0.02)
    caplog.set_level("INFO", "storage_agent")
    folder = tmp_path / "agents"
    folder.mkdir()
    announcer = _announcer(folder)
    announcer.start()
    until(announcer.path.exists, "the entry is there")
    folder.rename(tmp_path / "away")
    until(lambda: len(caplog.records) == 2, "it is said")
    time.sleep(0.2)
    (tmp_path / "away").rename(folder)
    until(lambda: len(caplog.records) == 3, "it is said that it is back")
    announcer.close()
    events = ["agent announced", "agent not announced", "agent announced"]
    assert [record.getMessage() for record in caplog.records] == events
    assert vars(caplog.records[1])["details"]["reason"] == "No such file or directory"
    assert os.listdir(folder) == []


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for a system call that does not return."""
    goes_on, replace = threading.Event(), os.replace

    def hang(source: str, target: str) -> None:
        goes_on.wait(30.0)
        replace(source, target)

    monkeypatch.setattr(os, "replace", hang)
    monkeypatch.setattr(announcing, "CLOSE_S", 0.2)
    announcer = _announcer(tmp_path)
    begun_s = time.monotonic()
    announcer.start()
    announcer.leave()
    announcer.close()
    assert 0.2 <= time.monotonic() - begun_s < 5.0
    goes_on.set()
    until(lambda: os.listdir(tmp_path) == [], "what it wrote too late goes")


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, why in (("none", "No such file"), ("file", "Not a directory")):
        with pytest.raises(ConfigError, match=rf"--announce must be an existing folder .*{folder}: {why}.*; make it"):
            check_folder(tmp_path / folder)
    check_folder(tmp_path)
    assert os.listdir(tmp_path) == ["file"]


def test_too_many_exports_to_announce(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at most 64 KiB, got \d+ bytes; serve fewer"):
        _announcer(tmp_path, AgentEntry(ENTRY.addresses, "5f0c", [f"{n:0200}" for n in range(400)]))
