"""`sophon-agent ray` as far as it goes without a cluster: what is wrong is said before one is asked for."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest

from sophon_loader.errors import AgentError, ConfigError
from storage_agent.__main__ import main
from storage_agent.fleet.ray_agent import Agents, free_address, host_at
from storage_agent.fleet.ray_fleet import ListedAgent, Sizing, _lacking
from tests.support.agents import run_command

START = ["ray", "start", "--export", "x=/data/x", "--insecure"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ray", "start", "--export", "x=/data/x"], "one of the arguments --keys --insecure is required"),
        (["ray", "start", "--insecure"], "the following arguments are required: --export"),
        ([*START, "--keys", "/k"], "not allowed with argument --insecure"),
        ([*START, "--agents", "0"], "must be a number from 1 to 1000, got '0'"),
        ([*START, "--resource", "a b"], "must be letters, digits"),
        ([*START, "--min", "0", "--max", "2"], "must be a number from 1 to 1000, got '0'"),
        ([*START, "--ports", "5600-5500"], "must be FIRST-LAST, such as 5555-5655, from 1 to 65535, got '5600-5500'"),
        ([*START, "--ports", "5600-65536"], "must be FIRST-LAST"),
        ([*START, "--ports", "0"], "must be FIRST-LAST"),
        ([*START, "--ports", "-"], "must be FIRST-LAST"),
        ([*START, "--ports", "a-5"], "must be FIRST-LAST"),
        ([*START, "--wait", "-1"], "must be a number of seconds above 0"),
        ([*START, "--", "--workers", "many"], "argument --workers: invalid int value: 'many'"),
        ([*START, "--", "--nonsense"], "unrecognized arguments: --nonsense"),
        ([*START, "--workers", "1"], "unrecognized arguments: --workers"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_the_address_is_the_node_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*START, "--", "--bind", "tcp://0.0.0.0:5555"]) == 1
    assert "--bind must be left out, got tcp://0.0.0.0:5555; write --interface NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--min", "1", "--max", "4"], "which trainings say what they could use, got none; add -- --announce FOLDER"),
        (
            ["--min", "1", "--max", "4", "--", "--announce", "run"],
            "got run; add -- --announce FOLDER, with an absolute",
        ),
        (["--min", "5", "--max", "4", "--", "--announce", "/run"], "--min must be at most --max, got 5 and 4"),
        (["--min", "1", "--", "--announce", "/run"], "must be given together, got --min alone; add the other one"),
        (["--max", "1", "--", "--announce", "/run"], "must be given together, got --max alone; add the other one"),
        (["--min", "1", "--max", "4", "--agents", "2", "--", "--announce", "/run"], "leave out --agents"),
    ],
)
def test_a_fleet_that_cannot_size_itself(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*START, *arguments]) == 1
    assert says in capsys.readouterr().err


def test_the_first_free_port_of_a_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = free_address("127.0.0.1", (port, min(port + 20, 65535)))
        assert port < int(found.rpartition(":")[2]) <= port + 20
        with pytest.raises(
            ConfigError, match=f"--ports must hold a port that is free at 127.0.0.1, got {port}-{port};"
        ):
            free_address("127.0.0.1", (port, port))
    assert free_address("127.0.0.1", None) == "tcp://127.0.0.1:0"
    with pytest.raises(AgentError, match="must be an address of this host"):
        free_address("192.0.2.1", (5555, 5556))


def test_the_names_of_agents() -> None:
    agents = Agents("sophon-2", (), "", None)
    assert agents.name(3) == "sophon-2-3" and agents.number("sophon-2-3") == 3
    assert [agents.number(one) for one in ("sophon-2", "sophon-2-size", "other-3", "", "sophon-2-3-4")] == [None] * 5


def test_what_sizes_a_fleet_in_a_line() -> None:
    assert (
        Sizing("sophon-size", "ALIVE", 1, 3, 2, 1, 4, "").line()
        == "sophon-size  ALIVE (restarted 1 time)  agents wanted: 3 (of 1 to 4), present: 2"
    )
    assert Sizing("s-size", "DEAD", 0, None, 2, None, None, "gone").line() == (
        "s-size  DEAD  agents wanted: ?, present: 2  gone"
    )


def test_an_export_that_no_loader_could_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ray", "start", "--export", "a b=/data", "--insecure"]) == 1
    assert "export name must have no white space, got 'a b'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [START, [*START, "--", "--workers", "1"], ["ray", "stop"], ["ray", "list"]])
def test_without_ray(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(arguments) == 1
    assert "run pip install 'sophon_loader[fleet]'" in capsys.readouterr().err


def test_the_address_of_an_interface() -> None:
    (loopback,) = (
        name for name, found in psutil.net_if_addrs().items() if "127.0.0.1" in {one.address for one in found}
    )
    assert host_at(loopback) == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"--interface must be one of .*, got 'nothere0'"):
        host_at("nothere0")


def test_what_is_missing_is_named() -> None:
    assert _lacking("sophon", 2, 3) == (
        "2 nodes of the cluster carry the resource 'sophon', and 3 agents need one each; start more nodes with "
        """`ray start --resources='{"sophon": 1}'`, which then get the agents that wait"""
    )
    assert (
        ListedAgent("sophon-0", "ALIVE", 1, "tcp://a:1", ("x", "y")).line()
        == "sophon-0  ALIVE (restarted 1 time)  tcp://a:1  x, y"
    )


def test_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    has_ray = [sys.executable, "-c", "import ray.util.state"]  # not into this process
    if subprocess.run(has_ray, capture_output=True, timeout=60).returncode:
        pytest.skip("no ray[default]; pip install 'sophon_loader[fleet]'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    done = run_command("ray", "list", "--address", place)
    assert done.returncode == 1 and "Ray must run on this host and be of the cluster, got" in done.stderr
    assert "Connection refused" in done.stderr
