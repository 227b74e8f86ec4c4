"""Agents that a real Ray cluster keeps, with its token on: killed, added and removed in mid-epoch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.agents import ROOT

ALONE = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "-"]
"""Ray takes the host's own address for that of 127.0.0.1 where it finds one."""


@pytest.mark.long
@pytest.mark.timeout(420)
@pytest.mark.parametrize("program", ["under_ray", "sized_under_ray", "headless_under_ray"])
def test_agents_under_ray(program: str, tmp_path: Path) -> None:
    has_ray = [sys.executable, "-c", "import ray.dashboard.optional_deps"]  # not into this process
    if subprocess.run(has_ray, capture_output=True, timeout=60).returncode:
        pytest.skip("no ray[default]; pip install 'sophon_loader[fleet]'")
    try:
        can = subprocess.run([*ALONE, "true"], capture_output=True, text=True, timeout=20)
    except OSError:
        pytest.skip("no unshare")
    if can.returncode:
        pytest.skip(f"no network namespace: {can.stderr}")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),  # else a token is written into the user's, which turns it on for later clusters
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_prestart_worker_first_driver": "0",
    }
    command = [*ALONE, sys.executable, "-m", f"tests.support.{program}", str(tmp_path)]
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:  # Ray's sockets lie there
        environment["RAY_TMPDIR"] = short
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT, env=environment)
    print(done.stdout)
    assert done.returncode == 0 and done.stdout.endswith("all is well\n"), done.stdout + done.stderr
