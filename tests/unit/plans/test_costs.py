"""What each choice of each sample costs, held against numbers worked out by hand."""

from __future__ import annotations

import math
import tracemalloc
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torchvision import transforms as v1

from sophon_loader.decide.facts import BLOCK, FILE, Choice, ChoiceTable, Facts, MadeTable, Rates
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policies.fixed import AllOff
from sophon_loader.decide.policies.sophon import Sophon
from sophon_loader.decide.policy import Policy
from sophon_loader.encodings.estimate import COMPRESSED_IMAGE, Fit
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.plans.calibration import Calibration, calibrated
from sophon_loader.plans.costs import HEADER_NBYTES, CostModel, region_share
from tests.support.profiles import CROPPED_NBYTES, SHARES, calibration_of, photo_probes, photo_profile

ALL = ("file", "pixels", "array", "roi-jpeg", "webp", "jxl")
PIXELS = [Choice(cut, "pixels") for cut in (1, 2, 3, 4)]
ROI = Choice(0, "roi-jpeg")


@pytest.fixture
def profile() -> SampleProfile:
    return photo_profile()


# --- which choices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probes", "reach", "allowed", "expected"),
    [
        ("none", 4, ALL, [FILE, *PIXELS]),
        ("none", 0, ALL, [FILE]),
        ("none", 2, ALL, [FILE, *PIXELS[:2]]),
        ("none", 99, ALL, [FILE, *PIXELS]),
        ("all", 4, ALL, [FILE, *PIXELS, ROI, Choice(2, "webp")]),
        ("all", 2, ALL, [FILE, *PIXELS[:2], ROI, Choice(2, "webp")]),
        ("all", 1, ALL, [FILE, *PIXELS[:1], ROI]),
        ("all", 4, ("file", "pixels", "array"), [FILE, *PIXELS]),
        ("all", 4, ("file", "webp"), [FILE, *PIXELS, Choice(2, "webp")]),
    ],
)
def test_choices_are_offered_where_they_were_probed_and_allowed(
    profile: SampleProfile, probes: str, reach: int, allowed: tuple[str, ...], expected: list[Choice]
) -> None:
    calibration = calibration_of(profile, None if probes == "all" else [])
    assert list(CostModel(profile, calibration, reach, allowed).choices) == expected


# --- what they cost -------------------------------------------------------------------------------------------

BASE = Calibration((2.0, 2.0, 4.0), read_s=0.001, encode_s=0.002, overhead_s=0.003)


def part_fit(slope: float, fixed: float, encode_s: float) -> Fit:
    """A part of a file: `slope` bytes per byte of its share, and `fixed` bytes."""
    return Fit(0, {"part_nbytes": slope, "one": fixed}, 1.0, encode_s)


def image_fit(*coefficients: float, cut: int = 2) -> Fit:
    """A compressed image that takes 5 ms; coefficients that are not given are 0."""
    given = dict.fromkeys(COMPRESSED_IMAGE, 0.0) | dict(zip(COMPRESSED_IMAGE, coefficients, strict=False))
    return Fit(cut, given, 1.0, 0.005)


@pytest.fixture
def one() -> SampleProfile:
    """Decode 10 ms, crop 20 ms, convert 40 ms."""
    profile = SampleProfile(1, 3)
    profile.nbytes[0] = [5000, 90_000, 3000, 12_000]
    profile.op_ms[0] = [10, 20, 40]
    profile.sides[0] = (200, 150)
    return profile


def test_file_and_pixels_by_hand(one: SampleProfile) -> None:
    wire, agent, loader = CostModel(one, BASE, 3, ALL).costs(np.array([0]), np.ones(1))
    assert wire[0].tolist() == [5000 + HEADER_NBYTES, *(n + HEADER_NBYTES for n in (90_000, 3000, 12_000))]
    assert agent[0] == pytest.approx([0.001, 0.001 + 0.020 + 0.002, 0.001 + 0.060 + 0.002, 0.001 + 0.220 + 0.002])
    assert loader[0] == pytest.approx([0.003 + 0.070, 0.003 + 0.060, 0.003 + 0.040, 0.003], rel=1e-4)


