"""The files that say who is let in."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sophon_loader.errors import ConfigError
from sophon_loader.keys import Token
from storage_agent.clients import key_files as module
from storage_agent.clients.key_files import LOOK_S, Grant, Guests, KeyFolder
from storage_agent.host.log import EventLog
from tests.support.clocks import FakeClock


@pytest.fixture
def keys(tmp_path: Path) -> KeyFolder:
    return KeyFolder(tmp_path / "new" / "keys")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def guests(keys: KeyFolder, clock: FakeClock) -> Guests:
    return Guests(keys, EventLog(), clock)


def _public(keys: KeyFolder, name: str) -> str:
    return keys.grant(name)[0]


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file of this process can be longer, as on a disk that is nearly full."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def test_only_the_owner_can_look_at_keys(keys: KeyFolder) -> None:
    assert keys.is_new
    token = keys.add("a")
    assert not keys.is_new
    found = [keys.path, *keys.path.rglob("*")]
    assert len(found) == 6, "the folder, two in it, the agent's key, the client's, its token"
    for path in found:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert token == keys.token_file("a")
    said = Token.parse(token.read_text())
    assert said.server == keys.own().public and said.public.hex() == _public(keys, "a")


def test_the_agents_own_key_stays(keys: KeyFolder) -> None:
    own = keys.own()
    assert KeyFolder(keys.path).own() == own and keys.names() == []
    assert own.secret not in repr(own).encode() and str(own.secret) not in repr(own)


def test_two_agents_that_make_a_key_at_once_agree(keys: KeyFolder) -> None:
    code = "import pathlib, sys; from storage_agent.clients.key_files import KeyFolder as Keys; "
    code += "print(Keys(pathlib.Path(sys.argv[1])).own().public)"
    command = [sys.executable, "-c", code, str(keys.path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert len({one.communicate(timeout=60)[0] for one in both}) == 1


def test_a_key_may_be_for_some_exports(keys: KeyFolder) -> None:
    keys.add("all")
    keys.add("some", ["e", "c", "e"])
    keys.add("none", [])
    exports = ["c", "d", "e"]
    assert [list(keys.grant(name)[1].of(exports)) for name in ("all", "some", "none")] == [exports, ["c", "e"], []]
    assert keys.names() == ["all", "none", "some"]


def test_a_disk_that_is_full(keys: KeyFolder) -> None:
    with pytest.raises(ConfigError, match=f"can be written to, got {keys.path}: "), room_for(0):
        keys.add("a")
    assert keys.is_new
    keys.own()
    length = keys.add("b").stat().st_size
    with pytest.raises(ConfigError, match="written"), room_for(length - 1):  # for all of it but the token
        keys.add("a")
    assert keys.names() == ["b"], "a key whose token nobody has is not let in"
    assert keys.add("a").stat().st_size == length
    assert len([*keys.path.rglob("*")]) == 7, "no file is left half written"


def test_a_name_is_taken_once(keys: KeyFolder) -> None:
    first = keys.add("a").read_text()
    with pytest.raises(
        ConfigError, match="name must be a new one, got 'a'; `sophon-agent key remove a` ends the old key"
    ):
        keys.add("a")
    assert keys.token_file("a").read_text() == first
    keys.remove("a")
    assert not keys.token_file("a").exists() and keys.add("a").read_text() != first
    with pytest.raises(ConfigError, match=r"name must be one of \['a'\], got 'b'"):
        keys.remove("b")


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "a/b", ".a", "a b", "a\n", "x" * 65])
def test_a_name_is_no_path(keys: KeyFolder, name: str) -> None:
    with pytest.raises(ConfigError, match="name must be a word"):
        keys.add(name)
    with pytest.raises(ConfigError, match="name must be one of"):
        keys.remove(name)
    assert keys.names() == []


def test_a_folder_that_others_can_look_into(keys: KeyFolder, tmp_path: Path) -> None:
    (keys.path / "clients").chmod(0o750)
    with pytest.raises(ConfigError, match=rf"clients must be .* got mode 750; chmod 700 {keys.path}/clients"):
        KeyFolder(keys.path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="keys must be a folder that can be made or used"):
        KeyFolder(tmp_path / "file" / "keys")


def test_a_relative_folder_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that copies a token goes to another host, and to another folder."""
    monkeypatch.chdir(tmp_path)
    assert KeyFolder(Path("mine")).add("a") == tmp_path / "mine" / "tokens" / "a"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user, and read what is there")
