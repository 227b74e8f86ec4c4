"""Folders for the tests of stores and listings."""

from __future__ import annotations

from pathlib import Path


def export_folder(tmp_path: Path) -> Path:
    """A folder to export, with neighbours that are not to be read."""
    folder = tmp_path / "data"
    (folder / "a" / "deep").mkdir(parents=True)
    (folder / "a" / "x.jpg").write_bytes(b"pixels")
    (folder / "a" / "deep" / "y.png").write_bytes(b"more")
    (folder / "empty.jpg").touch()
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (tmp_path / "data-too").mkdir()
    (tmp_path / "data-too" / "secret.jpg").write_bytes(b"secret")
    return folder
