"""An agent, or a loader, that is other software than its peer: only what cannot differ crosses, and the samples stay.

Each peer is a real process whose Python finds other modules first: another Pillow from the package index, a torch that
gives another version, an install without the C extension.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.transforms import v2

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.decide.facts import Choice, Facts
from sophon_loader.decide.plan import Plan, uniform_plan
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.pipeline.software import software
from tests.support.agents import ROOT, Agent, agent_for, with_modules
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder

EPOCHS = 4
"""Of few files; on a busy machine an agent has tried enough of them to choose in the third."""
NARROW = ("--limit-mbit", "10")
"""A wire that `auto` offloads for, if it may."""
OTHER_PILLOW = "12.0.0" if version("pillow") != "12.0.0" else "11.3.0"
NO_EXTENSION = 'import sys\nsys.modules["sophon_loader.native._jpegcrop"] = None\n'
OTHER_TORCH = """
import importlib.metadata as metadata
real = metadata.version
metadata.version = lambda name: "2.0.0" if name == "torch" else real(name)
"""
NO_TORCH = 'import sys\nfor name in ("torch", "torchvision", "timm"): sys.modules[name] = None\n'
EARLIER = """
import sophon_loader.wire.messages as messages
import sophon_loader.wire.version as version
version.VERSIONS = (4,)
messages.MESSAGES = tuple(one for one in messages.MESSAGES if one.VERSION < 5)
"""
"""A release that knows no programs."""
needs_crop = pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")
Samples = list[tuple[str, Any]]
Epochs = list[tuple[Samples, dict[str, Any]]]


class Cropping:
    """Asks for the part of each file that is needed, whatever that costs."""

    name = "cropping"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        return uniform_plan(self.name, facts.samples, Choice(0, "roi-jpeg"), "because I say so")


def epochs(root: Path, agent: str | None, policy: Any) -> Epochs:
    """(samples, report) of each epoch."""
    loader = OffloadingDataLoader(folder(root), batch_size=7, agent=agent, policy=policy, seed=3, options=QUICK)
    try:
        return [(samples_of(loader), loader.report().as_dict()) for _ in range(EPOCHS)]
    finally:
        loader.close()


def print_epochs(root: str, agent: str, *policies: str) -> None:
    """Body of a loader in a process of its own: the epochs of each policy, as JSON."""
    print(json.dumps([epochs(Path(root), agent, policy) for policy in policies]))


@pytest.fixture(scope="module")
def expected(root: Path) -> list[Samples]:
    """What a plain run without an agent gives."""
    return [samples for samples, _ in epochs(root, None, "no-off")]


def reports_of(found: Epochs, expected: list[Samples]) -> list[dict[str, Any]]:
    """The reports of epochs that have given the samples that they must give, with the agent's help throughout."""
    assert [samples for samples, _ in found] == expected
    reports = [report for _, report in found]
    assert all(report["fallbacks"] == 0 and sum(report["choices"].values()) == 48 for report in reports)
    return reports


def choices(reports: list[dict[str, Any]]) -> set[str]:
    return {name for report in reports for name in report["choices"]}


def modules(folder: Path, sitecustomize: str) -> Path:
    """A folder with what a Python shall do when it starts."""
    (folder / "sitecustomize.py").write_text(sitecustomize)
    return folder


