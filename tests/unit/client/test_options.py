"""Limits and time-outs that cannot work are refused by name."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import get_args

import pytest

from sophon_loader.client.options import AgentMissing, OffloadOptions
from sophon_loader.errors import ConfigError

TIMES = [field.name for field in dataclasses.fields(OffloadOptions) if field.name.endswith("_s")]


def test_the_defaults_work_and_cannot_be_changed_in_place() -> None:
    options = OffloadOptions()
    assert options.window >= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.window = 3


def test_editors_complete_what_a_missing_agent_may_lead_to() -> None:
    for name in get_args(AgentMissing):
        assert OffloadOptions(agent_missing=name).agent_missing == name
    with pytest.raises(ConfigError, match="'read-here', 'wait' or 'raise', got 'never'"):
        OffloadOptions(agent_missing="never")  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [0, -1])
@pytest.mark.parametrize(("name", "what"), [("window", "samples"), ("window_nbytes", "bytes")])
def test_a_window_without_room_is_refused(name: str, what: str, window: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a whole number of {what}, at least 1, got {window}"):
        OffloadOptions(**{name: window})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("name", TIMES)
def test_a_time_must_be_positive_and_finite(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be a positive number of seconds, got "):
        OffloadOptions(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 0, 1, "no"])
@pytest.mark.parametrize("name", ["reuse_batch_memory", "fused"])
def test_a_switch_is_on_or_off(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be True or False, got {value!r}"):
        OffloadOptions(**{name: value})  # type: ignore[arg-type]
    assert getattr(OffloadOptions(), name) and not getattr(OffloadOptions(**{name: False}), name)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [None, ["a"], {"a": "host"}, {"": ["host"]}, {"a": [1]}, {1: ["host"]}])
def test_groups_that_say_nothing_are_refused(groups: object) -> None:
    with pytest.raises(ConfigError, match="groups must say which agents each group has, got"):
        OffloadOptions(groups=groups, group="a")  # type: ignore[arg-type]


def test_a_rank_is_of_a_group_that_there_is() -> None:
    OffloadOptions(groups={"a": ["host"], "b": ["other"]}, group="b")
    with pytest.raises(ConfigError, match="group must be one of 'a', 'b', got 'c'"):
        OffloadOptions(groups={"a": ["host"], "b": ["other"]}, group="c")
    with pytest.raises(ConfigError, match="group must be one of 'a', got ''"):
        OffloadOptions(groups={"a": ["host"]})
    with pytest.raises(ConfigError, match="group must be one of groups, which is empty, got 'a'"):
        OffloadOptions(group="a")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"cache": "/nvme"}, "cache and cache_gb must be given together, got cache='/nvme' and cache_gb=None"),
        ({"cache_gb": 2}, "cache and cache_gb must be given together, got cache=None and cache_gb=2"),
        ({"cache": "", "cache_gb": 2}, "cache must be the path of a folder, as text, got ''"),
        ({"cache": 3, "cache_gb": 2}, "cache must be the path of a folder, as text, got 3"),
        ({"cache": "/nvme", "cache_gb": 0}, "cache_gb must be a positive number of gigabytes, got 0"),
        ({"cache": "/nvme", "cache_gb": math.inf}, "cache_gb must be a positive number of gigabytes, got inf"),
    ],
)
def test_a_cache_has_a_place_and_room(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        OffloadOptions(**arguments)  # type: ignore[arg-type]
    assert OffloadOptions(cache="/nvme", cache_gb=0.001).cache_gb == 0.001


@pytest.mark.parametrize(("log", "got"), [(3, "3"), ("", "''"), (b"run", "b'run'"), (True, "True")])
def test_a_log_is_a_path(log: object, got: str) -> None:
    with pytest.raises(ConfigError, match=f"log must be the path of a file, as in 'run-{{rank}}.jsonl', got {got}"):
        OffloadOptions(log=log)  # type: ignore[arg-type]


def test_a_log_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log must be the path of a file, got the folder .*; add a name"):
        OffloadOptions(log=tmp_path)
    assert OffloadOptions(log=tmp_path / "run.jsonl").log == str(tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    "roots", [None, ["/mnt"], {"mnt": ""}, {"/mnt": None}, {"/mnt": "/export"}, {"/mnt": "a/../.."}, {7: ""}]
)
def test_roots_are_absolute_here_and_below_the_address_there(roots: object) -> None:
    with pytest.raises(ConfigError, match=r"roots must say which folder below the agent's address .*, got "):
        OffloadOptions(roots=roots)  # type: ignore[arg-type]
