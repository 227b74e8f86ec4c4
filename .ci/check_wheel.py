"""What a wheel must be able to do, run in an environment that has it installed, from a folder outside the checkout.

python .ci/check_wheel.py

Made pictures cross from a local agent as cropped JPEG files, and the batches are those of a loader without an agent.
Ends with status 1 and a sentence if the wheel lacks a part, the C extension above all.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import closing
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import torch
from torchvision import datasets, transforms

import sophon_loader
from sophon_loader import OffloadingDataLoader, native
from sophon_loader.decide import Choice, Facts, Plan, uniform_plan
from sophon_loader.native import decoding, resampling
from sophon_loader.pipeline import ends
from sophon_loader.report.page import page_of
from sophon_loader.report.report import Report

CHECKOUT = Path(__file__).resolve().parents[1]
COUNT = 64
"""Pictures."""


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
    assert ends.AVAILABLE, "the wheel must have the C extension sophon_loader.native._table"
    assert version("sophon_loader") == sophon_loader.__version__
    assert resampling.available, "the wheel must have the C extension sophon_loader.native._resample"
    assert decoding.built, "the wheel must have the C extension sophon_loader.native._decode"
    stubs = [f"native/{name}.pyi" for name in ("_jpegcrop", "_table", "_resample", "_decode")]
    for name in ("py.typed", *stubs, "../storage_agent/py.typed"):
        assert (folder / name).is_file(), f"the wheel must have {name}"
    assert "<h1>" in page_of(Report("auto").told()), "the wheel must have what pages of reports are made from"
    for name in ("tests", "bench", "examples"):
        assert not (folder.parent / name / "__init__.py").exists(), f"the wheel must not have {name}"


def check_command() -> None:
    """`sophon-agent`, as pip has installed it."""
    (entry,) = entry_points(group="console_scripts", name="sophon-agent")
    command = Path(sysconfig.get_path("scripts")) / entry.name
    said = [
        subprocess.run([command, *words], check=True, capture_output=True, text=True).stdout
        for words in (["--version"], ["serve", "--help"])
    ]
    assert said[0].strip() == sophon_loader.__version__ and "--export" in said[1]


def check_report_command() -> None:
    """`sophon-report`, as pip has installed it."""
    command = Path(sysconfig.get_path("scripts")) / "sophon-report"
    said = subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    assert "sophon-report run-0.jsonl -o run.html" in said


def check_loader(folder: Path) -> dict[str, Any]:
    """Two epochs with an agent and without; returns the last report of the one with an agent."""
    make_pictures = runpy.run_path(str(CHECKOUT / "examples/pictures.py"))["make_pictures"]
    make_pictures(folder, COUNT, classes=4)
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
    return reports[0]


def main() -> int:
    try:
        check_parts()
        check_command()
        check_report_command()
        with tempfile.TemporaryDirectory() as folder:
            report = check_loader(Path(folder))
        assert report["choices"] == {"roi-jpeg": COUNT}, f"all must cross as roi-jpeg, got {report}"
    except AssertionError as error:
        print(f"check_wheel: {error}", file=sys.stderr)
        return 1
    print(
        f"sophon_loader {sophon_loader.__version__} on Python {sys.version.split()[0]}, torch {torch.__version__}: "
        f"{COUNT} pictures of {report['file_bytes'] / 1e6:.1f} MB came as {report['wire_bytes'] / 1e6:.1f} MB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
