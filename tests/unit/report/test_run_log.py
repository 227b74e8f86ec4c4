"""The log of a run: names, one writer for each file, and an end that the training does not notice."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.errors import OffloadWarning
from sophon_loader.report import run_log
from sophon_loader.report.run_log import RunLog, file_of


@pytest.fixture(autouse=True)
def first_loaders() -> Iterator[None]:
    run_log._loaders.clear()
    yield
    run_log._loaders.clear()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("pattern", "rank", "loader", "name"),
    [
        ("run.jsonl", 0, 0, "run.jsonl"),
        ("run.jsonl", 2, 0, "run-rank2.jsonl"),
        ("run.jsonl", 2, 1, "run-rank2-loader1.jsonl"),
        ("run-{rank}.jsonl", 2, 1, "run-2-loader1.jsonl"),
        ("{loader}/run-{rank}.jsonl", 2, 1, "1/run-2.jsonl"),
        ("a.b/run", 1, 0, "a.b/run-rank1"),
        ("run-{epoch}.jsonl", 0, 0, "run-{epoch}.jsonl"),
    ],
)
def test_rank_and_loader_are_in_the_name(pattern: str, rank: int, loader: int, name: str) -> None:
    assert file_of(pattern, rank, loader) == name


def test_no_two_ranks_and_loaders_have_one_name() -> None:
    for pattern in ("run.jsonl", "run-{rank}.jsonl", "run-{loader}.jsonl", "{rank}-{loader}"):
        assert len({file_of(pattern, rank, loader) for rank in range(4) for loader in range(4)}) == 16


def test_lines_are_appended_to_what_an_earlier_run_has_logged(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    one = RunLog(str(path))
    one.write("begin", {"epoch": 0}, rank=0)
    one.close()
    path.write_text(path.read_text() + '{"v":1,"kind":"sec')  # killed while it wrote
    one.write("begin", {"epoch": 1}, rank=0)
    *_, cut_off, last = path.read_text().splitlines()
    assert cut_off == '{"v":1,"kind":"sec' and json.loads(last)["epoch"] == 1
    one.close()


def test_two_loaders_of_a_process_have_a_file_each(tmp_path: Path) -> None:
    logs = [RunLog(str(tmp_path / "run-{rank}.jsonl")) for _ in range(2)]
    for number, one in enumerate(logs):
        one.write("begin", {"epoch": number}, rank=3)
        one.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-3-loader1.jsonl", "run-3.jsonl"]


def test_a_second_process_of_the_same_name_has_a_file_of_its_own(tmp_path: Path) -> None:
    one = RunLog(str(tmp_path / "run.jsonl"))
    one.write("begin", {"epoch": 0}, rank=0)
    child = os.fork()
    if not child:
        one.write("begin", {"epoch": 1}, rank=0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    one.write("begin", {"epoch": 2}, rank=0)
    assert [line["epoch"] for line in lines_of(tmp_path / "run.jsonl")] == [0, 2]
    assert [line["epoch"] for line in lines_of(tmp_path / "run-2.jsonl")] == [1]
    one.close()


def stopped(one: RunLog, what: str) -> None:
    with pytest.warns(OffloadWarning, match=f"The log .* stops here, and the training goes on: {what}") as told:
        one.write("second", {}, rank=0)
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.write("second", {}, rank=0)


def test_a_full_disk_stops_the_log_with_one_warning(tmp_path: Path) -> None:
    one = RunLog(str(tmp_path / "run.jsonl"))
    one.write("begin", {}, rank=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80, before[1]))
    try:
        stopped(one, os.strerror(errno.EFBIG))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_that_goes_away_stops_the_log_with_one_warning(tmp_path: Path) -> None:
    one = RunLog(str(tmp_path / "logs" / "run.jsonl"))
    one.write("begin", {}, rank=0)
    shutil.rmtree(tmp_path / "logs")
    stopped(one, "the file is gone")


def test_what_is_no_file_stops_the_log_and_holds_nothing_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    stopped(RunLog(str(tmp_path / "pipe")), os.strerror(errno.ENXIO))
    stopped(RunLog("/dev/null"), "file must be a regular one")
    (tmp_path / "file").touch()
    stopped(RunLog(str(tmp_path / "file" / "run.jsonl")), os.strerror(errno.EEXIST))