def test_a_part_of_the_file_by_hand(one: SampleProfile) -> None:
    calibration = replace(BASE, crops_first=True, fits={"roi-jpeg": part_fit(0.8, 600.0, 1e-7)})
    wire, agent, loader = CostModel(one, calibration, 3, ALL).costs(np.array([0, 0, 0]), np.array([0.25, 0.7, 1.0]))
    assert wire[:, 4] == pytest.approx([1600 + HEADER_NBYTES, 3400 + HEADER_NBYTES, 4600 + HEADER_NBYTES])
    assert agent[:, 4] == pytest.approx([0.001 + 5000e-7] * 3)
    assert loader[:, 4] == pytest.approx([0.003 + 0.060 + 0.010 * s for s in (0.30, 0.75, 1.0)], rel=1e-4)
    assert loader[:, 0] == pytest.approx([0.003 + 0.060 + 0.010 * s for s in (0.57, 1.0, 1.0)], rel=1e-4)


def test_a_compressed_image_by_hand(one: SampleProfile) -> None:
    half, huge = image_fit(float(np.log(1500))), image_fit(float(np.log(1e9)))
    for fit, nbytes in ((half, 1500), (huge, 1.2 * 3000)):
        calibration = replace(BASE, fits={"webp": fit})
        wire, agent, loader = CostModel(one, calibration, 3, ALL).costs(np.array([0]), np.ones(1))
        assert wire[0, 4] == pytest.approx(nbytes + HEADER_NBYTES, rel=1e-5)
        assert agent[0, 4] == pytest.approx(0.001 + 0.060 + 0.005)
        assert loader[0, 4] == pytest.approx(0.003 + 0.040 + 0.54 * 0.005, rel=1e-4)


def test_a_compression_finds_the_sizes_that_it_learnt_from(profile: SampleProfile) -> None:
    model = CostModel(profile, calibration_of(profile), 4, ALL)
    wire, _, _ = model.costs(np.arange(24), np.array(list(SHARES.values())))
    assert wire[:, -1] == pytest.approx([0.5 * CROPPED_NBYTES + HEADER_NBYTES] * 24, rel=1e-2)


def test_no_cost_falls_as_the_share_grows(profile: SampleProfile) -> None:
    model = CostModel(profile, calibration_of(profile), 4, ALL)
    grid = np.linspace(0.01, 1.0, 60)
    webp = model.choices.index(Choice(2, "webp"))
    for row in range(24):
        for costs in model.costs(np.full(60, row), grid):
            steps = np.diff(np.delete(costs, webp, axis=1), axis=0)
            assert (steps >= -1e-6 * np.abs(costs).max()).all()


def test_a_part_never_weighs_less_than_nothing_nor_more_than_the_file(one: SampleProfile) -> None:
    for slope, fixed in ((0.9, -2000.0), (2.0, 5000.0), (-0.5, 3000.0)):
        calibration = replace(BASE, crops_first=True, fits={"roi-jpeg": part_fit(slope, fixed, 1e-9)})
        wire, _, _ = CostModel(one, calibration, 3, ALL).costs(np.zeros(20, int), np.linspace(0.01, 1, 20))
        assert (wire[:, 4] >= HEADER_NBYTES).all() and (wire[:, 4] <= wire[:, 0]).all()


def test_a_picture_of_unknown_size_is_not_thought_to_compress(one: SampleProfile) -> None:
    one.sides[0] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for slope in (1.0, -1.0):
            model = CostModel(one, replace(BASE, fits={"webp": image_fit(1.0, slope)}), 3, ALL)
            table = model.table(np.ones(1))
            assert table is not None
            assert not table.has(model.choices.index(Choice(2, "webp")))[0]


def test_a_value_that_cannot_be_sent_is_no_choice(one: SampleProfile) -> None:
    one.nbytes[0, 3] = 0xFFFFFFFF
    table = CostModel(one, BASE, 3, ALL).table(np.ones(1))
    assert table is not None
    assert [bool(table.has(column)[0]) for column in range(4)] == [True, True, True, False]


