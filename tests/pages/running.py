"""Runs the steps of a page: its programs and commands, in a folder with pictures and against an agent."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, Step, steps_of
from tests.support.agents import Agent
from tests.support.pictures import make_tree

REPLACED = {
    "scp -p sophon@fileserver:/home/sophon/": "cp -p {folder}/home/",
    "fileserver:5555": "127.0.0.1:{port}",
    "127.0.0.1:5555": "127.0.0.1:{port}",
    "0.0.0.0:5555": "0.0.0.0:{port}",
    "/mnt/": "{folder}/",
    "/data/": "{folder}/",
    "num_workers=8": "num_workers=2",
    "batch_size=256": "batch_size=8",
    "range(90)": "range(2)",
}
"""Words of all pages, and what stands for them where a page is run; the port is that of the page's agent."""
TRAIN, VAL = 48, 16
"""Pictures in the folders `imagenet/train` and `imagenet/val` of the page's folder."""
STEP_S = 120.0
"""Longest that a program or a block of commands may take."""
_SERVE = re.compile(r"^sophon-agent serve (?:.*\\\n)*.*", re.MULTILINE)


class Page:
    """A page that is run: its folder, its agent, and what its programs printed.

    Args:
        path: of the page, from the root of the repository.
        folder: an empty one. It becomes the working directory of all programs, which find `examples/` there, too.

    Example:
        >>> with Page("README.md", tmp_path) as page:
        ...     page.run()
    """

    def __init__(self, path: str, folder: Path) -> None:
        self.path = path
        self._folder = folder
        self._port = _free_port()
        self._agent: Agent | None = None
        make_tree(folder / "imagenet" / "train", TRAIN)
        make_tree(folder / "imagenet" / "val", VAL, plain=True)
        (folder / "home").mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        self._environment = {name: value for name, value in os.environ.items() if name != "XDG_CONFIG_HOME"}
        self._environment |= {
            "HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}:{ROOT}",
        }

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        if self._agent is not None:
            self._agent.end()

    def run(self) -> str:
        """Run all steps, and print what they print.

        Returns:
            all that they have printed.
        Raises:
            AssertionError: some failed; with what each has printed.
        """
        printed, failed = [], []
        for step in steps_of((ROOT / self.path).read_text()):
            status, output = self._run(step)
            print(f"--- {self.path}:{step.line} {step.kind} {step.argument}: {status}\n{output}")
            printed.append(output)
            if status:
                failed.append(f"{self.path}:{step.line}: {step.kind} ended with {status}\n{output}")
        assert not failed, "\n".join(failed)
        return "\n".join(printed)

    def _run(self, step: Step) -> tuple[int | str, str]:
        """Its exit status, 0 if there is none, or what went wrong; and what it has printed."""
        if step.kind == "no":
            return (0, "") if step.argument.startswith("(") else ("no reason", "")
        text = self._replaced(step.text)
        if step.kind == "file":
            (self._folder / step.argument).write_text(text)
            return 0, ""
        if step.kind == "sh":
            return self._commands(text)
        program = self._folder / f"line_{step.line}.py"
        program.write_text(text)
        return self._program(program)

    def _replaced(self, text: str) -> str:
        """With the names that exist here. A page that names an agent before it starts one gets one without keys."""
        if "fileserver:5555" in text and self._agent is None:
            self._serve(["--export", f"imagenet={self._folder}/imagenet"])
        for word, here in REPLACED.items():
            text = text.replace(word, here.format(folder=self._folder, port=self._port))
        return text

    def _serve(self, arguments: list[str]) -> None:
        """Start the page's agent, or another one in its place."""
        if self._agent is not None:
            self._agent.end()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", self._environment["HOME"])
            patch.delenv("XDG_CONFIG_HOME", raising=False)
            bind = ("--bind", f"tcp://127.0.0.1:{self._port}")
            self._agent = Agent({}, *bind, *arguments, log=self._folder / "agent.log")
        config = self._folder / "home" / ".config" / "sophon"
        if (token := config / "agent" / "tokens" / "first").exists():  # what the lines do that it has printed
            (config / "keys").mkdir(mode=0o700, exist_ok=True)
            shutil.copy(token, config / "keys" / f"127.0.0.1:{self._port}")

    def _commands(self, text: str) -> tuple[int | str, str]:
        """Those of a block, after the agents that it starts."""
        for command in _SERVE.findall(text):
            arguments = shlex.split(command.replace("\\\n", " "), comments=True)[2:]
            if "0.0.0.0" in command and not {"--keys", "--insecure"} & {*arguments}:
                arguments += ["--keys", f"{self._folder}/home/.config/sophon/agent"]  # as it has them on that address
            self._serve([one.replace("0.0.0.0", "127.0.0.1") for one in arguments])
        command = ["bash", "-euo", "pipefail", "-c", _SERVE.sub("", text)]
        done = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output = done.communicate(timeout=STEP_S)[0]
            return done.returncode, output
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            return f"not done within {STEP_S:g} s", done.communicate()[0]

    def _program(self, path: Path) -> tuple[int | str, str]:
        """A Python file, in a process that has imported torch already (a child of the tests' forkserver)."""
        output = path.with_suffix(".txt")
        process = multiprocessing.get_context("forkserver").Process(
            target=_become, args=(path, output, self._environment), name=str(path)
        )
        process.start()
        process.join(STEP_S)
        status = process.exitcode if process.exitcode is not None else f"not done within {STEP_S:g} s"
        if process.exitcode is None and process.pid is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
        process.close()
        return status, output.read_text()


def _become(path: Path, output: Path, environment: dict[str, str]) -> None:
    """Run a file as `python FILE` does, in its folder."""
    os.setsid()
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    multiprocessing.set_start_method("fork", force=True)  # as in a program of its own, before Python 3.14
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(path.parent)
    sys.argv = [str(path)]
    sys.path[0:0] = environment["PYTHONPATH"].split(":")
    runpy.run_path(str(path), run_name="__main__")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
