"""A loader of one release with an agent of another, both ways: samples stay, nothing is raised, the report says it.

The earlier release comes out of the repository's history, so these are skipped in a copy without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.wire.announcement import announced
from tests.support.agents import ROOT, WAIT_S

EARLIER = "2e9b39c"
"""The last commit whose agents know no programs."""
LOADER = (ROOT / "tests/support/either_release.py").read_text()
OPS = {"resize-off": {"pixels"}, "all-off": {"array"}, "no-off": {"file"}}
FILES_ALONE = "the agent is of an earlier release and sends files alone; install this one there"
pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the earlier release, its C built."""
    asked = ["git", "archive", EARLIER, "sophon_loader", "storage_agent", "setup.py", "pyproject.toml", "README.md"]
    try:
        packed = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs git and a history with {EARLIER}")
    tree = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(tree)
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(build, cwd=tree, env=_finding(tree), check=True, timeout=150, capture_output=True)
    return tree


def _finding(tree: Path) -> dict[str, str]:
    """The environment of a Python that finds this tree's packages before all others."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"}


@contextlib.contextmanager
def _agent(tree: Path, root: Path, *arguments: str) -> Iterator[str]:
    """The address of an agent of that release, with a wire that `auto` offloads for."""
    serve = ["serve", "--export", f"d={root}", "--bind", "tcp://127.0.0.1:0", "--workers", "1", "--limit-mbit", "20"]
    command = [sys.executable, "-m", "storage_agent", *serve, "--log-level", "warning", "--end-with-stdin", *arguments]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tree, env=_finding(tree), **pipes) as process:
        try:
            yield f"{announced(process, WAIT_S).endpoint}/d"
        finally:
            process.stdin.close()


def _told(tree: Path, root: Path, agent: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(dataset, policy) -> what a loader of that release says of its epochs, which are the expected ones."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(root), agent],
        cwd=tree, env=_finding(tree), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(line["equal"] and not line["fallbacks"] for line in lines), lines
    return {(line["dataset"], line["policy"]): line for line in lines}


def _choices(told: dict[tuple[str, str], dict[str, Any]], policy: str) -> set[str]:
    return {*told["fixed", policy]["choices"], *told["drawn", policy]["choices"]}


def test_an_earlier_agent(root: Path, earlier: Path) -> None:
    """It runs known pipelines; a class of one's own gets files, and the report says what to install."""
    with _agent(earlier, root) as agent:
        told = _told(ROOT, root, agent)
    assert not any(line["warned"] for line in told.values())
    assert {policy: _choices(told, policy) for policy in OPS} == OPS and _choices(told, "auto") > {"pixels"}
    own = [line for (dataset, _), line in told.items() if dataset == "own"]
    assert all(set(line["choices"]) == {"file"} and FILES_ALONE in line["notes"] for line in own)


def test_an_earlier_loader(root: Path, earlier: Path) -> None:
    with _agent(ROOT, root) as agent:
        told = _told(earlier, root, agent)
    assert {policy: _choices(told, policy) for policy in OPS} == OPS and _choices(told, "auto") > {"pixels"}
    assert not any(line["warned"] for (dataset, _), line in told.items() if dataset != "own")


def test_an_earlier_loader_without_op_workers(root: Path, earlier: Path) -> None:
    """Such a loader names pipelines alone, so files are all that it can be sent."""
    with _agent(ROOT, root, "--op-workers", "0") as agent:
        told = _told(earlier, root, agent)
    assert {policy: _choices(told, policy) for policy in OPS} == {policy: {"file"} for policy in OPS}
    for (dataset, _), line in told.items():
        assert dataset == "own" or "torchvision 0." in " ".join(line["notes"]), line