def test_a_stage_that_a_sample_does_not_have_is_no_choice() -> None:
    """Two sources with pipelines of different lengths: the shorter ends at stage 2."""
    profile = photo_profile(2)
    profile.nbytes[0, 3:] = 0
    model = CostModel(profile, Calibration((1.0,) * 4, fits={"webp": image_fit(1.0, cut=3)}), 4, ALL)
    table = model.table(np.ones(2))
    assert table is not None
    have = [table.has(column).tolist() for column in range(6)]
    assert have == [[True, True]] * 3 + [[False, True]] * 3


# --- the table ------------------------------------------------------------------------------------------------


def test_while_nothing_is_profiled_there_is_no_table() -> None:
    assert CostModel(SampleProfile(5, 3), BASE, 3, ALL).table(np.ones(5)) is None
    assert CostModel(SampleProfile(0, 3), BASE, 3, ALL).table(np.ones(0)) is None


def test_samples_without_a_profile_count_as_average_files(profile: SampleProfile) -> None:
    model = CostModel(profile, calibration_of(profile), 4, ALL)
    whole = model.table(np.full(24, 0.4))
    unknown = np.arange(24) % 3 == 0
    profile.nbytes[unknown] = profile.op_ms[unknown] = profile.sides[unknown] = 0
    table = model.table(np.full(24, 0.4))
    assert whole is not None and table is not None
    for name in ("wire_bytes", "agent_s", "loader_s"):
        found, full = getattr(table, name), getattr(whole, name)
        assert np.allclose(found[~unknown], full[~unknown])
        assert found[unknown, 0] == pytest.approx([full[~unknown, 0].mean()] * unknown.sum(), rel=1e-5)
    for column in range(1, len(table.choices)):
        assert table.has(column).tolist() == (~unknown).tolist()
    assert table.repaired == 0


def test_a_table_of_nothing_strange_needs_no_repair(profile: SampleProfile) -> None:
    table = CostModel(profile, calibration_of(profile), 4, ALL).table(np.full(24, 0.4))
    assert table is not None and table.repaired == 0 and table.choices[0] == FILE


# --- the share of a picture -----------------------------------------------------------------------------------


def sides(width: int, height: int) -> np.ndarray:
    return np.array([width, height], np.uint16)


def test_the_share_of_a_picture_that_a_crop_reads() -> None:
    centre = chain_of(v1.CenterCrop(50))
    with centre.isolated():
        assert region_share(centre, sides(100, 200), Draw(0, 0, 0)) == pytest.approx(0.125)
        assert region_share(centre, sides(0, 0), Draw(0, 0, 0)) == 1.0, "unknown"
        assert region_share(centre, sides(40, 200), Draw(0, 0, 0)) == 1.0, "the op would pad"
    plain = chain_of(v1.ToTensor())
    with plain.isolated():
        assert region_share(plain, sides(100, 200), Draw(0, 0, 0)) == 1.0
    drawn = chain_of(v1.RandomResizedCrop(10))
    with drawn.isolated():
        shares = [region_share(drawn, sides(300, 200), Draw(3, 0, n)) for n in range(40)]
        again = [region_share(drawn, sides(300, 200), Draw(3, 0, n)) for n in range(40)]
    assert shares == again and len(set(shares)) > 30
    assert all(0.07 < share <= 1.0 for share in shares)


# --- plans from tables in blocks ----------------------------------------------------------------------------------

NO_PROBES = Calibration((1.5, 1.5, 1.0, 1.0), read_s=2e-4, encode_s=1e-4, overhead_s=5e-4)


def facts_of_profile(profile: SampleProfile, rates: Rates, share: NDArray[Any]) -> Facts:
    table = CostModel(profile, NO_PROBES, 4, ALL).table(share)
    return Facts(len(profile.nbytes), rates, table, 4, 2, profile.coverage)


