"""The scripts of `findings/` have their form, and `make findings` tells which have changed; none of them runs here."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT

FOLDER = ROOT / "findings"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.sh"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_finding_cleans_up_and_runs_pinned_packages_without_our_code(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert re.match(r"#!/bin/sh\n# [^\n]+\.\nset -eu\nfolder=\$\(mktemp -d\)\ntrap 'rm -rf \"\$folder\"' EXIT\n", text)
    installed = re.findall(r"(?:pip install|^\$pip) (.+)", text.replace("\\\n", " "), re.MULTILINE)
    packages = [word for line in installed for word in line.split() if not re.match(r"[-:\"]", word)]
    assert packages
    assert not [package for package in packages if not re.fullmatch(r"[\w-]+==[\w.]+", package)]
    assert "expected: " in text and "seen:" in text
    assert not re.search(r"sophon_loader|storage_agent|https?://", text)


def test_each_finding_has_a_row() -> None:
    rows = re.findall(r"^\| \[([^\]]+)\]\(\1\) \|", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == SCRIPTS


def test_make_tells_which_have_changed(tmp_path: Path) -> None:
    for name, code in (("changed", 1), ("same", 0)):
        (tmp_path / f"{name}.sh").write_text(f"echo seen: {name}; exit {code}\n")
    scripts = f"{tmp_path}/changed.sh {tmp_path}/same.sh"
    command = ["make", "--no-print-directory", "findings", f"FINDINGS={scripts}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = [f"{tmp_path}/changed.sh: changed, or could not run", "seen: changed", f"{tmp_path}/same.sh: as described"]
    assert found.stdout.splitlines() == said
    assert found.returncode == 2, "make's own code where a command ends with 1"
    only = subprocess.run([*command[:-1], f"FINDINGS={tmp_path}/same.sh"], cwd=ROOT, check=False, capture_output=True)
    assert only.returncode == 0
