"""Braces of a location are expanded as bash expands them."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest

from storage_agent.stores.archives.braces import TooMany, expanded

TABLE = {
    "{0..11}": "0 1 2 3 4 5 6 7 8 9 10 11",
    "{9..11}": "9 10 11",
    "{08..11}": "08 09 10 11",
    "{0..03}": "00 01 02 03",
    "{000..2}": "000 001 002",
    "{-01..1}": "-01 000 001",
    "{3..0}": "3 2 1 0",
    "{03..1}": "03 02 01",
    "{0..10..4}": "0 4 8",
    "{10..0..-4}": "10 6 2",
    "{0..4..-2}": "0 2 4",
    "{1..3..0}": "1 2 3",
    "{a..e..2}": "a c e",
    "{c..a}": "c b a",
    "{a,b}-{0..1}": "a-0 a-1 b-0 b-1",
    "x{,y}": "x xy",
    "{x/{0..1},y/{00..01}}": "x/0 x/1 y/00 y/01",
    "{{a,b}c,d{e,f}}": "ac bc de df",
    "{a}-{}-{1..a}-{a..}-{1..2..}": "{a}-{}-{1..a}-{a..}-{1..2..}",
    "{a{1,2}}": "{a1} {a2}",
    "{odd,{a,b}": "{odd,a {odd,b",
    "a},b{1,2}": "a},b1 a},b2",
    "none": "none",
}


@pytest.mark.parametrize("pattern", TABLE)
def test_braces(pattern: str) -> None:
    assert expanded(pattern, 12) == TABLE[pattern].split()


@pytest.mark.parametrize(
    "pattern",
    ["{0..12}", "{0..3}{0..3}", "{{0..6},{0..6}}", "{0..999999999999999999}", "{-999999999999999999..9}", "{a..z}"],
)
def test_braces_of_too_many(pattern: str) -> None:
    with pytest.raises(TooMany):
        expanded(pattern, 12)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_braces_are_expanded_as_by_bash() -> None:
    numbers = random.Random(7)
    patterns = [*TABLE, *("P" + _drawn(numbers, 0) + _drawn(numbers, 0) for _ in range(300))]
    script = "\n".join(f"printf '%s ' {pattern}; echo" for pattern in patterns)
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, check=True).stdout
    assert [expanded(pattern, 1 << 20) for pattern in patterns] == [line.split() for line in said.splitlines()]


def _drawn(numbers: random.Random, depth: int) -> str:
    kind = numbers.randrange(4 if depth < 2 else 3)
    if kind == 3:
        return "{" + ",".join(_drawn(numbers, depth + 1) for _ in range(numbers.randint(2, 3))) + "}"
    if kind == 2:
        return numbers.choice(["a", "b/", "-0", "{c}"])
    ends = ["0", "00", "1", "09", "10", "-1", "-01", "3"] if kind else ["a", "d", "x"]
    step = numbers.choice(["", "", "..2", "..-3"])
    return "{" + numbers.choice(ends) + ".." + numbers.choice(ends) + step + "}"
