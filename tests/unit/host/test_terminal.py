"""Tables fit what they are printed to, and no text ends the program that prints it."""

from __future__ import annotations

import io
import sys

import pytest

from sophon_loader.host.terminal import shown, table

ROWS = [("notes", "[/x] bücher/日本/\udcff.jpg \x1b[31m" + 90 * "y" + " :smile:"), ("words", " ".join(60 * ["word"]))]


def to_stdout(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8"])
def test_what_stdout_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    to_stdout(monkeypatch, encoding)
    text = table("a title: ü", ROWS)
    print(text)
    assert ("┃" in text) == (encoding == "utf-8") and ("bücher" in text) == (encoding != "ascii")
    assert "[/x]" in text and "\\udcff" in text and "\\x1b[31m" in text and ":smile:" in text


@pytest.mark.parametrize("stdout", [None, io.StringIO(), object()], ids=["none", "StringIO", "anything"])
def test_a_stdout_without_an_encoding(monkeypatch: pytest.MonkeyPatch, stdout: object) -> None:
    monkeypatch.setattr(sys, "stdout", stdout)
    assert shown("ü\n") == "ü\n" and "┃" in table("title", ROWS)


def test_an_encoding_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(io.StringIO):
        encoding = "no such one"

    monkeypatch.setattr(sys, "stdout", Odd())
    assert shown("ü") == "\\xfc"


@pytest.mark.parametrize(("columns", "width"), [(None, 80), ("0", 80), ("40", 40), ("132", 132)])
def test_a_table_is_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: str | None, width: int
) -> None:
    to_stdout(monkeypatch, "ascii")
    monkeypatch.setattr(sys, "__stdout__", None)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    text = table("title", ROWS)
    assert max(map(len, text.splitlines())) == width
    assert text.count("y") == 90, "nothing is cut off"


def test_neither_colours_nor_a_notebook_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = table("title", ROWS)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert table("title", ROWS) == plain != ""
