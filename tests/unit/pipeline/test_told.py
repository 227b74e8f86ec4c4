"""What a program has told Pillow, and what an agent does about it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import GifImagePlugin, Image, PngImagePlugin
from torchvision import transforms as v1

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.registration import Registration, registration_of, see_opened_alike
from sophon_loader.pipeline.replaced import replaced_in_pillow
from sophon_loader.pipeline.software import software, unlike
from sophon_loader.pipeline.switches import remedy_for
from sophon_loader.pipeline.told import OPENERS, SETTINGS, notes_on_openers

CHAIN = chain_of(v1.Compose([v1.Resize(8)]))


def own(*arguments: Any) -> None:
    """An opener, and what decodes."""


def test_a_fresh_pillow_was_told_nothing() -> None:
    assert (software()[SETTINGS], software()[OPENERS], notes_on_openers()) == ("", "", [])


@pytest.mark.parametrize(
    ("module", "name", "value", "told"),
    [
        (Image, "MAX_IMAGE_PIXELS", 1000, "Image.MAX_IMAGE_PIXELS=1000"),
        (Image, "MAX_IMAGE_PIXELS", None, ""),
        (Image, "MAX_IMAGE_PIXELS", 1 << 40, ""),
        (PngImagePlugin, "MAX_TEXT_CHUNK", 10, "PngImagePlugin.MAX_TEXT_CHUNK=10"),
        (
            GifImagePlugin,
            "LOADING_STRATEGY",
            GifImagePlugin.LoadingStrategy.RGB_ALWAYS,
            "GifImagePlugin.LOADING_STRATEGY=2",
        ),
    ],
)
def test_a_setting_that_an_agent_would_not_meet_differs(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any, told: str
) -> None:
    usual = software()
    monkeypatch.setattr(module, name, value)
    here = software()
    assert here[SETTINGS] == told and unlike(usual) == ([SETTINGS] if told else []) and remedy_for(SETTINGS) == ""
    earlier = {key: usual[key] for key in usual if key not in (SETTINGS, OPENERS)}
    assert unlike(earlier) == unlike(usual)
    monkeypatch.undo()
    assert Registration.from_bytes(registration_of(CHAIN, here)).reach == (0 if told else len(CHAIN))


def test_files_of_a_format_that_the_loader_opens_by_other_code_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()
    usual, file = software(), io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "TGA")
    with monkeypatch.context() as patch:
        patch.setitem(Image.OPEN, "TGA", (own, None))
        here = software()
        assert here[OPENERS] == f"TGA={__name__}" and unlike(usual) == []
        assert unlike({key: value for key, value in usual.items() if key != OPENERS}) == [OPENERS]
        assert "(TGA=" in notes_on_openers()[0]
        assert Registration.from_bytes(registration_of(CHAIN, here)).left == frozenset()
    served = Registration.from_bytes(registration_of(CHAIN, here))
    assert served.reach == len(CHAIN) and served.left == {"TGA"}
    see_opened_alike(file.getvalue(), frozenset())
    see_opened_alike(b"no picture", served.left)
    with pytest.raises(PipelineError, match="TGA files must be opened by equal code at both ends"):
        see_opened_alike(file.getvalue(), served.left)


def test_an_opener_that_comes_before_pillow_s_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.preinit()
    monkeypatch.setattr(Image, "ID", ["MYLAB", *Image.ID])
    for accepts, counts in [
        (lambda begin: begin[4:8] == b"ftyp", False),
        (lambda begin: begin[:2] == b"\xff\xd8", True),
        (lambda begin: 1 / 0, True),
        (None, True),
    ]:
        monkeypatch.setitem(Image.OPEN, "MYLAB", (own, accepts))
        assert (replaced_in_pillow() is not None) is counts
    monkeypatch.setattr(Image, "ID", [*Image.ID[1:], "MYLAB"])
    assert replaced_in_pillow() is None


@pytest.mark.parametrize(("name", "counts"), [("jpeg", True), ("bmp_rle", True), ("mylab", False)])
def test_a_decoder_that_takes_the_place_of_pillow_s_counts(
    monkeypatch: pytest.MonkeyPatch, name: str, counts: bool
) -> None:
    monkeypatch.setitem(Image.DECODERS, name, own)
    assert (replaced_in_pillow() is not None) is counts
