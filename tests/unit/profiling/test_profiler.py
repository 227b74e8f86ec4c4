"""What the main process knows of a run: what it learns from an epoch, tells a policy, keeps and takes up again."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

from sophon_loader.decide.cost import Terms
from sophon_loader.decide.facts import FILE, Choice, Rates
from sophon_loader.decide.policies import Auto
from sophon_loader.encodings.names import encoding_names
from sophon_loader.errors import AgentUnreachable
from sophon_loader.main import profiler as module
from sophon_loader.main.profiler import Profiler
from sophon_loader.profiling.costs import ROI
from sophon_loader.profiling.rates import EpochMeasure
from sophon_loader.profiling.store import StoredProfile, load, save
from tests.support.loaders import times_two
from tests.support.profiles import crop_transform, fill, profiler_of, small_tree

COUNT = 6
LOADED_JXL = "jxl" in encoding_names()
needs_crop = pytest.mark.skipif("roi-jpeg" not in encoding_names(), reason="the C extension is not built")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_tree(tmp_path / "tree", COUNT)


def epoch(**changes: Any) -> EpochMeasure:
    values = {"seconds": 10.0, "samples": COUNT, "wire_bytes": 30e3, "loader_cpu_s": 0.06, "agent_cpu_s": 0.01}
    return EpochMeasure(**(values | {"gpu_samples_s": 100.0, "waiting": 0.9, "queueing": 0.0} | changes))


# --- learning -------------------------------------------------------------------------------------------------


def test_at_first_nothing_is_known(root: Path) -> None:
    profiler = profiler_of(root)
    assert profiler.samples.recording
    assert profiler.table(0) is None
    facts = profiler.facts(None)
    assert (facts.samples, facts.max_cut, facts.resize_cut, facts.profiled_share) == (COUNT, 4, 2, 0.0)
    assert math.isinf(facts.rates.gpu_samples_s) and math.isinf(facts.rates.wire_bytes_s)
    assert facts.rates.agent_cores == 1.0 and 0 < facts.rates.loader_cores <= 1.0


def test_an_epoch_without_offloading_teaches_everything(root: Path) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    profiler.learn(epoch())
    assert not profiler.samples.recording
    assert profiler.rates.wire_bytes_s == pytest.approx(3000)
    assert profiler.rates.gpu_samples_s == 100
    assert profiler.calibration.overhead_s == pytest.approx(0.01 - 4 * 0.0015, rel=1e-2)
    table = profiler.table(1)
    assert table is not None and table.samples == COUNT
    assert profiler.facts(table).profiled_share == 1.0


def test_half_an_epoch_is_half_a_profile(root: Path) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    profiler.samples.nbytes[3:] = 0
    profiler.learn(epoch(samples=3))
    assert profiler.samples.recording, "the rest is measured next time"
    table = profiler.table(1)
    assert table is not None and profiler.facts(table).profiled_share == 0.5
    assert table.has(1).tolist() == [True] * 3 + [False] * 3
    assert "only 50 % of the samples are profiled" in Auto().plan(profiler.facts(table)).reason


@pytest.mark.parametrize(
    ("measure", "name"),
    [
        (epoch(), "wire"),
        (epoch(waiting=0.9, queueing=0.9, agent_cpu_s=9.0), "agent-cpu"),
        (epoch(waiting=0.0, loader_cpu_s=9.0, wire_bytes=10.0), "loader-cpu"),
        (epoch(waiting=0.0, gpu_samples_s=0.61, wire_bytes=10.0), "gpu"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_bottleneck_of_an_epoch(root: Path, measure: EpochMeasure, name: str) -> None:
    profiler = profiler_of(root)
    profiler.learn(measure)
    assert profiler.bottleneck(measure) == name


# --- what the agent is asked to try ---------------------------------------------------------------------------


@needs_crop
def test_what_is_tried_is_all_ops_and_what_cannot_be_told_otherwise(root: Path) -> None:
    requests = profiler_of(root)._probe_requests()
    tried = {(request.cut, request.encoding) for request in requests}
    assert tried == {(4, "pixels"), (2, "webp"), (0, "roi-jpeg")} | ({(2, "jxl")} if LOADED_JXL else set())
    assert {request.index for request in requests} == set(range(COUNT))
    assert {request.key for request in requests} == {f"c{n % 2}/{n}.jpg" for n in range(COUNT)}


@pytest.mark.parametrize(
    ("transform", "reach", "tried"),
    [
        (v1.Compose([v1.Resize(20), v1.ToTensor()]), None, {(3, "pixels"), (2, "webp"), (2, "jxl")}),
        (v1.Compose([v1.ColorJitter(0.2), v1.ToTensor()]), None, {(3, "pixels")}),
        (v1.Compose([v1.CenterCrop(9), v1.ToTensor(), times_two]), None, {(3, "pixels"), (2, "webp"), (2, "jxl")}),
        (crop_transform(), (1,), {(1, "pixels"), (0, "roi-jpeg")}),
        (crop_transform(), (0,), {(0, "roi-jpeg")}),
    ],
)  # fmt: skip
def test_other_pipelines(root: Path, transform: Any, reach: Any, tried: set[Any]) -> None:
    more = {} if reach is None else {"reach": reach}
    profiler = profiler_of(root, transforms=(transform,), **more)
    found = {(request.cut, request.encoding) for request in profiler._probe_requests()}
    assert found == {(cut, name) for cut, name in tried if name in encoding_names()}


def test_what_the_agent_does_not_offer_is_not_tried(root: Path) -> None:
    requests = profiler_of(root, encodings=("file", "pixels", "array"))._probe_requests()
    assert {request.encoding for request in requests} == {"pixels"}


def test_an_agent_that_is_gone_leaves_the_wire_unmeasured(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offloading is a hint: an epoch begins whether or not the agent answers."""

    def nobody(*arguments: Any) -> float:
        raise AgentUnreachable("nobody there")

    monkeypatch.setattr(module, "measure_wire", nobody)
    profiler = profiler_of(root)
    fill(profiler)
    profiler.measure_wire()
    assert math.isinf(profiler.rates.wire_bytes_s)


