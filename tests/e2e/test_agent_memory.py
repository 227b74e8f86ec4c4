"""The memory of payloads that an agent has sent: it is used again, and does not grow."""

from __future__ import annotations

import platform
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from bench.agent import stream
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from storage_agent.clients.key_files import FIRST, KeyFolder
from tests.support.agents import EXPORT, Agent, agent_for

WINDOW = 32
MB = 1_000_000
with_keys = pytest.mark.parametrize("keys", [False, True], ids=["plain", "keys"])


def files_of(root: Path, sizes: list[int]) -> list[str]:
    """Files of these sizes, and their keys."""
    for number, nbytes in enumerate(sizes):
        (root / f"{number:03}.bin").write_bytes(random.Random(number).randbytes(nbytes))
    return [f"{number:03}.bin" for number in range(len(sizes))]


@contextmanager
def connected(root: Path, folder: Path | None) -> Iterator[tuple[Agent, Connection]]:
    """An agent and a connection to it, with keys or without."""
    with ExitStack() as stack:
        token = None
        arguments = []
        if folder is not None:
            token = str(KeyFolder(folder).add(FIRST))
            arguments = ["--keys", str(folder)]
        agent = stack.enter_context(agent_for({EXPORT: root}, *arguments))
        connection = Connection(Address.parse(agent.address()).with_key(token), WINDOW)
        stack.callback(connection.close)
        connection.greet(20.0)
        yield agent, connection


def page_faults(pid: int) -> int:
    """Pages that the kernel had to map into a process, so far."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have rules of their own")
@with_keys
def test_memory_of_a_payload_is_used_for_the_next(tmp_path: Path, keys: bool) -> None:
    (tmp_path / "export").mkdir()
    names = files_of(tmp_path / "export", [150_000 + 30_000 * number for number in range(30)])
    with connected(tmp_path / "export", tmp_path / "keys" if keys else None) as (agent, connection):
        stream(connection, names, 60, WINDOW)
        before = page_faults(agent.pid)
        nbytes = stream(connection, names, 150, WINDOW)
        assert (page_faults(agent.pid) - before) / (nbytes / 585_000) < 25, "a file has 143 pages"


@with_keys
def test_memory_does_not_grow_with_the_files_sent(tmp_path: Path, keys: bool) -> None:
    """Thousands of files, from 1 KB to 6 MB; what is kept does not pile up in gaps between blocks."""
    draw = random.Random(1)
    (tmp_path / "export").mkdir()
    names = files_of(tmp_path / "export", [int(10 ** draw.uniform(3.0, 6.8)) for _ in range(120)])
    with connected(tmp_path / "export", tmp_path / "keys" if keys else None) as (agent, connection):
        process = psutil.Process(agent.pid)
        grown = []
        for _ in range(5):
            draw.shuffle(names)
            stream(connection, names, 500, WINDOW)
            grown.append(process.memory_info().rss / MB)
        assert max(grown[2:]) < 1.2 * max(grown[:2]) + 20, grown
        assert max(grown) < 500, grown
