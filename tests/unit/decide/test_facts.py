"""decide/facts.py: what is refused, what is repaired."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sophon_loader.decide import FILE, Choice, ChoiceTable, Facts, Rates
from sophon_loader.decide.facts import BLOCK, Costs, MadeTable
from sophon_loader.errors import PlanError, SophonError
from tests.support.decide_tables import WIRE_BOUND, facts_of, random_table, table_of

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("name", ["gpu_samples_s", "wire_bytes_s", "loader_cores", "agent_cores"])
@pytest.mark.parametrize("value", [0, -1.0, NAN, -INF])
def test_a_rate_must_be_positive(name: str, value: float) -> None:
    good = {"gpu_samples_s": 1.0, "wire_bytes_s": 1.0, "loader_cores": 1.0, "agent_cores": INF}
    with pytest.raises(PlanError, match=f"^{name} must be > 0, got .*; measure it again"):
        Rates(**good | {name: value})


def test_the_error_is_a_value_error_of_the_projects_tree() -> None:
    with pytest.raises(ValueError) as caught:
        Rates(0, 1, 1, 1)
    assert isinstance(caught.value, SophonError)


def test_choice_checks_and_prints() -> None:
    assert str(Choice(2, "pixels")) == "pixels@2"
    with pytest.raises(PlanError, match="cut must be >= 0, got -1"):
        Choice(-1, "file")
    with pytest.raises(PlanError, match="encoding must be a name"):
        Choice(0, "")


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ((), "choices must be 1 to 256, got 0"),
        ((FILE, *(Choice(1, f"e{i}") for i in range(256))), "choices must be 1 to 256, got 257"),
        ((Choice(1, "pixels"), FILE), "choices\\[0\\] must be file@0, got pixels@1"),
        ((FILE, FILE), "choices must be distinct"),
    ],
)
def test_bad_choices_are_refused(choices: Any, text: str) -> None:
    empty = np.zeros((3, len(choices)), dtype=np.float32)
    with pytest.raises(PlanError, match=text):
        ChoiceTable(choices, empty, empty, empty)


def test_shapes_must_agree() -> None:
    two, one = np.ones((3, 2), np.float32), np.ones((3, 1), np.float32)
    choices = (FILE, Choice(1, "pixels"))
    with pytest.raises(PlanError, match=r"agent_s must have shape \[samples, 2\], got \(3, 1\)"):
        ChoiceTable(choices, two, one, two)
    with pytest.raises(PlanError, match=r"one shape, got wire_bytes \(3, 2\), agent_s \(3, 2\), loader_s \(2, 2\)"):
        ChoiceTable(choices, two, two, two[:2])


def test_a_clean_column_major_table_is_not_copied() -> None:
    values = np.ones((2, 5), dtype=np.float32).T
    table = ChoiceTable((FILE, Choice(1, "pixels")), values, values, values)
    assert np.shares_memory(table.wire_bytes, values)
    assert table.wire_bytes.T.flags.c_contiguous
    assert table.repaired == 0


def test_a_table_is_read_only_and_leaves_its_source_alone() -> None:
    values = np.ones((5, 2), dtype=np.float32)
    table = ChoiceTable((FILE, Choice(1, "pixels")), values, values, values)
    with pytest.raises(ValueError, match="read-only"):
        table.wire_bytes[0, 0] = 2
    values[0, 0] = 3
    assert table.wire_bytes[0, 0] == 1


@pytest.mark.parametrize("array", ["wire_bytes", "agent_s", "loader_s"])
@pytest.mark.parametrize("value", [NAN, -1.0, -INF])
def test_a_wrong_measurement_takes_the_choice_away(array: str, value: float) -> None:
    arrays = {name: np.ones((3, 2), np.float32) for name in ("wire_bytes", "agent_s", "loader_s")}
    arrays[array][1, 1] = value
    table = ChoiceTable((FILE, Choice(1, "pixels")), arrays["wire_bytes"], arrays["agent_s"], arrays["loader_s"])
    assert table.has(1).tolist() == [True, False, True]
    assert (table.agent_s >= 0).all() and (table.loader_s >= 0).all()
    assert table.repaired == 0
    assert np.array_equal(arrays[array][1, 1], value, equal_nan=True)  # the caller's array is left as it was


def test_an_infinite_time_takes_the_choice_away() -> None:
    table = table_of([[5, 2], [5, 2]], [[0, INF], [0, 1]])
    assert table.has(1).tolist() == [False, True]


@pytest.mark.parametrize("value", [NAN, -1.0, INF])
def test_an_unusable_file_counts_as_the_mean_of_the_others(value: float) -> None:
    table = table_of([[value, 2], [10, 2], [20, 2]], [[1, 1], [2, 1], [6, 1]])
    assert table.wire_bytes[:, 0].tolist() == [15, 10, 20]
    assert table.agent_s[:, 0].tolist() == [4, 2, 6]
    assert table.repaired == 1
    assert "1 samples without usable measurements" in facts_of(table).caveats()


def test_no_usable_file_at_all_is_refused() -> None:
    with pytest.raises(PlanError, match="choice 0 must be measured for at least one sample, got none of 2"):
        table_of([[NAN], [-1]], [[0], [0]])


def test_a_float64_past_float32_is_a_missing_choice() -> None:
    values = np.array([[1.0, 1e300]])
    table = ChoiceTable((FILE, Choice(1, "pixels")), values, np.zeros((1, 2)), np.zeros((1, 2)))
    assert table.has(1).tolist() == [False]


def test_an_empty_table_is_a_table() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert ChoiceTable((FILE, Choice(1, "pixels")), empty, empty, empty).samples == 0


def test_index() -> None:
    table = random_table(3)
    assert table.index(Choice(2, "pixels")) == 2
    assert table.index(Choice(3, "pixels")) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"samples": -1}, "samples must be >= 0, got -1"),
        ({"max_cut": -1}, "max_cut must be >= 0, got -1"),
        ({"resize_cut": 0}, "resize_cut must be >= 1 or None, got 0"),
        ({"profiled_share": 1.5}, "profiled_share must be in"),
        ({"profiled_share": NAN}, "profiled_share must be in"),
        ({"offered_cores": -1.0}, "offered_cores must be >= 0, got -1.0"),
        ({"offered_cores": NAN}, "offered_cores must be >= 0, got nan"),
        ({"samples": 4}, "table must be of 4 samples, got 3"),
        ({"max_cut": 2}, "table's cuts must be <= max_cut = 2, got array@4"),
    ],
)
def test_facts_that_contradict_themselves_are_refused(change: Any, text: str) -> None:
    good = {"samples": 3, "table": random_table(3), "max_cut": 4, "resize_cut": 2, "profiled_share": 1.0}
    with pytest.raises(PlanError, match=text):
        Facts(rates=WIRE_BOUND, **good | change)


def test_caveats_name_the_profiled_share_and_never_round_it_up() -> None:
    assert facts_of(random_table(3)).caveats() == ""
    assert "only 99.9 % of the samples are profiled" in facts_of(random_table(3), profiled_share=0.99999).caveats()


# --- tables that are made in blocks -------------------------------------------------------------------------------


def made_of(table: ChoiceTable) -> MadeTable:
    return MadeTable(
        table.choices, table.samples, lambda rows: (table.wire_bytes[rows], table.agent_s[rows], table.loader_s[rows])
    )


def test_a_made_table_is_the_table() -> None:
    samples = 2 * BLOCK + 3
    table = random_table(samples)
    made = made_of(table)
    assert (made.samples, made.choices, made.repaired) == (samples, table.choices, 0)
    assert made.index(table.choices[1]) == 1
    for column in range(len(table.choices)):
        assert np.array_equal(made.has(column), table.has(column))
    for (part, costs), (same, others) in zip(made.parts(), table.parts(), strict=True):
        assert part == same and all(map(np.array_equal, costs, others))
    who, columns = np.array([samples - 1, 5, BLOCK]), np.array([1, 0, 2], np.uint8)
    for ours, theirs in zip(made.picked(who, columns, 0), table.picked(who, columns, 0), strict=True):
        assert all(map(np.array_equal, ours, theirs))
    for name in ("wire_bytes", "agent_s", "loader_s"):
        assert np.array_equal(getattr(made, name), getattr(table, name))


def test_a_made_table_is_made_once_as_a_whole_and_only_if_asked_for() -> None:
    table, made = random_table(10), []

    def make(rows: NDArray[Any]) -> Costs:
        made.append(len(rows))
        return table.wire_bytes[rows], table.agent_s[rows], table.loader_s[rows]

    lazy = MadeTable(table.choices, 10, make)
    assert facts_of(lazy, WIRE_BOUND).caveats() == "" and made == []
    assert lazy.wire_bytes.shape == lazy.agent_s.shape == lazy.loader_s.shape == (10, len(table.choices))
    assert made == [10]


def test_blocks_are_checked_as_tables_are() -> None:
    half = np.array([[1.0], [np.nan]], np.float32)
    made = MadeTable((FILE,), 2, lambda rows: (half[rows], half[rows], half[rows]))
    with pytest.raises(PlanError, match="wire_bytes must have shape"):
        MadeTable((FILE,), 2, lambda rows: (half[:, 0], half, half)).has(0)
    assert made.has(0).tolist() == [True, True], "of an unusable file the mean is taken"