def test_a_wire_that_has_become_faster_is_measured_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    found = iter([1e6, 9e6, 1e5])
    monkeypatch.setattr(module, "measure_wire", lambda *arguments: next(found))
    assert not profiler.knows_wire
    profiler.measure_wire()
    assert profiler.knows_wire and profiler.rates.wire_bytes_s == 1e6
    profiler.learn(epoch(seconds=1.0, wire_bytes=2e6, waiting=0.1))
    assert not profiler.knows_wire and profiler.rates.wire_bytes_s == 2e6
    profiler.measure_wire()
    assert profiler.knows_wire and profiler.rates.wire_bytes_s == 9e6
    profiler.learn(epoch(seconds=1.0, wire_bytes=1e7, waiting=0.1))
    profiler.measure_wire()
    assert profiler.rates.wire_bytes_s == 1e7, "a burst that gets less than an epoch got says nothing"


# --- what must be able to come back ---------------------------------------------------------------------------


def test_a_wire_that_came_down_is_measured_again_until_it_is_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an epoch that blamed the wire, the plan sends so little that no epoch shows it to be faster."""
    profiler, bursts = profiler_of(root), 0
    profiler.learn(epoch(wire_bytes=120e6))
    assert profiler.knows_wire and profiler.rates.wire_bytes_s == pytest.approx(12e6)
    profiler.learn(epoch(wire_bytes=24e6, queueing=0.7))
    monkeypatch.setattr(module, "measure_wire", lambda *arguments: 1e6)
    due = []
    for number in range(40):
        assert profiler.rates.wire_bytes_s == pytest.approx(2.4e6)
        if not profiler.knows_wire:
            due.append(number)
            profiler.measure_wire()
        profiler.learn(epoch(wire_bytes=23e6, waiting=0.5, queueing=0.9, agent_cpu_s=9.0))  # bound by the agent
    assert due == [0, 2, 5, 10, 19, 36]
    monkeypatch.setattr(module, "measure_wire", lambda *arguments: 11.9e6)
    while bursts < 20 and profiler.rates.wire_bytes_s < 11e6:
        bursts += 1
        if not profiler.knows_wire:
            profiler.measure_wire()
        profiler.learn(epoch(wire_bytes=23e6, waiting=0.5, queueing=0.9, agent_cpu_s=9.0))
    assert profiler.knows_wire and profiler.rates.wire_bytes_s == pytest.approx(11.9e6)
    profiler.learn(epoch(wire_bytes=24e6, queueing=0.7))
    assert not profiler.knows_wire, "the next time it is measured at once"


@pytest.mark.parametrize("nbytes", [110e6, 120e6, 130e6])
def test_a_wire_that_is_as_it_was_is_not_measured_again(root: Path, nbytes: float) -> None:
    profiler = profiler_of(root)
    profiler.learn(epoch(wire_bytes=120e6))
    profiler.learn(epoch(wire_bytes=nbytes))
    assert profiler.knows_wire


def test_the_agent_s_cores_come_back_to_what_it_offers(root: Path) -> None:
    profiler = profiler_of(root, agent_cores=2.0)
    profiler.learn(epoch(queueing=0.9, agent_cpu_s=10.0))
    assert profiler.rates.agent_cores == pytest.approx(1.0)
    profiler.learn(epoch(agent_cpu_s=4.0), PLANNED)
    assert profiler.rates.agent_cores == pytest.approx(1.5)
    profiler.learn(epoch(agent_cpu_s=4.0), PLANNED)
    assert profiler.rates.agent_cores == pytest.approx(2.0)


def test_the_loader_s_cores_come_back_in_epochs_that_wait_for_long(root: Path) -> None:
    profiler = profiler_of(root)
    most = profiler.rates.loader_cores
    profiler.learn(epoch(waiting=0.0, loader_cpu_s=5.0 * most))
    assert profiler.rates.loader_cores == pytest.approx(most / 2)
    profiler.learn(epoch(waiting=0.8, loader_cpu_s=1.9 * most))
    assert profiler.rates.loader_cores == pytest.approx(0.95 * most)


PLANNED = Terms(gpu_s=0.0, wire_s=1.0, loader_cpu_s=2.0, agent_cpu_s=2.0)
"""What a plan says of an epoch at one core on either side."""


def loads(root: Path, agent_s: list[float]) -> list[float]:
    """The agent's load after epochs that took so many of its CPU seconds, 2 being planned."""
    profiler, seen = profiler_of(root), []
    for used_s in agent_s:
        profiler.rates = Rates(math.inf, math.inf, 1.0, 1.0)
        planned = PLANNED.at(profiler.rates, profiler.planning_rates)
        # What is planned stays 2 CPU seconds: a load is no part of the work.
        assert planned.agent_cpu_s * profiler.planning_rates.agent_cores == pytest.approx(2.0)
        measure = epoch(samples=COUNT, offloaded=COUNT if used_s else 0, agent_cpu_s=used_s, queueing=0.6)
        profiler._learn_load(measure, planned, (0.0, 0.0))
        seen.append(profiler._load.get("agent_cores", 1.0))
    return seen


