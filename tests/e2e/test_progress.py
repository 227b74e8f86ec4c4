"""The line of an epoch on a terminal, and that there is none elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial

import pytest
from tqdm import tqdm

from sophon_loader.epoch.epoch import EpochIterator
from sophon_loader.run import progress
from tests.support.loaders import QUICK, MakeLoader

FILES = 24
LOADER = {"batch_size": 4, "seed": 3, "policy": "resize-off", "options": replace(QUICK, progress=True)}


class Terminal(io.StringIO):
    """Takes what is written, as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(progress, "tqdm", partial(tqdm, file=made))
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    return made


@pytest.mark.parametrize("workers", [0, 2])
def test_a_line_while_an_epoch_runs(make: MakeLoader, terminal: Terminal, workers: int) -> None:
    loader = make(num_workers=workers)
    assert len(loader) == len(list(loader)) == FILES // 4
    assert f"{FILES // 4}/{FILES // 4} [" in terminal.getvalue()
    assert " samples/s, " in terminal.getvalue() and "B/s, " in terminal.getvalue()


def test_the_iterator_is_what_it_is_without_the_line(make: MakeLoader, terminal: Terminal) -> None:
    batches = iter(make())
    assert len(batches) == FILES // 4
    next(batches)
    assert batches.epoch.delivered == 4


def test_an_epoch_that_is_left_takes_its_line_with_it(make: MakeLoader, terminal: Terminal) -> None:
    loader = make()
    for _ in loader:
        break
    assert len(list(loader)) == FILES // 4
    assert terminal.getvalue().rstrip(" ").endswith("\r")


def test_a_sampler_without_an_end_has_a_line_without_a_total(make: MakeLoader, terminal: Terminal) -> None:
    class Sampler:
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(range(8))

    assert len(list(make(sampler=Sampler()))) == 2
    assert "2 batches [" in terminal.getvalue()


def test_none_where_there_is_no_terminal(make: MakeLoader, capfd: pytest.CaptureFixture[str]) -> None:
    batches = iter(make())
    assert isinstance(batches, EpochIterator) and len(list(batches)) == FILES // 4
    assert capfd.readouterr() == ("", "")


def test_none_at_other_ranks(make: MakeLoader, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "rank_of_all", lambda: (1, 2))
    list(make())
    assert terminal.getvalue() == ""
