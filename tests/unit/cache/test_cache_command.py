"""`sophon-cache`, on real folders."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sophon_loader.cache.cache import Cache
from sophon_loader.cache.cache_command import main
from tests.unit.cache.test_cache import MB, fill, fill_sent


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    found = Cache(str(tmp_path), 10 * MB)
    assert fill(found, range(30)) == 30
    return found


def test_what_is_there_is_listed(cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("30 files of 600.0 KB, in ")
    assert main(["verify", str(tmp_path)]) == 0
    assert "30 files, 0 of them damaged" in capsys.readouterr().out


def test_damage_is_found(cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted(Path(cache.folder).glob("*.data"))[:1]:
        path.write_bytes(random.Random(0).randbytes(path.stat().st_size))
    assert main(["verify", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "30 files, " in told and " 0 of them" not in told


def test_what_was_withdrawn_is_not_listed(cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill_sent(cache, range(30, 40))
    cache.withdraw_sent()
    assert main(["ls", str(tmp_path)]) == main(["verify", str(tmp_path)]) == 0
    assert [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()] == ["30", "30"]


def test_clear_removes_the_cache_and_nothing_else(
    cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("stays")
    assert main(["clear", str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith(" freed\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert main(["clear", str(tmp_path)]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert main(["ls", str(tmp_path)]) == 1
    assert "must hold a cache of this user's, got none" in capsys.readouterr().err
    again = Cache(str(tmp_path), 10 * MB)
    (Path(again.folder) / "of somebody").write_text("stays")
    assert main(["clear", str(tmp_path)]) == 1
    assert "not empty" in capsys.readouterr().err
    assert (Path(again.folder) / "of somebody").exists()
