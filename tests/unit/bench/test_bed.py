"""The parts of the test bed that need no privileges: control groups, names, verdicts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bench.bed import LinkedHosts, TestBedUnavailable
from bench.bed.__main__ import main
from bench.bed.cgroups import ControlGroup, find_cpu_hierarchy
from bench.bed.names import BED_NAME, new_bed_name, start_ticks
from bench.bed.self_check import QuotaResult, StreamResult, judge


def _second_version(root: Path) -> ControlGroup:
    """A group in an imitation of a version 2 hierarchy."""
    (root / "bed").mkdir()
    for directory in (root, root / "bed"):
        (directory / "cgroup.subtree_control").write_text("memory pids\n")
    return ControlGroup(2, (root,), "bed/agent")


def test_version_2_passes_the_cpu_controller_down_to_the_group(tmp_path: Path) -> None:
    group = _second_version(tmp_path)
    group.create()
    assert (tmp_path / "bed" / "agent").is_dir()
    for directory in (tmp_path, tmp_path / "bed"):
        assert (directory / "cgroup.subtree_control").read_text() == "+cpu"


def test_version_2_leaves_an_enabled_controller_alone(tmp_path: Path) -> None:
    group = _second_version(tmp_path)
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    group.create()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "cpu memory\n"


@pytest.mark.parametrize(("cores", "written"), [(0.5, "50000 100000"), (None, "max 100000")])
def test_version_2_quota(tmp_path: Path, cores: float | None, written: str) -> None:
    group = _second_version(tmp_path)
    group.create()
    group.set_quota(cores)
    assert (tmp_path / "bed" / "agent" / "cpu.max").read_text() == written


def test_version_2_counts_cpu_time_in_microseconds(tmp_path: Path) -> None:
    group = _second_version(tmp_path)
    group.create()
    stat = tmp_path / "bed" / "agent" / "cpu.stat"
    stat.write_text("usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n")
    assert group.cpu_seconds() == 1.5


@pytest.mark.parametrize(("cores", "written"), [(1.5, "150000"), (None, "-1")])
def test_version_1_quota_and_cpu_time(tmp_path: Path, cores: float | None, written: str) -> None:
    group = ControlGroup(1, (tmp_path / "cpu", tmp_path / "cpuacct"), "bed/agent")
    group.create()
    group.set_quota(cores)
    quota, usage = group.directories
    assert (quota / "cpu.cfs_quota_us").read_text() == written
    assert (quota / "cpu.cfs_period_us").read_text() == "100000"
    (usage / "cpuacct.usage").write_text("2500000000\n")
    assert group.cpu_seconds() == 2.5


def test_a_group_that_cannot_be_made_is_a_bed_that_cannot_be_had(tmp_path: Path) -> None:
    group = ControlGroup(2, (tmp_path / "nothing",), "bed/agent")
    with pytest.raises(TestBedUnavailable, match=r"cannot be made.*run as root on the host"):
        group.create()


def test_removing_a_group_removes_the_bed_above_it_with_the_last(tmp_path: Path) -> None:
    groups = [ControlGroup(1, (tmp_path,), f"bed/{role}") for role in ("agent", "loader")]
    for group in groups:
        group.create()
    groups[0].remove()
    assert (tmp_path / "bed" / "loader").is_dir()
    groups[1].remove()
    groups[1].remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mounts", "roots"),
    [
        (
            "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/acct cgroup rw,cpuacct 0 0\n",
            (Path("/c/cpu"), Path("/c/acct")),
        ),
        ("cgroup /c/both cgroup rw,cpu,cpuacct 0 0\n", (Path("/c/both"),)),
    ],
)
def test_version_1_is_found_mounted_apart_or_together(mounts: str, roots: tuple[Path, ...]) -> None:
    assert find_cpu_hierarchy(mounts) == (1, roots)


def test_version_2_is_taken_only_where_it_has_the_cpu_controller(tmp_path: Path) -> None:
    mounts = f"cgroup2 {tmp_path} cgroup2 rw,nosuid 0 0\n"
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert find_cpu_hierarchy(mounts) == (2, (tmp_path,))
    (tmp_path / "cgroup.controllers").write_text("cpuset hugetlb\n")
    with pytest.raises(TestBedUnavailable, match="no control group hierarchy"):
        find_cpu_hierarchy(mounts)


def test_names_tell_beds_and_owners_apart() -> None:
    first, second = new_bed_name(), new_bed_name()
    match = BED_NAME.fullmatch(first)
    assert first != second and match is not None
    assert int(match["pid"]) == os.getpid()
    assert int(match["started"]) == start_ticks(os.getpid())


@pytest.mark.parametrize(
    ("payload_mbit", "link_nbytes", "used_cores", "verdicts"),
    [
        (95.6, 1046, 0.5, [True, True, True, True]),
        (90.0, 990, 0.6, [False, True, False, False]),
        (95.6, None, None, [True, True, None, None]),
    ],
)
def test_verdicts_of_the_self_check(
    payload_mbit: float, link_nbytes: int | None, used_cores: float | None, verdicts: list[bool]
) -> None:
    stream = StreamResult(1000, payload_mbit, interface_nbytes=1002, link_nbytes=link_nbytes)
    rows = judge(100.0, stream, QuotaResult(0.5, used_cores))
    assert [row.holds for row in rows] == verdicts


def test_an_unshaped_link_has_no_expected_rate() -> None:
    rows = judge(None, StreamResult(1000, 9000.0, None, None), QuotaResult(0.5, None))
    assert [row.holds for row in rows] == [None] * 4


def test_help_names_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "--link-mbit" in said and "--clean" in said


def test_without_root_linked_hosts_say_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(TestBedUnavailable) as caught:
        LinkedHosts(100)
    assert str(caught.value) == "linked hosts need root, this is user id 1000; run with sudo"


def test_without_tools_linked_hosts_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(TestBedUnavailable, match="`tc` is not on the PATH; install iproute2"):
        LinkedHosts(100)
