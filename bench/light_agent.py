"""Seconds to the first answer, memory and disk of an agent without torch, next to those of one with it.

    python -m bench.light_agent --json light_agent.json

pip makes environments with this checkout's extra `[agent]`, and with `[agent,codecs]`; for the index it asks see pip's
own settings. The agent with torch is that of this bench's own environment. They take turns, each with one worker over
loopback. The clock runs from the command until a worker has answered with a crop, asked for by a program, which no
other process of the agent makes. The CPU seconds until then depend less on what else the machine does. Then all its
processes are weighed by their proportional set sizes, which divide shared pages by the number of processes that have
them, and by their private pages.

Disk is that of all files of the packages, compiled modules included, without pip and setuptools. With torch, a module
counts as compiled only where it has been imported.

Bars: without torch the first answer comes within 1 s, a worker has at most 60 MB, and the disk at most 130 MB, 220 MB
with the codecs.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from PIL import Image
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from bench import arguments, record
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Program
from sophon_loader.wire.announcement import announced
from sophon_loader.wire.messages import FetchPrograms, ProgramItem, Sample
from storage_agent.command.status import ask_status

FIRST_BAR_S, WORKER_BAR_MB = 1.0, 60.0
DISK_BARS_MB = {"[agent]": 130.0, "[agent,codecs]": 220.0}
"""Extras of an environment without torch -> disk that it may take."""
TORCH = "[torch,codecs]"
SOURCES = ("sophon_loader", "storage_agent", "pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in", "README.md")
"""Parts of the checkout that pip builds from; a build in the checkout would leave files there."""
NOT_COUNTED = {"pip", "setuptools"}
WAIT_S = 60.0
"""Time limit for an answer."""
SIZE = 500, 375
"""Width and height of the picture, in pixels."""
SIZES_OF_PACKAGES = """
import importlib.metadata, importlib.util, json, os
found = {}
for one in importlib.metadata.distributions():
    files = {os.path.realpath(one.locate_file(file)) for file in one.files or []}
    files |= {importlib.util.cache_from_source(file) for file in files if file.endswith(".py")}
    found[one.metadata["Name"].lower()] = sum(os.stat(file).st_blocks * 512 for file in files if os.path.isfile(file))
print(json.dumps(found))
"""
"""Run by a Python: the bytes on disk of each package that it finds."""


@dataclass(frozen=True)
class Environment:
    """A Python that has an agent.

    Args:
        extras: of the package, in pip's notation.
        python: its interpreter.
        folder: the working directory of its agents.
        disk_mb: of its packages.
    """

    extras: str
    python: Path
    folder: Path
    disk_mb: float


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table, write the results."""
    options = arguments.parsed(parser(), argv)
    with tempfile.TemporaryDirectory(prefix="sophon-bench-") as made:
        environments = all_environments(Path(made))
        pictures = Path(made, "pictures")
        pictures.mkdir()
        Image.effect_noise(SIZE, 60).convert("RGB").save(pictures / "0.jpg")
        rows = []
        for number in tqdm(range(-1, options.rounds), desc="rounds", file=sys.stderr):
            for extras in record.in_turns(list(environments), number):
                row = started(environments[extras], pictures)
                if number >= 0:  # the first start reads files from the disk, and compiles modules
                    rows.append({"round": number, "extras": extras, **row})
    summary = summarise(environments, rows)
    show(summary)
    record.write(options.output, {"rounds": rows, "summary": summary})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.light_agent", __doc__)
    parser.add_argument("--rounds", type=arguments.count(), default=10)
    return parser


# --- environments -----------------------------------------------------------------------------------------------------


