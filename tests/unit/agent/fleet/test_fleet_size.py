"""How many agents a fleet should have: the rule, with a clock of the tests' own, and the files that it goes by."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from sophon_loader.wire.entry import REWRITTEN_S
from sophon_loader.wire.wanted_cores import MAX_CORES, MAX_NBYTES, WantedCores, file_name
from storage_agent.fleet import wanted_files
from storage_agent.fleet.fleet_size import LOOK_S, FleetSize, FoundWantedFile
from storage_agent.fleet.wanted_files import read_wanted


class Fleet:
    """Agents as the rule wants them, and trainings that write their files every `REWRITTEN_S`."""

    def __init__(self, least: int = 1, most: int = 10, present: int = 1) -> None:
        self.size = FleetSize(least, most)
        self.present = present
        self.now_s = 0.0
        self.files: dict[str, FoundWantedFile] = {}
        self.look()

    def look(self, *, readable: bool = True) -> int:
        self.present = self.size.after(self.files if readable else None, self.present, self.now_s)
        return self.present

    def write(self, wanted: Iterable[float]) -> None:
        """Files of trainings that want so many agents each, in place of all that there are."""
        made = {file_name(f"job{number}", 0): WantedCores(2 * one, 2.0) for number, one in enumerate(wanted)}
        self.files = {name: FoundWantedFile((int(self.now_s * 1e9), 1, b""), one) for name, one in made.items()}

    def run(self, seconds: float, *wanted: float) -> list[int]:
        """The sizes in the next seconds, while trainings want so much."""
        end_s, written_s, sizes = self.now_s + seconds, -REWRITTEN_S, []
        while self.now_s < end_s:
            self.now_s += LOOK_S
            if self.now_s - written_s >= REWRITTEN_S:
                self.write(wanted)
                written_s = self.now_s
            sizes.append(self.look())
        return sizes


def test_from_one_training_to_four_and_back() -> None:
    fleet = Fleet(most=4)
    assert set(fleet.run(20, 1.0)) == {1}
    assert set(fleet.run(100, 1.0, 1.0, 1.0, 1.0)) == {4}, "at once"
    sizes = fleet.run(80, 1.0)
    assert sizes == [4] * 30 + [1] * 10, "after a minute, by one decision"


def test_the_sum_is_rounded_up_and_bounded() -> None:
    fleet = Fleet(least=2, most=5)
    assert fleet.run(2) == [2]
    assert fleet.run(2, 1.2, 1.3) == [3]
    assert fleet.run(2, 0.1, 0.2, 0.7, 2.0, 0.0) == [3], "0.1 + 0.2 + 0.7 + 2.0 is three"
    assert fleet.run(2, 40.0) == [5]
    fleet.files = {name: FoundWantedFile((7, 7, b""), WantedCores(MAX_CORES, 1e-302)) for name in "abc"}
    assert fleet.look() == 5, "a sum that no float holds"


def test_numbers_that_flap_take_nobody_away_below_the_highest() -> None:
    fleet = Fleet(present=6)
    sizes = [size for _ in range(60) for size in (*fleet.run(2, 2.0), *fleet.run(2, 4.0))]
    assert sorted(set(sizes), reverse=True) == [6, 4] and sizes.index(4) in (29, 30, 31)


def test_a_break_starts_the_minute_anew() -> None:
    fleet = Fleet(present=4)
    assert set(fleet.run(56, 1.0)) == {4}
    assert fleet.run(2, 4.0) == [4]
    assert fleet.run(62, 1.0) == [4] * 30 + [1]


@pytest.mark.parametrize(("present", "wanted", "then"), [(7, 6.0, 7), (6, 5.0, 5), (20, 17.0, 20), (20, 16.0, 16)])
def test_few_are_not_worth_a_change(present: int, wanted: float, then: int) -> None:
    assert Fleet(most=30, present=present).run(200, wanted)[-1] == then


def test_a_file_that_nobody_writes_any_more_is_of_a_training_that_is_gone() -> None:
    fleet = Fleet()
    assert fleet.run(2, 3.0) == [3]
    sizes = []
    for _ in range(60):
        fleet.now_s += LOOK_S
        sizes.append(fleet.look())
    assert sizes[:44] == [3] * 44 and sizes[45:] == [1] * 15, "30 s until it is gone, and 60 s until that counts"


def test_a_file_that_the_first_look_finds_counts_once_it_is_written_anew() -> None:
    """A sizing process that was restarted does not start agents for trainings of last week."""
    fleet = Fleet()
    fleet.size = FleetSize(1, 10)
    fleet.write([5.0])
    assert fleet.look() == 1
    assert fleet.run(LOOK_S, 5.0) == [5]


def test_a_folder_that_cannot_be_read_keeps_the_size() -> None:
    fleet = Fleet(present=4)
    assert set(fleet.run(56, 1.0)) == {4}
    for _ in range(100):
        fleet.now_s += LOOK_S
        assert fleet.look(readable=False) == 4
    assert fleet.run(60, 1.0)[-1] == 4, "it is a break"
    assert fleet.run(4, 1.0)[-1] == 1


def test_a_folder_that_could_not_be_read_makes_no_file_old() -> None:
    fleet = Fleet()
    assert fleet.run(2, 3.0) == [3]
    fleet.look(readable=False)
    fleet.now_s += 3600.0
    assert fleet.look() == 3
    fleet.now_s += LOOK_S
    assert fleet.look() == 3


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_clock_that_jumps_takes_nobody_away(jump_s: float) -> None:
    fleet = Fleet(present=4)
    assert set(fleet.run(40, 3.0, 1.0)) == {4}
    fleet.now_s += jump_s
    assert fleet.look() == 4
    fleet.write([1.0])
    assert set(fleet.run(20, 1.0)) == {4}
    fleet.now_s += jump_s
    assert fleet.look() == 4
    assert fleet.run(60, 1.0)[-1] == 1


def test_agents_that_vanish_are_not_missed_before_they_are_wanted() -> None:
    fleet = Fleet(least=2)
    assert fleet.run(4, 5.0)[-1] == 5
    fleet.present = 3
    assert fleet.run(2, 3.0) == [3]
    fleet.present = 0
    assert fleet.run(2) == [2], "but the fewest are always there"


def test_whatever_trainings_say_the_size_is_within_the_bounds() -> None:
    draw = random.Random(5)
    for _ in range(50):
        least = draw.randint(1, 5)
        fleet = Fleet(least=least, most=least + draw.randint(0, 5), present=draw.randint(0, 12))
        for _ in range(40):
            wanted = [draw.choice((0.0, 0.3, 1.0, 7.0)) for _ in range(draw.randint(0, 4))]
            before = fleet.present
            for size in fleet.run(draw.choice((2, 10, 70)), *wanted):
                assert fleet.size.least <= size <= fleet.size.most
            if sum(wanted) > before:
                assert fleet.present >= min(fleet.size.most, before)


# --- files ----------------------------------------------------------------------------------------------------------


def test_the_files_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = WantedCores(6.0, 2.0)
    (tmp_path / file_name("a", 0)).write_text(said.text())
    (tmp_path / "wanted-long-0.json").write_text(said.text().strip() + " " * MAX_NBYTES + "x")
    (tmp_path / "wanted-bad-0.json").write_text('{"cores": NaN, "per_agent": 1}')
    (tmp_path / "wanted-deep-0.json").write_text("[" * 1000)
    (tmp_path / "wanted-empty-0.json").touch()
    (tmp_path / ".wanted-making-0.json").write_text(said.text())
    (tmp_path / "sophon-agent-a_1.json").write_text(said.text())
    (tmp_path / "wanted-link-0.json").symlink_to(file_name("a", 0))
    (tmp_path / "wanted-folder-0.json").mkdir()
    os.mkfifo(tmp_path / "wanted-pipe-0.json")
    found = read_wanted(str(tmp_path))
    assert {name: one.wanted for name, one in found.items()} == {
        "wanted-a-0.json": said,
        "wanted-long-0.json": said,  # of which only the beginning is looked at
    }
    for number in range(5):
        (tmp_path / file_name("b", number)).write_text(said.text())
    monkeypatch.setattr(wanted_files, "MAX_FILES", 3)
    assert len(read_wanted(str(tmp_path))) <= 3
    with pytest.raises(OSError, match="No such file"):
        read_wanted(str(tmp_path / "nothere"))


def test_a_file_that_is_written_anew_is_seen_to_be(tmp_path: Path) -> None:
    path = tmp_path / file_name("a", 0)
    text = WantedCores(6.0, 2.0).text()
    path.write_text(text)
    before = read_wanted(str(tmp_path))[path.name]
    assert read_wanted(str(tmp_path))[path.name] == before
    (tmp_path / ".new").write_text(text)
    os.replace(tmp_path / ".new", path)
    assert read_wanted(str(tmp_path))[path.name] != before
