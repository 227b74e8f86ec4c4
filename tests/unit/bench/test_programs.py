"""docs/programs.md says what the code does: of every registered op, and of whole pipelines."""

from __future__ import annotations

import io
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision import transforms as v1

from bench.markdown import Results
from bench.program_cases import CONSTRUCTIONS, PIPELINES
from bench.programs import shares
from bench.record import RESULTS, summary_of
from bench.recorded import answer, answers
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.op_catalogue import registered
from sophon_loader.pipeline.op_registry import op_of

OURS = ("v1.", "v2.", "nn.", "timm.")
REMEDY = "run `python -m bench recorded programs` and `python -m bench.tables`"


def rows(name: str) -> Any:
    result = Results(RESULTS).named(name)
    assert result is not None
    return result.rows


def jpeg(width: int, height: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def test_every_registered_op_is_on_the_page() -> None:
    told = {op_of(one.make()).label for one in CONSTRUCTIONS}
    assert told == {name for name in registered() if name.startswith(OURS)}


def test_the_page_says_of_ops_what_the_code_does() -> None:
    result = Results(RESULTS).named("recorded")
    assert result is not None
    told = {**result.stamp["versions"], "timm": result.rows["timm"]}
    here = {name: version(name) for name in ("torch", "torchvision", "pillow", "timm")}
    if others := {name: found for name, found in here.items() if told[name] != found}:
        pytest.skip(f"the page was made with other releases than {others}")
    assert summary_of(answers()) == result.rows, REMEDY


@pytest.mark.parametrize("data", ["imagenet", "photos"])
def test_every_pipeline_was_measured_and_each_shortfall_has_a_reason(data: str) -> None:
    found = rows(f"programs-{data}")["pipelines"]
    assert [row["title"] for row in found] == [one.title for one in PIPELINES], REMEDY
    for row in found:
        short = 1 - min(row["shrunk"], row["whole"])
        assert sum(row.get("ended", {}).values()) == pytest.approx(short, abs=1e-4), row["title"]


def test_an_op_records_or_looks_or_takes_no_image() -> None:
    assert answer(v1.RandomHorizontalFlip()) == {"made": [[], ["transpose"]]}
    assert answer(v1.Pad(2)) == {"made": [], "looks": {"ImageOps.expand -> paste": 1.0}}
    assert answer(v1.Normalize([0.5], [0.5])) == {"made": [], "refused": True}


CROP = v1.RandomResizedCrop(64, scale=(0.1, 0.2))


@pytest.mark.parametrize(
    ("ops", "figures", "ended"),
    [
        ([CROP], (1, 1, 1, 1), []),
        ([CROP, v1.GaussianBlur(3)], (1, 0, 1, 1), ["`GaussianBlur` looks: `__array_interface__`"]),
        ([v1.Pad(2), CROP], (0, 0, 0, 0), ["`Pad` looks: `paste`"]),
        ([v1.RandomRotation(9), CROP], (0, 1, 0, 0), ["`transform` comes before the crop"]),
        ([v1.Lambda(lambda image: image), CROP], (0, 0, 0, 0), ["`Lambda` is not known"]),
    ],
)
def test_how_far_a_pipeline_gets(ops: list[Any], figures: tuple[float, ...], ended: list[str]) -> None:
    found = shares(chain_of(v1.Compose([*ops, v1.ToTensor()])), [jpeg(400, 300)] * 4)
    assert tuple(found[name] for name in ("shrunk", "whole", "cut", "here")) == figures
    assert list(found.get("ended", {})) == ended
