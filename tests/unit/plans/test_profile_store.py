"""Profiles on disk: what was saved comes back, and anything else is refused with a reason."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sophon_loader.plans import profile_store
from sophon_loader.plans.profile_store import FORMAT, ProfileKey, StoredProfile, load, save

KEY = ProfileKey("d" * 32, "p" * 32, "local", {"pillow": "11.0", "torch": "2.9"})
ARRAYS: dict[str, Any] = {
    "nbytes": np.arange(300, dtype=np.uint32).reshape(60, 5),
    "op_ms": np.linspace(0, 9, 240).reshape(60, 4).astype(np.float16),
    "sides": np.full((60, 2), 7, np.uint16),
}
FIGURES = {"calibration": {"op_ratio": [1.0, 2.0]}, "wire_bytes_s": 1.5e7, "gpu_samples_s": math.inf}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.npz"


@pytest.fixture
def saved(path: Path) -> Path:
    save(path, KEY, StoredProfile(ARRAYS, FIGURES))
    return path


def reason(path: Path, key: ProfileKey = KEY) -> str:
    found = load(path, key)
    assert isinstance(found, str), found
    assert str(path) in found
    return found


def test_what_was_saved_comes_back(saved: Path) -> None:
    found = load(saved, KEY)
    assert isinstance(found, StoredProfile)
    assert found.figures == FIGURES
    assert set(found.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)


def test_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "p.npz"
    save(path, KEY, StoredProfile(ARRAYS, FIGURES))
    assert isinstance(load(path, KEY), StoredProfile)


def test_a_missing_file(path: Path) -> None:
    assert reason(path) == f"there is no profile at {path} yet"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": "x"}, "dataset"),
        ({"pipeline": "x"}, "pipeline"),
        ({"agent": "tcp://other:1/d"}, "agent"),
        ({"software": {"pillow": "12.0", "torch": "2.9"}}, "software"),
        ({"dataset": "x", "pipeline": "y"}, "dataset and pipeline"),
    ],
)
def test_a_profile_of_something_else(saved: Path, changes: dict[str, Any], words: str) -> None:
    assert reason(saved, replace(KEY, **changes)) == f"the profile at {saved} is of another {words}"


def written(path: Path, header: Any, arrays: dict[str, Any] | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    np.savez_compressed(path, header=np.frombuffer(text, np.uint8), **(ARRAYS if arrays is None else arrays))
    return path


@pytest.mark.parametrize("version", [0, FORMAT - 1, FORMAT + 1, "1", None])
def test_another_format(path: Path, version: Any) -> None:
    header = {"format": version, "key": {}, "figures": {}}
    assert reason(written(path, header)) == f"the profile at {path} has format {version}, not {FORMAT}"


@pytest.mark.parametrize(
    "header",
    [b"", b"{", b"\xff\xfe", [], 5, None, "x", {"format": FORMAT}, {"format": FORMAT, "key": {}},
     {"format": FORMAT, "key": None, "figures": {}},
     {"format": FORMAT, "key": {}, "figures": 5}],
    ids=repr,
)  # fmt: skip
def test_a_header_that_is_none(path: Path, header: Any) -> None:
    assert "damaged" in reason(written(path, header))


def test_a_file_that_is_no_archive(path: Path) -> None:
    for content in (b"", b"PK\x03\x04", b"hello", bytes(1000)):
        path.write_bytes(content)
        assert "damaged" in reason(path)
    np.savez(path, other=np.zeros(3))
    assert "damaged" in reason(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "damaged" in reason(path)
    with path.open("wb") as file:
        np.savez(file, header=np.array([{"pickled": 1}], dtype=object))
    assert "damaged" in reason(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    assert "another program" in reason(path) and "pickle" not in reason(path), "numpy advises to load it unsafely"
    path.unlink()
    path.mkdir()
    assert "damaged" in reason(path)


def test_a_truncated_file(saved: Path, tmp_path: Path) -> None:
    whole, path = saved.read_bytes(), tmp_path / "cut.npz"
    for length in range(0, len(whole), 41):
        path.write_bytes(whole[:length])
        assert "damaged" in reason(path)


def test_a_file_with_wrong_bytes(saved: Path, tmp_path: Path) -> None:
    """Whatever is in it, there is a reason or a profile, and never another exception."""
    whole, path = saved.read_bytes(), tmp_path / "wrong.npz"
    rng = random.Random(1)
    reasons = 0
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        found = load(path, KEY)
        reasons += isinstance(found, str)
    assert reasons > 100


def test_a_failure_leaves_what_was_there(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(profile_store.np, "savez_compressed", half)
    with pytest.raises(OSError, match="no space"):
        save(saved, KEY, StoredProfile(ARRAYS, FIGURES))
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_reader_sees_the_old_file_or_the_new_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, replace_file = saved.read_bytes(), os.replace
    seen = []

    def watched(source: str, target: Path) -> None:
        assert Path(source).parent == saved.parent, "on the same file system"
        seen.append(saved.read_bytes() == before)
        shutil.copy(source, f"{target}.copy")
        replace_file(source, target)

    monkeypatch.setattr(profile_store.os, "replace", watched)
    save(saved, KEY, StoredProfile(ARRAYS, {**FIGURES, "wire_bytes_s": 1.0}))
    assert seen == [True]
    assert Path(f"{saved}.copy").read_bytes() == saved.read_bytes(), "it was whole before it got its name"


def test_a_target_that_cannot_be_replaced_leaves_no_rest(tmp_path: Path) -> None:
    (tmp_path / "folder.npz" / "in").mkdir(parents=True)
    with pytest.raises(OSError):
        save(tmp_path / "folder.npz", KEY, StoredProfile(ARRAYS, FIGURES))
    assert os.listdir(tmp_path) == ["folder.npz"]
