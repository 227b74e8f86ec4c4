"""Every fuzz target on its seeds, on what is kept for it, and on some changed ones."""

from __future__ import annotations

from itertools import islice

import pytest

from sophon_loader.encodings.catalogue import missing
from tests.fuzz.__main__ import CORPUS, NAMES, kept
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import targets

CHANGED = 300
"""Inputs of each target; a few take milliseconds."""
MAX_KEPT_NBYTES = 200_000


@pytest.mark.parametrize("name", NAMES)
def test_replay(name: str) -> None:
    target = targets()[name]
    inputs = [*target.seeds(), *kept(name)]
    for data in (*inputs, *islice(mutated(inputs, seed=1), CHANGED)):
        print(data)  # the last one is shown when it fails
        target.run(data)


def test_what_is_kept_is_small_and_of_a_target() -> None:
    assert set(targets()) == set(NAMES)
    assert {path.stem for path in CORPUS.iterdir()} <= {*NAMES, *missing()}, "an encoding may lack its package here"
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < MAX_KEPT_NBYTES
