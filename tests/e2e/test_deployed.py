"""The commands of `deploy/` start agents that serve; their probes answer while they do, and no longer."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from sophon_loader.wire.announcement import announced
from storage_agent.clients.key_files import KeyFolder
from tests.e2e.test_metrics import free_port
from tests.support import namespaces
from tests.support.agents import COMMAND, ROOT, WAIT_S, run_command, until
from tests.support.deployed import DEPLOY, FILES, PODS, commands, pod, probes_of
from tests.support.namespaces import Pod, secret_volume

LINES = [(name, line) for name in FILES for line in commands(name) if line[0] == "serve"]
SERVED = [(name, line) for name, line in LINES if not any("s3://" in word for word in line)]
KEYS_SAID = "kubernetes/statefulset.yaml"
"""Where it stands how the keys of all Pods are made."""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host that has what the commands name: data, keys, folders that are mounted."""
    for folder in ("data/imagenet/train/a", "agents", "shared/run/agents", "tmp"):
        (tmp_path / folder).mkdir(mode=0o755, parents=True)
    (tmp_path / "data/imagenet/train/a/0.jpg").write_bytes(b"a file")
    return tmp_path


def _here(word: str, host: Path) -> str:
    """A word of a command, with folders of this test and any free port."""
    word = re.sub(r"/etc/sophon|\$HOME/sophon-keys|/keys/agent", "/sophon-keys", word).replace("$HOME", "")
    word = re.sub(r"/(data|shared|tmp|agents|sophon-keys)\b", rf"{host}\g<0>", word, count=1)
    return word.replace(":5555", ":0").replace("0.0.0.0:9401", f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(("name", "line"), SERVED, ids=[name for name, _ in SERVED])
def test_every_command_starts_an_agent(name: str, line: list[str], host: Path) -> None:
    """Its folders are replaced, its other options are not; the key is that of `sophon-agent key add` beforehand."""
    KeyFolder(host / "sophon-keys").add("loaders")
    words = [_here(word, host) for word in line]
    process = subprocess.Popen([*COMMAND, *words, "--workers", "1"], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        endpoint = announced(process, WAIT_S).endpoint.replace("0.0.0.0", "127.0.0.1")
        status = ["status", endpoint, "--keys", str(host / "sophon-keys")]
        assert run_command(*status).returncode == 0
        assert run_command("status", endpoint, "--timeout-s", "1").returncode == 1, "others are not let in"
        if "--announce" in words:
            folder = Path(words[words.index("--announce") + 1])
            until(lambda: list(folder.glob("*.json")), "it is announced")
        process.terminate()
        assert process.wait(WAIT_S) == 0
        assert run_command(*status, "--timeout-s", "1").returncode == 1
        assert "--announce" not in words or not list(folder.glob("*.json"))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def volumes(host: Path) -> dict[str, Path]:
    """Of a Pod, by name."""
    made = {"data": host / "data", "tmp": host / "pod-tmp", "keys": host / "pod-keys", "secret": host / "secret"}
    for name in ("tmp", "keys", "secret"):
        made[name].mkdir()
        made[name].chmod(0o777)  # as that of an emptyDir is
    return made


def _files_of_secret(folder: Path) -> dict[str, bytes]:
    """What `kubectl create secret generic sophon-agent-keys` in the comment takes from below this folder."""
    text = (DEPLOY / KEYS_SAID).read_text().partition("secret generic sophon-agent-keys")[2]
    words = text.partition("# A loader's")[0].split()
    pairs = [word.removeprefix("--from-file=").split("=") for word in words if word.startswith("--from-file=")]
    return {key: (folder / path).read_bytes() for key, path in pairs}


@pytest.mark.skipif(bool(namespaces.why_none()), reason=namespaces.why_none() or "-")
@pytest.mark.parametrize("name", PODS)
def test_an_agent_runs_as_its_pod_says(name: str, host: Path, volumes: dict[str, Path], tmp_path: Path) -> None:
    (key_add,) = (line for line in commands(KEYS_SAID) if line[:2] == ["key", "add"])
    subprocess.run([*COMMAND, *key_add], cwd=host, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    spec = pod(name)
    (items,) = (one["secret"]["items"] for one in spec["volumes"] if "secret" in one)
    secret_volume(volumes["secret"], _files_of_secret(host), items)

    with tarfile.open(host / "data/shards.tar", "w") as archive:
        archive.add(host / "data/imagenet/train/a/0.jpg", "a/0.jpg")

    (root := tmp_path / "root").mkdir()
    one = Pod(spec, volumes, root)
    try:
        for container in spec["initContainers"]:
            one.run(container)
            one.run(container)  # as where the Pod's first process is started anew
        (agent,) = spec["containers"]
        agent["args"].append("--export=shards=tar:///data/shards.tar")  # an index is written, too
        first, log = one.start(agent, tmp_path / "log"), tmp_path / "log"
        probes = probes_of(agent)

        def serves() -> bool:
            assert first.is_running(), log.read_text()
            return one.probe(first, probes["startupProbe"]) == 0

        until(serves, "it serves")
        assert {kind: one.probe(first, command) for kind, command in probes.items()} == dict.fromkeys(probes, 0)
        first.suspend()
        assert one.probe(first, [*probes["readinessProbe"], "--timeout-s=1"]) == 1, "it does not answer"
        first.resume()
        workers = first.children(recursive=True)
        assert workers and {process.uids().effective for process in (first, *workers)} == {10001}
        assert one.stop(first) == 0
        assert "Traceback" not in log.read_text() and '"workers"' in log.read_text(), log.read_text()
        assert not any(worker.is_running() for worker in workers)
        assert list((volumes["tmp"] / "indexes").iterdir()), "the index was written"
    finally:
        one.close()
