"""The one way to start processes: agents, children that take orders, and functions in a fresh process.

A child runs a function of a bench in a process of its own. The function is a context manager that yields its orders,
what to do for each word:

    @contextmanager
    def counting(start: int) -> Iterator[Orders]:
        yield {"add": lambda rest: start + int(rest)}

    with child(bed.loader_host, LOADER_CORE, counting, {"start": 3}) as counter:
        counter.order("add 4")  # 7

An order is a line on the child's standard input, a word and the rest; the answer is a line of JSON. The first line, an
empty object, says that the child is ready. The child ends when its standard input does. Other output of it or its
libraries goes to standard error.

Imports nothing but the standard library: peers run it with a python of their own.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from bench.bed import Bed, Host
from bench.record import REPOSITORY
from sophon_loader.wire.announcement import announced

Orders = Mapping[str, Callable[[str], Any]]

AGENT = (sys.executable, "-m", "storage_agent", "serve", "--log-level", "warning")
"""Start of every agent's command; the export, its address and other options follow."""
OP_WORKERS_AT_ONCE = ("--ops", "torchvision.transforms")
"""Options that start an agent's op workers with it, not in a measured epoch. The module registers no op."""
EXPORT = "bench"
PORT = 5555
LOADER_CORE, AGENT_CORE = 0, 1
"""The CPUs that the hosts of a bed are pinned to."""
ANSWER_S = 600.0
"""Time limit for an answer, in seconds: an epoch of the slowest policy over a slow link takes minutes."""
START_S = 60.0
"""Time limit until an agent's worker is ready, in seconds."""
END_S = 30.0
"""Time limit for a child's end, a loader with its workers included, in seconds."""


class ChildFailed(RuntimeError):
    """A child ended, or said nothing for too long, instead of answering."""


# --- agents -----------------------------------------------------------------------------------------------------------


def start_agent(
    bed: Bed, data: Path, cores: float | None = 1.0, within: tuple[str, ...] = (), port: int = PORT
) -> subprocess.Popen[str]:
    """Start the agent of a bed, with one worker of each kind, and wait until it is ready; it ends with the bed.

    Args:
        bed: an open bed; the agent runs on its agent host.
        data: the ImageFolder tree that it serves.
        cores: CPU quota of the agent's host in cores; None for no quota. One of less than a core holds from when its
            workers are ready: its op worker imports torch first, for a minute with 0.05 cores.
        within: what its command line is preceded by: a program that runs another one in its own place.
        port: that it listens on.

    Returns:
        Its process. Loaders on the bed find it at `agent_address(bed)`.
    """
    bind = f"tcp://{bed.agent_host.address}:{port}"
    # Without keys, as the peers are; bench.keys says what they cost.
    serving = [*AGENT, "--insecure", "--export", f"{EXPORT}={data}", "--bind", bind, "--workers", "1"]
    serving += OP_WORKERS_AT_ONCE
    serving += bed.agent_arguments
    command = [*within, *serving]
    at_start = None if cores is None else max(1.0, cores)
    agent = bed.agent_host.popen(
        command, cores={AGENT_CORE}, quota_cores=at_start, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    announced(agent)
    if cores != at_start:
        wait_for_worker(bind, bed.agent_host, with_ops=True)
        bed.agent_host.set_quota(cores)
    return agent


def wait_for_worker(address: str, host: Host | None = None, *, with_ops: bool = False) -> None:
    """Wait until an agent has a worker that is ready.

    Args:
        address: of the agent.
        host: where it is asked from; None for this machine.
        with_ops: True to wait for an op worker, too; the agent has `OP_WORKERS_AT_ONCE`.

    Raises:
        ChildFailed: it takes too long.
    """
    command = [sys.executable, "-m", "storage_agent", "status", "--json", address]
    popen = subprocess.Popen if host is None else host.popen
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s:
        asking = popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        answer, _ = asking.communicate()
        if asking.returncode == 0:
            status = json.loads(answer)
            if status["workers"] and (status["op_workers"] or not with_ops):
                return
        time.sleep(0.2)
    raise ChildFailed(f"the agent's worker must be ready within {START_S:g} s, got none")


def agent_address(bed: Bed) -> str:
    """Return the address of the agent for a loader on the bed."""
    return f"tcp://{bed.agent_host.address}:{PORT}/{EXPORT}"


@contextmanager
def local_agent(data: Path | str, *arguments: str, bind: str = "tcp://127.0.0.1:0") -> Iterator[tuple[str, int]]:
    """An agent with one worker, by default over loopback, while the block runs.

    Args:
        data: the ImageFolder tree that it serves, or the location of archives.
        arguments: more of its command line.
        bind: its interface and port.

    Yields:
        The address for loaders, and the agent's process id.
    """
    command = [*AGENT, "--end-with-stdin", "--export", f"{EXPORT}={data}", "--bind", bind]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    with subprocess.Popen([*command, "--workers", "1", *arguments], **pipes) as agent:
        assert agent.stdin is not None
        try:
            yield f"{announced(agent).endpoint}/{EXPORT}", agent.pid
        finally:
            agent.stdin.close()


# --- children, seen from the bench ------------------------------------------------------------------------------------


class Child:
    """A process that takes orders.

    Args:
        process: with pipes for standard input and output, in text mode.
        answer_s: how long an answer may take; a child that takes longer is killed.
        errors: the file that its standard error goes to, for the reason of a failure; None when it goes to the bench's.
    """

    def __init__(self, process: subprocess.Popen[str], answer_s: float = ANSWER_S, errors: IO[bytes] | None = None):
        self._process = process
        self._answer_s = answer_s
        self._errors = errors

    def order(self, what: str) -> Any:
        """Have it do something, and return its answer.

        Raises:
            ChildFailed: there is none.
        """
        self.tell(what)
        return self.answer(what)

    def tell(self, what: str) -> None:
        """Have it do something, without waiting for the answer."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()

    def answer(self, what: str) -> Any:
        """Return the answer to an order that was sent before.

        Raises:
            ChildFailed: there is no answer.
        """
        assert self._process.stdout is not None
        watchdog = threading.Timer(self._answer_s, self._process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self._process.wait(END_S)
            raise ChildFailed(f"`{what[:80]}` failed: {self._last_words()}")
        return json.loads(line)

    def end(self) -> None:
        """Tell it to end, wait for that, and kill it when it takes too long."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_S)
        self._process.stdout.close()

    def _last_words(self) -> str:
        if self._process.returncode == -9:
            return f"no answer within {self._answer_s:g} s, or killed"
        status = f"it ended with status {self._process.returncode}"
        if self._errors is None:
            return status
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), status)