def sophon_by_hand(table: ChoiceTable, rates: Rates) -> list[int]:
    """The paper's greedy, sample by sample, with Python's numbers."""
    wire, agent, loader = (
        values.astype(float).tolist() for values in (table.wire_bytes, table.agent_s, table.loader_s)
    )
    smallest = [min(range(len(row)), key=row.__getitem__) for row in wire]
    chosen = [0] * len(wire)

    def efficiency(row: int) -> float:
        """Bytes saved per second, in the precision that the plan sorts by."""
        column = smallest[row]
        return float(np.float32((wire[row][column] - wire[row][0]) / (agent[row][column] - agent[row][0])))

    for row in sorted((row for row, column in enumerate(smallest) if column), key=efficiency):
        now = times_of(chosen, wire, agent, loader, rates)
        if max(now, key=lambda name: now[name]) != "wire":
            break
        chosen[row] = smallest[row]
        after = times_of(chosen, wire, agent, loader, rates)
        if max(after.values()) > max(now.values()):
            chosen[row] = 0
            break
    return chosen


def times_of(chosen: list[int], *costs: Any) -> dict[str, float]:
    *tables, rates = costs
    wire, agent, loader = (math.fsum(one[row][column] for row, column in enumerate(chosen)) for one in tables)
    gpu_s, wire_s = len(chosen) / rates.gpu_samples_s, wire / rates.wire_bytes_s
    return {"gpu": gpu_s, "loader": loader / rates.loader_cores, "agent": agent / rates.agent_cores, "wire": wire_s}


@pytest.mark.parametrize("agent_cores", [0.02, 0.1, 10.0], ids="{} cores".format)
def test_a_plan_is_the_one_that_the_paper_s_greedy_finds(agent_cores: float) -> None:
    facts = facts_of_profile(photo_profile(60), Rates(1e6, 1e6, 8.0, agent_cores), np.linspace(0.1, 1, 60))
    assert facts.table is not None
    plan = Sophon().plan(facts)
    assert plan.chosen.tolist() == sophon_by_hand(facts.table, facts.rates) and plan.chosen.any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unknown", [0.0, 0.3])
@pytest.mark.parametrize("policy", [Sophon(), AllOff(), FastFlow("every")], ids=lambda one: one.name)
def test_a_plan_in_blocks_is_the_one_from_the_whole_table(seed: int, unknown: float, policy: Policy) -> None:
    rng = np.random.default_rng(seed)
    samples = BLOCK + int(rng.integers(1, BLOCK))
    profile = photo_profile(samples, seed)
    profile.nbytes[rng.random(samples) < unknown] = 0
    rates = Rates(1e6, 10 ** rng.uniform(5, 7), rng.uniform(1, 8), 10 ** rng.uniform(-2, 1))
    facts = facts_of_profile(profile, rates, rng.uniform(0.1, 1, 7))
    assert isinstance(facts.table, MadeTable)
    table = facts.table
    costs = table.wire_bytes, table.agent_s, table.loader_s
    whole = replace(facts, table=ChoiceTable(table.choices, *costs, measured=table.measured))
    ours, direct = policy.plan(facts), policy.plan(whole)
    assert np.array_equal(ours.chosen, direct.chosen) and ours.choices == direct.choices
    assert (ours.reason, ours.predicted) == (direct.reason, direct.predicted)


def test_a_plan_and_its_table_take_few_bytes_per_sample() -> None:
    """From the profile on: calibration, table and plan at their peak, for 1.28 million samples the same."""
    samples = 100_000
    profile = photo_profile(samples)
    tracemalloc.start()
    try:
        calibration = calibrated(profile, photo_probes(profile, SHARES), SHARES, 5e-4, crops_first=True)
        table = CostModel(profile, calibration, 4, ALL).table(np.linspace(0.1, 1, 2000))
        plan = Sophon().plan(Facts(samples, Rates(1e6, 5e6, 8.0, 10.0), table, 4, 2, 1.0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plan.counts()) > 1 and "the network" in plan.reason
    assert peak / samples < 64
