"""What a process must not load, whatever imports what in between; `lint-imports` holds the order of the layers."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADER = ROOT / "sophon_loader"
TALKING = {"client", "routes", "integrations", "datasets", "fleet", "cache", "order", "settings", "workers", "epoch"}
TALKING |= {"plans", "run", "loader", "doctor"}
"""What stands on `client/`, which alone knows zmq, and so loads it."""


def modules(package: Path) -> list[str]:
    """Every module of a package, by its full name."""
    parts = (path.relative_to(ROOT).with_suffix("").parts for path in package.rglob("*.py"))
    return sorted(".".join(names[:-1] if names[-1] == "__init__" else names) for names in parts)


def imported(path: Path) -> set[str]:
    """The packages that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module.partition(".")[0])
    return found


def loaded_by(names: list[str]) -> set[str]:
    """The packages that a new process has loaded after these modules."""
    return loaded_after(f"import importlib\nfor name in {names}: importlib.import_module(name)\n")


def loaded_after(code: str) -> set[str]:
    """The packages that a new process has loaded after this code."""
    code += "\nimport json, sys\nprint(json.dumps([name for name in sys.modules if '.' not in name]), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_only_the_client_imports_zmq() -> None:
    importers = {path.relative_to(LOADER) for path in LOADER.rglob("*.py") if "zmq" in imported(path)}
    assert {path.parts[0] for path in importers} == {"client"}, importers


@pytest.mark.slow_start
def test_what_stands_below_the_client_loads_no_zmq() -> None:
    silent = [name for name in modules(LOADER) if name.count(".") and name.split(".")[1] not in TALKING]
    assert {"sophon_loader.decide.plan", "sophon_loader.auto.conditions", "sophon_loader.wire.frames"} <= set(silent)
    loaded = loaded_by(silent)
    assert "torch" in loaded and "zmq" not in loaded


def test_the_client_loads_zmq() -> None:
    """The probe above sees it."""
    assert "zmq" in loaded_by(["sophon_loader.client.connection"])


def test_the_agents_own_process_loads_neither_torch_nor_numpy() -> None:
    loaded = loaded_by(["storage_agent.__main__", "storage_agent.broker.broker"])
    assert "zmq" in loaded and not {"torch", "torchvision", "numpy"} & loaded


COMMANDS = ["storage_agent.__main__", "sophon_loader.doctor", "sophon_loader.report.command"]
COMMANDS += ["sophon_loader.cache.cache_command"]


@pytest.mark.slow_start
@pytest.mark.parametrize("option", ["--help", "--version"])
def test_commands_answer_before_they_load_torch(option: str) -> None:
    code = f"""
import contextlib, importlib
for name in {COMMANDS}:
    with contextlib.suppress(SystemExit):
        importlib.import_module(name).main(["{option}"])
        raise ValueError(name)
"""
    loaded = loaded_after(code)
    assert "sophon_loader" in loaded and not {"torch", "torchvision"} & loaded


def test_what_a_cache_holds_is_told_without_torch(tmp_path: Path) -> None:
    code = f"from sophon_loader.cache.cache_command import main\nmain(['ls', {str(tmp_path)!r}])"
    assert "torch" not in loaded_after(code)


NO_TORCH = "import sys\nfor name in ('torch', 'torchvision', 'timm'): sys.modules[name] = None\n"
FOR_PROGRAMS = ["sophon_loader.encodings.registry", "storage_agent.workers.body"]


def test_what_serves_programs_needs_no_torch() -> None:
    loaded_after(f"{NO_TORCH}import importlib\nfor name in {FOR_PROGRAMS}: importlib.import_module(name)\n")
