"""Faults that are drawn from a seed, over loaders that are drawn, too: no sample is lost, doubled, or another one.

`FAULT_SEEDS=100` runs so many. A seed that fails: `python -m tests.faults.seeds SEED` runs it alone, looks which of its
faults it takes, and keeps those in `failed.jsonl`, whose schedules run first.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from sophon_loader.cache.cache import own_folder
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from tests.faults import seeds
from tests.faults.schedules import Fault, Schedule, drawn, shrunk
from tests.faults.seeds import KEPT, SLOW_DISK_S, Scene, check, run, scene
from tests.faults.soak import risen
from tests.support.agents import WAIT_S
from tests.support.alarms import ALARM_S, Alarms
from tests.support.cache_harm import harm_cache

pytestmark = pytest.mark.timeout(600)  # agents start again and again, which takes long on a machine that is busy
SEEDS = int(os.environ.get("FAULT_SEEDS", "12"))


@pytest.fixture(scope="module")
def at() -> Iterator[Scene]:
    with scene() as found:
        yield found


def _kept() -> list[Schedule]:
    return [Schedule.from_line(line) for line in KEPT.read_text().splitlines()]


@pytest.mark.parametrize("number", range(len(_kept())))
def test_what_has_failed_once(at: Scene, number: int) -> None:
    run(_kept()[number], at)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(at: Scene, seed: int) -> None:
    schedule = drawn(seed)
    print(f"python -m tests.faults.seeds {seed}  # {schedule.line()}")  # shown when it fails
    run(schedule, at)


def test_a_slow_disk_is_one(at: Scene) -> None:
    """Until it is healed."""
    connection, key = Connection(Address.parse(at.agent.address()), window=1), "class_0/000.jpg"
    at.begin(Fault(0, "slow disk"))
    try:
        since_s = time.monotonic()
        connection.file(key, WAIT_S)
        assert time.monotonic() - since_s >= SLOW_DISK_S
        at.heal()
        assert connection.file(key, WAIT_S) == (at.root / key).read_bytes() and not at.slow_disk.exists()
    finally:
        at.heal()
        connection.close()


@pytest.mark.parametrize(
    ("delivered", "in_order", "passes"),
    [("abc", True, True), ("bca", False, True), ("bca", True, False), ("abb", False, False), ("ab", False, False)],
)
def test_what_is_lost_doubled_or_out_of_order_is_seen(delivered: str, in_order: bool, passes: bool) -> None:
    """The check itself."""
    found, expected = ([[(one, 0) for one in epoch]] for epoch in (delivered, "abc"))
    with nullcontext() if passes else pytest.raises(AssertionError, match="epoch 0 must have"):
        check(found, expected, in_order)


def test_as_few_faults_as_it_takes() -> None:
    schedule = next(one for one in map(drawn, range(1000)) if len({fault.kind for fault in one.faults}) == 4)
    needed = schedule.faults[2]
    assert shrunk(schedule, lambda one: needed in one.faults).faults == [needed]
    assert Schedule.from_line(schedule.line()) == schedule == drawn(schedule.seed)


def test_a_seed_that_fails_is_kept_with_the_fault_that_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_with_a_cut(schedule: Schedule, _: object) -> None:
        assert "cut" not in [fault.kind for fault in schedule.faults]

    seed = next(n for n in range(1000) if {"cut", "stop", "drop"} <= {fault.kind for fault in drawn(n).faults})
    monkeypatch.setattr(seeds, "run", fails_with_a_cut)
    monkeypatch.setattr(seeds, "scene", nullcontext)
    monkeypatch.setattr(seeds, "KEPT", tmp_path / "failed.jsonl")
    monkeypatch.setattr(sys, "argv", ["seeds", str(seed), str(seed + 1)])
    assert seeds.main() == 1
    (line,) = (tmp_path / "failed.jsonl").read_text().splitlines()
    assert [fault.kind for fault in Schedule.from_line(line).faults] == ["cut"]
    assert drawn(seed).line() in capsys.readouterr().err


@pytest.mark.parametrize(("delivered", "passes"), [("ac", True), ("c", False), ("aac", False), ("ca", False)])
def test_a_signal_excuses_the_samples_of_its_batch_alone(delivered: str, passes: bool) -> None:
    found, expected = ([[(one, 0) for one in epoch]] for epoch in (delivered, "abc"))
    with nullcontext() if passes else pytest.raises(AssertionError, match="epoch 0 must have"):
        check(found, expected, True, [1])


def test_alarms_raise_in_the_loader_alone_and_while_they_are_on() -> None:
    def slowly() -> Iterator[int]:
        time.sleep(ALARM_S)
        yield 7

    alarms = Alarms(random.Random(0))
    assert alarms.next(slowly()) == 7 and alarms.raised == [0]
    alarms.on = True
    assert alarms.next(slowly()) is None and alarms.raised == [1]


def test_a_file_that_a_worker_makes_again_at_once_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(own_folder(str(tmp_path))) / "0.data"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setattr(Path, "unlink", Path.touch)
    harm_cache(tmp_path, "block", 1, random.Random(0))
    assert path.is_file()


@pytest.mark.parametrize(
    ("name", "last", "flat"),
    [
        ("agent_descriptors", 0, True),
        ("agent_descriptors", 40, False),
        ("loader_mb", 40, True),
        ("loader_mb", 90, False),
    ],
)
def test_what_grows_in_the_second_half_of_a_soak_is_seen(name: str, last: int, flat: bool) -> None:
    first = [100.0 * number for number in range(50)]
    second = [300.0 + number * last / 50 + 5 * (number % 2) for number in range(50)]
    assert (risen(name, first + second) <= 0) == flat
