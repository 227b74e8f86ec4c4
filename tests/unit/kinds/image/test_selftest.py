"""The self-test: it finds every primitive that gives something else, and then nothing is deferred or cut."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from PIL import Image
from torchvision import transforms as v1

from sophon_loader.kinds.image import selftest, source
from sophon_loader.kinds.image.primitives import PRIMITIVES
from sophon_loader.pipeline import described
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
from tests.support.picture_files import file_of


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    selftest.trusted.cache_clear()
    yield
    selftest.trusted.cache_clear()


def other_pixels(image: Image.Image) -> Image.Image:
    return image.point([*range(1, 256), 0] * len(image.getbands()))


def test_the_installed_pillow_gives_what_it_has_to() -> None:
    assert selftest.differing() == [] and selftest.trusted()


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_with_other_pixels_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = PRIMITIVES[name]
    monkeypatch.setitem(PRIMITIVES, name, replace(one, run=lambda *arguments: other_pixels(one.run(*arguments))))
    assert {found.split()[0] for found in selftest.differing()} >= {name}


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_with_another_size_or_an_error_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = PRIMITIVES[name]
    monkeypatch.setitem(PRIMITIVES, name, replace(one, run=lambda *arguments: one.run(*arguments).resize((3, 3))))
    assert {found.split()[0] for found in selftest.differing()} >= {name}
    monkeypatch.setitem(PRIMITIVES, name, replace(one, check=lambda *arguments: None))
    assert {found.split()[0] for found in selftest.differing()} >= {name}


def test_a_resize_that_rounds_by_where_a_part_lies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_on_canvas", lambda image, kept, shape: image.resize((shape.width, shape.height)))
    assert "resize and crop of a part" in selftest.differing()


def test_then_nothing_is_deferred_or_cut_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chain, data, draw = chain_of(v1.Compose([v1.CenterCrop(16), v1.ToTensor()])), file_of("jpeg 4:2:0"), Draw(0, 0, 0)
    begun = described.begin_on_file(chain, data, draw)
    assert begun is not None and begun.steps
    selftest.trusted.cache_clear()
    one = PRIMITIVES["crop"]
    monkeypatch.setitem(PRIMITIVES, "crop", replace(one, run=lambda *arguments: other_pixels(one.run(*arguments))))
    with caplog.at_level(logging.WARNING, "sophon_loader"):
        wanted, got = chain.run(data, 0, 2, draw), described.run_from_file(chain, data, 2, draw)
        begun = described.begin_on_file(chain, data, draw)
    assert got.tobytes() == wanted.tobytes()
    assert begun is not None and not begun.steps and begun.share == 1
    assert [record.message.partition(" pillow=")[0] for record in caplog.records] == [
        "pictures are decoded whole, since cropping them earlier would change pixels on this Pillow"
    ]
