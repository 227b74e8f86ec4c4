"""Which pictures were wanted whole, and by which line of the user's code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sophon_loader.recording.look_place import look_place
from sophon_loader.recording.opener import Opener, can_defer
from sophon_loader.recording.picture_counts import OURS, WHOLE, PictureCounts
from tests.support.picture_files import file_of

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
MINE = """\
import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import Compose, RandomCrop, ToTensor

def array(path):
    image = Image.open(path).convert("RGB")
    return np.array(
        image
    )

def composed(path):
    return Compose([ToTensor(), RandomCrop(8)])(Image.open(path))

def cropped_first(path):
    return Compose([RandomCrop(8), ToTensor()])(Image.open(path))

def two_looks(path):
    image = ImageOps.mirror(Image.open(path))
    return image.resize((8, 8)).tobytes(), image.getpixel((0, 0)), image.tobytes()

def looks_at_no_pixel(path):
    return Image.open(path).size
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "photo.jpg").write_bytes(file_of("jpeg 4:2:0", 120, 90))
    (tmp_path / "looking_module.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.reload(importlib.import_module("looking_module"))


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("array", ("7", "array", "")),
        ("composed", ("12", "composed", "torchvision.to_tensor")),
        ("cropped_first", None),
        ("two_looks", ("19", "two_looks", "")),
        ("looks_at_no_pixel", None),
    ],
)
def test_places(mine: Any, tmp_path: Path, function: str, place: tuple[str, str, str] | None) -> None:
    counts = PictureCounts(workers=1)
    with Opener(counts.of(0)).opening():
        getattr(mine, function)(tmp_path / "photo.jpg")
    found = counts.found()
    assert found.pop((OURS,), 0) == (function != "looks_at_no_pixel")
    assert found == ({} if place is None else {(WHOLE, str(tmp_path / "looking_module.py"), *place): 1})


def test_code_of_libraries_alone_is_no_place() -> None:
    namespace: dict[str, Any] = {"look_place": look_place, "found": []}
    exec(compile("found.append(look_place())", "<stdin>", "exec"), namespace)
    assert namespace["found"] == [("<stdin>", "1", "<module>", "")]
    exec(compile("found.append(look_place())", "<frozen library>", "exec"), namespace)
    assert namespace["found"][1].function == "test_code_of_libraries_alone_is_no_place"


@pytest.mark.parametrize("installed", [True, False])
def test_hugging_faces_library_is_none_of_the_users_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    folder = tmp_path / "site-packages" if installed else tmp_path
    package = ModuleType("datasets")
    package.__path__ = [str(folder / "datasets")]
    monkeypatch.setitem(sys.modules, "datasets", package)
    namespace: dict[str, Any] = {"look_place": look_place}
    file = folder / "datasets" / "formatting.py"
    exec(compile("def formatted(): return look_place()", str(file), "exec"), namespace)
    calling = "test_hugging_faces_library_is_none_of_the_users_folders"
    assert namespace["formatted"]().function == (calling if installed else "formatted")
