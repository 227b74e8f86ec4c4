"""The page of a run in Chromium: it says nothing in the console, fits each screen, and mouse and keys can use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.report.agents import AgentShare
from sophon_loader.report.course import course_of
from sophon_loader.report.run_page import run_page
from tests.support.browser import CHROMIUM, Browser, browser
from tests.unit.report.test_page import GONE, report
from tests.unit.report.test_run_page import log_of, second

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: apt install chromium")
NARROW, WIDE = 400, 1400


def course(**facts: Any) -> list[list[dict[str, Any]]]:
    """Seconds of three epochs, not all alike."""
    return [
        [second(number, at_s + 1.0, **{"samples": 70 + 7 * at_s, **facts}) for at_s in range(6)] for number in range(3)
    ]


def runs() -> dict[str, list[str]]:
    """Logs of runs that differ in what limits."""
    totals = replace(
        NO_TOTALS, samples=480, file_bytes=36_000_000, wire_bytes=12_000_000, read_bytes=36_000_000,
        encodings={"roi-jpeg": 300, "pixels": 180}, cuts={0: 300, 2: 180}, loader_cpu_s=5.0, agent_cpu_s=2.0,
    )  # fmt: skip
    shares = (
        AgentShare("tcp://storage-0.example.org:5555/imagenet/train", 400, 9_000_000, group="rack-1"),
        AgentShare("tcp://storage-1.example.org:5555/imagenet/train", 80, 3_000_000, "does not answer", group="rack-2"),
    )
    choices = {"roi-jpeg": 40, "pixels@2": 30, "file": 10, "jxl@2": 5, "zstd-pixels@3": 4, "png@1": 3, "raw@5": 1}
    wire = log_of(*course(choices=choices), totals=totals, agents=shares, wanted_agent_cores=6.0, wanted_agents=3.0)
    loader = log_of(
        *course(choices={"pixels@2": 80}, workers_waited_s=0.05), totals=totals, bottleneck="loader-cpu",
        limits={"loader-cpu": 1.0, "agent-cpu": 0.7, "gpu": 0.2, "agent-disk": 0.01},
        would_bring={"agent-cpu": 1.9, "loader-cpu": 1.4}, wanted_agent_cores=12.0, wanted_agents=3.0,
    )  # fmt: skip
    gpu = log_of(
        *course(waited_s=0.01), totals=totals, awaited_s=0.02, bottleneck="gpu", limits={"gpu": 1.0, "wire": 0.6},
        would_bring={"gpu": 1.6}, wanted_agent_cores=0.0, wanted_agents=0.0,
    )  # fmt: skip
    faulty = course(choices={"file": 80}, wire_bytes=0, read_bytes=0, faults={"fallbacks": 80, "corrupt": 2})
    silent = log_of(*course()[:1], *faulty, totals=GONE, agent_address="tcp://fileserver:5555/imagenet/train")
    return {"wire": wire, "loader": loader, "gpu": gpu, "faulty": silent, "short": log_of([second()], totals=totals)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, lines in runs().items():
        made[name] = tmp_path_factory.mktemp("pages") / f"{name}.html"
        made[name].write_text(run_page(course_of(lines)), encoding="utf-8")
    made["one-epoch"] = made["wire"].with_name("one-epoch.html")
    report().save(made["one-epoch"])
    return made


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


OVERFLOWING = """[...document.querySelectorAll("main *, footer, details")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.right > document.documentElement.clientWidth + 1 && !one.closest(".scroll");
}).map((one) => one.outerHTML.slice(0, 80))"""
DRAWN = """[...document.querySelectorAll(".plot canvas")].map((one) => {
  const dots = one.getContext("2d").getImageData(0, 0, one.width, one.height).data;
  return dots.some((value) => value > 0);
})"""
CONTRAST = """(() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((v) => v / 255).map(
      (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    const found = getComputedStyle(one).backgroundColor;
    return one.parentElement && /, 0\\)$/.test(found) ? behind(one.parentElement) : found;
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) =>
    one.checkVisibility() && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return Math.min(...texts.map((one) => {
    const [low, high] = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
})()"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("name", ["wire", "loader", "gpu", "faulty", "short", "one-epoch"])
def test_it_fits_the_screen_and_says_nothing_in_the_console(
    chromium: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    chromium.said.clear()
    chromium.open(pages[name], width, dark=dark)
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run(OVERFLOWING) == []
    assert chromium.run(DRAWN) == ([] if name in ("short", "one-epoch") else [True] * 4)
    assert chromium.run(CONTRAST) >= 4.5, "the least that WCAG asks of text"
    assert chromium.said == []


def test_faults_fit_a_phone_s_screen(chromium: Browser, pages: dict[str, Path]) -> None:
    """What happened is the last column, and nobody looks for it beyond the edge."""
    chromium.open(pages["faulty"], NARROW)
    heading = '[...document.querySelectorAll("h2")].find((one) => one.textContent == "Faults")'
    table = f'{heading}.parentElement.querySelector(".scroll")'
    assert chromium.run(f"{table}.scrollWidth") <= chromium.run(f"{table}.clientWidth")


def at(chromium: Browser, share: float) -> tuple[float, float]:
    """A point of the first curve's area."""
    chromium.run('document.querySelector(".u-over").scrollIntoView({block: "center"})')
    box = 'document.querySelector(".u-over").getBoundingClientRect()'
    left, top, width, height = json.loads(
        chromium.run(f"JSON.stringify([{box}.x, {box}.y, {box}.width, {box}.height])")
    )
    return left + share * width, top + 0.5 * height


def legends(chromium: Browser) -> list[str]:
    return list(chromium.run('[...document.querySelectorAll(".u-legend")].map((one) => one.textContent)'))


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_mouse_reads_and_zooms_all_curves_and_a_theme_may_change(
    chromium: Browser, pages: dict[str, Path], width: int
) -> None:
    chromium.said.clear()
    chromium.open(pages["wire"], width)
    before = legends(chromium)
    chromium.mouse("mouseMoved", *at(chromium, 0.5))
    read = legends(chromium)
    assert len(read) == 4 and all(now != then for now, then in zip(read, before, strict=True)), "of all curves at once"
    full = chromium.picture()
    chromium.mouse("mousePressed", *at(chromium, 0.3))
    chromium.mouse("mouseMoved", *at(chromium, 0.7))
    chromium.mouse("mouseReleased", *at(chromium, 0.7))
    assert chromium.picture() != full
    chromium.theme(dark=True)
    chromium.theme(dark=False)
    for clicks in (1, 2):
        chromium.mouse("mousePressed", *at(chromium, 0.5), clicks)
        chromium.mouse("mouseReleased", *at(chromium, 0.5), clicks)
    assert all(chromium.run(DRAWN)) and chromium.said == []


def test_keys_reach_what_folds_and_what_scrolls(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.said.clear()
    chromium.open(pages["wire"], NARROW)
    reached = []
    for _ in range(12):
        chromium.key("Tab")
        reached.append(chromium.run("document.activeElement.className || document.activeElement.tagName"))
        if reached[-1] == "SUMMARY":
            break
    assert "scroll" in reached and reached[-1] == "SUMMARY"
    chromium.key("Enter")
    assert chromium.run('document.querySelector("details").open') and chromium.said == []


def test_it_prints(chromium: Browser, pages: dict[str, Path]) -> None:
    chromium.said.clear()
    chromium.open(pages["faulty"], WIDE, dark=True)
    assert chromium.pdf().startswith(b"%PDF-") and chromium.said == []
    assert all(chromium.run(DRAWN))
