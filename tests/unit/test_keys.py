"""The token of a loader: one text, and where it is found."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest

from sophon_loader import OffloadOptions
from sophon_loader.client.address import Address
from sophon_loader.errors import ConfigError
from sophon_loader.keys import PREFIX, Token, config_folder, file_of, token_for
from storage_agent.clients.key_files import KeyFolder

TOKEN = Token(bytes(range(32)), b"p" * 32, b"\xff" * 32)
ENDPOINT = "tcp://fileserver:5555"


@pytest.fixture(autouse=True)
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which nobody has configured anything; the folder of its configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SOPHON_KEY", raising=False)
    return tmp_path / "config" / "sophon"


def _file(path: Path, text: str = "", mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text or TOKEN.text())
    path.chmod(mode)
    return path


def test_a_token_is_one_text_that_any_shell_leaves_alone() -> None:
    text = TOKEN.text()
    assert Token.parse(f" {text}\n") == TOKEN and (TOKEN.server, TOKEN.public) == (bytes(range(32)), b"p" * 32)
    assert text.startswith(PREFIX) and set(text) <= set(string.ascii_letters + string.digits + "-_")


@pytest.mark.parametrize("at", range(0, len(TOKEN.text()), 5))
def test_a_mistyped_token_is_told_from_a_right_one(at: int) -> None:
    text = TOKEN.text()
    for wrong in (
        text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :],
        text[:at],
        text[:at] + text[at + 1 :],
    ):
        with pytest.raises(ConfigError, match="must begin with sophon1_ and be copied whole") as e:
            Token.parse(wrong)
        assert PREFIX.startswith(wrong) or wrong not in str(e.value), "what may be a secret stands in no error"


def test_no_secret_is_shown() -> None:
    address = Address.parse(f"{ENDPOINT}/photos").with_key(TOKEN.text())
    options = OffloadOptions(key=TOKEN.text())
    assert address.token == TOKEN
    for shown in (repr(address), str(address), repr(options), repr(TOKEN)):
        assert TOKEN.text() not in shown and "\\xff" not in shown


def test_where_a_token_is_looked_for(tmp_path: Path, configured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_folder() == configured and file_of(ENDPOINT) == configured / "keys" / "fileserver:5555"
    assert token_for(ENDPOINT, None) is None
    _file(configured / "keys" / "fileserver:5555")
    assert token_for(ENDPOINT, None) == TOKEN and token_for("tcp://fileserver:5556", None) is None
    other = Token(b"s" * 32, b"p" * 32, b"x" * 32)
    monkeypatch.setenv("SOPHON_KEY", other.text())
    assert token_for(ENDPOINT, None) == other and token_for(ENDPOINT, TOKEN.text()) == TOKEN
    monkeypatch.setenv("SOPHON_KEY", str(_file(tmp_path / "token")))
    assert token_for(ENDPOINT, None) == TOKEN
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert file_of("tcp://[::1]:7") == Path("/home/me/.config/sophon/keys/[::1]:7")


def test_a_name_that_no_file_can_have_has_no_token(configured: Path) -> None:
    assert token_for("file:///" + 100 * "agents/", None) is None


def test_without_a_home_there_is_no_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a folder of the name `~` below the one of now."""
    for name in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user that the host does not know
    monkeypatch.chdir(tmp_path)
    assert config_folder() is None and file_of(ENDPOINT) is None and token_for(ENDPOINT, None) is None
    with pytest.raises(ConfigError, match="this user has no home folder; give one by --keys FOLDER"):
        KeyFolder.usual()


def test_a_file_that_others_can_read_is_no_secret(tmp_path: Path) -> None:
    for mode in (0o604, 0o640, 0o660):
        path = _file(tmp_path / "token", mode=mode)
        with pytest.raises(
            ConfigError, match=rf"readable by its owner alone, got {path} with mode {mode:o}; run `chmod 600"
        ):
            token_for(ENDPOINT, str(path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user, and read it then")
def test_another_user_s_token_is_taken_where_no_other_can_have_put_it(configured: Path) -> None:
    """In a container, root may have the file, or the home, of a user of the host."""
    path = _file(configured / "keys" / "fileserver:5555")
    os.chown(path, 65534, 65534)
    for mode, owner, taken in ((0o755, 0, True), (0o777, 0, False), (0o775, 65534, True), (0o775, 65533, False)):
        os.chown(path.parent, owner, owner)
        path.parent.chmod(mode)
        if taken:
            assert token_for(ENDPOINT, None) == TOKEN
        else:
            with pytest.raises(ConfigError, match=f"must belong to this user, .* got {path} of uid 65534"):
                token_for(ENDPOINT, None)
    assert token_for(ENDPOINT, str(path)) == TOKEN, "a path that the user has named is the user's choice"


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("nowhere/token", "or the path of a file with such a text, got 'nowhere/token', which does not exist; run"),
        ("mistyped_secret", "got neither"),
        ("", "got neither"),
        ("sophon1_", "got the text of key, which is not such a key"),
        ("{here}", "got '{here}', which is not a file"),
        ("{here}/odd", "got the file {here}/odd that is not"),
    ],
)  # fmt: skip
def test_what_is_no_token(given: str, rule: str, tmp_path: Path) -> None:
    _file(tmp_path / "odd", "\u00e9" * 3)
    with pytest.raises(ConfigError) as error:
        token_for(ENDPOINT, given.format(here=tmp_path))
    assert rule.format(here=tmp_path) in str(error.value) or "must be readable" in str(error.value)


def test_an_option_of_a_wrong_type_does_not_show_it() -> None:
    with pytest.raises(ConfigError, match="key must be a token or the path of its file, as text, got a bytes"):
        OffloadOptions(key=os.fsencode(TOKEN.text()))  # type: ignore[arg-type]
