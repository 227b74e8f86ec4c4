"""What a worker knows of samples that some agents lack."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sophon_loader.fleet.lacking import MAX_FOLDERS, NOTHING, Lacking, nbytes_for
from tests.support.drawn import examples

SAMPLES = 100


def bits(agents: int) -> list[NDArray[np.uint8]]:
    return [np.zeros(nbytes_for(SAMPLES), np.uint8) for _ in range(agents)]


@examples(100)
@given(
    noted=st.lists(st.tuples(st.integers(0, 2), st.integers(0, SAMPLES - 1)), max_size=30),
    asked=st.lists(st.integers(0, SAMPLES - 1), max_size=20),
    able=st.sets(st.integers(0, 2), min_size=1),
)
def test_one_that_may_have_it_is_always_left(noted: list[tuple[int, int]], asked: list[int], able: set[int]) -> None:
    """Another worker knows what is noted, of each sample by itself; the one that has seen it concludes from folders."""
    known = bits(3)
    lacking = Lacking(known)
    for agent, sample in noted:
        lacking.note(agent, sample, f"{sample % 4}/{sample}")
    other = Lacking(known)
    assert other.found == lacking.found == bool(noted)
    keys = [f"{sample % 4}/{sample}" for sample in asked]
    for sample, mine, its in zip(asked, lacking.by(asked, keys, able), other.by(asked, keys, able), strict=True):
        lack = {agent for agent, one in noted if one == sample} & able
        assert its == (lack if lack < able else set())
        assert mine < able and (lack <= mine or lack == able)
        assert all(other.lacks(agent, sample) == ((agent, sample) in noted) for agent in range(3))


def test_a_folder_of_which_an_agent_has_had_a_file_says_nothing() -> None:
    lacking = Lacking(bits(2))
    lacking.note(0, 1, "cat/1")
    assert lacking.by([2, 3], ["cat/2", "dog/3"], {0, 1}) == [{0}, set()]
    lacking.note_had(0, "cat/4")
    assert lacking.by([1, 2], ["cat/1", "cat/2"], {0, 1}) == [{0}, set()]
    lacking.note(0, 3, "dog/3")
    lacking.forget()
    assert lacking.by([3, 5], ["dog/3", "dog/5"], {0, 1}) == [{0}, set()]


def test_what_is_remembered_of_folders_is_bounded() -> None:
    lacking = Lacking([NOTHING, NOTHING])
    for number in range(MAX_FOLDERS + 10):
        lacking.note(0, number, f"{number}/x")
    assert len(lacking._lacked) == MAX_FOLDERS and lacking.found
    assert not lacking.lacks(0, 1) and lacking.by([1], ["1/y"], {0, 1}) == [{0}]
