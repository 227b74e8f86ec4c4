"""What is the same for all samples, from probes of known numbers; and which encodings are tried where."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import numpy as np
import pytest

from sophon_loader.decide.facts import Choice
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.plans.calibration import Calibration, UpkeepCosts, calibrated, fitted_choices
from sophon_loader.plans.costs import CostModel
from sophon_loader.plans.probes import Probe
from tests.support.outside import outside_installed
from tests.support.profiles import SHARES, calibration_of, photo_probes, photo_profile


@pytest.fixture
def profile() -> SampleProfile:
    return photo_profile()


def test_what_probes_say(profile: SampleProfile) -> None:
    found = calibration_of(profile)
    assert found.op_ratio == pytest.approx((2.0, 2.0, 2.0, 2.0), rel=1e-3)
    assert found.read_s == pytest.approx(0.0002)
    assert found.encode_s == pytest.approx(0.0005)
    assert found.overhead_s == 0.004
    assert list(found.fits) == ["roi-jpeg", "webp"]
    part, webp = found.fits["roi-jpeg"], found.fits["webp"]
    assert part.coefficients == pytest.approx({"part_nbytes": 0.9, "one": 700}, rel=1e-2)
    assert part.cut == 0 and part.encode_s == pytest.approx(2e-9)
    assert webp.cut == 2 and webp.encode_s == pytest.approx(0.002)


@pytest.mark.parametrize("count", [0, 7, 8, 24])
def test_an_encoding_needs_eight_probes(profile: SampleProfile, count: int) -> None:
    probes = photo_probes(profile, {index: SHARES[index] for index in range(count)})
    found = calibration_of(profile, probes)
    assert list(found.fits) == (["roi-jpeg", "webp"] if count >= 8 else [])


def test_without_probes_the_agent_is_taken_for_a_loader(profile: SampleProfile) -> None:
    assert calibration_of(profile, []) == Calibration((1.0,) * 4, overhead_s=0.004, crops_first=True)


def test_probes_of_samples_without_a_profile_do_not_count(profile: SampleProfile) -> None:
    profile.nbytes[:20] = 0
    found = calibration_of(profile)
    assert not found.fits
    assert found.op_ratio == pytest.approx((2.0,) * 4, rel=1e-3)


def test_an_overhead_below_zero_is_none(profile: SampleProfile) -> None:
    assert calibrated(profile, [], {}, -1.0, crops_first=False).overhead_s == 0.0


@pytest.mark.parametrize("probes", ["all", "none"])
def test_a_calibration_travels_as_plain_data(profile: SampleProfile, probes: str) -> None:
    found = calibration_of(profile, None if probes == "all" else [])
    assert Calibration.from_plain(found.to_plain()) == found
    assert Calibration.from_plain(json.loads(json.dumps(found.to_plain()))) == found
    assert Calibration.from_plain(msgpack.unpackb(msgpack.packb(found.to_plain()))) == found


def test_the_upkeep_of_probes_is_that_of_samples_with_ops(profile: SampleProfile) -> None:
    assert calibration_of(profile).upkeep_s == UpkeepCosts(0.0, 0.0)
    probes = [Probe(index, 1, "pixels", 5, (0.1, 0.1, 0.1), upkeep_s=0.3) for index in range(3)]
    assert calibration_of(profile, probes).upkeep_s == pytest.approx(UpkeepCosts(file_s=0.0, op_s=0.3))


# --- where an encoding is tried -------------------------------------------------------------------------------

PART, LEPTON, PACKED_PART = Choice(0, "roi-jpeg"), Choice(0, "lepton"), Choice(0, "roi-lepton")
WEBP, HTJ2K, JPEGLS, JXL = (Choice(2, name) for name in ("webp", "htj2k", "jpegls", "jxl"))


@pytest.mark.parametrize(("reach", "resize_cut", "crops_first", "allowed", "expected"), [
    (4, 2, True, None, [PART, WEBP, HTJ2K, JPEGLS, JXL, LEPTON, PACKED_PART]),
    (4, 2, False, None, [WEBP, HTJ2K, JPEGLS, JXL, LEPTON]),
    (2, 2, True, ("file", "webp"), [WEBP]),
    (1, 2, True, None, [PART, LEPTON, PACKED_PART]),
    (0, None, True, None, [PART, LEPTON, PACKED_PART]),
    (4, None, False, None, [LEPTON]),
    (4, 2, True, ("file", "roi-lepton"), [PACKED_PART]),
    (4, 2, True, ("file", "pixels", "array"), []),
])  # fmt: skip
def test_what_is_tried(
    reach: int, resize_cut: int | None, crops_first: bool, allowed: tuple[str, ...] | None, expected: list[Choice]
) -> None:
    names = encoding_names() if allowed is None else allowed
    found = fitted_choices(names, reach=reach, resize_cut=resize_cut, crops_first=crops_first)
    assert found == [choice for choice in expected if choice.encoding in encoding_names()]


# --- encodings of other packages ------------------------------------------------------------------------------


def test_one_that_states_its_estimate_is_tried_fitted_and_a_choice(profile: SampleProfile, tmp_path: Path) -> None:
    with outside_installed(tmp_path):
        allowed = ("file", "pixels", "array", "packed", "bare")
        assert fitted_choices(allowed, reach=4, resize_cut=2, crops_first=True) == [Choice(2, "packed")]
        probes = [Probe(n, 2, name, 70, (0.1, 0.1, 0.1, 0.02)) for n in range(9) for name in ("packed", "bare")]
        found = calibration_of(profile, probes)
        assert list(found.fits) == ["packed"]
        found.check(profile.ops)
        assert Calibration.from_plain(json.loads(json.dumps(found.to_plain()))) == found
        model = CostModel(profile, found, 4, allowed)
        assert [choice.encoding for choice in model.choices] == ["file", *["pixels"] * 4, "packed"]
        table = model.table(np.ones(24))
        assert table is not None and table.wire_bytes[:, -1] == pytest.approx([160.0] * 24)
        behind_s = table.loader_s[:, 2]
        assert table.loader_s[:, -1] - behind_s == pytest.approx([0.5 * 0.02] * 24, rel=1e-3)
        plain = found.to_plain()
    with pytest.raises(ValueError, match="fits must be of"):
        Calibration.from_plain(plain).check(profile.ops)
