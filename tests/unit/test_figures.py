"""Figures as people read them."""

from __future__ import annotations

import pytest

from sophon_loader.figures import counted, duration, number, per_second, percent, size


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0, "0 s"), (0.00123, "1.23 ms"), (0.25, "0.25 s"), (1.545, "1.5 s"), (9.94, "9.9 s"), (9.96, "10.0 s"),
        (12.5, "12.5 s"), (99.6, "1 min 40 s"), (119.7, "2 min 0 s"), (3569.0, "59 min 29 s"), (3599.9, "1 h 0 min"),
        (9000, "2 h 30 min"), (172_799, "2 d 0 h"), (272_000, "3 d 3 h"),
    ],
)  # fmt: skip
def test_times(seconds: float, says: str) -> None:
    assert duration(seconds) == says


@pytest.mark.parametrize(
    ("nbytes", "says"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (2.4e6, "2.4 MB"), (3.2e12, "3.2 TB")]
)
def test_sizes(nbytes: float, says: str) -> None:
    assert size(nbytes) == says


@pytest.mark.parametrize(
    ("value", "says"), [(0.4756, "0.476"), (32.339, "32.3"), (99.96, "100"), (907.894, "908"), (12_345.6, "12,346")]
)
def test_rates(value: float, says: str) -> None:
    assert number(value) == says and per_second(value) == f"{says} samples/s"


def test_counts_and_shares() -> None:
    assert (counted(1, "file"), counted(1200, "file")) == ("1 file", "1,200 files")
    assert (counted(2, "pass", "passes"), counted(0.25, "core"), counted(1.004, "core")) == (
        "2 passes",
        "0.25 cores",
        "1 core",
    )
    assert percent(0.607) == "61 %"