@pytest.mark.parametrize(
    ("agent_s", "expected"),
    [
        ([2.2, 2.2, 2.0], [1.1, 1.1, 1.1**0.5]),  # an error of the model, learnt and averaged
        ([2.0, 8.0, 2.0], [1.0, 2.0, 1.0]),  # a disturbed epoch, and the next one
        ([8.0, 2.2], [4.0, 1.1]),
        ([80.0, 2.0], [4.0, 1.0]),
        ([8.0, 0.0, 0.0, 0.0, 0.0], [4.0, 2.0, 2**0.5, 2**0.25, 2**0.25]),  # nothing offloaded that could show it
        ([2.4, 0.0, 0.0], [1.2, 1.2, 1.2]),  # what a model may err by is kept
        ([1.6, 0.0], [0.8, 0.8]),
    ],
)
def test_a_load_learnt_from_a_disturbed_epoch_is_forgotten(
    root: Path, agent_s: list[float], expected: list[float]
) -> None:
    assert loads(root, agent_s) == pytest.approx(expected)


# --- what is told to a policy ---------------------------------------------------------------------------------


@needs_crop
def test_the_shares_are_those_of_the_epoch_s_own_crops(root: Path) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    state = torch.get_rng_state()
    first, again, other = profiler._shares(0), profiler._shares(0), profiler._shares(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert ((first > 0) & (first <= 1)).all()


@needs_crop
def test_the_shares_of_many_samples_are_like_those_of_some(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = profiler_of(root)
    fill(profiler)
    monkeypatch.setattr(module, "_EXACT_SHARES", 3)
    shares = profiler._shares(0)
    assert len(shares) == COUNT and len(set(shares)) <= 3


@pytest.mark.parametrize("second", [crop_transform(), v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor(), times_two])])
def test_parts_are_sent_only_where_every_pipeline_begins_with_a_crop(root: Path, second: Any) -> None:
    profiler = profiler_of(root, transforms=(crop_transform(), second))
    plain = second.transforms[-1] is not times_two
    assert profiler.crops_first == (plain and "roi-jpeg" in encoding_names())
    assert profiler.pipelines.max_cut == 4


