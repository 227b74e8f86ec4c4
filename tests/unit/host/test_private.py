"""What was opened is looked at, whatever lay at its path before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sophon_loader.host.private import WRITING, NotPrivate, open_private_file, open_private_folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "place"
    path.mkdir(mode=0o700)
    return path


def as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def test_what_is_this_user_s_alone_is_opened(place: Path) -> None:
    folder = open_private_folder(place)
    os.close(open_private_file(folder, "file", os.O_RDWR | os.O_CREAT))
    assert (place / "file").stat().st_mode & 0o777 == 0o600
    place.chmod(0o755)
    os.close(open_private_folder(place, kept_from_others=WRITING))
    os.close(folder)


def test_a_folder_that_others_reach_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.chmod(0o710)
    with pytest.raises(NotPrivate, match="place must be kept from other users, got mode 710"):
        open_private_folder(place)
    place.chmod(0o700)
    as_another(monkeypatch)
    uid = os.getuid()
    with pytest.raises(NotPrivate, match=rf"place must belong to this user \(uid {uid + 1}\), got uid {uid}"):
        open_private_folder(place)
    os.close(open_private_folder(place, owners=[uid]))


def test_a_link_and_a_file_are_no_folders(place: Path) -> None:
    (place / "link").symlink_to(place)
    (place / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(NotPrivate, match=f"{name} must be a folder of this user's: Not a directory"):
            open_private_folder(place / name)
    os.close(open_private_folder(place / "link", follow=True))
    with pytest.raises(FileNotFoundError):
        open_private_folder(place / "none")


def test_a_file_of_another_s_is_refused(place: Path) -> None:
    folder, before = open_private_folder(place), len(os.listdir("/proc/self/fd"))
    (place / "file").touch()
    (place / "file").chmod(0o660)
    (place / "link").symlink_to("file")
    with pytest.raises(NotPrivate, match="file must be kept from other users, got mode 660"):
        open_private_file(folder, "file", os.O_RDONLY)
    with pytest.raises(OSError, match="symbolic links"):
        open_private_file(folder, "link", os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before, "what is refused is closed"
    os.close(folder)
