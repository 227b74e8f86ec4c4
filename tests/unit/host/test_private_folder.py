"""The folder of a Unix socket: for one user, with a short path, and gone when its process is."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sophon_loader.errors import AgentError
from sophon_loader.host import private_folder as module
from sophon_loader.host.private_folder import MAX_SOCKET_NBYTES, PrivateFolder, sweep

LEAVE = """
import os, signal, sys, tempfile
from sophon_loader.host import private_folder
private_folder._bases = lambda: iter([private_folder.Path(sys.argv[1])])
print(private_folder.PrivateFolder().socket, flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place for such folders; its path may be longer than a socket's may."""
    monkeypatch.setattr(module, "_bases", lambda: iter([tmp_path]))
    return tmp_path


def test_only_its_user_can_reach_it(base: Path) -> None:
    folder = PrivateFolder()
    about = folder.path.stat()
    assert (about.st_mode & 0o777, about.st_uid) == (0o700, os.getuid()) and folder.path.parent == base
    Path(folder.socket).touch()
    folder.remove()
    folder.remove()
    assert list(base.iterdir()) == []


def test_another_one_is_not_swept_while_its_process_lives(base: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEAVE, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        left = Path(other.stdout.readline().strip())
        left.touch()
        mine = PrivateFolder()
        sweep()
        assert left.exists() and mine.path.exists()
        other.stdin.close()
        assert other.wait(60) == -9 and left.exists()
    sweep()
    assert list(base.iterdir()) == [mine.path]
    mine.remove()


def test_what_is_another_s_is_left_alone(base: Path) -> None:
    names = ("sophon-agent-abcdefgh", "sophon-agent-12345678", "sophon-agent-link1234", "sophon-agent-more", "sophon-x")
    full, open_to_all, link, longer, other = (base / name for name in names)
    for path in (full, open_to_all, longer, other):
        path.mkdir(mode=0o700)
    (full / "data").touch()
    open_to_all.chmod(0o755)
    link.symlink_to(other)
    sweep()
    assert all(path.exists() for path in (full / "data", open_to_all, link, longer, other))


def test_what_lies_at_its_path_by_now_is_left_alone(base: Path) -> None:
    folder = PrivateFolder()
    Path(folder.socket).touch()
    folder.path.rename(base / "moved")
    (base / "theirs").mkdir()
    (base / "theirs/socket").touch()
    folder.path.symlink_to(base / "theirs")
    folder.remove()
    assert (base / "theirs/socket").exists() and not (base / "moved/socket").exists()


def test_a_long_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", str(long))
    folder = PrivateFolder()
    try:
        assert folder.path.parent == Path("/tmp") and len(os.fsencode(folder.socket)) <= MAX_SOCKET_NBYTES
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(folder.socket)
    finally:
        folder.remove()
    assert not folder.path.exists()


def test_no_place_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bases", lambda: iter([tmp_path / "none"]))
    with pytest.raises(AgentError, match=r"must have a folder for its Unix socket, got none in .*none; set TMPDIR"):
        PrivateFolder()