# --- keeping --------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.npz"


@pytest.fixture
def kept(root: Path, path: Path) -> Profiler:
    """A profiler that has measured everything and saved it."""
    profiler = profiler_of(root, path)
    assert profiler.notes == (f"measuring anew: there is no profile at {path} yet",)
    fill(profiler)
    profiler.learn(epoch())
    assert path.exists()
    return profiler


def test_a_profile_is_taken_up_again(root: Path, path: Path, kept: Profiler) -> None:
    again = profiler_of(root, path)
    assert again.notes == (f"reusing the profile at {path}",)
    assert not again.samples.recording
    assert (again.rates.wire_bytes_s, again.rates.gpu_samples_s) == (pytest.approx(3000), 100)
    assert again.calibration == kept.calibration
    for ours, theirs in zip(_numbers(again), _numbers(kept), strict=True):
        assert np.array_equal(ours, theirs)


def _numbers(profiler: Profiler) -> list[Any]:
    table = profiler.table(3)
    assert table is not None
    return [table.wire_bytes, table.agent_s, table.loader_s]


def test_the_port_of_a_local_agent_does_not_matter(root: Path, path: Path, kept: Profiler) -> None:
    assert profiler_of(root, path, port=2).notes == (f"reusing the profile at {path}",)


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ((crop_transform(17),), "another pipeline"),
        ((v1.Compose([v1.RandomResizedCrop(16), times_two]),), "another pipeline"),
        ((None, None), "another dataset and pipeline"),
    ],
)
def test_a_profile_of_something_else_is_not(
    root: Path, path: Path, kept: Profiler, transforms: Any, words: str
) -> None:
    other = profiler_of(root, path, transforms)
    assert other.notes == (f"measuring anew: the profile at {path} is of {words}",)
    assert other.samples.recording and not other.samples.known.any()


def test_a_file_more_is_another_dataset(root: Path, path: Path, kept: Profiler) -> None:
    small_tree(root, COUNT + 1)
    assert "another dataset" in profiler_of(root, path).notes[0]


def test_an_incomplete_profile_is_completed(root: Path, path: Path) -> None:
    profiler = profiler_of(root, path)
    fill(profiler)
    profiler.samples.nbytes[4:] = 0
    profiler.learn(epoch())
    again = profiler_of(root, path)
    assert again.samples.recording and again.samples.known.sum() == 4
    fill(again)
    again.learn(epoch())
    assert profiler_of(root, path).samples.coverage == 1.0


