"""Cores by cgroup, on made-up trees of both versions; versions of what makes pixels."""

from __future__ import annotations

from pathlib import Path

import pytest

from sophon_loader.host.cgroups import CpuMounts, cgroup_quotas, cpu_mounts, read_quota
from sophon_loader.host.system import cores_available
from sophon_loader.pipeline.software import software
from sophon_loader.pipeline.switches import ON_TENSORS


def quotas(tmp_path: Path, groups: str, files: dict[str, str]) -> list[float]:
    """The quotas of a process in `groups` where v1's cpu is mounted on fs/cpu and v2 on fs."""
    (tmp_path / "cgroup").write_text(groups)
    mounts = f"cgroup {tmp_path}/fs/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup2 {tmp_path}/fs cgroup2 rw,nosuid 0 0\n"
    (tmp_path / "mounts").write_text(mounts)
    for name, text in files.items():
        path = tmp_path / "fs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return sorted(cgroup_quotas(tmp_path / "cgroup", tmp_path / "mounts"))


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
    mounts = tmp_path / "mounts"
    mounts.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    (tmp_path / "cpu.max").write_text("100000 100000")
    assert list(cgroup_quotas(tmp_path / "missing", mounts)) == []
    (tmp_path / "odd").write_text("not a cgroup line\n\n")
    assert list(cgroup_quotas(tmp_path / "odd", mounts)) == []
    (tmp_path / "cgroup").write_text("0::/\n")
    assert list(cgroup_quotas(tmp_path / "cgroup", mounts)) == [1.0]
    assert list(cgroup_quotas(tmp_path / "cgroup", tmp_path / "missing")) == []


def test_version_1_is_read_where_it_is_mounted(tmp_path: Path) -> None:
    """Not where most distributions mount it."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "elsewhere" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "mounts").write_text(f"cgroup {tmp_path}/elsewhere cgroup rw,cpu 0 0\n")
    (tmp_path / "cgroup").write_text("1:cpu:/\n")
    assert list(cgroup_quotas(tmp_path / "cgroup", tmp_path / "mounts")) == [0.5]


def test_mounts_are_told_apart_by_kind_and_controller() -> None:
    apart = "cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup /c/acct cgroup rw,cpuacct 0 0\ntmpfs /c tmpfs rw 0 0\nshort\n"
    assert cpu_mounts(apart) == CpuMounts(Path("/c/cpu"), Path("/c/acct"), ())
    together = "cgroup /c/both cgroup rw,cpu,cpuacct 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n"
    assert cpu_mounts(together) == CpuMounts(Path("/c/both"), Path("/c/both"), (Path("/c/unified"),))
    assert cpu_mounts("cgroup /c/memory cgroup rw,memory 0 0\n") == CpuMounts(None, None, ())


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_that_is_not_there_has_no_quota(tmp_path: Path, version: int) -> None:
    assert read_quota(tmp_path / "missing", version) is None


def test_some_core_is_always_available() -> None:
    assert 0 < cores_available() <= 4096


def test_software_names_versions_without_build_tags() -> None:
    found = software()
    versions = {"machine", "libjpeg", "pillow", "torch", "torchvision"}
    told = {"default dtype", "default device", "settings of Pillow", "openers of Pillow"}
    assert set(found) == versions | told | ON_TENSORS
    assert all(isinstance(value, str) and "+" not in value for value in found.values())
    assert all(found[name] for name in found if not name.endswith("of Pillow")), (
        "these are empty where nothing was told"
    )
    assert found["torch"] != "none" and found["pillow"] != "none"