@contextmanager
def child(
    host: Host, core: int | None, function: Callable[..., AbstractContextManager[Orders]], settings: Mapping[str, Any]
) -> Iterator[Child]:
    """A child that is ready, while the block runs.

    Args:
        host: where it runs.
        core: the CPU that it is pinned to; None for any.
        function: what it runs, a context manager at the top level of a module.
        settings: the function's keyword arguments, as JSON can carry them; paths become texts.

    Raises:
        ChildFailed: it ended before it was ready.
    """
    with started(host, core, sys.executable, name_of(function), settings) as one:
        yield one


@contextmanager
def started(
    host: Host,
    core: int | None,
    python: str,
    name: str,
    settings: Mapping[str, Any],
    answer_s: float = ANSWER_S,
    keep_errors: bool = False,
) -> Iterator[Child]:
    """A child by the name of its function, whose module need not be importable here.

    Args:
        host: where it runs.
        core: the CPU that it is pinned to; None for any.
        python: the interpreter that runs it.
        name: `module:function`.
        settings: the function's keyword arguments, as JSON can carry them; paths become texts.
        answer_s: how long an answer may take.
        keep_errors: whether its standard error is kept for the reason of a failure instead of shown.

    Raises:
        ChildFailed: it ended before it was ready.
    """
    command = [python, "-m", "bench.children", "serve", name, json.dumps(settings, default=str)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": REPOSITORY}
    with TemporaryFile() as errors:
        if keep_errors:
            pipes["stderr"] = errors
        process = host.popen(command, cores=None if core is None else {core}, **pipes)
        one = Child(process, answer_s, errors if keep_errors else None)
        try:
            one.answer("start")
            yield one
        finally:
            one.end()


def alone(function: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Return a function's result in a fresh process of this machine.

    Args:
        function: at the top level of a module; what it returns must go through JSON.
        settings: its keyword arguments, as JSON can carry them; paths become texts.
    """
    command = [sys.executable, "-m", "bench.children", "once", name_of(function), json.dumps(settings, default=str)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise ChildFailed(f"{name_of(function)} ended with status {done.returncode}")
    return json.loads(done.stdout)


def name_of(function: Callable[..., Any]) -> str:
    """`module:function`, also when its module is the program that runs."""
    module = function.__module__
    if module == "__main__":
        spec = sys.modules["__main__"].__spec__
        assert spec is not None, "start benches with python -m"
        module = spec.name
    return f"{module}:{function.__qualname__}"


# --- children, seen from themselves -----------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run a function as a child.

    Args:
        arguments: `serve` or `once`, `module:function`, and its keyword arguments in JSON.
    """
    how, name, settings = arguments
    # The answers go to a file of their own: what libraries print must not come between them.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, function_name = name.partition(":")
    function = getattr(importlib.import_module(module), function_name)
    if how == "once":
        print(json.dumps(function(**json.loads(settings))), file=answers)
        return 0
    with function(**json.loads(settings)) as orders:
        print("{}", file=answers)
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            print(json.dumps(orders[word](rest)), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