def _wrong(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Any:
    return change


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
    "a rate is not a number": _wrong(lambda arrays, figures: figures.update(gpu_samples_s=math.nan)),
    "a rate is a text": _wrong(lambda arrays, figures: figures.update(gpu_samples_s="fast")),
    "a calibration of nothing": _wrong(lambda arrays, figures: figures.update(calibration={})),
    "a calibration of a list": _wrong(lambda arrays, figures: figures.update(calibration=[1])),
    "compressions in a list": _wrong(lambda arrays, figures: figures["calibration"].update(compressions=[1])),
    "a ratio for another number of ops": _wrong(lambda arrays, figures: figures["calibration"].update(op_ratio=[1.0])),
    "a ratio is not a number": _wrong(lambda a, figures: figures["calibration"].update(op_ratio=[1.0, 1, 1, math.nan])),
    "a ratio is negative": _wrong(lambda arrays, figures: figures["calibration"].update(op_ratio=[1.0, 1, 1, -1])),
    "seconds below zero": _wrong(lambda arrays, figures: figures["calibration"].update(read_s=-1.0)),
    "an endless overhead": _wrong(lambda arrays, figures: figures["calibration"].update(overhead_s=math.inf)),
    "half a part": _wrong(lambda arrays, figures: figures["calibration"].update(roi=[0.5])),
    "a part that costs a text": _wrong(lambda arrays, figures: figures["calibration"].update(roi=[0.5, 600, "x"])),
    "a part of a strange size": _wrong(lambda arrays, figures: figures["calibration"].update(roi=[math.nan, 600, 0.0])),
    "a compression of a strange size": _wrong(
        lambda arrays, figures: figures["calibration"].update(
            compressions={"webp": {"cut": 2, "coefficients": [math.nan] * 4, "scale": 1.0, "encode_s": 0.1}}
        )
    ),
    "a compression of too few numbers": _wrong(
        lambda arrays, figures: figures["calibration"].update(
            compressions={"webp": {"cut": 2, "coefficients": [1.0], "scale": 1.0, "encode_s": 0.1}}
        )
    ),
    "a compression at no stage": _wrong(
        lambda arrays, figures: figures["calibration"].update(
            compressions={"webp": {"cut": -3, "coefficients": [1.0] * 4, "scale": 1.0, "encode_s": 0.1}}
        )
    ),
    "a compression that nobody has": _wrong(
        lambda arrays, figures: figures["calibration"].update(
            compressions={"bmp": {"cut": 2, "coefficients": [1.0] * 4, "scale": 1.0, "encode_s": 0.1}}
        )
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_profile_that_makes_no_sense_is_measured_anew(root: Path, path: Path, kept: Profiler, case: str) -> None:
    found = load(path, kept._key)
    assert isinstance(found, StoredProfile)
    WRONG[case](found.arrays, found.figures)
    save(path, kept._key, found)
    again = profiler_of(root, path)
    assert len(again.notes) == 1 and again.notes[0].startswith(f"measuring anew: the profile at {path} ")
    assert again.samples.recording and not again.samples.known.any()
    assert math.isinf(again.rates.wire_bytes_s) and math.isinf(again.rates.gpu_samples_s)
    assert again.table(1) is None
    fill(again)
    again.learn(epoch())
    assert profiler_of(root, path).notes == (f"reusing the profile at {path}",), "the next one is sound again"


def test_a_profile_that_cannot_be_written_costs_nothing_but_itself(root: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    path = blocked / "p.npz"
    profiler = profiler_of(root, path)
    fill(profiler)
    profiler.learn(epoch())
    assert profiler.table(1) is not None
    assert any(f"cannot save the profile at {path}" in note for note in profiler.notes)


def test_without_an_agent_nothing_is_kept(root: Path, tmp_path: Path) -> None:
    with_one = profiler_of(root)
    profiler = Profiler(with_one._data, with_one.pipelines.chains, None, 1, tmp_path / "p")
    profiler.learn(epoch())
    profiler.measure_wire()
    profiler.start_probing()
    assert not profiler.samples.recording and not (tmp_path / "p").exists()
    assert profiler.model().choices == (FILE,)
    assert ROI not in profiler.model().choices and Choice(1, "pixels") not in profiler.model().choices
