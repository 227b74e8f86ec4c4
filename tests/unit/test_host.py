"""Cores by cgroup, on made-up trees of both versions; versions of what makes pixels."""

from __future__ import annotations

from pathlib import Path

import pytest

from sophon_loader.cgroups import cgroup_quotas
from sophon_loader.host import cores_available
from sophon_loader.pipeline.software import software


def quotas(tmp_path: Path, proc: str, files: dict[str, str]) -> list[float]:
    (tmp_path / "cgroup").write_text(proc)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted(cgroup_quotas(tmp_path / "cgroup", tmp_path / "fs"))


def test_version_2(tmp_path: Path) -> None:
    files = {"cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n", "a/b/cpu.max": "150000 100000\n"}
    assert quotas(tmp_path, "0::/a/b\n", files) == [1.5, 4.0]


def test_version_1(tmp_path: Path) -> None:
    files = {
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
        "cpu/job/cpu.cfs_quota_us": "50000\n",
        "cpu/job/cpu.cfs_period_us": "100000\n",
        "memory/job/cpu.cfs_quota_us": "1\n",
        "memory/job/cpu.cfs_period_us": "100000\n",
    }
    assert quotas(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n", files) == [0.5]


def test_in_a_container_the_own_group_is_the_root_of_what_is_mounted(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert quotas(tmp_path, "7:cpuacct,cpu:/docker/0123456789\n", files) == [2.5]


@pytest.mark.parametrize(
    "text", ["", "max 100000", "max", "nonsense 100000", "100000 0", "0 100000", "1 2 3", "-1 100000"]
)
def test_what_is_no_quota_is_none(tmp_path: Path, text: str) -> None:
    assert quotas(tmp_path, "0::/\n", {"cpu.max": text}) == []


@pytest.mark.parametrize(("quota", "period"), [("0", "100000"), ("100000", "0"), ("", ""), ("x", "y")])
def test_what_is_no_quota_is_none_in_version_1(tmp_path: Path, quota: str, period: str) -> None:
    files = {"cpu/cpu.cfs_quota_us": quota, "cpu/cpu.cfs_period_us": period}
    assert quotas(tmp_path, "2:cpu:/\n", files) == []


def test_without_cgroups_there_are_none(tmp_path: Path) -> None:
    assert list(cgroup_quotas(tmp_path / "missing", tmp_path)) == []
    (tmp_path / "odd").write_text("not a cgroup line\n\n")
    assert list(cgroup_quotas(tmp_path / "odd", tmp_path)) == []


def test_some_core_is_always_available() -> None:
    assert 0 < cores_available() <= 4096


def test_software_names_versions_without_build_tags() -> None:
    found = software()
    assert set(found) == {"machine", "libjpeg", "pillow", "torch", "torchvision", "default dtype"}
    assert all(isinstance(value, str) and value and "+" not in value for value in found.values())
    assert found["torch"] != "none" and found["pillow"] != "none"
