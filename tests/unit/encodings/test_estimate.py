"""Features and what is fitted to them, held against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sophon_loader.encodings.estimate import COMPRESSED_IMAGE, FEATURES, MIN_PROBES, Features, Fit, Fitted


def given(count: int = 2, **changes: object) -> Features:
    """Pictures of 200 x 150 px in files of 3000 bytes and more, of which half is made into 100 px."""
    values = {
        "file_nbytes": np.arange(3000, 3000 + count, dtype=np.uint32),
        "value_nbytes": np.full(count, 300, np.uint32),
        "px": np.full(count, 30_000.0),
        "share": np.full(count, 0.5),
    }
    return Features(**(values | changes))


def test_features_by_hand() -> None:
    zoom = math.log(0.5 * 30_000 / 100)
    expected = [1.0, 3000.0, 1500.0, 0.8, zoom, 0.8 * zoom]
    assert given().matrix(FEATURES)[0] == pytest.approx(expected)
    assert given().matrix(("zoom", "one"))[0] == pytest.approx([zoom, 1.0])


def test_every_feature_is_a_number_for_every_sample() -> None:
    """Also where nothing is known, and for the largest sizes there are."""
    most = 2**32 - 1
    for nbytes in (0, 1, most):
        for side in (0, 1, 65535):
            changes: dict[str, Any] = {
                "file_nbytes": np.full(2, nbytes, np.uint32),
                "value_nbytes": np.full(2, nbytes, np.uint32),
            }
            assert np.isfinite(given(px=np.full(2, float(side) ** 2), **changes).matrix(FEATURES)).all()
    assert given(file_nbytes=np.full(2, most, np.uint32)).bits_per_px[0] == pytest.approx(8 * most / 30_000)


def test_a_feature_that_does_not_exist() -> None:
    for features in ((), ("one", "colour"), ("matrix",), ("_px",)):
        with pytest.raises(ValueError, match="features must be names out of"):
            Fitted(features)
    with pytest.raises(ValueError, match="features must be names out of"):
        Fitted(("one",), encode_per="nbytes")


def test_needing_the_size_of_the_picture() -> None:
    assert Fitted(COMPRESSED_IMAGE).needs_px and Fitted(("one", "zoom")).needs_px
    assert not Fitted(("one", "part_nbytes")).needs_px


def test_sizes_by_hand() -> None:
    linear = Fitted(("part_nbytes", "one"), max_growth=10)
    fit = Fit(0, {"one": 100.0, "part_nbytes": 0.5}, 1.0, 0.0)
    assert linear.nbytes(fit, given()) == pytest.approx([850, 850.25])
    assert Fitted(("part_nbytes", "one")).nbytes(fit, given()).tolist() == [300, 300], "not larger than it is"
    below = Fit(0, {"one": -1e4, "part_nbytes": 0.5}, 1.0, 0.0)
    assert linear.nbytes(below, given()).tolist() == [0, 0]
    logarithmic = Fitted(("one",), logarithmic=True, max_growth=1.5)
    assert logarithmic.nbytes(Fit(1, {"one": math.log(40)}, 2.0, 0.0), given()) == pytest.approx([80, 80])
    assert logarithmic.nbytes(Fit(1, {"one": 1e9}, 2.0, 0.0), given()) == pytest.approx([450, 450])


def test_seconds_by_hand() -> None:
    fit = Fit(0, {"one": 1.0}, 1.0, 1e-6)
    assert Fitted(("one",)).encode_s(fit, given()) == 1e-6
    for feature, seconds in (("file_nbytes", [0.003, 0.003001]), ("part_nbytes", [0.0015, 0.0015005])):
        found = Fitted(("one",), encode_per=feature).encode_s(fit, given())
        assert np.asarray(found) == pytest.approx(seconds)


@pytest.mark.parametrize("logarithmic", [False, True])
def test_what_is_fitted_gives_back_what_it_learnt_from(logarithmic: bool) -> None:
    rng = np.random.default_rng(0)
    some = given(20, share=rng.uniform(0.1, 1, 20), value_nbytes=np.full(20, 1000, np.uint32))
    truth = 0.5 * some.zoom + 1
    nbytes = np.exp(truth) if logarithmic else truth
    estimate = Fitted(("one", "zoom"), logarithmic=logarithmic)
    fit = estimate.fit(3, some, nbytes, [0.25] * 20)
    assert fit is not None and (fit.cut, fit.encode_s) == (3, 0.25)
    assert fit.coefficients == pytest.approx({"one": 1.0, "zoom": 0.5})
    assert estimate.nbytes(fit, some) == pytest.approx(nbytes)
    again = Fit(3, dict(reversed(fit.coefficients.items())), fit.scale, fit.encode_s)
    assert np.array_equal(estimate.nbytes(again, some), estimate.nbytes(fit, some)), "found by name"


def test_seconds_per_byte_are_those_of_all_files_together() -> None:
    some = given(10, share=np.linspace(0.1, 1, 10))
    for feature, total in (("file_nbytes", some.file_nbytes.sum()), ("part_nbytes", some.part_nbytes.sum())):
        fit = Fitted(("one",), encode_per=feature).fit(0, some, np.full(10, 50.0), [0.1] * 10)
        assert fit is not None and fit.encode_s == pytest.approx(1.0 / total)


def test_too_few_trials() -> None:
    few = MIN_PROBES - 1
    assert Fitted(("one",)).fit(0, given(few), np.full(few, 50.0), [0.1] * few) is None
