"""The command line: what it takes, what it says, and that it fails with one line."""

from __future__ import annotations

import os
import re
import shlex
import sys
from argparse import SUPPRESS
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import __version__, native
from sophon_loader.errors import ConfigError
from sophon_loader.keys import Token
from sophon_loader.wire.announcement import Announcement
from storage_agent import __main__ as program
from storage_agent.clients.key_files import Grant, KeyFolder
from storage_agent.command.arguments import parser
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.stores import Exports


class _Broker:
    """Takes the settings and serves nobody."""

    address, instance = "tcp://127.0.0.1:4711", "5f0c"
    made: AgentSettings

    def __init__(self, settings: AgentSettings, exports: Exports) -> None:
        type(self).made = settings

    def run(self, ready: Any, leaving: Any) -> None:
        ready()


@pytest.fixture(autouse=True)
def something(tmp_path: Path) -> None:
    """An export must not be empty."""
    (tmp_path / "something").touch()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> type[_Broker]:
    monkeypatch.setattr(program, "Broker", _Broker)
    for check in ("check_modules", "check_address"):  # of what this host has
        monkeypatch.setattr(program, check, lambda _: None)
    return _Broker


def test_defaults(broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["serve", "--export", f"d={tmp_path}"]) == 0
    made = broker.made
    assert (
        made == AgentSettings({"d": str(tmp_path)}, "tcp://127.0.0.1:5555", workers=made.workers) and made.workers >= 1
    )
    said = Announcement.parse(capsys.readouterr().out)
    assert said == Announcement("tcp://127.0.0.1:4711", {"d": str(tmp_path)}, made.workers, os.getpid())


