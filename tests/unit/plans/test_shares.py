"""What pipelines allow, and what their crops will read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline import chain as chain_module
from sophon_loader.pipeline import randomness
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.plans import shares as module
from sophon_loader.plans.allowed_cuts import AllowedCuts
from sophon_loader.plans.shares import CropShares
from tests.support.loaders import times_two
from tests.support.profiles import crop_transform

COUNT = 6
needs_crop = pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")


def pipelines_of(*transforms: Any) -> AllowedCuts:
    chains = tuple(chain_of(transform) for transform in transforms)
    return AllowedCuts(chains, tuple(chain.describable for chain in chains))


def shares_of(pipelines: AllowedCuts, seed: int | None = 1) -> CropShares:
    profile = SampleProfile(COUNT, 4)
    profile.sides[:] = (40, 30)
    return CropShares(pipelines, np.zeros(COUNT, np.int16), profile, None if seed is None else Seed(seed))


def in_a_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


# --- pipelines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "first"),
    [
        (crop_transform(), True),
        (v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor(), times_two]), True),
        (v1.Compose([v1.ColorJitter(0.1), v1.RandomResizedCrop(16), v1.ToTensor()]), False),
        (v1.Compose([times_two, v1.RandomResizedCrop(16)]), False),
    ],
)
def test_parts_are_sent_only_where_every_pipeline_begins_with_a_crop(second: Any, first: bool) -> None:
    pipelines = pipelines_of(crop_transform(), second)
    assert pipelines.crops_first == (first and "roi-jpeg" in encoding_names())
    assert pipelines.max_cut == 4


@needs_crop
def test_in_another_thread_nothing_is_drawn_since_the_generators_are_not_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    monkeypatch.setattr(chain_module, "seed_generators", lambda *which: drawn.append(which))
    pipelines = pipelines_of(crop_transform())
    assert in_a_thread(lambda: shares_of(pipelines).of(range(COUNT), 0).tolist()) == [1.0] * COUNT
    assert not in_a_thread(lambda: pipelines.crops_first) and not drawn
    assert pipelines.crops_first and drawn


@needs_crop
def test_nor_is_anything_beside_a_thread_that_may_draw_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers would come twice: the generators are set back afterwards. A pipeline's own look comes before that."""
    pipelines = pipelines_of(crop_transform())
    assert pipelines.crops_first and min(shares_of(pipelines).of(range(COUNT), 0)) < 1
    monkeypatch.setattr(randomness, "_DRAW_NOTHING", randomness._DRAW_NOTHING - {"tests"})
    monkeypatch.setattr(module, "isolated", lambda draws: pytest.fail("drawn"))
    ended = threading.Event()
    thread = threading.Thread(target=lambda: ended.wait(20.0))
    thread.start()
    try:
        assert shares_of(pipelines).of(range(COUNT), 0).tolist() == [1.0] * COUNT
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("allowed", "cuts"),
    [
        ({"pixels", "array"}, [1, 2, 3, 4]),
        ({"pixels"}, [1, 2, 3]),  # behind the third op it is a tensor
        ({"array"}, [4]),
        ({"webp"}, []),
    ],
)
def test_where_a_value_may_cross_as_it_is(allowed: set[str], cuts: list[int]) -> None:
    assert list(pipelines_of(crop_transform()).plain_cuts(allowed)) == cuts


@pytest.mark.parametrize(("reach", "cut"), [((4,), 2), ((2,), 2), ((1,), None), ((0,), None)])
def test_the_resize_that_the_agent_reaches(reach: tuple[int, ...], cut: int | None) -> None:
    assert AllowedCuts((chain_of(crop_transform()),), reach).resize_cut == cut


# --- shares ---------------------------------------------------------------------------------------------------


@needs_crop
def test_the_shares_are_those_of_the_epoch_s_own_crops() -> None:
    shares = shares_of(pipelines_of(crop_transform()))
    state = torch.get_rng_state()
    first, again, other = shares.in_turn(0), shares.in_turn(0), shares.in_turn(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert ((first > 0) & (first <= 1)).all()
    assert np.array_equal(shares.of([4, 2], 0), first[[4, 2]])


@needs_crop
def test_the_shares_of_many_samples_are_like_those_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_SHARES", 3)
    found = shares_of(pipelines_of(crop_transform())).in_turn(0)
    assert len(found) == 3 and ((found > 0) & (found <= 1)).all()


@pytest.mark.parametrize(("transform", "seed"), [(crop_transform(), None), (v1.Compose([v1.ToTensor()]), 1)])
def test_without_a_crop_or_an_agent_whole_pictures_are_read(transform: Any, seed: int | None) -> None:
    assert (shares_of(pipelines_of(transform), seed).in_turn(0) == 1).all()
