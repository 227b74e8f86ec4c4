"""What cannot be measured is refused, with rule, value and remedy, before anything is built or started."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import __main__ as program
from bench import against, arguments, policies, record
from bench.bed import LinkedHosts, LoopbackHosts, TestBedUnavailable
from bench.catalogue import BENCHES
from sophon_loader.native import _table

WRONG = {
    "bench.policies": (
        "--data nowhere",
        "--policies no-off nonsense",
        "--policies auto auto",
        "--link-mbit -1",
        "--agent-cores 0.001",
        "--agent-cores nan",
        "--epochs 0",
        "--repeat 0",
        "--batch-size 1.5",
        "--step-ms -3",
    ),
    "bench.utilisation": (
        "--data nowhere",
        "--models vgg",
        "--models alexnet alexnet",
        "--ms-per-gmac 0",
        "--epochs 0",
    ),
    "bench.fastflow": ("--data nowhere", "--trial-steps 0", "--shares 0", "--link-mbit -1", "--step-ms -1"),
    "bench.overlap": ("--data nowhere", "--link-mbit 0", "--gradient-mb 0", "--prefetch 2 2", "--steps 0"),
    "bench.link": ("--data nowhere", "--policies torch", "--workers 0", "--workers 1 1", "--link-mbit 0", "--rounds 0"),
    "bench.other_torch": ("--data /nowhere", "--rounds 0", "--round-trips-ms -1", "--policies none"),
    "bench.light_agent": ("--rounds 0",),
    "bench.latency": (
        "--data nowhere",
        "--policies torch",
        "--round-trips-ms -1",
        "--prefetch 1",
        "--prefetch none none",
        "--workers 0",
        "--batch-size 0",
        "--peers http http",
    ),
    "bench.hotpath": ("--data nowhere", "--policies nonsense", "--rounds x", "--link-mbit inf"),
    "bench.overhead": ("--data nowhere", "--rounds 0", "--workers 0", "--only memory memory"),
    "bench.agent": ("--data nowhere", "--window 15", "--window 1025", "--mb 0", "--readers 0"),
    "bench.fairness": ("--data nowhere", "--clients 1", "--seconds 0", "--attack-seconds x"),
    "bench.keys": ("--data nowhere", "--rounds 0", "--repeat 0", "--mb 0", "--policies no-off nonsense"),
    "bench.archive_index": ("--members 999", "--rounds 0"),
    "bench.archives": ("--data nowhere", "--rounds 0", "--link-mbit -1", "--policies no-off nonsense"),
    "bench.buckets": (
        "--data nowhere",
        "--rounds 0",
        "--link-mbit -1",
        "--round-trips-ms -1",
        "--parts stream stream",
        "--repeat 0",
        "--clients 0",
        "--policies nonsense",
    ),
    "bench.cache": ("--data nowhere", "--rounds 0", "--epochs 1", "--link-mbit 0", "--parts all all"),
    "bench.replicas": (
        "--data nowhere",
        "--rounds 0",
        "--link-mbit 0",
        "--agent-cores 0",
        "--cases wire wire",
        "--policies no-off nonsense",
    ),
    "bench.fleet": (
        "--data nowhere",
        "--parts predicted predicted",
        "--rules ours ours",
        "--trainings 0 4 1",
        "--trainings 1 4",
        "--phases-s 60 0 60",
        "--time-scale 0",
        "--most 0",
        "--share 0",
        "--agent-cores 0.001",
        "--loader-cores nan",
        "--rounds 0",
    ),
    "bench.workers": (
        "--data nowhere",
        "--rounds 0",
        "--workers 1 1",
        "--seconds 0",
        "--settle -1",
        "--jobs wire wire",
    ),
    "bench.order": ("--data nowhere", "--rounds 0"),
    "bench.tail": ("--data nowhere", "--rounds 0", "--workers 0", "--repeat -2"),
    "bench.profiling": ("--data nowhere", "--rounds 0", "--link-mbit -1"),
    "bench.live": (
        "--data nowhere",
        "--cases link link",
        "--rounds 0",
        "--minutes 0",
        "--patience -1",
        "--situations 0",
        "--batch-size 0",
    ),
    "bench.training": ("--data nowhere", "--models nonsense", "--models resnet50 resnet50", "--links -1", "--rounds 0"),
    "bench.faults": ("--data nowhere", "--rounds 0", "--workers -1", "--repeat 0", "--batch-size 0"),
    "bench.planner": ("--samples 0", "--policies nonsense", "--repeats 0", "--seed -1"),
    "bench.jpegcrop": ("--data nowhere", "--rounds 0"),
    "bench.fused": ("--data nowhere", "--rounds 0", "--seeds -1"),
    "bench.cost": (
        "--data nowhere",
        "--rounds 0",
        "--repeat 0",
        "--workers 0",
        "--workers 1 1",
        "--ways torch torch",
    ),
    "bench.encodings": ("--data nowhere", "--epochs 0"),
    "bench.study": ("--data nowhere", "--workload nonsense"),
    "bench.peers.__main__": ("--data nowhere", "--epochs 0", "--batch-size 0", "--link-mbit -1"),
    "bench.bed.__main__": ("--link-mbit -1", "--seconds 0"),
    "bench.programs": ("--data nowhere",),
    "bench.recorded": (),
    "bench.any_class_agent": ("--data /nowhere", "--rounds 0", "--link-mbit 0", "--samples none", "--workers 0"),
    "bench.any_class": ("--data /nowhere", "--rounds 0", "--samples none"),
    "bench.against": (". --rounds 0 -- bench.planner", ". --figures ( -- bench.planner", ". -- bench.nonsense"),
}
"""Command lines that each bench must refuse."""
REFUSAL = r"error: .+ must .+, got .+; .+"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """An ImageFolder tree, as far as names go."""
    (tmp_path / "pictures" / "class").mkdir(parents=True)
    (tmp_path / "pictures" / "class" / "one.jpg").touch()
    return tmp_path / "pictures"


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch, pictures: Path) -> None:
    """Fails the test when a bed is opened or a process started; the machine is one that could have both."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("wrong arguments must be refused before this")

    for owner, name in ((LinkedHosts, "open"), (LoopbackHosts, "open"), (subprocess.Popen, "__init__")):
        monkeypatch.setattr(owner, name, refuse)
    monkeypatch.setattr(arguments, "check_privileges", lambda: None)
    monkeypatch.setattr(arguments, "why_no_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(arguments, "SHARED_DATA", pictures.parent)
    monkeypatch.setattr(program, "SHARED_DATA", pictures.parent)  # else it makes 300 pictures where there are none
    (pictures.parent / "imagenet").symlink_to(pictures)


def refused(module: str, argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a bench says when it refuses its arguments."""
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(argv)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("module", "line"), [(module, line) for module, lines in WRONG.items() for line in lines])
def test_wrong_arguments_are_refused_with_rule_value_and_remedy(
    module: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(module, line.split(), capsys).splitlines()[-1]
    assert re.search(REFUSAL, said), said


def test_every_bench_is_among_them() -> None:
    assert {bench.module for bench in BENCHES} <= {name.removesuffix(".__main__") for name in WRONG}


@pytest.mark.parametrize("module", WRONG)
def test_every_option_is_explained_in_a_sentence_with_its_default(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        importlib.import_module(module).main(["--help"])
    said = " ".join(capsys.readouterr().out.partition("\noptions:")[2].split())
    told = re.split(r" (?=--[a-z]+[a-z-]* )", said)[2:]  # behind --help
    assert told and all(re.search(r" [A-Z].*\.$", one) for one in told), told
    assert not re.findall(r"default(?!: [^()]*\)\.| is )", " ".join(told)), told


def test_a_policy_that_is_not_known_is_answered_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused("bench.policies", ["--policies", "nonsense"], capsys)
    known = "no-off, all-off, resize-off, fastflow, fastflow-every, sophon, auto"
    assert f"must be one of {known}, got 'nonsense'; or name torch" in said


def test_a_folder_without_classes_is_no_imagefolder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "one.jpg").touch()
    said = refused("bench.policies", ["--data", str(tmp_path / "flat")], capsys)
    assert "must be an ImageFolder tree" in said and "give the folder that holds a folder of pictures per class" in said


def test_without_shared_pictures_data_must_be_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments, "SHARED_DATA", tmp_path / "missing")
    assert "--data must be an ImageFolder tree, got none" in refused("bench.policies", [], capsys)


def test_a_quota_is_refused_where_there_can_be_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments, "why_no_quota", lambda: "no control groups; run as root")
    said = refused("bench.policies", ["--agent-cores", "0.5"], capsys)
    assert "--agent-cores must be left out where there are no CPU quotas, got 0.5; no control groups" in said


def test_a_quota_that_nobody_asked_for_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert arguments.agent_quota(policies.parser(), None) == 1.0
    assert arguments.agent_quota(policies.parser(), 0.25) == 0.25
    monkeypatch.setattr(arguments, "why_no_quota", lambda: "no control groups; run as root")
    assert arguments.agent_quota(policies.parser(), None) is None
    assert "no CPU quota: no control groups" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["bench.link", "bench.live", "bench.peers.__main__"])
def test_benches_that_need_linked_hosts_say_so_first(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_root() -> None:
        raise TestBedUnavailable("linked hosts need root", "run with sudo")

    monkeypatch.setattr(arguments, "check_privileges", not_root)
    said = refused(module, [], capsys)
    assert "must be run where hosts can be linked, got none here (linked hosts need root); run with sudo" in said


@pytest.mark.parametrize("module", ["bench.policies", "bench.hotpath", "bench.link", "bench.profiling"])
def test_a_bed_needs_two_cores(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert "must be allowed on CPUs 0 and 1, got only [1]" in refused(module, [], capsys)


def test_the_program_knows_its_benches_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["policies", "nonsense"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "NAME must be one of agent, any-class" in said
    assert "archive-index, archives, buckets, cache, cache-30, constructor" in said
    assert program.main([]) == 0
    said = capsys.readouterr().out
    assert all(bench.name in said for bench in BENCHES)


def test_against_refuses_a_checkout_without_the_extension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "planner.py").touch()
    shutil.copytree(record.REPOSITORY / "sophon_loader" / "native", tmp_path / "sophon_loader" / "native")
    (tmp_path / "sophon_loader" / "native" / Path(_table.__file__).name).unlink()
    with pytest.raises(SystemExit):
        against.main([str(tmp_path), "--", "bench.planner"])
    assert "must be one with its C extensions built in it" in capsys.readouterr().err
