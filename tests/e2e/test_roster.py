"""A folder in which real agents announce themselves, as loaders read it, and a name as this system resolves it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sophon_loader.routes.announced import Announced
from storage_agent.command.status import ask_status
from tests.support.agents import Agent, until
from tests.support.clocks import FakeClock

RESOLVED = """
from sophon_loader.client.address import Address
from sophon_loader.routes.roster import Resolved

roster = Resolved(Address.parse("tcp://agents:5555/d"))
for lines in ("127.0.0.9 agents", "127.0.0.9 agents\\n127.0.0.10 agents\\n::1 agents", "127.0.0.10 agents", ""):
    with open("/etc/hosts", "w") as hosts:
        hosts.write(lines + "\\n")
    print(*(one.address.endpoint for one in roster.look()), roster.trouble != "")
"""
"""Has an /etc/hosts of its own, which it changes."""


def test_a_name_whose_addresses_change(tmp_path: Path) -> None:
    """Not patched: the C library reads its file, in a mount namespace."""
    hosts = tmp_path / "hosts"
    hosts.touch()
    command = f'mount --bind "{hosts}" /etc/hosts && exec "$@"'
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", command, "-"]
    try:
        can = subprocess.run([*mounted, "true"], capture_output=True, text=True, timeout=20)
    except OSError:
        pytest.skip("no unshare")
    if can.returncode:
        pytest.skip(f"no /etc/hosts of its own: {can.stderr}")
    told = subprocess.run([*mounted, sys.executable, "-c", RESOLVED], capture_output=True, text=True, timeout=60)
    assert told.stdout.splitlines() == [
        "tcp://127.0.0.9:5555 False",
        "tcp://127.0.0.9:5555 tcp://127.0.0.10:5555 tcp://[::1]:5555 False",
        "tcp://127.0.0.10:5555 False",
        "tcp://127.0.0.10:5555 True",
    ], told.stderr


def test_agents_come_and_go(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir(mode=0o755)
    clock = FakeClock()
    said: list[str] = []
    one, other = (
        Announced(f"file://{folder}/{export}", keyed=False, clock=clock, say=said.append) for export in ("d", "e/deep")
    )
    assert list(one.look()) == [] and f"no agent of 'd' is announced in {folder}" in one.trouble
    agents = [Agent({"d": root, "e": root}, "--announce", str(folder), log=tmp_path / f"log{n}") for n in range(2)]
    try:
        until(lambda: len(one.look()) == 2, "both are found")
        for roster, address in ((one, "d"), (other, "e/deep")):
            found = {str(member.address): member for member in roster.look()}
            assert set(found) == {agent.address(address) for agent in agents} and roster.trouble == ""
            for member in found.values():
                assert member.exports == ("d", "e")
                assert ask_status(member.address.endpoint, 10.0)["instance"] == member.instance
        agents[1].kill()
        clock.now_s += 29.0
        assert len(one.look()) == 2, "nobody has seen that it is old"
        path = next(path for path in folder.iterdir() if agents[0].endpoint.rpartition(":")[2] in path.name)
        before = path.stat()
        until(lambda: path.stat().st_mtime_ns != before.st_mtime_ns, "the one that lives writes its entry anew", 15.0)
        clock.now_s += 1.0
        assert [str(member.address) for member in one.look()] == [agents[0].address("d")]
        agents[1].start()
        until(lambda: len(one.look()) == 2, "it is back at its address")
        assert agents[1].status()["instance"] in {member.instance for member in one.look()}
        assert agents[0].end() == 0
        assert [str(member.address) for member in one.look()] == [agents[1].address("d")]
        assert agents[1].end() == 0
        assert list(one.look()) == [] and "no agent of 'd'" in one.trouble and said == []
    finally:
        for agent in agents:
            agent.end()
