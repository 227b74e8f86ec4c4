"""An agent and a loader over IPv6."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader
from tests.support.agents import StartAgent
from tests.support.loaders import QUICK, run_epoch
from tests.support.pictures import folder


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6")
def test_an_address_of_ipv6(start_agent: StartAgent, image_tree: Path) -> None:
    one = start_agent("--bind", "tcp://[::1]:0", workers=1)
    assert one.endpoint.startswith("tcp://[::1]:")
    arguments: dict[str, Any] = {"batch_size": 8, "seed": 3, "options": QUICK}
    loader = OffloadingDataLoader(folder(image_tree), agent=one.address("d"), policy="all-off", **arguments)
    assert run_epoch(loader) == run_epoch(OffloadingDataLoader(folder(image_tree), policy="no-off", **arguments))
    report = loader.report().as_dict()
    assert report["fallbacks"] == 0 and set(report["cuts"]) == {6}


ASKED = """
import sys
from pathlib import Path
from sophon_loader import OffloadingDataLoader
from tests.support.loaders import QUICK, run_epoch
from tests.support.pictures import folder
from storage_agent.command.status import ask_status

root, address = Path(sys.argv[1]), sys.argv[2]
status = ask_status(address, 20.0)
arguments = {"batch_size": 8, "seed": 3, "options": QUICK}
loader = OffloadingDataLoader(folder(root), agent=address, policy="all-off", num_workers=1, **arguments)
assert run_epoch(loader) == run_epoch(OffloadingDataLoader(folder(root), policy="no-off", **arguments))
report = loader.report().as_dict()
print(bool(status), report["fallbacks"], report["retries"], set(report["cuts"]))
"""
"""Asks an agent for its status, and offloads to it."""


@pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_name_that_means_both(start_agent: StartAgent, image_tree: Path, tmp_path: Path, host: str) -> None:
    """In a namespace of mounts, whose /etc/hosts says so."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost both\n::1 localhost both\n")
    command = f'mount --bind "{hosts}" /etc/hosts && exec "$@"'
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", command, "-"]
    try:
        shown = subprocess.run([*mounted, "getent", "ahosts", "both"], capture_output=True, text=True, timeout=20)
    except OSError:
        pytest.skip("no unshare")
    if "::1" not in shown.stdout:
        pytest.skip(f"no /etc/hosts of its own: {shown.stderr}")
    one = start_agent("--bind", f"tcp://{host}:0", workers=1)
    address = f"tcp://both:{one.endpoint.rpartition(':')[2]}/d"
    told = subprocess.run(
        [*mounted, sys.executable, "-c", ASKED, str(image_tree), address], capture_output=True, text=True, timeout=120
    )
    assert told.stdout.split() == ["True", "0", "0", "{6}"], told.stderr
