"""What is kept of each sample: little, in memory that all processes share, and exactly what a pipeline did."""

from __future__ import annotations

import io
import os
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1

from sophon_loader.measures import sample_profile as module
from sophon_loader.measures.sample_profile import MAX_MEASURED_OPS as MEASURED_OPS
from sophon_loader.measures.sample_profile import Measurement, SampleProfile, nbytes_of
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.wire.limits import MAX_OPS

UNKNOWN = module.UNKNOWN_NBYTES


def jpeg(width: int = 40, height: int = 30) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (1, 2, 3)).save(file, "JPEG")
    return file.getvalue()


def test_what_the_agent_does_not_reach_cannot_be_sent() -> None:
    measured = SampleProfile(1, 4).measure(5, reach=2)
    for stage in range(1, 5):
        measured.after(stage, np.zeros(stage, np.uint8))
    assert measured.nbytes.tolist() == [5, 1, 2, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("ops", [1, 4, MEASURED_OPS, MEASURED_OPS + 1, MAX_OPS])
def test_a_sample_takes_at_most_64_bytes(ops: int) -> None:
    profile = SampleProfile(100, ops)
    nbytes = sum(array.nbytes for array in profile.arrays().values()) / 100
    assert nbytes <= 64
    assert profile.ops == min(ops, MEASURED_OPS)
    assert profile.nbytes.shape == (100, profile.ops + 1)
    assert profile.op_ms.shape == (100, profile.ops)


def test_a_measured_pipeline() -> None:
    data = jpeg()
    chain = chain_of(v1.Compose([v1.CenterCrop(20), v1.ToTensor()]))
    profile = SampleProfile(3, len(chain))
    measured = profile.measure(len(data))
    chain.run(data, 0, len(chain), Draw(0, 0, 0), after=measured.after)
    profile.store(1, measured)
    assert profile.nbytes[1].tolist() == [len(data), 40 * 30 * 3, 20 * 20 * 3, 20 * 20 * 3 * 4]
    assert profile.sides[1].tolist() == [40, 30]
    assert (profile.op_ms[1] > 0).all()
    assert profile.known.tolist() == [False, True, False]
    assert profile.coverage == pytest.approx(1 / 3)


def test_times_are_cpu_time_between_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 10.5, 10.6, 11.0, 11.0])  # start; end and restart of op 1; end and restart of op 2
    monkeypatch.setattr(module.time, "thread_time", lambda: next(now))
    measured = Measurement(2, 7)
    measured.after(1, Image.new("L", (2, 3)))
    measured.after(2, np.zeros(5, np.int16))
    assert measured.op_ms.tolist() == pytest.approx([500.0, 400.0], rel=1e-3)
    assert measured.nbytes.tolist() == [7, 6, 10]


def test_ops_past_the_ninth_are_counted_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(n // 2) for n in range(1, 99))  # every op takes a second
    monkeypatch.setattr(module.time, "thread_time", lambda: next(clock))
    measured = SampleProfile(1, 12).measure(5)
    for stage in range(1, 13):
        measured.after(stage, np.zeros(stage, np.uint8))
    assert measured.op_ms.tolist() == [1000.0] * 8 + [4000.0]
    assert measured.op_ms.astype(float).sum() == 12_000
    assert measured.nbytes.tolist() == [5, 1, 2, 3, 4, 5, 6, 7, 8, 12]


def test_an_op_that_takes_minutes_stays_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 300.0, 300.0])
    monkeypatch.setattr(module.time, "thread_time", lambda: next(clock))
    measured = Measurement(1, 7)
    measured.after(1, np.zeros(1))
    assert np.isfinite(measured.op_ms).all() and measured.op_ms[0] > 60_000


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (Image.new("RGB", (5, 4)), 60),
        (Image.new("L", (5, 4)), 20),
        (Image.new("RGBA", (5, 4)), 80),
        (torch.zeros(3, 4, 5), 240),
        (torch.zeros(3, 4, dtype=torch.uint8), 12),
        (np.zeros((2, 3), np.float64), 48),
        (torch.empty(1 << 33, device="meta"), UNKNOWN),
        ({"boxes": 1}, UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_the_size_of_a_value(value: object, nbytes: int) -> None:
    assert nbytes_of(value) == nbytes


@pytest.mark.parametrize(("size", "sides"), [((65535, 1), [65535, 1]), ((65536, 1), [0, 0]), ((1, 70000), [0, 0])])
def test_sides_that_do_not_fit_are_unknown(size: tuple[int, int], sides: list[int]) -> None:
    profile = SampleProfile(1, 1)
    measured = profile.measure(3)
    measured.after(1, Image.new("L", size))
    profile.store(0, measured)
    assert profile.sides[0].tolist() == sides


def test_workers_are_told_whether_to_measure() -> None:
    profile = SampleProfile(2, 2)
    assert not profile.recording
    copy = pickle.loads(bytes(ForkingPickler.dumps(profile)))
    profile.recording = True
    assert copy.recording
    copy.recording = False
    assert not profile.recording


def test_a_pickled_copy_is_the_same_memory() -> None:
    profile = SampleProfile(3, 4)
    copy = pickle.loads(bytes(ForkingPickler.dumps(profile)))
    copy.nbytes[2] = [5, 6, 7, 8, 9]
    copy.op_ms[2] = 1.5
    copy.sides[2] = (4, 5)
    assert profile.nbytes[2].tolist() == [5, 6, 7, 8, 9]
    assert profile.op_ms[2].tolist() == [1.5] * 4
    assert profile.sides[2].tolist() == [4, 5]


def test_a_forked_process_writes_for_all() -> None:
    profile = SampleProfile(3, 4)
    child = os.fork()
    if child == 0:
        profile.nbytes[1] = 11
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert profile.known.tolist() == [False, True, False]


def test_saving_and_loading() -> None:
    one, other = SampleProfile(3, 4), SampleProfile(3, 4)
    one.nbytes[1], one.op_ms[1], one.sides[1] = 9, 2.5, (7, 8)
    other.load({name: array.copy() for name, array in one.arrays().items()})
    for name, array in other.arrays().items():
        assert np.array_equal(array, one.arrays()[name])


def test_no_samples_are_all_covered() -> None:
    assert SampleProfile(0, 3).coverage == 1.0
