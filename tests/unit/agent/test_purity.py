"""What the agent's processes load: the broker must not pay for what only its workers need."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys
import {module}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def _loaded(module: str) -> set[str]:
    """Top-level modules of a fresh process that has imported one."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module)], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["storage_agent.broker.broker", "storage_agent.__main__"])
def test_the_broker_imports_neither_torch_nor_numpy(module: str) -> None:
    loaded = _loaded(module)
    assert {"zmq", "msgpack"} <= loaded
    assert not loaded & {"torch", "torchvision", "numpy", "imagecodecs", "rich"}
    assert not loaded & {"tarfile", "tqdm"}, "it holds the keys, and reads no archive's headers"
    assert not loaded & {"obstore", "ssl"}, "it holds the keys, and talks to no store"


@pytest.mark.parametrize("module", ["storage_agent.broker.desk", "storage_agent.broker.staff"])
def test_decisions_import_no_sockets_and_no_processes(module: str) -> None:
    loaded = _loaded(module)
    assert "msgpack" in loaded
    assert not loaded & {"torch", "numpy", "zmq", "multiprocessing"}
