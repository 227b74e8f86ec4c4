"""Environments of the peers: one virtual environment for each set of packages, and nginx. Made on demand and kept.

An environment sees the project's own packages through a .pth file, so that torch is there once. Packages that a peer
wants in another version (numpy, mostly) are installed in its environment and go first there. Nothing is installed on
the
machine: nginx is taken out of Debian's package, which starts no service and needs no root.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from bench.peers.systems import System

INSTALL_S = 900.0


class Unavailable(Exception):
    """A system cannot take part; the text says why."""


@dataclass(frozen=True)
class Installed:
    """A system that is ready to be started."""

    system: System
    python: Path
    programs: dict[str, str]
    versions: dict[str, str]


def see_own_programs() -> None:
    """Have this process and its children find what pip has installed next to the project (`weed`) as if it were on the
    PATH."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def install(system: System, root: Path) -> Installed:
    """Make a system ready.

    Raises:
        Unavailable: it cannot be.
    """
    python, programs = python_of(system, root), programs_of(system, root)
    return Installed(system, python, programs, versions(system, python, programs))


def python_of(system: System, root: Path) -> Path:
    """The interpreter to run a system with, its packages installed.

    Raises:
        Unavailable: they cannot be.
    """
    if not system.packages:
        return Path(sys.executable)
    environment = root / system.packages[0]
    python, done = environment / "bin" / "python", environment / ".installed"
    if done.exists() and done.read_text() == " ".join(system.packages):
        return python
    _run(sys.executable, "-m", "venv", "--clear", str(environment))
    if system.sees_project:
        (path,) = environment.glob("lib/python*/site-packages")
        (path / "project.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *system.packages)
    done.write_text(" ".join(system.packages))
    return python


def nginx(root: Path) -> Path:
    """nginx, from the machine or out of Debian's package.

    Raises:
        Unavailable: neither is available.
    """
    if found := shutil.which("nginx"):
        return Path(found)
    program = root / "nginx" / "usr" / "sbin" / "nginx"
    if not program.exists():
        program.parents[2].mkdir(parents=True, exist_ok=True)
        _run("apt-get", "download", "nginx", cwd=program.parents[2])
        (package,) = program.parents[2].glob("nginx_*.deb")
        _run("dpkg-deb", "--extract", str(package), str(program.parents[2]))
    _run(str(program), "-v")
    return program


def programs_of(system: System, root: Path) -> dict[str, str]:
    """Return the paths of the programs that a system needs.

    Raises:
        Unavailable: one is missing.
    """
    found = {}
    for name in system.programs:
        path = str(nginx(root)) if name == "nginx" else shutil.which(name)
        if path is None:
            raise Unavailable(f"`{name}` is not on the PATH")
        found[name] = path
    return found


def versions(system: System, python: Path, programs: dict[str, str]) -> dict[str, str]:
    """The versions of a system's packages and programs, and those of what may differ from the project's."""
    names = [package.partition("[")[0] for package in system.packages]
    names += ["numpy", *(["torch", "torchvision", "pillow"] if system.sees_project else [])]
    code = "import json, sys; from importlib.metadata import version; "
    code += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = {"python": platform.python_version(), **json.loads(done.stdout)}
    if "nginx" in programs:
        said = subprocess.run([programs["nginx"], "-v"], capture_output=True, text=True, check=True).stderr
        found["nginx"] = said.strip().rpartition("/")[2]
    if "weed" in programs:
        said = subprocess.run([programs["weed"], "version"], capture_output=True, text=True, check=True).stdout
        found["seaweedfs"] = said.split()[2]
    if "curl" in programs:
        said = subprocess.run([programs["curl"], "--version"], capture_output=True, text=True, check=True).stdout
        found["curl"] = said.split()[1]
    return found


def _run(*command: str, cwd: Path | None = None) -> None:
    """Run a command.

    Raises:
        Unavailable: it failed; the reason is what it said last.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=INSTALL_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"`{Path(command[0]).name}` did not run: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        what = " ".join([Path(command[0]).name, *command[1:4]])
        raise Unavailable(f"`{what} ...` failed: {said[-1]}")