def test_the_page_of_the_agent_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[4] / "docs" / "agent.md").read_text()
    rows = {row[1]: row[2] for row in re.finditer(r"^\| `(--[a-z-]+)[^|]*\|[^|]*\| ([^|]*?) ?\|$", page, re.MULTILINE)}
    with pytest.raises(SystemExit):
        program.main(["serve", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert set(rows) == set(re.findall(r"--[a-z-]+", said)) - {"--help", "--export", "--bind"}, (
        "those two are told above it"
    )
    for option, default in rows.items():
        if default.isdecimal():
            found = re.search(rf" {option} [A-Z]+ [^-]*?default: ([\d.]+)", said)
            assert found is not None and float(found[1]) == float(default), option


def test_everything_given(broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        f"serve --export d={tmp_path} --export e=./x=y --bind tcp://*:0 --keys {tmp_path}/keys --workers 3 --readers 2 "
        "--ops a.b --ops c --limit-mbit 12.5 --max-file-mb 7 --max-queued 9"
    )
    (tmp_path / "x=y" / "z").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert program.main(shlex.split(text)) == 0
        assert broker.made == AgentSettings(
            exports={"d": str(tmp_path), "e": "./x=y"},
            bind="tcp://*:0",
            keys=tmp_path / "keys",
            workers=3,
            readers=2,
            ops=("a.b", "c"),
            limit_mbit=12.5,
            max_file_nbytes=7 << 20,
            max_queued=9,
        )
        said = Announcement.parse(capsys.readouterr().out)
        assert said.exports == {"d": str(tmp_path), "e": f"{tmp_path}/x=y"}


@pytest.mark.parametrize(
    ("bind", "given", "keys"),
    [
        ("tcp://*:0", "", True),
        ("tcp://10.0.0.5:5555", "", True),
        ("tcp://[::]:5555", "", True),
        ("tcp://127.evil.example:5555", "", True),
        ("tcp://10.0.0.5:5555", "--insecure", False),
        ("tcp://127.0.0.1:5555", "", False),
        ("tcp://localhost:5555", "", False),
        ("tcp://[::1]:5555", "", False),
        ("ipc:///run/agent", "", False),
        ("tcp://127.0.0.1:5555", "--keys {}/agent", True),
        ("ipc:///run/agent", "--keys {}/agent", True),
    ],
)  # fmt: skip
def test_who_needs_keys(
    broker: type[_Broker], bind: str, given: str, keys: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Keys are the default wherever other hosts may reach the agent; they are made once."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / ("agent" if given.startswith("--keys") else "sophon/agent")
    for said in (keys, False):
        assert (
            program.main(["serve", "--export", f"d={tmp_path}", "--bind", bind, *given.format(tmp_path).split()]) == 0
        )
        assert broker.made.keys == (folder if keys else None)
        assert (f"{folder}/tokens/first ~/.config/sophon/keys/127.0.0.1:4711" in capsys.readouterr().err) == said
    assert folder.exists() == keys


def test_a_missing_extension_is_logged_with_the_remedy(
    broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "available", False)
    monkeypatch.setattr(native, "reason", "the C extension is not built; build it")
    (tmp_path / "a").touch()
    assert program.main(["serve", "--export", f"d={tmp_path}"]) == 0
    said = capsys.readouterr().err
    assert "JPEG files are sent whole" in said and "build it" in said and said.count("\n") == 1


def test_missing_torch_is_logged(
    broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (tmp_path / "a").touch()
    assert program.main(["serve", "--export", f"d={tmp_path}"]) == 0
    said = capsys.readouterr().err
    assert "no pipeline is run" in said and "not installed: torchvision" in said


def test_ops_need_workers_that_run_them() -> None:
    with pytest.raises(ConfigError, match=r"--ops must be left out where --op-workers is 0, got --ops mine; leave"):
        AgentSettings({"d": "/"}, "tcp://127.0.0.1:0", workers=1, op_workers=0, ops=("mine",))


def test_settings_without_keys_must_say_so() -> None:
    with pytest.raises(
        ConfigError,
        match=r"must have keys, got none for tcp://\*:0; add --keys FOLDER, or --in",
    ):
        AgentSettings({"d": "/"}, "tcp://*:0", workers=1)


def test_no_key_is_let_in_any_more(broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gpu", "guest"):
        assert program.main(["key", "add", name, "--keys", f"{tmp_path}/keys", "--export", "d"]) == 0
    assert program.main(["key", "list", "--keys", f"{tmp_path}/keys"]) == 0
    said = capsys.readouterr()
    assert [line.split()[:2] for line in said.out.splitlines()] == [["gpu", "d"], ["guest", "d"]]
    assert said.err.count("5555 is the agent's port unless its --bind says another") == 2
    for name in ("gpu", "guest"):
        assert program.main(["key", "remove", name, "--keys", f"{tmp_path}/keys"]) == 0
    serve = ["serve", "--export", f"d={tmp_path}", "--bind", "tcp://*:0", "--keys", f"{tmp_path}/keys"]
    assert program.main(serve) == 0
    assert "no client is let in" in capsys.readouterr().err
    assert program.main([*serve, "--insecure"]) == 1
    assert "--insecure must be left out where keys are used" in capsys.readouterr().err


def test_an_error_is_one_line(broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--workers", "0"], ["--limit-mbit", "-1"], ["--max-file-mb", "0"], ["--bind", "nowhere"]):
        assert program.main(["serve", "--export", f"d={tmp_path}", *wrong]) == 1
        out, error = capsys.readouterr()
        assert out == "" and error.startswith("sophon-agent: ") and error.count("\n") == 1
    assert program.main(["serve", "--export", f"d={tmp_path / 'none'}"]) == 1
    assert "must be an existing folder" in capsys.readouterr().err


def test_the_folder_that_is_served_is_said_in_full(
    broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / os.fsdecode(b"caf\xe9")
    (data / "deep").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(data)
    monkeypatch.chdir(data / "deep")
    for folder in ("..", "../", "../../alias", str(tmp_path / "alias"), "./.."):
        assert program.main(["serve", "--export", f"d={folder}"]) == 0
        said = capsys.readouterr().out
        assert said.isascii() and said.count("\n") == 1
        assert Announcement.parse(said).exports == {"d": str(data)}


@pytest.mark.parametrize(("folder", "rule"), [
    ("", "must be NAME=FOLDER with a folder, got 'd='"),
    ("data", "must be an absolute folder, or begin with ./; got 'data'"),
    ("~/data", "must be an absolute folder, or begin with ./; got '~/data'"),
    ("/none", "must be an existing folder, got /none"), ("./none", "must be an existing folder, got {here}/none"),
    ("./something", "must be an existing folder, got {here}/something"),
    ("./void", "must be a folder with something in it, got {here}/void"),
])  # fmt: skip
def test_an_export_that_must_be_an_accident(
    broker: type[_Broker], folder: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("data", "void"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "x.jpg").touch()
    assert program.main(["serve", "--export", f"good={tmp_path}", "--export", f"d={folder}"]) == 1
    out, error = capsys.readouterr()
    assert (
        out == ""
        and error.startswith(f"sophon-agent: export 'd' {rule.format(here=tmp_path)}")
        and error.count("\n") == 1
    )


def test_an_export_given_twice(broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    other.mkdir()
    assert program.main(["serve", "--export", f"d={tmp_path}", "--export", f"d={other}"]) == 1
    assert "export name must be given once, got 'd' twice" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [
    [], ["serve"], ["serve", "--export", "/data"], ["serve", "--export"], ["status"],
    ["serve", "--export", "d=/", "--workers", "x"],
    ["status", "tcp://x:1", "--timeout-s", "x"], ["status", "tcp://x:1", "--timeout-s", "0"],
    ["status", "x", "--timeout-s", "nan"],
    ["unknown"], ["serve", "--export", "d=/", "extra"], ["serve", "--export", "d=/", "--log-level", "loud"],
])  # fmt: skip
def test_a_wrong_command_line(broker: type[_Broker], arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main(arguments)
    assert caught.value.code == 2 and "usage: sophon-agent" in capsys.readouterr().err


COMMANDS = ["", "serve", "status", "index", "key", "key add", "key remove", "key list"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        program.main([*command.split(), "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    examples = [line.strip() for line in said.splitlines() if line.startswith("  sophon-agent ")]
    assert examples and all(line.startswith(f"sophon-agent {command}") for line in examples)
    for line in examples:  # as a shell reads it: what is behind a # says what it is for
        parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_in_a_sentence(command: str) -> None:
    sub = parser()
    for name in command.split():
        commands: Any = next(action for action in sub._actions if action.choices)
        sub = commands.choices[name]
    assert sub.description and sub.description.rstrip().endswith(".")
    texts = [action.help or "" for action in sub._actions if action.dest not in ("help", "==SUPPRESS==")]
    assert [text for text in texts if not re.match(r"[A-Z].*[^ ]\.$", text) and text != SUPPRESS] == []
    defaults = [text for text in texts if "default" in text.replace("%(default)", "")]
    assert [text for text in defaults if not re.search(r"\(default: [^()]*(%\(default\)[sg][^()]*)?\)\.$", text)] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["--version"])
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("wrong", [["--bind", "tcp://192.0.2.1:5555"], ["--ops", "no_such_module"]])
def test_what_cannot_be_served_makes_no_keys_and_is_not_announced(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    given = ["--bind", "tcp://*:0", *wrong, "--keys", str(keys)]
    assert program.main(["serve", "--export", f"d={tmp_path}", *given]) == 1
    out, error = capsys.readouterr()
    assert out == "" and wrong[1] in error and not keys.exists()


def test_another_key_of_the_agent_makes_the_others_anew(
    broker: type[_Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The documented change: remove `server.key` and start again. Exports stay as they were."""
    keys = KeyFolder(tmp_path / "keys")
    serve = ["serve", "--export", f"d={tmp_path}", "--bind", "tcp://*:0", "--keys", str(keys.path)]
    assert program.main(serve) == 0
    keys.add("guest", ["d"])
    before = {name: keys.token_file(name).read_text() for name in keys.names()}
    (keys.path / "server.key").unlink()
    capsys.readouterr()
    assert program.main(serve) == 0
    error = capsys.readouterr().err
    for name, exports in (("first", None), ("guest", frozenset({"d"}))):
        token = Token.parse(keys.token_file(name).read_text())
        assert keys.grant(name) == (token.public.hex(), Grant(name, exports)) and token.server == keys.own().public
        assert keys.token_file(name).read_text() != before[name] and str(keys.token_file(name)) in error


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("9401", ("127.0.0.1", 9401)),
        ("0.0.0.0:9401", ("0.0.0.0", 9401)),
        ("[::]:9401", ("[::]", 9401)),
        ("fileserver:9401", ("fileserver", 9401)),
        *((wrong, None) for wrong in ("", "0", "65536", "fileserver", "tcp://0.0.0.0:9401", "::1:9401", "a:b")),
    ],
)
def test_where_metrics_are_told(given: str, place: tuple[str, int] | None, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["serve", "--export", "d=/d", "--metrics", given]
    if place is None:
        with pytest.raises(SystemExit):
            parser().parse_args(arguments)
        assert "must be PORT or HOST:PORT, such as 9401 or 0.0.0.0:9401, got" in capsys.readouterr().err
    else:
        assert parser().parse_args(arguments).metrics == place
