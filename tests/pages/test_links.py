"""Links of all pages lead somewhere, and pages are short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.pages.blocks import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in (
        "*.md",
        *(f"{folder}/**/*.md" for folder in (".github", "bench", "deploy", "docs", "examples", "findings")),
        "tests/*.md",
    )
    for path in ROOT.glob(pattern)
)
GUIDE = (
    "guide",
    "datasets",
    "transforms",
    "programs",
    "ranks",
    "resume",
    "agent",
    "report",
    "policies",
    "devices",
    "any-class",
    "style",
)
LINES = {"README.md": 130, **{f"docs/{name}.md": 250 for name in GUIDE}}
"""Longest that a page may be; `docs/frameworks.md` and `docs/for-agents.md` may be as long as they like."""
COLUMNS = 120
_FENCED = re.compile(r"^ *(`{3,}).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)[^`].*?\1")
_LINK = re.compile(
    r"\]\((?P<to>[^)\s]+)\)|^ *\[[^\]]+\]: (?P<defined>\S+)|(?:src|srcset|href)=\"(?P<html>[^\"]+)\"", re.MULTILINE
)
_HEADING = re.compile(r"^#{1,6} (.+?)(?: #+)?$", re.MULTILINE)


def links_of(text: str) -> list[str]:
    """The targets of a page's links and pictures; none of its code."""
    text = _CODE.sub("", _FENCED.sub("", text))
    return [found["to"] or found["defined"] or found["html"] for found in _LINK.finditer(text)]


def anchors_of(text: str) -> set[str]:
    """What links to parts of a page may name, by GitHub's rule for headings, and its own ids."""
    text = _FENCED.sub("", text)
    found: dict[str, int] = {}
    for heading in _HEADING.findall(text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)|<[^>]*>", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower().strip()).replace(" ", "-")
        number = found.get(slug, 0)
        found[slug] = number + 1
        if number:
            found[f"{slug}-{number}"] = 1
    return {*found, *re.findall(r"(?:id|name)=\"([^\"]+)\"", text)}


def what_is_wrong(page: Path, link: str) -> str | None:
    """Why a link of a page leads nowhere; of addresses on the web only the form is looked at."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return None if re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc) else "no host"
    if parts.scheme == "mailto":
        return None if "@" in parts.path else "no mail address"
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return "neither relative nor http"
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return "no such file"
    if parts.fragment and target.suffix == ".md" and parts.fragment not in anchors_of(target.read_text()):
        return "no such heading"
    return None


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    wrong = [f"{link}: {why}" for link in links_of(path.read_text()) if (why := what_is_wrong(path, link))]
    assert not wrong, "\n".join(wrong)


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    links = {
        "README.md#limits": None,
        "README.md#no-limits": "no such heading",
        "nothing.md": "no such file",
        "../elsewhere.md": "no such file",
        "/etc/passwd": "neither relative nor http",
        "https://example.org/a#b": None,
        "https://localhost/": "no host",
        "mailto:nobody": "no mail address",
    }
    text = " ".join(f"[text]({link})" for link in links) + "\n```\n[code](x.md)\n```\n`[code](y.md)`"
    assert links_of(text) == [*links]
    assert {link: what_is_wrong(ROOT / "CHANGELOG.md", link) for link in links} == links


def test_headings_have_the_anchors_that_github_gives_them() -> None:
    text = '# Two, `words()` & more_\n## [A link](b.md)\n## Same\n### Same\n```\n# no heading\n```\n<a id="own"></a>'
    assert anchors_of(text) == {"two-words--more_", "a-link", "same", "same-1", "own"}


@pytest.mark.parametrize(
    "page", [page for page in (*LINES, "docs/frameworks.md", "docs/for-agents.md") if page in PAGES]
)
def test_a_page_is_short_and_so_are_its_lines(page: str) -> None:
    lines = (ROOT / page).read_text().splitlines()
    assert len(lines) <= LINES.get(page, len(lines))
    assert not [f"{page}:{number}" for number, line in enumerate(lines, 1) if len(line) > COLUMNS]