# --- another Pillow -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_pillow(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    target = tmp_path_factory.mktemp("pillow")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "0"]
    install += ["--no-deps", "--only-binary", ":all:", "--target", str(target), f"pillow=={OTHER_PILLOW}"]
    try:
        done = subprocess.run(install, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip does not get Pillow {OTHER_PILLOW} within a minute")
    if done.returncode:
        pytest.skip(f"pip cannot install Pillow {OTHER_PILLOW}: {done.stderr.strip()[-300:]}")
    with agent_for(root, *NARROW, modules=target) as running:
        assert running.status()["software"]["pillow"] == OTHER_PILLOW != software()["pillow"]
        yield running


@pytest.mark.parametrize("policy", ["auto", "all-off"])
def test_an_agent_with_another_pillow_runs_no_op(
    root: Path, other_pillow: Agent, expected: list[Samples], policy: str
) -> None:
    reports = reports_of(epochs(root, other_pillow.address(), policy), expected)
    for report in reports:
        assert set(report["cuts"]) == {0}
        (note,) = [note for note in report["notes"] if "no op runs at the agent" in note]
        assert f"pillow {software()['pillow']} here and {OTHER_PILLOW} there" in note and "torch" not in note
    assert choices(reports) <= {"file", "roi-jpeg", "lepton", "roi-lepton"}


@needs_crop
def test_an_agent_with_another_pillow_may_cut_files(root: Path, other_pillow: Agent, expected: list[Samples]) -> None:
    """It cuts with our own code, and the loader decodes."""
    loader = OffloadingDataLoader(folder(root), agent=other_pillow.address(), seed=3, options=QUICK)
    list(loader)
    assert loader._engine is not None and loader._engine.run.agreement is not None
    assert "roi-jpeg" in loader._engine.run.agreement.encodings
    assert not any("roi-jpeg" in note for note in loader.report().notes)
    loader.close()
    for report in reports_of(epochs(root, other_pillow.address(), Cropping()), expected):
        assert report["choices"]["roi-jpeg"] > 20 and set(report["cuts"]) == {0}


# --- another torch --------------------------------------------------------------------------------------------


@needs_crop
def test_an_agent_with_another_torch_is_asked_by_programs(root: Path, expected: list[Samples], tmp_path: Path) -> None:
    """What is drawn here needs no torch there: parts of files and crops come as from an agent with the same one."""
    with agent_for(root, *NARROW, modules=modules(tmp_path, OTHER_TORCH)) as agent:
        agent.ready()
        for policy, most in (("auto", None), ("all-off", {"pixels": 48}), (Cropping(), None)):
            reports = reports_of(epochs(root, agent.address(), policy), expected)
            assert all(report["degraded"] == 0 for report in reports)
            assert most is None or all(report["choices"] == most for report in reports)
            assert sum(report["choices"].get("file", 0) for report in reports) < 40, "the others crossed smaller"
            for report in reports:
                said = "\n".join(report["notes"])
                assert "no op behind the last crop or resize" in said and "2.0.0 there" in said
                assert "roi-jpeg" not in said and "cannot be sent" not in said
        with epochs_of_workers(root, agent.address()) as (found, report):
            assert found == expected[:2] and report["fallbacks"] == 0 and report["choices"].get("file", 0) < 16


@needs_crop
def test_an_agent_without_torch_is_asked_by_programs(root: Path, expected: list[Samples], tmp_path: Path) -> None:
    """Its workers start without torch, and parts of files and crops come all the same."""
    with agent_for(root, *NARROW, modules=modules(tmp_path, NO_TORCH)) as agent:
        agent.ready()
        for policy in ("auto", "resize-off", "no-off", Cropping()):
            reports = reports_of(epochs(root, agent.address(), policy), expected)
            assert all(report["degraded"] == 0 for report in reports)
            taken = choices(reports)
            if policy == "no-off":
                assert taken == {"file"}
            elif policy == "resize-off":
                assert taken == {"pixels"}
            elif isinstance(policy, Cropping):
                assert all(report["choices"]["roi-jpeg"] > 20 for report in reports)
            else:
                assert taken > {"roi-jpeg"} and reports[-1]["choices"].get("file", 0) < 24
            if policy != "no-off":
                said = "\n".join(reports[-1]["notes"])
                assert f"torch {software()['torch']} here and none there" in said and "pillow" not in said
        status = agent.status()
        command = [sys.executable, "-m", "storage_agent", "status", agent.address()]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60).stdout
    assert status["software"]["torch"] == status["software"]["torchvision"] == "none"
    assert "array" not in status["encodings"] and status["refusals"] == {}
    assert "array: not installed: torch and torchvision; no op runs" in " ".join(shown.replace("│", "").split())


@contextlib.contextmanager
def epochs_of_workers(root: Path, agent: str) -> Iterator[tuple[list[Samples], dict[str, Any]]]:
    """Two epochs of three workers that look ahead, and the report of the second."""
    loader = OffloadingDataLoader(
        folder(root), batch_size=7, agent=agent, policy="resize-off", num_workers=3, seed=3, options=QUICK
    )
    try:
        yield [samples_of(loader) for _ in range(2)], loader.report().as_dict()
    finally:
        loader.close()


@needs_crop
def test_the_random_numbers_of_another_torch_are_not_trusted(
    root: Path, expected: list[Samples], tmp_path: Path
) -> None:
    with agent_for(root, *NARROW, modules=modules(tmp_path, OTHER_TORCH + EARLIER)) as agent:
        assert "roi-jpeg" in agent.status()["encodings"]
        for policy in ("auto", "all-off"):
            reports = reports_of(epochs(root, agent.address(), policy), expected)
            assert choices(reports) <= {"file", "lepton"}, "the whole file, for which nothing is drawn"
            for report in reports:
                said = "\n".join(report["notes"])
                assert "no op runs at the agent" in said and "2.0.0 there" in said and "pillow" not in said
                assert "roi-jpeg is not used, because the agent's random numbers could differ" in said
        loader = OffloadingDataLoader(folder(root), agent=agent.address(), seed=3, options=QUICK)
        list(loader)
        assert loader._engine is not None and loader._engine.run.agreement is not None
        assert "roi-jpeg" not in loader._engine.run.agreement.encodings
        loader.close()