def test_a_folder_that_another_user_has_put_in_its_place_lets_nobody_in(
    keys: KeyFolder, guests: Guests, clock: FakeClock
) -> None:
    keys.add("a")
    public, clients = _public(keys, "a"), keys.path / "clients"
    assert guests.grant(public) is not None
    clients.rename(keys.path / "moved")
    shutil.copytree(keys.path / "moved", clients)
    os.chown(clients / "a", 65534, 65534)
    clock.now_s += LOOK_S
    assert guests.grant(public) is None
    with pytest.raises(ConfigError, match=r"a key file must belong to this user, .* got .*clients/a of uid 655"):
        keys.grant("a")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user, and read what is there")
def test_root_may_use_the_keys_of_the_folder_s_owner(keys: KeyFolder) -> None:
    """In a container that has the folder of a user of the host."""
    keys.add("a")
    for path in (keys.path, *keys.path.rglob("*")):
        os.chown(path, 65534, 65534)
    again = KeyFolder(keys.path)
    assert again.names() == ["a"] and again.grant("a")[1] == Grant("a")


def test_the_number_of_keys_is_limited(keys: KeyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 1)
    keys.add("a")
    with pytest.raises(ConfigError, match="at most 1 keys may be let in"):
        keys.add("b")


# --- as an agent that runs sees them --------------------------------------------------------------------------


def test_what_is_added_and_removed_is_noticed_without_a_restart(
    keys: KeyFolder, guests: Guests, clock: FakeClock
) -> None:
    assert guests.grant("00" * 32) is None
    keys.add("a", ["d"])
    public = _public(keys, "a")
    assert guests.grant(public) is None, "it looks now and then"
    assert guests.grant(public, newcomer=True) == Grant("a", frozenset({"d"})), "and when it is worth it"
    keys.remove("a")
    keys.add("b")
    assert guests.grant(public) is not None
    clock.now_s += LOOK_S
    assert guests.grant(public) is None and guests.grant(_public(keys, "b")) == Grant("b")


def test_a_key_that_is_written_by_hand_is_noticed(keys: KeyFolder, guests: Guests, clock: FakeClock) -> None:
    keys.add("a")
    public = _public(keys, "a")
    assert guests.grant(public) == Grant("a")
    path = keys.path / "clients" / "a"
    path.write_text(path.read_text().replace("null", '["e"]'))
    clock.now_s += LOOK_S
    assert guests.grant(public) == Grant("a", frozenset({"e"}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"public": "zz"}', '{"public": "00"}', '{"public": 7}', "\u00e9", "[" * 4095]
)
def test_one_damaged_file_shuts_out_one(keys: KeyFolder, guests: Guests, text: str) -> None:
    keys.add("a")
    keys.add("b")
    public = _public(keys, "b")
    (keys.path / "clients" / "a").write_text(text)
    assert guests.grant(public) == Grant("b")
    with pytest.raises(ConfigError):
        keys.grant("a")


def test_a_file_that_others_may_read_lets_nobody_in_until_it_is_put_right(
    keys: KeyFolder, guests: Guests, clock: FakeClock
) -> None:
    keys.add("a")
    public = _public(keys, "a")
    assert guests.grant(public) is not None
    for mode, lets_in in ((0o644, False), (0o600, True)):
        (keys.path / "clients" / "a").chmod(mode)
        clock.now_s += LOOK_S
        assert (guests.grant(public) is not None) == lets_in, oct(mode)


def test_a_folder_that_others_may_write_to_lets_nobody_in_until_it_is_put_right(
    keys: KeyFolder, guests: Guests, clock: FakeClock
) -> None:
    keys.add("a")
    public = _public(keys, "a")
    assert guests.grant(public) is not None
    for mode, lets_in in ((0o770, False), (0o700, True)):
        (keys.path / "clients").chmod(mode)
        clock.now_s += LOOK_S
        assert (guests.grant(public) is not None) == lets_in, oct(mode)


def test_exports_that_are_no_names(keys: KeyFolder) -> None:
    keys.add("a")
    path = keys.path / "clients" / "a"
    path.write_text(path.read_text().replace("null", '"d"'))
    with pytest.raises(ConfigError, match="exports must be a list of names or null, got 'd'"):
        keys.grant("a")


def test_nobody_is_let_in_while_the_files_are_away(keys: KeyFolder, guests: Guests, clock: FakeClock) -> None:
    keys.add("a")
    public = _public(keys, "a")
    assert guests.grant(public) is not None
    os.rename(keys.path, keys.path.with_name("away"))
    clock.now_s += LOOK_S
    assert guests.grant(public) is None
    os.rename(keys.path.with_name("away"), keys.path)
    clock.now_s += LOOK_S
    assert guests.grant(public) is not None
