"""What one sample must not cost the others: it goes as its file, and they stay offloaded."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torchvision import transforms as v1
from torchvision.transforms.functional import to_tensor

from sophon_loader import OffloadWarning
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import MakeLoader, as_list
from tests.support.pictures import eval_transform, folder, picture

FILES = 20
LOADER: dict[str, Any] = {"batch_size": 4, "seed": 3}


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    """It has one picture that is too large for it, and one that it cannot read."""
    picture(500, 400, 3).save(root / "class_0" / "large.jpg")
    there = root.parent / "there"
    shutil.copytree(root, there)
    unreadable = sorted((there / "class_3").iterdir())[1]
    unreadable.unlink()
    unreadable.mkdir()
    marked = root.parent / "marked" / "a"
    marked.mkdir(parents=True)
    texts = PngInfo()
    texts.add_itxt("Title", "Ä", "de", "Titel")
    for number in range(4):
        picture(90, 80, number).save(marked / f"{number}.png", pnginfo=texts)
        picture(90, 80, number).save(marked / f"{number}.tif", dpi=(72.5, 72))
    with agent_for({EXPORT: there, "marked": marked.parent}, "--max-megapixels", "0.1") as running:
        yield running


@pytest.mark.parametrize("policy", ["all-off", "resize-off"])
def test_samples_that_the_agent_cannot_make_go_as_files_alone(
    root: Path, agent: Agent, make: MakeLoader, policy: str
) -> None:
    loader = make(folder(root, eval_transform()), policy=policy)
    for epoch in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in loader:
                pass
        told = [str(one.message) for one in caught if one.category is OffloadWarning]
        assert [" answers, but cannot read a file that this host can read. " in one for one in told] == [True] * (
            epoch == 0
        )
        report = loader.report().as_dict()
        assert report["choices"]["file"] == 2, (epoch, report["choices"])
        assert (report["samples"], report["degraded"], report["fallbacks"]) == (FILES + 1, 1, 1)
        (said,) = [note for note in report["notes"] if "the agent said" in note]
        assert said.startswith("1 sample came less prepared") and "raise the agent's --max-megapixels" in said


def with_its_info(image: Image.Image) -> tuple[torch.Tensor, str, list[type]]:
    """An op that nobody has registered, and that looks at more than pixels."""
    values = [one for value in image.info.values() for one in (value if isinstance(value, tuple) else (value,))]
    return to_tensor(image), repr(image.info), list(map(type, values))


def test_a_function_that_comes_first_is_warned_of_once(root: Path, agent: Agent, make: MakeLoader) -> None:
    loader = make(folder(root, v1.Compose([with_its_info, *eval_transform().transforms])), collate_fn=as_list)
    assert agent.alive()
    with pytest.warns(
        OffloadWarning, match="No op but decoding can run at the agent: with_its_info .* it is a function"
    ):
        iter(loader)
    iter(loader)
    assert any("put it behind the ops that an agent is to run" in note for note in loader.report().notes)


def test_pictures_with_texts_and_rational_numbers_are_offloaded(root: Path, agent: Agent, make: MakeLoader) -> None:
    dataset = folder(root.parent / "marked", v1.Compose([v1.Resize(64), v1.CenterCrop(48), with_its_info]))
    there, here = (
        make(dataset, where, policy="all-off", collate_fn=as_list) for where in (agent.address("marked"), None)
    )
    for ours, wanted in zip(chain.from_iterable(there), chain.from_iterable(here), strict=True):
        assert torch.equal(ours[0][0], wanted[0][0]) and ours[0][1:] == wanted[0][1:]
    report = there.report().as_dict()
    assert (report["choices"], report["degraded"]) == ({"pixels": 8}, 0)
