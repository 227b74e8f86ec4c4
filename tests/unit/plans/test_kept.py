"""A profile's file as a run takes it up: what does not fit is refused with a reason, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sophon_loader.decide.facts import FILE, Choice, Rates
from sophon_loader.decide.policy import Trial
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.plans.calibration import Calibration
from sophon_loader.plans.kept import KeptProfile, ProfileFile, TrialFile
from sophon_loader.plans.probes import UpkeepCosts
from sophon_loader.plans.profile_store import ProfileKey, StoredProfile, load, save
from sophon_loader.plans.trial_windows import KeptTrials
from tests.support.profiles import photo_profile

KEY = ProfileKey("d" * 32, "p" * 32, "local", {"torch": "2.9"})
MEASURED = Rates(100.0, 3000.0, 2.0, 1.0)
NOW = Rates(math.inf, math.inf, 4.0, 0.5)
CALIBRATION = Calibration((1.0, 2.0, 1.0, 1.5), read_s=0.0002, upkeep_s=UpkeepCosts(0.0001, 0.0002), overhead_s=0.004)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.npz"


@pytest.fixture
def kept(path: Path) -> SampleProfile:
    """What another run has kept."""
    samples = photo_profile()
    assert ProfileFile(path, KEY).save(samples, CALIBRATION, MEASURED) == ""
    return samples


def empty() -> SampleProfile:
    return SampleProfile(24, 4)


def test_what_was_kept_is_taken_over(path: Path, kept: SampleProfile) -> None:
    samples = empty()
    found = ProfileFile(path, KEY).reuse(samples, NOW)
    assert isinstance(found, KeptProfile)
    assert found.calibration == CALIBRATION
    assert found.rates == replace(NOW, wire_bytes_s=3000.0), "cores and training step are those of now"
    for name, array in kept.arrays().items():
        assert np.array_equal(samples.arrays()[name], array)


def test_it_is_written_again_only_when_it_has_grown(path: Path) -> None:
    samples = photo_profile()
    whole = samples.nbytes.copy()
    samples.nbytes[12:] = 0
    file = ProfileFile(path, KEY)
    assert file.save(samples, CALIBRATION, MEASURED) == ""
    path.unlink()
    assert file.save(samples, CALIBRATION, MEASURED) == "" and not path.exists()
    samples.nbytes[:] = whole
    assert file.save(samples, CALIBRATION, MEASURED) == "" and path.exists()
    again = ProfileFile(path, KEY)
    assert isinstance(again.reuse(samples, NOW), KeptProfile)
    path.unlink()
    assert again.save(samples, CALIBRATION, MEASURED) == "" and not path.exists()


def test_a_file_that_cannot_be_written_is_tried_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    file = ProfileFile(tmp_path / "file" / "p.npz", KEY)
    assert "cannot save the profile at" in file.save(photo_profile(), CALIBRATION, MEASURED)
    assert file.save(photo_profile(), CALIBRATION, MEASURED) == ""


def _wrong(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Any:
    return change


COEFFICIENTS = {"one": 1.0, "bits_per_px": 1.0, "zoom": 1.0, "bits_per_px_x_zoom": 1.0}
FIT = {"cut": 2, "coefficients": COEFFICIENTS, "scale": 1.0, "encode_s": 0.1}


def _fits(**fits: Any) -> Any:
    return _wrong(lambda arrays, figures: figures["calibration"].update(fits=fits))


WRONG = {
    "a time is not a number": _wrong(lambda arrays, figures: arrays["op_ms"].__setitem__((2, 1), np.nan)),
    "a time is endless": _wrong(lambda arrays, figures: arrays["op_ms"].__setitem__((2, 1), np.inf)),
    "a time is negative": _wrong(lambda arrays, figures: arrays["op_ms"].__setitem__((2, 1), -0.5)),
    "all times are negative": _wrong(lambda arrays, figures: arrays["op_ms"].__imul__(-1)),
    "an array is missing": _wrong(lambda arrays, figures: arrays.pop("sides")),
    "an array is too short": _wrong(lambda arrays, figures: arrays.update(sides=arrays["sides"][:1])),
    "an array is of another type": _wrong(lambda a, figures: a.update(nbytes=a["nbytes"].astype(np.float32))),
    "a number in place of an array": _wrong(lambda arrays, figures: arrays.update(op_ms=np.float16(1.0))),
    "no calibration": _wrong(lambda arrays, figures: figures.pop("calibration")),
    "no rate": _wrong(lambda arrays, figures: figures.pop("wire_bytes_s")),
    "a rate is zero": _wrong(lambda arrays, figures: figures.update(wire_bytes_s=0.0)),
    "a rate is not a number": _wrong(lambda arrays, figures: figures.update(wire_bytes_s=math.nan)),
    "a rate is a text": _wrong(lambda arrays, figures: figures.update(wire_bytes_s="fast")),
    "a calibration of nothing": _wrong(lambda arrays, figures: figures.update(calibration={})),
    "a calibration of a list": _wrong(lambda arrays, figures: figures.update(calibration=[1])),
    "fits in a list": _wrong(lambda arrays, figures: figures["calibration"].update(fits=[1])),
    "a ratio for another number of ops": _wrong(lambda arrays, figures: figures["calibration"].update(op_ratio=[1.0])),
    "a ratio is not a number": _wrong(lambda a, figures: figures["calibration"].update(op_ratio=[1.0, 1, 1, math.nan])),
    "a ratio is negative": _wrong(lambda arrays, figures: figures["calibration"].update(op_ratio=[1.0, 1, 1, -1])),
    "seconds below zero": _wrong(lambda arrays, figures: figures["calibration"].update(read_s=-1.0)),
    "an endless overhead": _wrong(lambda arrays, figures: figures["calibration"].update(overhead_s=math.inf)),
    "half an upkeep": _wrong(lambda arrays, figures: figures["calibration"].update(upkeep_s=[0.5, 1.0, 2.0])),
    "a fit of a list": _fits(webp=[0.5]),
    "a fit that costs a text": _fits(webp=FIT | {"encode_s": "x"}),
    "a fit without a scale": _fits(webp={"cut": 2, "coefficients": COEFFICIENTS, "encode_s": 0.1}),
    "a fit of a strange size": _fits(webp=FIT | {"coefficients": COEFFICIENTS | {"zoom": math.nan}}),
    "a fit of too few numbers": _fits(webp=FIT | {"coefficients": {"one": 1.0}}),
    "a fit to features of another encoding": _fits(webp=FIT | {"coefficients": {"one": 1.0, "part_nbytes": 1.0}}),
    "a fit at no stage": _fits(webp=FIT | {"cut": -3}),
    "a fit of an image at stage 0": _fits(webp=FIT | {"cut": 0}),
    "a fit of an encoding that nobody has": _fits(bmp=FIT),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_profile_that_makes_no_sense_is_measured_anew(path: Path, kept: SampleProfile, case: str) -> None:
    found = load(path, KEY)
    assert isinstance(found, StoredProfile)
    WRONG[case](found.arrays, found.figures)
    save(path, KEY, found)
    samples, file = empty(), ProfileFile(path, KEY)
    reason = file.reuse(samples, NOW)
    assert isinstance(reason, str) and reason.startswith(f"the profile at {path} ")
    assert not samples.known.any() and not samples.op_ms.any() and not samples.sides.any()
    assert file.save(photo_profile(), CALIBRATION, MEASURED) == ""
    assert isinstance(ProfileFile(path, KEY).reuse(empty(), NOW), KeptProfile), "the next one is sound again"


# --- trials -------------------------------------------------------------------------------------------------------

TRIED = KeptTrials((Trial(FILE, 0.0, 8.0, 0.01), Trial(Choice(4, "pixels"), 0.5, 16.0, 0.0)), math.inf)
CONDITIONS = {"processes": 2.0, "agent_cores": 1.0}


@pytest.mark.parametrize("gpu_samples_s", [120.0, math.inf])
def test_trials_are_taken_over(path: Path, gpu_samples_s: float) -> None:
    kept, file = replace(TRIED, gpu_samples_s=gpu_samples_s), TrialFile(path, KEY, CONDITIONS)
    assert "there are no trials at" in str(file.reuse())
    assert file.save(kept) == "" and TrialFile(path, KEY, CONDITIONS).reuse() == kept
    assert [one.name for one in path.parent.iterdir()] == ["p.npz.trials"], "and no other file"


@pytest.mark.parametrize(
    "other",
    [(replace(KEY, agent="tcp://other/d"), CONDITIONS), (KEY, {**CONDITIONS, "processes": 3.0}), (KEY, {})],
    ids=["agent", "processes", "nothing"],
)
def test_trials_of_another_job_are_refused(path: Path, other: tuple[ProfileKey, dict[str, float]]) -> None:
    TrialFile(path, KEY, CONDITIONS).save(TRIED)
    assert "were made under other conditions" in str(TrialFile(path, *other).reuse())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[" * 10_000,
        lambda text: "[1]",
        lambda text: text[:-3],
        lambda text: text.replace("trials", "tries"),
        lambda text: text.replace("8.0", "-8.0"),
        lambda text: text.replace("8.0", "NaN"),
        lambda text: text.replace('"pixels"', "7, 7"),
        lambda text: text.replace('"gpu_samples_s": null', '"gpu_samples_s": -1'),
        lambda text: text.replace('"gpu_samples_s": null', '"gpu_samples_s": "fast"'),
    ],
)
def test_damaged_trials_are_refused(path: Path, change: Callable[[str], str]) -> None:
    file = TrialFile(path, KEY, CONDITIONS)
    file.save(TRIED)
    text = file.path.read_text()
    assert change(text) != text
    file.path.write_text(change(text))
    assert "are damaged" in str(file.reuse())


def test_a_file_without_any_trial_is_refused(path: Path) -> None:
    file = TrialFile(path, KEY, CONDITIONS)
    file.save(KeptTrials((), math.inf))
    assert "are damaged" in str(file.reuse())


def test_trials_that_cannot_be_written_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert "cannot save the trials at" in TrialFile(tmp_path / "file" / "p.npz", KEY, CONDITIONS).save(TRIED)
