"""The files of `deploy/` are what Kubernetes, systemd, Slurm and the agent's command line take."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import kubernetes_validate
import pytest

from storage_agent.broker.broker import STOP_S
from storage_agent.command.arguments import parser
from storage_agent.host.agent_settings import AgentSettings
from tests.support.deployed import (
    DEPLOY,
    FILES,
    MANIFESTS,
    PODS,
    command_of,
    commands,
    documents,
    of_kind,
    pod,
    workload,
)

KUBERNETES = "1.37"


@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(name: str) -> None:
    for one in documents(name):
        kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_seen() -> None:
    service = of_kind(PODS[0], "Service")
    service["spec"]["selecter"] = service["spec"].pop("selector")
    with pytest.raises(kubernetes_validate.ValidationError, match="selecter"):
        kubernetes_validate.validate(service, KUBERNETES, strict=True)


@pytest.mark.parametrize("name", PODS)
def test_the_objects_of_a_file_find_each_other(name: str) -> None:
    service, made = of_kind(name, "Service"), workload(name)
    labels = made["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == made["spec"]["selector"]["matchLabels"]
    assert (
        service["metadata"]["name"]
        == made["metadata"]["name"]
        == made["spec"].get("serviceName", service["metadata"]["name"])
    )
    assert f'agent="tcp://{service["metadata"]["name"]}.default.svc:5555/' in (DEPLOY / name).read_text()
    (agent,) = pod(name)["containers"]
    ports = {one["name"]: one["containerPort"] for one in agent["ports"]}
    assert [(one["port"], ports[one["targetPort"]]) for one in service["spec"]["ports"]] == [(5555, 5555)]
    volumes = {one["name"] for one in pod(name)["volumes"]}
    for container in (*pod(name)["initContainers"], agent):
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
    for one in documents(name):
        if one["kind"] == "PodDisruptionBudget":
            assert one["spec"]["selector"]["matchLabels"] == labels


@pytest.mark.parametrize("name", PODS)
def test_the_agent_listens_where_its_pod_says_and_has_the_time_that_it_takes_to_stop(name: str) -> None:
    (agent,) = pod(name)["containers"]
    ports = {one["name"]: one["containerPort"] for one in agent["ports"]}
    serve = parser().parse_args(command_of(agent)[1:])
    assert serve.bind == f"tcp://0.0.0.0:{ports['agent']}"
    assert serve.metrics == ("0.0.0.0", ports["metrics"])
    annotations = workload(name)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["metrics"])
    assert pod(name)["terminationGracePeriodSeconds"] >= AgentSettings.drain_s + STOP_S + 10
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        status = parser().parse_args(agent[kind]["exec"]["command"][1:])
        assert (status.address, status.keys) == (f"tcp://127.0.0.1:{ports['agent']}", serve.keys)
        assert status.timeout_s < agent[kind]["timeoutSeconds"], "it says itself why nothing came"


@pytest.mark.parametrize("name", PODS)
def test_pods_have_no_rights(name: str) -> None:
    spec = pod(name)
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_number_of_agents_follows_that_of_a_set_of_pods() -> None:
    target = of_kind("kubernetes/hpa.yaml", "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    made = workload("kubernetes/statefulset.yaml")
    assert target == {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": made["metadata"]["name"]}


LINES = [(name, line) for name in FILES for line in commands(name)]


@pytest.mark.parametrize(("name", "line"), LINES, ids=[f"{name}-{' '.join(line[:2])}" for name, line in LINES])
def test_the_agent_takes_every_command_line(name: str, line: list[str]) -> None:
    parser().parse_args(line)


def test_command_lines_are_found_in_every_kind_of_file() -> None:
    having = {Path(name).name for name, line in LINES if line[0] == "serve"}
    assert having == {"statefulset.yaml", "daemonset.yaml", "sophon-agent.service", "announce.conf", "agents.sbatch"}
    assert {line[0] for _, line in LINES} == {"serve", "status", "key"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of the package systemd")
@pytest.mark.parametrize("drop_in", [None, "announce.conf"])
def test_systemd_takes_the_unit(drop_in: str | None, tmp_path: Path) -> None:
    """As it stands, but for the path of the program, which must be there, and the user."""
    units = DEPLOY / "systemd"
    folder = tmp_path / "sophon-agent.service.d"
    folder.mkdir()
    for name, place in (("sophon-agent.service", tmp_path), *([(drop_in, folder)] if drop_in else [])):
        text = (units / name).read_text()
        (place / name).write_text(text.replace("/opt/sophon/bin/sophon-agent", shutil.which("true") or ""))
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / "sophon-agent.service")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_job_of_slurm_is_a_script_of_bash() -> None:
    subprocess.run(["bash", "-n", DEPLOY / "slurm" / "agents.sbatch"], check=True, timeout=60)


EXTRA_LISTS = re.compile(r"EXTRAS=\"?([a-z,]+)|sophon_loader\[([a-z,]+)\]")


@pytest.mark.parametrize("name", ["Dockerfile", *(f"deploy/{name}" for name in FILES)])
def test_extras_that_are_named_are_there_and_none_but_a_comment_s_has_torch(name: str) -> None:
    known = set(metadata.metadata("sophon_loader").get_all("Provides-Extra") or ())
    for line in (DEPLOY.parent / name).read_text().splitlines():
        for found in EXTRA_LISTS.findall(line):
            extras = set(",".join(found).strip(",").split(","))
            assert extras <= known and "codecs" in extras, line
            assert "torch" not in extras or line.startswith("#"), line


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs sh")
def test_the_image_installs_the_wheel_with_its_extras(tmp_path: Path) -> None:
    """The line of the Dockerfile, with a `pip` that prints its arguments."""
    text = (DEPLOY.parent / "Dockerfile").read_text()
    (tmp_path / "sophon_loader-1-cp312.whl").touch()
    (line,) = re.findall(r"pip install (--no-cache-dir --extra.*?) *\\\n *&&", text, re.DOTALL)
    given = dict(re.findall(r'^ARG (\w+)="(.*)"', text, re.MULTILINE))
    command = f"printf '%s\\n' {line}".replace("/wheels", str(tmp_path))
    said = subprocess.run(["sh", "-c", command], env=given, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.splitlines()[-2:] == ["pillow", f"{tmp_path}/sophon_loader-1-cp312.whl[agent,codecs]"]
