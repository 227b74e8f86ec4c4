"""What `deploy/` says: its files of Kubernetes, and every command line of `sophon-agent` in any of its files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, cast

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file())
MANIFESTS = [name for name in FILES if name.endswith(".yaml")]
PODS = [name for name in MANIFESTS if "kind: Pod" in (text := (DEPLOY / name).read_text()) or "containers:" in text]
_COMMAND = re.compile(r"(?:^|[\s/;&|=])sophon-agent (?=(?:serve|status|index|key|ray) )(.*)")
_ENDS = ("&&", "||", "|", "&", ";", "#")


def documents(name: str) -> list[dict[str, Any]]:
    """The objects of a file."""
    return [cast("dict[str, Any]", one) for one in yaml.safe_load_all((DEPLOY / name).read_text())]


def of_kind(name: str, *kinds: str) -> dict[str, Any]:
    """The one object of these kinds in a file."""
    (found,) = (one for one in documents(name) if one["kind"] in kinds)
    return found


def workload(name: str) -> dict[str, Any]:
    """What makes the Pods."""
    return of_kind(name, "StatefulSet", "DaemonSet", "Deployment")


def pod(name: str) -> dict[str, Any]:
    """How the file's Pods are to be."""
    return cast("dict[str, Any]", workload(name)["spec"]["template"]["spec"])


def command_of(container: dict[str, Any]) -> list[str]:
    return [*container["command"], *container.get("args", [])]


def probes_of(container: dict[str, Any]) -> dict[str, list[str]]:
    """Name -> command."""
    return {key: one["exec"]["command"] for key, one in container.items() if key.endswith("Probe")}


def commands(name: str) -> list[list[str]]:
    """The arguments of each `sophon-agent` in a file: in comments, scripts, units and Pods."""
    if name in PODS:
        (agent,) = pod(name)["containers"]
        found = [command_of(agent)[1:], *(command[1:] for command in probes_of(agent).values())]
    else:
        found = []
    text = re.sub(r"\\\n#? *", "", (DEPLOY / name).read_text())
    for line in text.splitlines():
        if match := _COMMAND.search(line.replace("`", "\n")):
            words = shlex.split(match[1].split("\n")[0], comments=True)
            found.append(words[: next((at for at, word in enumerate(words) if word in _ENDS), None)])
    return found
