"""README's figures, in its words and in its picture, are those of bench/results."""

from __future__ import annotations

import re

import pytest

from bench.gains import entry, kb_per_image
from bench.markdown import Result, Results
from bench.record import REPOSITORY, RESULTS

README = (REPOSITORY / "README.md").read_text()
PICTURES = {name: (REPOSITORY / "docs" / "figures" / f"overview-{name}.svg").read_text() for name in ("light", "dark")}
PX_PER_KB = 0.2
"""The width of the picture's arrows."""


def result(name: str) -> Result:
    found = Results(RESULTS).named(name)
    assert found is not None
    return found


def rate(name: str, policy: str) -> float:
    return float(entry(result(name), policy)["images_per_s"]["median"])


def gain(name: str) -> float:
    return float(entry(result(name), "auto")["times_faster"]["median"])


def test_the_first_sentence_has_the_gains_of_both_picture_folders() -> None:
    low, high = gain("long-epochs-imagenet"), gain("long-epochs-photos")
    assert f"{low:.1f} to {high:.0f} times the images per second over 100 Mbit/s" in README.partition("<picture>")[0]


def test_the_thresholds_follow_from_measurements() -> None:
    files = rate("long-epochs-imagenet", "no-off")
    assert f"100 Mbit/s carries {files:.0f} ImageNet" in README
    assert f"about {files / 10:.0f},000" in README, "a hundred times as many at 10 Gbit/s"
    assert "A quarter of a core" in README and gain("policies-0.25-imagenet") == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("theme", PICTURES)
def test_the_picture_has_what_was_measured(theme: str) -> None:
    measured = result("long-epochs-imagenet")
    for policy, lane in (("no-off", "before"), ("auto", "now")):
        kb = kb_per_image(measured, policy)
        assert f"{lane}: {kb:.0f} KB an image" in PICTURES[theme]
        assert f"{rate('long-epochs-imagenet', policy):.0f} images/s" in PICTURES[theme]
        assert f'stroke-width="{PX_PER_KB * kb:.1f}"' in PICTURES[theme]
        assert f"{kb:.0f} KB" in README, "in its words, for those who do not see it"


def test_both_themes_show_the_same() -> None:
    light, dark = (re.sub("#[0-9a-f]{6}", "colour", PICTURES[theme]) for theme in ("light", "dark"))
    assert light == dark != PICTURES["light"]


def test_the_pictures_text_can_be_read_at_600_px() -> None:
    width = float(re.findall(r'viewBox="0 0 (\d+)', PICTURES["light"])[0])
    assert min(float(size) for size in re.findall(r'font-size="(\d+)"', PICTURES["light"])) * 600 / width >= 12
