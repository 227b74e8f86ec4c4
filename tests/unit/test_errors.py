"""What of a traceback a user is shown."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from sophon_loader.errors import (
    ConfigError,
    MalformedMessage,
    SophonError,
    add_note,
    frames_for_user,
    note_foreign,
    without_frames,
)


def _users() -> None:
    raise ValueError("the user's")


def _call_users() -> None:
    try:
        _users()
    except ValueError as error:
        note_foreign(error, "in op 2")
        raise


def _on_purpose() -> None:
    raise ConfigError("a rule")


def _bug() -> None:
    raise KeyError("ours")


def _broken_message() -> None:
    raise MalformedMessage("not of this protocol")


def _frames(call: Callable[[], None]) -> list[str]:
    """The functions in the traceback of what a call raises, as they are shown."""
    try:
        try:
            call()
        except Exception as error:
            error.__traceback__ = frames_for_user(error)
            raise error
    except Exception as error:
        return [one.name for one in traceback.extract_tb(error.__traceback__)]
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (_call_users, ["_frames", "_users"]),
        (_on_purpose, ["_frames"]),
        (_bug, ["_frames", "_frames", "_bug"]),
        (_broken_message, ["_frames", "_frames", "_broken_message"]),
    ],
)
def test_frames_of_this_package_are_shown_for_its_own_bugs(call: Callable[[], None], shown: list[str]) -> None:
    assert _frames(call) == shown


def test_what_the_error_came_from_is_still_shown() -> None:
    cause = OSError("a disk")
    try:
        try:
            raise ConfigError("a rule") from cause
        except SophonError as error:
            error.__traceback__ = frames_for_user(error)
            raise error
    except SophonError as error:
        assert error.__cause__ is cause


class _Own(Exception):
    """Cannot be copied."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize("call", [_call_users, _on_purpose, _broken_message])
def test_a_copy_without_frames_says_the_same(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception as caught:
        add_note(caught, "a note")
        kept = without_frames(caught)
        add_note(kept, "another")
        assert type(kept) is type(caught) and str(caught) in str(kept) and "another" not in _text(caught)
        assert _text(kept).endswith("a note\nanother\n")
        assert kept.__traceback__ is None and not hasattr(kept, "sophon_foreign")
        assert caught.__traceback__ is not None


def test_what_came_before_an_error_is_left_out_of_it_too() -> None:
    try:
        try:
            _users()
        except ValueError as before:
            raise KeyError("behind") from before
    except KeyError as caught:
        kept = without_frames(caught)
        assert kept.__cause__ is None and kept.__context__ is None and caught.__cause__ is not None


def test_an_error_that_cannot_be_copied_is_kept_itself() -> None:
    try:
        raise _Own(1, 2)
    except _Own as caught:
        assert without_frames(caught) is caught
        assert caught.__traceback__ is None


def _text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
