"""`sophon-agent ray` as far as it goes without a cluster: what is wrong is said before one is asked for."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest

from sophon_loader.errors import ConfigError
from storage_agent.__main__ import main
from storage_agent.ray_fleet import Kept, _host, _lacking
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
    assert _host(loopback) == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"--interface must be one of .*, got 'nothere0'"):
        _host("nothere0")


def test_what_is_missing_is_named() -> None:
    assert _lacking("sophon", 2, 3) == (
        "2 nodes of the cluster carry the resource 'sophon', and 3 agents need one each; start more nodes with "
        """`ray start --resources='{"sophon": 1}'`, which then get the agents that wait"""
    )
    assert (
        Kept("sophon-0", "ALIVE", 1, "tcp://a:1", ("x", "y")).line()
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