def all_environments(folder: Path) -> dict[str, Environment]:
    """Environments without torch, made here, and this bench's own, by their extras.

    Args:
        folder: an empty one.
    """
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        if (path := record.REPOSITORY / name).is_dir():
            shutil.copytree(path, sources / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        else:
            shutil.copy(path, sources)
    (sources / "LICENSE").touch()
    found, sizes = dict[str, Environment](), dict[str, int]()
    for extras in tqdm(DISK_BARS_MB, desc="installing", file=sys.stderr):
        python, sizes = installed(folder / f"venv{len(found)}", f"{sources}{extras}")
        found[extras] = Environment(extras, python, folder, sum(sizes.values()) / 1e6)
    own = sizes_of_packages(Path(sys.executable))
    beside = sum(size for name, size in own.items() if name in of_torch() and name not in sizes)
    disk_mb = (sum(sizes.values()) + beside) / 1e6
    return {**found, TORCH: Environment(TORCH, Path(sys.executable), record.REPOSITORY, disk_mb)}


def installed(folder: Path, requirement: str) -> tuple[Path, dict[str, int]]:
    """A new environment with a package; its interpreter, and the bytes on disk of each package in it.

    Args:
        folder: of the environment.
        requirement: in pip's notation.

    Raises:
        CalledProcessError: pip failed; it says on standard error why.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    environment = {**_environment(), "SOPHON_NATIVE": "required"}
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    sizes = sizes_of_packages(python)
    return python, {name: size for name, size in sizes.items() if name not in NOT_COUNTED}


def sizes_of_packages(python: Path) -> dict[str, int]:
    """Bytes on disk of each package that a Python finds.

    Args:
        python: the interpreter.
    """
    command = [str(python), "-c", SIZES_OF_PACKAGES]
    told = subprocess.run(command, check=True, env=_environment(), stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(told))


def of_torch() -> set[str]:
    """Names of torch, torchvision, nvidia-ml-py, and of all that pip installs with them here."""
    from packaging.requirements import Requirement

    wanted, found = ["torch", "torchvision", "nvidia-ml-py"], set[str]()
    while wanted:
        one = Requirement(wanted.pop())
        if one.name.lower() in found or not (one.marker is None or one.marker.evaluate({"extra": ""})):
            continue
        found.add(one.name.lower())
        wanted += importlib.metadata.requires(one.name) or []
    return found


def _environment() -> Mapping[str, str]:
    """This process's environment variables, without those that lead a Python to other modules."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


# --- measuring --------------------------------------------------------------------------------------------------------


def started(environment: Environment, pictures: Path) -> dict[str, float]:
    """An agent from its command to a worker's first answer, and its memory then.

    Args:
        environment: whose agent it is.
        pictures: a folder with the picture `0.jpg`.
    """
    serve = ["serve", "--end-with-stdin", "--log-level", "warning", "--workers", "1", "--bind", "tcp://127.0.0.1:0"]
    command = [str(environment.python), "-m", "storage_agent", *serve, "--export", f"bench={pictures}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    begun_s = time.perf_counter()
    with subprocess.Popen(command, cwd=environment.folder, env=_environment(), **pipes) as agent:
        assert agent.stdin is not None
        try:
            endpoint = announced(agent).endpoint
            serves_s = time.perf_counter() - begun_s
            ask_for_crop(f"{endpoint}/bench", pictures / "0.jpg")
            first_s = time.perf_counter() - begun_s
            weights = weighed(agent.pid, ask_status(endpoint, WAIT_S)["worker_pids"])
        finally:
            agent.stdin.close()
    return {"serves_s": serves_s, "first_answer_s": first_s, **weights}


def ask_for_crop(address: str, picture: Path) -> None:
    """Wait until a worker of an agent has answered with a crop.

    Args:
        address: of the agent, with the export.
        picture: a JPEG file of `SIZE` in that export.

    Raises:
        RuntimeError: none answers within `WAIT_S`.
    """
    program = Program("image", "", (*SIZE, "RGB"), (("crop", 8, 8, 232, 232),)).pack()
    item = ProgramItem(1, 2, "pixels", picture.name, picture.stat().st_size, program)
    connection = Connection(Address.parse(address), 1)
    try:
        connection.greet(WAIT_S)
        export, end_s, reply = connection.address.export, time.monotonic() + WAIT_S, None
        while time.monotonic() < end_s:  # while no worker is ready, files go out after a while
            connection.send(FetchPrograms(export, False, False, ["file", "pixels"], [item], pixels_by=pixels_by()))
            reply = connection.receive(WAIT_S)
            if reply is not None and isinstance(reply[0], Sample) and reply[0].encoding == "pixels":
                return
    finally:
        connection.close()
    raise RuntimeError(f"the agent must answer with a crop within {WAIT_S:g} s, got {reply and reply[0]}")


def weighed(pid: int, workers: Sequence[int]) -> dict[str, float]:
    """Memory in MB of an agent's worker and of all its processes, and the CPU seconds that these have used.

    Args:
        pid: of the agent.
        workers: process id of its one worker.
    """
    agent = psutil.Process(pid)
    processes = [agent, *agent.children(recursive=True)]
    cpu_s = sum(sum(one.cpu_times()[:2]) for one in processes)
    sizes = {one.pid: one.memory_full_info() for one in processes}
    (worker,) = (sizes[one] for one in workers)
    return {
        "cpu_s": cpu_s,
        "worker_pss_mb": worker.pss / 1e6,
        "worker_private_mb": worker.uss / 1e6,
        "all_pss_mb": sum(one.pss for one in sizes.values()) / 1e6,
        "all_private_mb": sum(one.uss for one in sizes.values()) / 1e6,
    }


def summarise(environments: Mapping[str, Environment], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spread of each figure, by environment.

    Args:
        environments: by their extras.
        rows: all starts.
    """
    summary = []
    for extras, environment in environments.items():
        of = [row for row in rows if row["extras"] == extras]
        figures = {name: record.spread([row[name] for row in of]) for name in of[0] if name not in ("round", "extras")}
        verdict = _verdict(figures, environment.disk_mb, DISK_BARS_MB[extras]) if extras in DISK_BARS_MB else ""
        summary.append({"extras": extras, "disk_mb": environment.disk_mb, **figures, "verdict": verdict})
    return summary


def _verdict(figures: Mapping[str, dict[str, float]], disk_mb: float, bar_mb: float) -> str:
    reached = {
        "first answer": figures["first_answer_s"]["median"] <= FIRST_BAR_S,
        "worker": figures["worker_pss_mb"]["median"] <= WORKER_BAR_MB,
        "disk": disk_mb <= bar_mb,
    }
    return ", ".join(f"{name} missed" for name, good in reached.items() if not good) or "ok"


def show(summary: Sequence[dict[str, Any]]) -> None:
    """Print the summary.

    Args:
        summary: of all starts.
    """
    columns = (
        "extras",
        "disk, MB",
        "listens, s",
        "first answer, s",
        "CPU s",
        "worker, MB",
        "all processes, MB",
        "bars",
    )
    table = Table(*columns, title="an agent without torch")
    for entry in summary:
        first = entry["first_answer_s"]
        table.add_row(
            entry["extras"].replace("[", "\\["),
            f"{entry['disk_mb']:.0f}",
            f"{entry['serves_s']['median']:.2f}",
            f"{first['median']:.2f} ({first['min']:.2f}-{first['max']:.2f})",
            f"{entry['cpu_s']['median']:.2f}",
            f"{entry['worker_pss_mb']['median']:.0f}",
            f"{entry['all_pss_mb']['median']:.0f}",
            entry["verdict"],
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    sys.exit(main())