# --- an agent that changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "workers"), [("all-off", 0), (Cropping(), 1)])
def test_an_agent_that_comes_back_as_other_software_runs_no_op_any_more(
    root: Path, expected: list[Samples], tmp_path: Path, policy: Any, workers: int
) -> None:
    with agent_for(root) as agent:
        options = OffloadOptions(connect_timeout_s=20, heartbeat_s=0.3, dead_after_s=30.0, resend_after_s=20, window=4)
        arguments = {"batch_size": 2, "policy": policy, "seed": 3, "options": options, "num_workers": workers}
        loader = OffloadingDataLoader(folder(root), agent=agent.address(), **arguments)
        batches = iter(loader)
        found = samples_of([next(batches) for _ in range(3)])
        agent.kill()
        agent.modules = modules(tmp_path, OTHER_TORCH)
        agent.start()
        found += samples_of(batches)
        report = loader.report().as_dict()
        loader.close()
    assert found == expected[0]
    assert report["fallbacks"] == 0 and report["choices"]["file"] >= 30
    if isinstance(policy, str) or "roi-jpeg" in encoding_names():
        assert report["degraded"] >= 30


def test_another_default_dtype_is_other_software(root: Path) -> None:
    """Random numbers and ToTensor are others with it; agents have torch's own, so these numbers are drawn here."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        plain = [samples for samples, _ in epochs(root, None, "no-off")]
        with agent_for(root) as agent:
            agent.ready()
            reports = reports_of(epochs(root, agent.address(), "all-off"), plain)
    finally:
        torch.set_default_dtype(before)
    for report in reports:
        assert set(report["cuts"]) == {2}
        (note,) = [note for note in report["notes"] if "no op behind the last crop or resize" in note]
        assert "default dtype torch.float64 here and torch.float32 there" in note


@pytest.mark.parametrize("variable", ["MKL_CBWR=COMPATIBLE", "ONEDNN_MAX_CPU_ISA=SSE41", "ATEN_CPU_CAPABILITY=default"])
def test_an_agent_whose_maths_libraries_choose_other_instructions(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """As on another type of CPU: they round differently, and have the same versions."""
    moved = [v2.GaussianBlur(9), v2.RandomPerspective(0.5, 1.0), v2.RandomRotation(30, v2.InterpolationMode.BILINEAR)]
    tensor = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = folder(root, v2.Compose([v2.Resize((64, 64)), *tensor, *moved]))
    given: dict[str, Any] = {"batch_size": 7, "num_workers": 1, "seed": 3, "options": replace(QUICK, verify=0.0)}
    found = []
    with contextlib.ExitStack() as agents:
        with monkeypatch.context() as environment:
            environment.setenv(*variable.split("="))
            other = agents.enter_context(agent_for(root, modules=tmp_path))
        alike = agents.enter_context(agent_for(root))
        for agent in (None, alike.address(), other.address()):
            loader = OffloadingDataLoader(dataset, agent=agent, policy="all-off", **given)
            found.append(samples_of(loader))
            report = loader.report()
            loader.close()
            assert agent is None or set(report.as_dict()["cuts"]) == {2 if agent == other.address() else 7}
    assert found[0] == found[1] == found[2]
    (note,) = [note for note in report.notes if "only the first 2 ops" in note]
    assert "maths libraries choose other instructions (MKL_CBWR, ONEDNN_MAX_CPU_ISA)" in note


# --- no C extension -------------------------------------------------------------------------------------------


def test_an_agent_without_the_extension(root: Path, expected: list[Samples], tmp_path: Path) -> None:
    with agent_for(root, *NARROW, modules=modules(tmp_path, NO_EXTENSION)) as agent:
        for policy in ("auto", "all-off", Cropping()):
            reports = reports_of(epochs(root, agent.address(), policy), expected)
            assert "roi-jpeg" not in choices(reports)
            assert (choices(reports) == {"file"}) == isinstance(policy, Cropping), "ops do run there"
            if "roi-jpeg" in encoding_names():
                note = f"the agent does not offer roi-jpeg; `sophon-agent status {agent.endpoint}` says why"
                assert all(note in report["notes"] for report in reports)
        command = [sys.executable, "-m", "storage_agent", "status", agent.address()]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        values = agent.status()
    assert "roi-jpeg" not in values["encodings"]
    assert "the C extension is not built" in values["encodings_missing"]["roi-jpeg"]
    assert shown.returncode == 0 and "roi-jpeg: the C extension is not" in " ".join(shown.stdout.split())


def test_a_loader_without_the_extension(root: Path, expected: list[Samples], tmp_path: Path) -> None:
    with agent_for(root, *NARROW) as agent:
        assert ("roi-jpeg" in agent.status()["encodings"]) == ("roi-jpeg" in encoding_names())
        call = "import sys; from tests.e2e.test_other_agent import print_epochs; print_epochs(*sys.argv[1:])"
        command = [sys.executable, "-c", call, str(root), agent.address(), "auto", "all-off"]
        environment = with_modules(modules(tmp_path, NO_EXTENSION))
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        told = [([(digest, target) for digest, target in samples], report) for samples, report in found]
        reports = reports_of(told, expected)
        assert "roi-jpeg" not in choices(reports) != {"file"}
        for report in reports:
            assert any(note.startswith("roi-jpeg is not offered: the C extension") for note in report["notes"])
