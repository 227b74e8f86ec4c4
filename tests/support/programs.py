"""Programs that use training frameworks, without the seconds that each takes to import one.

One process has imported torch and the frameworks. It forks a process for each rank of a program, which then runs it as
`python FILE` or `torchrun FILE` does. So its imports, its start method (fork) and its environment are not what is
tested here; tests of these start a Python.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("lightning", "accelerate", "transformers.trainer", "ignite.engine", "fastai.basics", "timm.data")
"""What the process imports, where it is installed."""


@dataclass(frozen=True)
class Ran:
    """What a rank of a program has done.

    Args:
        status: with which it ended; 0 is success.
        output: what it wrote to standard output and standard error.
        seen: `SEEN` of the program's module `task`, if it has one.
    """

    status: int
    output: str
    seen: Any


class Programs:
    """The process with the frameworks in it; it ends with this one.

    Example:
        >>> with contextlib.closing(Programs()) as programs:
        ...     first, second = programs.run(folder / "train.py", ranks=2)
    """

    def __init__(self) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", __name__]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, program: Path | str, *arguments: str, ranks: int = 1, wait_s: float = 100.0) -> list[Ran]:
        """Run a program to its end.

        Args:
            program: a file, which finds the modules of its folder; or the name of a module of the tests.
            arguments: its command line.
            ranks: how many of it run together, as `torchrun` has them do.
            wait_s: after which it is killed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        told = {"program": str(program), "arguments": arguments, "ranks": ranks, "wait_s": wait_s}
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that runs programs must live"
        return [Ran(**one) for one in json.loads(answer)]

    def close(self) -> None:
        """End it."""
        self._process.communicate()


# --- in that process --------------------------------------------------------------------------------------------------


def main() -> None:
    """Run what standard input names, a line each, and answer with a line each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    multiprocessing.set_start_method("fork", force=True)
    for name in ("torchvision", "sophon_loader.loader", *FRAMEWORKS):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    for line in sys.stdin:
        answers.write(json.dumps(_ran(**json.loads(line))) + "\n")
        answers.flush()


def _ran(program: str, arguments: Sequence[str], ranks: int, wait_s: float) -> list[dict[str, Any]]:
    # No TemporaryDirectory, which the ranks, that run what is registered for the end of a program, would remove.
    folder = Path(tempfile.mkdtemp())
    outputs = [folder / f"output of {rank}" for rank in range(ranks)]
    port = _free_port()
    processes = [
        multiprocessing.Process(target=_run_rank, args=(program, arguments, rank, ranks, port, output))
        for rank, output in enumerate(outputs)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(wait_s)
        if process.exitcode is None:
            process.kill()
            process.join()
    told = [
        {"status": process.exitcode, "output": output.read_text(), "seen": _seen(output)}
        for process, output in zip(processes, outputs, strict=True)
    ]
    shutil.rmtree(folder)
    return told


def _seen(output: Path) -> Any:
    seen = output.with_suffix(".json")
    return json.loads(seen.read_text()) if seen.exists() else None


def _run_rank(program: str, arguments: Sequence[str], rank: int, ranks: int, port: int, output: Path) -> NoReturn:
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if ranks > 1:
        at: dict[str, object] = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "GROUP_RANK": 0,
        }
        at |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
        os.environ.update({name: str(value) for name, value in at.items()})
    sys.argv = [program, *arguments]
    if program.endswith(".py"):
        os.chdir(Path(program).parent)
        sys.path.insert(0, str(Path(program).parent))
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    task: Any = sys.modules.get("task")
    if hasattr(task, "SEEN"):
        output.with_suffix(".json").write_text(json.dumps(task.SEEN))
    atexit._run_exitfuncs()  # which a child of multiprocessing's leaves out
    sys.exit()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
