"""Settings that cannot work are refused, with the rule and the value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.errors import ConfigError
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from storage_agent.host.agent_settings import AgentSettings


def _settings(tmp_path: Path, **changed: Any) -> AgentSettings:
    usual: dict[str, Any] = {"exports": {"d": str(tmp_path)}, "bind": "tcp://127.0.0.1:0", "workers": 1}
    return AgentSettings(**(usual | changed))


@pytest.mark.parametrize("changed", [
    {}, {"bind": "ipc:///tmp/x"}, {"bind": "tcp://[::1]:5"}, {"bind": "tcp://*:*", "insecure": True},
    {"limit_mbit": 0.5}, {"limit_mbit": None}, {"workers": 64, "readers": 1},
    {"max_file_nbytes": MAX_PAYLOAD_NBYTES}, {"max_px": 1}, {"drain_s": 0.0},
])  # fmt: skip
def test_settings_that_work(tmp_path: Path, changed: dict[str, Any]) -> None:
    settings = _settings(tmp_path, **changed)
    assert {name: getattr(settings, name) for name in changed} == changed


@pytest.mark.parametrize(("changed", "rule"), [
    ({"exports": {}}, "at least one export must be given, got none; add --export NAME=FOLDER"),
    *(({"bind": bind}, "bind must start with") for bind in ("", "127.0.0.1:5555", "udp://x:1", "http://x", "inproc://x")),
    *(({"bind": f"tcp://h{end}"}, "bind must end with a port") for end in ("", ":", ":99999", ":x", ":-1", ":65536")),
    *(({name: n}, f"{said} must be at least 1, got {n}") for n in (0, -3)
      for name, said in (("workers", "--workers"), ("readers", "--readers"), ("max_outstanding", "max_outstanding"),
                         ("max_queued", "--max-queued"))),
    *(({"limit_mbit": n}, f"--limit-mbit must be above 0, got {n}; leave it out") for n in (0.0, -1.0, math.nan)),
    *(({"max_file_nbytes": n}, "--max-file-mb must be from 1 to 1024, got") for n in (0, -1, MAX_PAYLOAD_NBYTES + 1)),
    ({"announce": Path("/x"), "bind": "ipc://*"}, "--announce must go with a --bind of tcp://, got ipc"),
    ({"announce_as": "host"}, "--announce-as must go with --announce FOLDER, got 'host' alone"),
    *(({"announce": Path("/x"), "announce_as": text}, "--announce-as must be HOST or HOST:PORT")
      for text in ("a:b", "a:0", "tcp://a:5", "::1", "a b", "a:5/d", "*")),
    ({"links_out": True}, "--links-out must go with a Unix socket, got tcp://"),
    ({"max_px": 0}, "--max-megapixels must be above 0, got 0"),
    *(({"drain_s": n}, "drain_s must be") for n in (-1.0, math.nan, math.inf)),
])  # fmt: skip
def test_settings_that_do_not(tmp_path: Path, changed: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _settings(tmp_path, **changed)
    assert rule in str(caught.value)


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", ".hidden", "/"])
def test_the_name_of_an_export(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="export name must be a plain word"):
        _settings(tmp_path, exports={"good": "/data", name: "/data"})
