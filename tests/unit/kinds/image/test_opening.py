"""Errors of files that Pillow cannot open: they name the file, and no buffer of ours."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image, UnidentifiedImageError

from sophon_loader.datasets.files import FileDataset
from sophon_loader.kinds.image.deferred import open_deferred
from sophon_loader.kinds.image.opening import UNNAMED, naming, open_image
from sophon_loader.pipeline.chain import decode


@pytest.mark.parametrize("opens", [open_image, decode, open_deferred])
def test_bytes_without_a_name_are_called_the_samples_file(opens: object) -> None:
    with pytest.raises(UnidentifiedImageError, match=f"^cannot identify image file {UNNAMED}$"):
        opens(b"no picture")  # type: ignore[operator]


def test_who_knows_the_path_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"no picture")
    dataset = FileDataset(tmp_path, ["a.jpg"], [0])
    for opens in (lambda: open_deferred(path), lambda: dataset[0]):
        with pytest.raises(UnidentifiedImageError) as caught:
            opens()
        assert str(caught.value) == f"cannot identify image file {str(path)!r}"


def test_a_buffer_of_the_users_own_is_not_taken_for_the_file() -> None:
    with pytest.raises(UnidentifiedImageError, match="BytesIO"), naming("a.jpg"):
        Image.open(io.BytesIO(b"no picture"))
