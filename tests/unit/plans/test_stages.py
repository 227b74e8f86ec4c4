"""Stage 1 of SOPHON's profiler: what GPU, I/O and CPU could do by themselves."""

from __future__ import annotations

import math

import pytest

from sophon_loader.decide.facts import Rates
from sophon_loader.plans.stages import Throughput


def test_rates_as_samples_per_second() -> None:
    """Files of 100 KB, each 10 ms of CPU, of which there are two cores."""
    found = Throughput.of(Rates(500.0, 12e6, 2.0, 1.0), samples=50, file_bytes=5e6, loader_cpu_s=0.5)
    assert found == Throughput(gpu=500.0, io=120.0, cpu=200.0)
    assert found.measured() == {"gpu": 500.0, "io": 120.0, "cpu": 200.0}
    assert str(found) == (
        "500 samples/s by the training step, 120 samples/s by the network, 200 samples/s by the loader's CPU"
    )


def test_what_is_not_known_does_not_limit() -> None:
    found = Throughput.of(Rates(math.inf, math.inf, 2.0, 1.0), samples=50, file_bytes=0.0, loader_cpu_s=0.5)
    assert found.measured() == {"cpu": 200.0} and found.bottleneck == "cpu"


@pytest.mark.parametrize(
    ("found", "bottleneck"),
    [
        (Throughput(100.0, 99.0, 100.0), "io"),
        (Throughput(99.0, 100.0, 100.0), "gpu"),
        (Throughput(100.0, 100.0, 99.0), "cpu"),
        (Throughput(100.0, 100.0, 200.0), "gpu"),
        (Throughput(math.inf, math.inf, math.inf), "gpu"),
    ],
)
def test_io_must_be_what_limits(found: Throughput, bottleneck: str) -> None:
    assert found.bottleneck == bottleneck
