"""An agent and a loader over IPv6."""

from __future__ import annotations

import socket
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
