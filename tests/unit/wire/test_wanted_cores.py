"""The file in which a rank says how many cores of agents it could use."""

from __future__ import annotations

import pytest

from sophon_loader.errors import MalformedMessage
from sophon_loader.wire.wanted_cores import WantedCores, file_name


def test_there_and_back() -> None:
    wanted = WantedCores(6.5, 2.0)
    assert WantedCores.parse(wanted.text()) == wanted and wanted.agents == 3.25
    assert WantedCores.parse(b'{"cores": 0, "per_agent": 4, "later": [1]}').agents == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 5000,
        "3",
        '{"cores": 1}',
        '{"cores": "x", "per_agent": 1}',
        '{"cores": -1, "per_agent": 1}',
        '{"cores": 1, "per_agent": 0}',
        '{"cores": NaN, "per_agent": 1}',
        '{"cores": Infinity, "per_agent": 1}',
        '{"cores": 1, "per_agent": 1e-320}',
        '{"cores": 1e999, "per_agent": 1}',
        '{"cores": ' + "9" * 900 + ', "per_agent": 1}',
        '{"cores": {}, "per_agent": 1}',
    ],
)
def test_what_is_none(text: str) -> None:
    with pytest.raises(MalformedMessage, match="wanted cores must be"):
        WantedCores.parse(text)


def test_a_name_is_one_of_a_file() -> None:
    assert file_name("../a b/c", 3) == "wanted-.._a_b_c-3.json"
    assert len(file_name("x" * 999, 12)) < 200
