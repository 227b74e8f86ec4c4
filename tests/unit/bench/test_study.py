"""SOPHON's study: who shrinks, and by how much."""

from __future__ import annotations

import numpy as np
import pytest

from bench.study import STAGES, study
from sophon_loader.measures.sample_profile import SampleProfile


def test_sizes_and_times_with_known_answers() -> None:
    """One file of 100 KB that never shrinks, one of 400 KB that saves 250 KB behind 5 ms of work."""
    profile = SampleProfile(2, len(STAGES) - 1)
    profile.nbytes[:] = [[100_000, 500_000, 150_000, 150_000, 600_000, 600_000]] * 2
    profile.nbytes[1, 0] = 400_000
    profile.op_ms[:] = [3.0, 2.0, 1.0, 1.0, 1.0]
    found = study(profile)
    assert found["shrinking_share"] == 0.5 and found["smallest_at"] == {"file": 1, "RandomResizedCrop": 1}
    assert found["times_fewer_bytes"] == pytest.approx(500 / 250)
    assert found["mean_bytes"]["file"] == 250_000 and found["mean_op_ms"]["Decode"] == pytest.approx(3)
    assert list(found["efficiency_bytes_per_cpu_s"].values()) == pytest.approx([250_000 / 0.005] * 5)


def test_a_dataset_that_never_shrinks() -> None:
    profile = SampleProfile(3, len(STAGES) - 1)
    profile.nbytes[:] = np.arange(1, len(STAGES) + 1) * 1000
    found = study(profile)
    assert found["shrinking_share"] == 0.0 and found["times_fewer_bytes"] == 1.0
    assert found["efficiency_bytes_per_cpu_s"] == {}
