"""Which encodings there are: their names without their code, what is missing and why, and those of other packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from PIL import Image

from sophon_loader.decide.facts import FILE, PAPER_ENCODINGS
from sophon_loader.encodings import catalogue
from sophon_loader.encodings.catalogue import CATALOGUE, PLAIN, encoding_names, missing, usable
from sophon_loader.encodings.estimate import Exact, Fitted, UsedAt
from sophon_loader.encodings.registry import decode, encode, encodings, fitted, used_at
from tests.support.agents import with_modules
from tests.support.outside import install_outside, outside_installed

BUILT_IN = tuple(line.name for line in CATALOGUE)


def test_the_broker_offers_what_the_workers_have() -> None:
    assert encoding_names() == tuple(encodings())
    assert all(encoding.name == name for name, encoding in encodings().items())


def test_editors_complete_the_names_of_all_encodings() -> None:
    assert get_args(catalogue.EncodingName) == BUILT_IN


def test_what_is_missing_has_a_reason() -> None:
    assert set(missing()).isdisjoint(encoding_names())
    assert {*missing(), *encoding_names()} >= set(BUILT_IN)
    assert all(missing().values())


def test_the_sets_of_names_fit_together() -> None:
    assert set(encoding_names()) >= PAPER_ENCODINGS == {FILE.encoding, *PLAIN}
    assert len(set(BUILT_IN)) == len(BUILT_IN)


@pytest.mark.parametrize(("allowed", "offered", "expected"), [
    (("file", "webp"), ("file", "pixels", "webp"), ("file", "webp")),
    (("webp",), ("webp", "file"), ("file", "webp")),
    ((), ("file", "pixels"), ("file",)),
    (("array", "pixels"), ("pixels", "array"), ("file", "pixels", "array")),
    (("of-a-later-release",), ("jxl",), ("file",)),
    (("jxl",), (), ("file",)),
])  # fmt: skip
def test_what_may_cross_is_what_both_sides_have_and_the_file(
    allowed: tuple[str, ...], offered: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert usable(allowed, offered) == expected


def test_every_encoding_of_this_package_says_how_it_is_planned_with() -> None:
    for name in set(BUILT_IN) & set(encodings()):
        encoding = encodings()[name]
        assert isinstance(encoding.used_at, UsedAt)
        assert isinstance(encoding.estimate, (Exact, Fitted))
        assert (name in fitted()) == (name not in PAPER_ENCODINGS)


NAMES_ALONE = """
import sys
from sophon_loader.encodings.catalogue import encoding_names, missing
print(*encoding_names())
missing()
assert not {"torch", "torchvision", "numpy", "PIL", "outside_encodings"} & set(sys.modules), sorted(sys.modules)
"""


def test_names_are_told_without_loading_any_code(tmp_path: Path) -> None:
    folder = install_outside(tmp_path)
    command = [sys.executable, "-c", NAMES_ALONE]
    found = subprocess.run(command, env=with_modules(folder), capture_output=True, text=True, check=True)
    assert found.stdout.split() == [*encoding_names(), "packed", "bare"]


WITHOUT_TORCH = """
import sys
sys.modules["torchvision"] = None
from PIL import Image
from sophon_loader.encodings.catalogue import encoding_names, missing
from sophon_loader.encodings.registry import encode, encodings
image = Image.new("L", (2, 2))
image.info = {"exif": b"x", "dpi": (72, 72.5)}
encoded = encode(image, "array", keep_info=True)
print(encoded.encoding, encoded.meta["info"]["$"], tuple(encodings()) == encoding_names(), missing()["array"])
"""


def test_without_torch_tensors_do_not_cross_and_images_do() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "pixels dict True not installed: torchvision; no op runs at this agent"


# --- encodings of other packages ------------------------------------------------------------------------------


def test_encodings_of_another_package(tmp_path: Path) -> None:
    before = encoding_names()
    picture = Image.new("RGB", (7, 5), (1, 2, 3))
    with outside_installed(tmp_path):
        assert encoding_names() == tuple(encodings()) == (*before, "packed", "bare")
        for name in ("packed", "bare"):
            encoded = encode(picture, name)
            assert encoded.encoding == name
            assert decode(name, encoded.meta, encoded.payload).tobytes() == picture.tobytes()
        assert used_at("packed") is UsedAt.RESIZED and fitted()["packed"].features == ("one",)
        assert used_at("bare") is None and "bare" not in fitted()
    assert encoding_names() == before


def test_one_that_is_named_like_ours_takes_its_place(tmp_path: Path) -> None:
    install_outside(tmp_path)
    entry_points = next(tmp_path.glob("*.dist-info")) / "entry_points.txt"
    entry_points.write_text(f"[{catalogue.ENTRY_POINTS}]\nwebp = outside_encodings:Packed\n")
    code = "from sophon_loader.encodings.catalogue import entries, encoding_names as names\n"
    code += "print(len(names()) == len(set(names())), entries()['webp'].value)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=with_modules(tmp_path), capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "outside_encodings:Packed"]


def test_an_encoding_that_nobody_has() -> None:
    assert used_at("of-a-later-release") is None
