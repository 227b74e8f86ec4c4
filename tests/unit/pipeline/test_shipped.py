"""What counts as shipped: the installed libraries as they are, and nothing that was put in a function's place."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import PIL.ImageOps
import pytest
from PIL import Image
from torchvision import transforms
from torchvision.datasets import flowers102, folder
from torchvision.transforms import functional, v2

from sophon_loader.pipeline.replaced import replaced_in_dataset, replaced_in_pillow, replaced_in_transform
from sophon_loader.pipeline.shipped import replaced_in


def test_nothing_is_replaced_in_the_installed_libraries() -> None:
    pytest.importorskip("timm.data")
    Image.init()
    roots = ("PIL.", "torchvision.datasets.", "torchvision.transforms.", "torchvision.tv_tensors", "timm.data.")
    modules = [name for name in sys.modules if name.startswith(roots)]
    found = {name: replaced_in(sys.modules[name]) for name in modules}
    # fastai's own, in a process that has imported it.
    assert not [(name, what) for name in found for what, _ in found[name] if what != "Image.__repr__"]
    assert len(modules) > 40 and replaced_in_pillow() is None


def own(*args: Any) -> Any:
    return args


@functools.wraps(functional.resize)
def wrapped(*args: Any) -> Any:
    return args


def made(code: types.CodeType, name: str) -> types.FunctionType:
    function = types.FunctionType(code, {"__name__": "torchvision.transforms.functional"}, name)
    function.__module__ = "torchvision.transforms.functional"
    return function


class Callable:
    def __call__(self, *args: Any) -> Any:
        return args


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (functional, "resize", own),
        (functional, "resize", wrapped),
        (functional, "resize", functools.partial(own)),
        (functional, "resize", functools.lru_cache(own)),
        (functional, "resize", Callable()),
        (functional, "resize", functional.center_crop),
        (functional, "resize", functional.F_pil.resize),
        (functional, "resize", v2.functional.resize),
        (functional, "resize", made(own.__code__, "resize")),
        (functional, "F_pil", types.ModuleType("mylab")),
        (functional.resize, "__code__", functional.center_crop.__code__),
        (transforms.Resize, "forward", transforms.CenterCrop.forward),
        (transforms.Resize, "__call__", own),
        (transforms.Resize, "forward", functools.partial(own)),
    ],
)
def test_what_is_put_in_place_is_seen(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, value: Any) -> None:
    assert replaced_in_transform(transforms.Resize) is None
    with monkeypatch.context() as patch:
        patch.setattr(place, name, value, raising=False)
        assert replaced_in_transform(transforms.Resize) is not None
    assert replaced_in_transform(transforms.Resize) is None


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (functional, "of_mine", own),
        (functional, "resize", functools.lru_cache(functional.resize)),
        (transforms.Resize, "of_mine", own),
        (transforms.Pad, "forward", own),
        (v2.functional, "resize", own),
        (transforms, "Resize", own),
    ],
)
def test_what_changes_nothing_does_not_count(
    monkeypatch: pytest.MonkeyPatch, place: Any, name: str, value: Any
) -> None:
    monkeypatch.setattr(place, name, value, raising=False)
    assert replaced_in_transform(transforms.Resize) is None


def test_a_name_that_hides_a_built_in_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replaced_in_dataset(folder.ImageFolder) is None
    monkeypatch.setattr(folder, "open", own, raising=False)
    assert str(replaced_in_dataset(folder.ImageFolder)) == (
        "torchvision.datasets.folder.open was replaced by tests.unit.pipeline.test_shipped.own in this process"
    )


def test_the_opener_of_a_format_counts_and_one_more_format_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    Image.preinit()
    monkeypatch.setitem(Image.OPEN, "MYLAB", (own, None))
    assert replaced_in_pillow() is None
    monkeypatch.setitem(Image.OPEN, "JPEG", (own, None))
    assert "PIL.Image.OPEN['JPEG'] was replaced by" in str(replaced_in_pillow())


def test_an_image_filter_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL.ImageOps, "invert", own)
    assert "PIL.ImageOps.invert" in str(replaced_in_pillow())
    assert replaced_in_dataset(flowers102.Flowers102) is None
