"""Lines of the loader's log: one line each, whatever the facts are."""

from __future__ import annotations

from pathlib import Path

import pytest

from sophon_loader.logs import log_line


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("tcp://files:5555/x", "tcp://files:5555/x"),
        ("two words", '"two words"'),
        ("", '""'),
        ('a "quoted" one', '"a \\"quoted\\" one"'),
        ("a=b", '"a=b"'),
        ("two\nlines", '"two\\nlines"'),
        ("Füße", "Füße"),
        ("two Füße", '"two Füße"'),
        ("caf\udce9.jpg", '"caf\\udce9.jpg"'),
        ("a\u202eb", '"a\\u202eb"'),
        (["x y", 1], '["x y",1]'),
        (Path("/data/a b"), '"/data/a b"'),
        (None, "null"),
        (True, "true"),
        (17, "17"),
        (1.5, "1.5"),
        (2.0, "2"),
        (0.12345, "0.123"),
        (1e7, "10000000"),
    ],
)
def test_each_value_can_be_told_from_the_next(value: object, written: str) -> None:
    assert log_line("epoch ended", fact=value, last=0) == f"epoch ended fact={written} last=0"


def test_an_event_may_have_no_facts() -> None:
    assert log_line("agent started") == "agent started"
