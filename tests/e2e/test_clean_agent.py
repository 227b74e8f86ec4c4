"""An agent in an environment that has what `pip install 'sophon_loader[agent]'` brings: no torch, and no extra."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader
from sophon_loader.encodings.catalogue import encoding_names
from tests.support import agents
from tests.support.agents import ROOT, agent_for
from tests.support.clean import agent_environment
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder

OF_EXTRAS = {
    "storage_agent.stores.archives.lance": "lance",
    "storage_agent.stores.archives.parquet": "pyarrow",
    "storage_agent.stores.buckets.failing": "obstore",
    "storage_agent.stores.buckets.fetch_child": "obstore",
    "storage_agent.stores.buckets.objects": "obstore",
    "storage_agent.workers.answering": "torch",
}
"""Modules of the agent that are imported only where an extra is installed -> what they miss elsewhere."""
IMPORTS = """
import importlib, json, pkgutil, storage_agent
missing = {}
for one in pkgutil.walk_packages(storage_agent.__path__, "storage_agent."):
    try:
        importlib.import_module(one.name)
    except ModuleNotFoundError as error:
        missing[one.name] = error.name
print(json.dumps(missing))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return agent_environment(tmp_path_factory.mktemp("clean"))


def said(*command: Path | str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command, run to its end outside the checkout."""
    return subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, timeout=60)


def test_all_of_the_agent_is_imported(python: Path, tmp_path: Path) -> None:
    done = said(python, "-c", IMPORTS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == OF_EXTRAS


def test_a_loader_is_refused_with_the_line_to_type(python: Path, tmp_path: Path) -> None:
    done = said(python, "-c", "from sophon_loader import OffloadingDataLoader", cwd=tmp_path)
    rest = "needs torch and torchvision, not installed here; run pip install 'sophon_loader[torch]'"
    assert done.stderr.splitlines()[-1] == f"ImportError: sophon_loader.OffloadingDataLoader {rest}"


def test_it_serves_loaders_that_have_torch(root: Path, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(agent: str | None, policy: str) -> list[list[tuple[str, Any]]]:
        loader = OffloadingDataLoader(folder(root), batch_size=7, agent=agent, policy=policy, seed=3, options=QUICK)
        try:
            found = [samples_of(loader) for _ in range(2)]
            report = loader.report().as_dict()
        finally:
            loader.close()
        assert agent is None or (report["fallbacks"], sum(report["choices"].values())) == (0, 48)
        return found

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(agents, "COMMAND", (str(python), "-m", "storage_agent"))
    expected = samples(None, "no-off")
    with agent_for(root, "--limit-mbit", "10", warm=False) as agent:
        agent.ready()
        assert samples(agent.address(), "auto") == samples(agent.address(), "no-off") == expected
        status = agent.status()
        shown = said(python, "-m", "storage_agent", "status", agent.endpoint, cwd=ROOT)
    assert status["software"]["torch"] == "none" and not {"lepton", "jxl", "array"} & set(status["encodings"])
    assert ("roi-jpeg" in status["encodings"]) == ("roi-jpeg" in encoding_names())
    assert shown.returncode == 0 and "not installed: torch and torchvision" in shown.stdout
