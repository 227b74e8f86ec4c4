"""Counts of pictures that workers share with the main process, kinds of files, and the sentences made of them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from sophon_loader.recording.picture_counts import FAR, MOST, OURS, PILLOW, WHOLE, PictureCounts, kind_of
from sophon_loader.recording.picture_notes import decoded_pictures, decoded_share, picture_notes


def test_counts_are_sums_over_workers() -> None:
    counts = PictureCounts(workers=2)
    one, other = counts.of(0), counts.of(1)
    for _ in range(3):
        one.add(PILLOW, "PNG")
    other.add(PILLOW, "GIF")
    other.add(PILLOW, "PNG")
    other.add(OURS)
    assert counts.found() == {(PILLOW, "PNG"): 4, (PILLOW, "GIF"): 1, (OURS,): 1}


def test_a_thousand_places_and_names_that_are_too_long_keep_the_sums() -> None:
    counts = PictureCounts(workers=1)
    mine = counts.of(0)
    mine.add(WHOLE, "/x" * 400, "1", "f", "")
    for number in range(1000):
        mine.add(WHOLE, f"/{number}.py", "1", "f", "")
        mine.add(PILLOW, f"kind {number}")
    mine.add(OURS)
    mine.add(FAR)
    found = counts.found()
    assert len(found) == MOST
    assert decoded_pictures(found) == (1, 1000)
    assert sum(count for one, count in found.items() if one[0] == WHOLE) == 1001


@pytest.mark.parametrize(
    ("mode", "format_", "arguments", "kind"),
    [
        ("RGB", "JPEG", {"progressive": True}, "progressive JPEG"),
        ("CMYK", "JPEG", {}, "CMYK JPEG"),
        ("L", "JPEG", {}, "other JPEG"),
        ("RGB", "PNG", {}, "PNG"),
        ("P", "PNG", {}, "palette PNG"),
        ("I;16", "PNG", {}, "16-bit PNG"),
        ("RGB", "PNG", {"transparency": (0, 0, 0)}, "transparent PNG"),
        ("F", "TIFF", {}, "32-bit TIFF"),
    ],
)
def test_kinds_of_files(mode: str, format_: str, arguments: dict[str, object], kind: str) -> None:
    memory = io.BytesIO()
    Image.new(mode, (64, 64)).save(memory, format_, **arguments)
    with Image.open(memory) as image:
        assert kind_of(image) == kind
        if kind == "other JPEG":
            image.draft("L", (8, 8))
            assert kind_of(image) == "JPEG read smaller (draft)"
    assert kind_of(Image.new("RGB", (1, 1))) == ""


def test_sentences(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text("def f(image):\n    image = np.array(image)\n")
    found = {
        (OURS,): 412,
        (PILLOW, "PNG"): 60,
        (PILLOW, "progressive JPEG"): 6,
        (PILLOW, ""): 2,
        (WHOLE, str(file), "2", "__getitem__", ""): 190,
        (WHOLE, str(file), "2", "__getitem__", "torchvision.a"): 210,
        (WHOLE, "/gone.py", "9", "f", "torchvision.to_tensor"): 3,
        (WHOLE,): 1,
    }
    assert decoded_share(found) == "our C decoded 412 of 480 pictures"
    assert picture_notes(found) == [
        "412 of 480 pictures (86 %) were decoded by our C, the rest by Pillow: 60 PNG, 6 progressive JPEG, 2 of other "
        "kinds (our C decodes baseline JPEG only)",
        f"400 pictures were wanted whole at {file}:2 in __getitem__ (`image = np.array(image)`, by torchvision.a and "
        "others), and 4 elsewhere; if a crop or resize follows, do it before that line: our C then decodes and resizes "
        "what it takes",
    ]


def test_sentences_where_little_is_known() -> None:
    assert picture_notes({}) == []
    assert picture_notes({(OURS,): 5, (WHOLE,): 2}) == [
        "all 5 pictures were decoded by our C",
        "2 pictures were wanted whole in code of libraries, before any crop or resize",
    ]
    assert (
        "at /gone.py:9 in f (by timm.g)" in picture_notes({(OURS,): 1, (WHOLE, "/gone.py", "9", "f", "timm.g"): 1})[1]
    )
