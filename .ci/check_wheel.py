"""What a wheel must be able to do, run in an environment that has it installed, from a folder outside the checkout.

python .ci/check_wheel.py
python .ci/check_wheel.py --without-torch

Made pictures cross from a local agent as cropped JPEG files, and the batches are those of a loader without an agent.
With --without-torch, in an environment that has none, an agent serves them, and a loader is refused with the line to
type. Ends with status 1 and a sentence if the wheel lacks a part, the C extension above all.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import closing
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import sophon_loader
from sophon_loader import native
from sophon_loader.decide import Choice, Facts, Plan, uniform_plan
from sophon_loader.host.installed import torch_lacking
from sophon_loader.native import decoding, resampling
from sophon_loader.wire.announcement import announced

CHECKOUT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
COUNT = 64
"""Pictures."""
READY_S = 60.0
"""Time limit until an agent's worker is ready."""


class CroppedFiles:
    """The policy under which every sample crosses as a cropped JPEG file."""

    name = "cropped-files"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        return uniform_plan(self.name, facts.samples, Choice(0, "roi-jpeg"), "to check the C extension at both ends")


def check_parts() -> None:
    """The installed files, without starting anything."""
    folder = Path(sophon_loader.__file__).parent
    assert CHECKOUT not in folder.parents, f"sophon_loader must come from the wheel, got {folder}"
    assert native.available, f"the wheel must have the C extension, got: {native.reason}"
    from sophon_loader.native import _table  # noqa: F401  (its absence says itself what is missing)

    assert version("sophon_loader") == sophon_loader.__version__
    assert resampling.available, "the wheel must have the C extension sophon_loader.native._resample"
    assert decoding.built, "the wheel must have the C extension sophon_loader.native._decode"
    stubs = [f"native/{name}.pyi" for name in ("_jpegcrop", "_table", "_resample", "_decode")]
    for name in ("py.typed", *stubs, "../storage_agent/py.typed"):
        assert (folder / name).is_file(), f"the wheel must have {name}"
    for name in ("tests", "bench", "examples"):
        assert not (folder.parent / name / "__init__.py").exists(), f"the wheel must not have {name}"


def check_command() -> None:
    """`sophon-agent`, as pip has installed it."""
    (entry,) = entry_points(group="console_scripts", name="sophon-agent")
    command = SCRIPTS / entry.name
    said = [
        subprocess.run([command, *words], check=True, capture_output=True, text=True).stdout
        for words in (["--version"], ["serve", "--help"])
    ]
    assert said[0].strip() == sophon_loader.__version__ and "--export" in said[1]


def check_report_command() -> None:
    """`sophon-report`, as pip has installed it."""
    said = subprocess.run([SCRIPTS / "sophon-report", "--help"], check=True, capture_output=True, text=True).stdout
    assert "sophon-report run-0.jsonl -o run.html" in said


def make_pictures(folder: Path) -> None:
    runpy.run_path(str(CHECKOUT / "examples/pictures.py"))["make_pictures"](folder, COUNT, classes=4)


def check_refusals() -> None:
    """What needs torch says so, with the line to type."""
    assert torch_lacking() == "torch and torchvision", "--without-torch needs an environment without both"
    line = "pip install 'sophon_loader[torch]'"
    try:
        sophon_loader.OffloadingDataLoader  # noqa: B018
    except ImportError as error:
        assert line in str(error), f"a loader without torch must say {line}, got: {error}"
    else:
        raise AssertionError("a loader without torch must be refused")
    done = subprocess.run([SCRIPTS / "sophon-doctor", "tcp://127.0.0.1:1/x"], capture_output=True, text=True)
    assert done.returncode == 1 and line in done.stderr, f"sophon-doctor must say {line}, got: {done.stderr}"


def check_agent(folder: Path) -> dict[str, Any]:
    """An agent that serves pictures; returns its status once its worker is ready."""
    serve = ["serve", "--export", f"pictures={folder}", "--bind", "tcp://127.0.0.1:0", "--workers", "1"]
    command = [SCRIPTS / "sophon-agent", *serve, "--end-with-stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        asking = [SCRIPTS / "sophon-agent", "status", announced(agent).endpoint, "--json"]
        end_s = time.monotonic() + READY_S
        status: dict[str, Any] = {"workers": 0}
        while not status["workers"] and time.monotonic() < end_s:
            told = subprocess.run(asking, check=True, capture_output=True, text=True).stdout
            status = json.loads(told)
        agent.stdin.close()
    assert status["workers"] == 1, f"a worker must be ready within {READY_S:g} s without torch, got {status}"
    assert status["software"]["torch"] == "none" and {"roi-jpeg", "pixels"} <= set(status["encodings"]), status
    return status


def check_loader(folder: Path) -> dict[str, Any]:
    """Two epochs with an agent and without; returns the last report of the one with an agent."""
    import torch
    from torchvision import datasets, transforms

    from sophon_loader import OffloadingDataLoader
    from sophon_loader.pipeline import ends
    from sophon_loader.report.page import page_of
    from sophon_loader.report.report import Report

    assert ends.AVAILABLE, "the wheel must have the C extension sophon_loader.native._table"
    assert "<h1>" in page_of(Report("auto").told()), "the wheel must have what pages of reports are made from"
    crop = transforms.RandomResizedCrop(64, scale=(0.05, 0.2))
    dataset = datasets.ImageFolder(str(folder), transforms.Compose([crop, transforms.ToTensor()]))
    batches, reports = [], []
    for agent in ("local", None):
        loader: OffloadingDataLoader[Any] = OffloadingDataLoader(
            dataset, 8, num_workers=2, seed=1, agent=agent, policy=CroppedFiles()
        )
        with closing(loader):
            batches.append([images for _ in range(2) for images, _ in loader])
            reports.append(loader.report().as_dict())
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True)), "batches must not depend on the agent"
    report = reports[0]
    assert report["choices"] == {"roi-jpeg": COUNT}, f"all must cross as roi-jpeg, got {report}"
    return report


def main() -> int:
    without_torch = sys.argv[1:] == ["--without-torch"]
    try:
        check_parts()
        check_command()
        check_report_command()
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            make_pictures(folder)
            if without_torch:
                check_refusals()
                check_agent(folder)
            else:
                report = check_loader(folder)
    except AssertionError as error:
        print(f"check_wheel: {error}", file=sys.stderr)
        return 1
    print(f"sophon_loader {sophon_loader.__version__} on Python {sys.version.split()[0]}, ", end="")
    if without_torch:
        print("without torch: an agent serves")
    else:
        came = f"{report['file_bytes'] / 1e6:.1f} MB came as {report['wire_bytes'] / 1e6:.1f} MB"
        print(f"torch {version('torch')}: {COUNT} pictures of {came}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
