"""A command whose output nobody reads any more ends quietly; any other broken pipe is an error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from sophon_loader.host.unread import UNREAD, quiet_when_unread


@contextmanager
def unread() -> Iterator[None]:
    """Standard output is a pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as stdout, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        yield


@quiet_when_unread
def talks(arguments: Sequence[str] | None = None) -> int:
    print("a line", flush=arguments is not None)
    return 0


@quiet_when_unread
def leaves(arguments: Sequence[str] | None = None) -> int:
    """As argparse does after `--help`."""
    print("a line")
    sys.exit(0)


@quiet_when_unread
def breaks(arguments: Sequence[str] | None = None) -> int:
    raise BrokenPipeError("of a worker")


def test_a_reader_that_has_gone_ends_a_command_quietly() -> None:
    with unread():
        assert talks() == UNREAD
        print("and what is written later goes nowhere", flush=True)


def test_it_is_noticed_within_a_command_too() -> None:
    with unread():
        assert talks(["now"]) == UNREAD


def test_it_is_noticed_where_arguments_end_a_command() -> None:
    with unread():
        assert leaves() == UNREAD


def test_another_broken_pipe_is_an_error() -> None:
    with pytest.raises(BrokenPipeError, match="of a worker"):
        breaks()


def test_a_command_that_is_read_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert talks() == 0 and capsys.readouterr().out == "a line\n"
