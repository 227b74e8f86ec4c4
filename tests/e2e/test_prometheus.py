"""Debian's Prometheus reads both ends: each counter arrives in it. Skipped where it is not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sophon_loader.run import exporting
from tests.e2e.test_metrics import free_port
from tests.support.agents import EXPORT, agent_for, until
from tests.support.loaders import QUICK, MakeLoader

FILES = 24
LOADER = {"batch_size": 4, "seed": 3, "policy": "resize-off"}
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 900ms}}
scrape_configs:
  - job_name: loader
    static_configs: [{{targets: ["127.0.0.1:{}"]}}]
  - job_name: agent
    static_configs: [{{targets: ["127.0.0.1:{}"]}}]
"""


class Prometheus:
    """A server that scrapes two ports each second, with its data in a folder of the test.

    Args:
        folder: of its own.
        ports: of loader and agent.
    """

    def __init__(self, folder: Path, *ports: int) -> None:
        (folder / "prometheus.yml").write_text(CONFIG.format(*ports))
        self._port = free_port()
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )

    def value(self, query: str) -> float | None:
        """What a query gives now; None if nothing, or while it starts."""
        address = f"http://127.0.0.1:{self._port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return None
        return float(found[0]["value"][1]) if found else None

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    yield free_port(), free_port()
    while exporting._PORTS:
        exporting._PORTS.pop().close()
    exporting._EXPORTERS.clear()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus: apt-get install prometheus")
def test_samples_of_both_ends_arrive(make: MakeLoader, root: Path, ports: tuple[int, int], tmp_path: Path) -> None:
    with agent_for({EXPORT: root}, "--metrics", str(ports[1])) as agent:
        train = make(agent=agent.address(), options=replace(QUICK, metrics_port=ports[0]), num_workers=1)
        list(train)
        server = Prometheus(tmp_path, *ports)
        try:
            for job in ("loader", "agent"):
                until(lambda job=job: server.value(f'up{{job="{job}"}}') == 1, f"{job} is scraped")
            assert server.value('sophon_loader_samples_total{loader="0"}') == FILES
            assert server.value('sophon_agent_answers_total{encoding="pixels"}') == FILES
            list(train)
            until(lambda: server.value("sophon_loader_samples_total") == 2 * FILES, "the second epoch arrives")
            until(lambda: server.value("sum(sophon_agent_answers_total)") == 2 * FILES, "its answers arrive")
            until(lambda: (server.value("rate(sophon_loader_samples_total[1m])") or 0) > 0, "a rate is known")
            assert server.value("sophon_agent_sent_bytes_total > 0") is not None
        finally:
            server.end()
