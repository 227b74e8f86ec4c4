"""What is looked at before an agent makes or says anything."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from sophon_loader.errors import AgentError, ConfigError
from storage_agent.host.checks import check_address, check_modules


def test_modules_that_are_there_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "heavy_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "ops.py").write_text("raise AssertionError('imported')")
    (tmp_path / "light_ops.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    check_modules(["heavy_package.ops", "light_ops", "heavy_package", "json", "os.path", "tests.support.agent_ops"])
    assert "heavy_package" not in sys.modules
    for name in ("heavy_package.opps", "light_ops.inner", "no_such_module", "no_such.ops", ""):
        with pytest.raises(ConfigError, match=f"ops must name modules that Python finds, got --ops {name}, which"):
            check_modules(["light_ops", name])


def test_ops_need_torch_and_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    check_modules([])
    with pytest.raises(ConfigError, match=r"--ops json needs torchvision.*sophon_loader\[torch\]', or leave"):
        check_modules(["json"])


def test_an_address_is_free_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AgentError, match=f"a free port, got tcp://127.0.0.1:{port}: .*in use"):
            check_address(f"tcp://127.0.0.1:{port}")
    check_address(f"tcp://127.0.0.1:{port}")
    with pytest.raises(AgentError, match="bind must be an address of this host"):
        check_address("tcp://192.0.2.1:0")
    with pytest.raises(AgentError, match="bind must be an address of this host"):
        check_address("tcp://nowhere.invalid:0")
    for endpoint in ("tcp://*:*", "tcp://localhost:0", "tcp://lo:0", "ipc://*"):
        check_address(endpoint)
