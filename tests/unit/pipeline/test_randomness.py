"""Seeds: fixed for ever, different in each of their five numbers, and the caller's generators given back."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw, Seed, op_seed, preserved, seed_generators, threads_beside

_SMALL = st.integers(0, 50)
_PLACES = st.tuples(_SMALL, _SMALL, _SMALL, _SMALL)


def _next() -> dict[str, Any]:
    return {"torch": torch.rand(1).item(), "numpy": np.random.rand(), "python": random.random()}


@pytest.mark.parametrize(
    ("place", "seed"),
    [
        ((0, 0, 0, 0), 0xA141AF8A4A120DC5),
        ((0, 0, 0, 1), 0x257DB3CBD349EB9B),
        ((1, 2, 3, 4), 0xD2E09B25A4E6A3EB),
        ((-1, 0, 0, 1), 0xA99DF43BD340FFA6),
        ((2**64 - 1, 7, 2**40, 9), 0xB4AF8D917811DEFB),
    ],
)
def test_seeds_stay_as_they_were_released(place: tuple[int, int, int, int], seed: int) -> None:
    """A changed number here changes every batch of every user: it needs a new major version."""
    run_seed, epoch, index, position = place
    assert op_seed(Draw(run_seed, epoch, index), position) == seed


@pytest.mark.parametrize(
    ("place", "occurrence", "seed"),
    [
        ((0, 0, 0, 0), 0, 0xA141AF8A4A120DC5),
        ((2**64 - 1, 7, 2**40, 9), 0, 0xB4AF8D917811DEFB),
        ((0, 0, 0, 0), 1, 0xFC02D1DBAA373513),
        ((1, 2, 3, 4), 1, 0xEF3EA2409FC089FD),
        ((1, 2, 3, 4), 2, 0xDB7913B69D90A199),
        ((-1, 0, 0, 1), 2**64 - 1, 0x15B3405B23247E8F),
    ],
)
def test_an_index_that_is_met_again_has_seeds_of_its_own(
    place: tuple[int, int, int, int], occurrence: int, seed: int
) -> None:
    """The first time it has those of every release so far."""
    run_seed, epoch, index, position = place
    assert op_seed(Draw(run_seed, epoch, index, occurrence), position) == seed
    assert (op_seed(Draw(run_seed, epoch, index), position) == seed) == (occurrence == 0)


def test_a_draw_is_the_first_one_unless_it_says_otherwise() -> None:
    assert Draw(1, 2, 3) == Draw(1, 2, 3, 0) != Draw(1, 2, 3, 1)


@given(_PLACES, _PLACES)
def test_different_places_have_different_seeds(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert (op_seed(Draw(*a[:3]), a[3]) == op_seed(Draw(*b[:3]), b[3])) == (a == b)


def test_no_two_of_a_grid_of_places_share_a_seed() -> None:
    sides = (range(8), range(8), range(8), range(8), range(8))
    seeds = {op_seed(Draw(s, e, i, o), p) for s, e, i, o, p in itertools.product(*sides)}
    assert len(seeds) == 8**5


def test_one_seed_up_is_not_one_index_down() -> None:
    assert op_seed(Draw(6, 0, 3), 1) != op_seed(Draw(5, 0, 4), 1)
    assert op_seed(Draw(5, 1, 3), 1) != op_seed(Draw(5, 0, 4), 1)
    assert op_seed(Draw(5, 0, 3), 2) != op_seed(Draw(5, 0, 4), 1)


@given(st.integers(-(1 << 70), 1 << 70), st.integers(0, 1 << 70))
def test_any_int_is_a_seed(seed: int, epoch: int) -> None:
    assert 0 <= op_seed(Draw(seed, epoch, 0), 0) < 1 << 64


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_every_generator_takes_every_seed_and_repeats_itself(seed: int) -> None:
    with preserved(GENERATORS):
        seed_generators(GENERATORS, seed)
        first = _next()
        seed_generators(GENERATORS, seed)
        assert _next() == first


@pytest.mark.parametrize("name", GENERATORS)
def test_only_the_named_generator_is_seeded(name: str) -> None:
    with preserved(GENERATORS):
        seed_generators(GENERATORS, 1)
        expected = _next()
        seed_generators(GENERATORS, 1)
        seed_generators([name], 2)
        found = _next()
    assert {key for key in GENERATORS if found[key] != expected[key]} == {name}


@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_generators_are_given_back(fails: bool) -> None:
    with preserved(GENERATORS):
        seed_generators(GENERATORS, 3)
        expected = _next()
        seed_generators(GENERATORS, 3)
        try:
            with preserved(GENERATORS):
                seed_generators(GENERATORS, 4)
                torch.randn(3), np.random.randn(3), random.gauss(0, 1)
                if fails:
                    raise RuntimeError("an op failed")
        except RuntimeError:
            pass
        assert _next() == expected


def test_a_generator_not_named_is_not_given_back() -> None:
    with preserved(GENERATORS):
        seed_generators(GENERATORS, 3)
        with preserved(["torch"]):
            np.random.rand()
        after_one = np.random.rand()
        seed_generators(GENERATORS, 3)
        np.random.rand()
        assert np.random.rand() == after_one


@pytest.mark.parametrize("number", [0, 7, -1, (1 << 64) + 3, -(1 << 63) - 5, 1 << 200])
def test_a_seed_gives_the_draws_of_its_number_and_fits_a_message(number: int) -> None:
    seed = Seed(number)
    assert 0 <= seed.number < 1 << 64
    assert Seed(seed.number) == seed
    assert op_seed(seed.draw(2, 3, 4), 5) == op_seed(Draw(number, 2, 3, 4), 5)
    assert seed.draw(2, 3) == seed.draw(2, 3, 0)


def test_all_generators_are_preserved_though_a_signal_comes_as_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(_: object) -> None:
        raise InterruptedError

    before = random.getstate(), torch.default_generator.get_state()
    with pytest.raises(InterruptedError), preserved(("torch", "numpy", "python")):
        random.random(), torch.rand(1)
        monkeypatch.setattr(np.random, "set_state", late)
    assert random.getstate() == before[0] and torch.equal(torch.default_generator.get_state(), before[1])


def test_nothing_is_collected_while_the_stacks_of_other_threads_are_read() -> None:
    """A finalizer that ended one of those threads then made Python 3.11 crash."""
    within: list[bool] = []

    def collected(phase: str, _: object) -> None:
        within.append(sys._getframe(1).f_code.co_name == "_draws_nothing")

    waiting = threading.Barrier(2)
    thread = threading.Thread(target=lambda: [waiting.wait(), waiting.wait()])
    thread.start()
    waiting.wait()
    before = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        gc.set_threshold(1, 1, 1)
        assert threads_beside() == [] and gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
        waiting.wait()
        thread.join()
    assert True not in within
