"""A Pod of Kubernetes as Linux makes it: namespaces, a read-only root with its volumes, and a user without rights.

It has the Python and the packages of the tests in place of an image's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from tests.support.agents import ROOT, until

_OWN = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
_ROOT_SCRIPT = """
set -eu
root=$1; shift
mount -t tmpfs none "$root"
while [ "$1" != -- ]; do
    mkdir -p "$root$2"; mount --rbind "$1" "$root$2"
    [ "$3" = rw ] || mount -o remount,bind,ro "$root$2"
    shift 3
done
shift
for link in /bin /sbin /lib /lib64; do [ ! -L "$link" ] || cp -P "$link" "$root$link"; done
mkdir -p "$root/proc"; mount -t proc none "$root/proc"
mount -o remount,ro "$root"
ip link set lo up
exec chroot "$root" "$@"
"""


@cache
def why_none() -> str:
    """Why this host cannot have such a Pod; "" if it can."""
    if lacking := [name for name in ("unshare", "nsenter", "setpriv", "chroot", "ip") if shutil.which(name) is None]:
        return f"needs the commands {lacking}"
    tried = subprocess.run([*_OWN, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True, timeout=60)
    return f"needs root and namespaces: {tried.stderr.strip()}" if tried.returncode else ""


class Pod:
    """One Pod. Its containers run one after another, by `run` or `start`.

    Args:
        spec: of its template.
        volumes: name -> the folder of this host that is the volume.
        root: an empty folder, where its file system is put together.
    """

    def __init__(self, spec: Mapping[str, Any], volumes: Mapping[str, Path], root: Path) -> None:
        self._spec, self._volumes, self._root = spec, volumes, root
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, container: Mapping[str, Any]) -> None:
        """A container that ends."""
        subprocess.run(self._command(container), check=True, timeout=60)

    def start(self, container: Mapping[str, Any], log: Path) -> psutil.Process:
        """A container that goes on; its first process."""
        with log.open("wb") as errors:
            self._started.append(subprocess.Popen(self._command(container), stdout=errors, stderr=errors))
        outer = psutil.Process(self._started[-1].pid)
        (first,) = until(outer.children, "it has started")
        return first

    def probe(self, first: psutil.Process, command: Sequence[str]) -> int:
        """The exit status of a command in the container with that first process."""
        enter = ["nsenter", "--target", str(first.pid), "--mount", "--net", "--pid", "--root", "--wd"]
        return subprocess.run([*enter, *self._as_user(command)], capture_output=True, timeout=60).returncode

    def stop(self, first: psutil.Process) -> int:
        """SIGTERM, as Kubernetes sends it; the exit status, which is -9 where the grace period was too short."""
        outer = self._started.pop()
        first.send_signal(signal.SIGTERM)
        try:
            return outer.wait(self._spec["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            first.kill()
            outer.wait(30)
            return -9

    def close(self) -> None:
        for outer in self._started:
            outer.kill()  # and with it, by --kill-child, what it started
            outer.wait(30)

    def _command(self, container: Mapping[str, Any]) -> list[str]:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        mounts = [(path, path, "ro") for path in _image()]
        for one in container["volumeMounts"]:
            how = "ro" if one.get("readOnly") else "rw"
            mounts.append((str(self._volumes[one["name"]]), one["mountPath"], how))
        mounts.sort(key=lambda mount: len(Path(mount[1]).parts))  # a volume at /tmp would hide a checkout below it
        flat = [word for mount in mounts for word in mount]
        command = [*container["command"], *container.get("args", [])]
        return [*_OWN, "sh", "-c", _ROOT_SCRIPT, "sh", str(self._root), *flat, "--", *self._as_user(command)]

    def _as_user(self, command: Sequence[str]) -> list[str]:
        user, group = (str(self._spec["securityContext"][key]) for key in ("runAsUser", "runAsGroup"))
        no_rights = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--clear-groups"]
        # As the Dockerfile sets it, and no home.
        env = ["env", "-i", f"PATH={sys.prefix}/bin:/usr/bin:/bin", "OMP_NUM_THREADS=1", "HOME=/nonexistent"]
        return ["setpriv", f"--reuid={user}", f"--regid={group}", *no_rights, *env, *command]


def _image() -> list[str]:
    """Folders that are seen as they are: the system's programs, Python, the packages and this repository."""
    found = ["/usr", "/etc", "/dev", *(one for one in ("/bin", "/sbin", "/lib", "/lib64") if not os.path.islink(one))]
    for path in (sys.base_prefix, sys.prefix, str(ROOT)):
        if not any(Path(path).is_relative_to(one) for one in found):
            found.append(path)
    return [one for one in found if os.path.isdir(one)]


def secret_volume(folder: Path, values: Mapping[str, bytes], items: Sequence[Mapping[str, str]]) -> None:
    """Write a Secret as kubelet does: links into a hidden folder, all of it root's and for everybody to read."""
    hidden = folder / "..2026_01_01"
    for item in items:
        path = hidden / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(values[item["key"]])
        path.chmod(0o644)
        (top := folder / path.relative_to(hidden).parts[0]).unlink(missing_ok=True)
        top.symlink_to(f"..data/{top.name}")
    (folder / "..data").symlink_to(hidden.name)
    for one in (folder, hidden, *(path for path in hidden.iterdir() if path.is_dir())):
        one.chmod(0o755)
